"""Energies among groups of particles on the GPU."""

from dataclasses import replace
from typing import Any

import cupy
import numpy as np

from fmm_openmm.backends.cuda.execute.cupy.executor import Run, current_device
from fmm_openmm.backends.cuda.execute.cupy.faults import explained
from fmm_openmm.backends.cuda.pipeline.groups import build_groups, far_shape
from fmm_openmm.backends.cuda.pipeline.sets import MOST_SETS
from fmm_openmm.backends.cuda.program import SETUP, Device
from fmm_openmm.specification import Specification

BATCH = 48.0
"""Cost of :data:`fmm_openmm.backends.cuda.pipeline.sets.MOST_SETS` sets of charges for each box,
relative to that of a fragment and another box."""


def choose_small(sizes: np.ndarray, specification: Specification) -> np.ndarray:
    """Whether the energies of each group are computed fragment by fragment, shape (G,), instead of
    from the potentials of its charges: of the groups with at most k particles, for the k that
    costs least. The particles of a group are assumed to be close together.

    Args:
        sizes: number of particles of each group, shape (G,).
    """
    boxes = int(specification.lattice.span.prod())
    volumes = sizes * (boxes / len(specification.charges))
    fragments = np.minimum(sizes, (np.cbrt(volumes) + 1.0) ** 3)
    fragments *= (1.0 + 2.0 * specification.smoothing) ** 3

    def cost(most: int) -> float:
        small = fragments[sizes <= most].sum()
        batches = -(-int((sizes > most).sum()) // MOST_SETS)
        own = 0.5 * small * min(small, boxes) + 0.5 * BATCH * boxes * (small > 0)
        return own + BATCH * boxes * batches

    return sizes <= min((0, *np.unique(sizes).tolist()), key=cost)


class GroupsRun:
    """A program for the energies among groups on the current device. Large groups take sets of
    charges, all others the program of :mod:`fmm_openmm.backends.cuda.pipeline.groups`.

    Args:
        specification: what the evaluator was made for, without levels.
        group: the group of each particle, shape (n,), integers from 0 without gaps.
    """

    def __init__(self, specification: Specification, group: np.ndarray):
        self.group, sizes, device = group, np.bincount(group), current_device()
        small = choose_small(sizes, specification)
        if not far_shape(specification.order, np.dtype(specification.dtype), device.shared)[1]:
            small[:] = False
        self._groups, self._large = len(sizes), int((~small).sum())
        rank = np.argsort(np.argsort(small, kind="stable"))  # large groups first
        members = np.argsort(rank[group], kind="stable")
        begin = np.searchsorted(rank[group][members], np.arange(len(sizes) + 1))
        few = members[begin[self._large] :]
        self._rank, self._few = cupy.asarray(rank), cupy.asarray(few)
        self._members, self._begin, self._number = (
            cupy.asarray(each.astype(np.int32)) for each in (members, begin, rank[group])
        )
        self._run = _program(specification, few, device, int(small.sum())) if len(few) else None
        if self._run:
            self._run.buffers["group"][...] = self._number[self._few] - self._large
        self._parameters: np.ndarray | None = None
        self._lattice: Any = None

    def energies(self, particles: Any, charges, limit: float):
        """Energies among the groups, shape (G, G), kJ/mol.

        Args:
            particles: a :class:`fmm_openmm.backends.cuda.charge_sets.CudaChargeSets`.
            charges: shape (n,), e.
            limit: potential, e per box width, beyond which entries are NaN.
        """
        large = self._large
        matrix = cupy.empty((self._groups, self._groups))
        if large:
            matrix[:large] = rows = particles.energies_of_groups(
                charges, self._number, self._begin, self._members, large, limit
            )
            matrix[large:, :large] = rows[:, large:].T
        if self._run:
            matrix[large:, large:] = self._among_small(particles, charges[self._few], limit)
        matrix = matrix[self._rank][:, self._rank]
        return 0.5 * (matrix + matrix.T)

    def _among_small(self, particles: Any, charges, limit: float):
        """A matrix A whose symmetric part ``(A + A.T) / 2`` holds the energies among the small
        groups."""
        run: Any = self._run
        buffers = run.buffers
        if self._parameters is not particles.parameters:
            buffers["parameters"].set(particles.parameters)
            self._parameters = particles.parameters
        if self._lattice is not particles.lattice:
            run.queue(SETUP)
            self._lattice = particles.lattice
        # a power of two, so that dividing by it is exact
        unit = cupy.ldexp(cupy.ones(()), cupy.frexp(cupy.abs(charges).max())[1])
        buffers["charges"][...] = charges / unit
        buffers["limit"][...] = limit / unit
        buffers["positions"][...] = particles.positions[self._few]
        run.replay()
        return buffers["energies"] * unit**2


def _program(
    specification: Specification, particles: np.ndarray, device: Device, groups: int
) -> Run:
    """The program for the energies among a number of groups of some particles."""
    place = np.full(len(specification.charges), -1)
    place[particles] = np.arange(len(particles))
    pairs = place[np.asarray(specification.exclusions, int).reshape(-1, 2)]
    pairs, charges = np.sort(pairs[(pairs >= 0).all(1)], 1), np.zeros(len(particles))
    wanted = replace(specification, charges=charges, exclusions=pairs)
    program = build_groups(wanted, device, groups)
    with explained(program):
        return Run(program)
