"""Time of an evaluation and of its stages relative to the limits of the device, with the measured
force error.

On a GPU an evaluation is a replay of the CUDA graph, with positions and results on the device.
Stages are timed one by one; their sum exceeds the time of the evaluation, in which near and far
field overlap and launches are hidden. On a CPU all times are wall times.
"""

import time
from dataclasses import dataclass
from functools import cache, cached_property
from types import ModuleType
from typing import Any

import numpy as np

from fmm_openmm.arrays import to_host
from fmm_openmm.backends.cpu.sort import sort
from fmm_openmm.bench import timing
from fmm_openmm.bench.systems import Size, in_cell, tiled_charges, water
from fmm_openmm.box import BoxLattice, box_width
from fmm_openmm.convert import ChargeSystem

INSTRUCTIONS = {"single": 14, "double": 18}
"""Instructions that p2p issues to the floating-point units for a pair: a reciprocal square root,
and others that take as long as a multiply-add."""


RESIDUE_EDGE = 0.53
"""Edge of a cube with five molecules of water, nm."""


class Evaluation:
    """A solver on its positions, ready to be timed.

    Attributes:
        solver: for the charges in their cell, or in free space if there is none.
        forces: result of the first evaluation, shape (n, 3), kJ/mol/nm.
    """

    def __init__(self, charges: ChargeSystem, **options):
        if charges.positions is None:
            raise ValueError(f"positions are needed, got {charges!r}")
        # without positions the solver assumes a filled cell
        self.solver = charges.solver(**{"positions": None} | options)
        self._device: ModuleType | None = None
        self._positions: Any = charges.positions
        if self.solver.backend == "cuda":
            from fmm_openmm.bench import device

            self._device, self._positions = device, device.upload(charges.positions)
        self.forces = to_host(self.solver.compute(self._positions).forces)

    @cached_property
    def evaluator(self) -> Any:
        """Evaluator of the first evaluation."""
        return self.solver.evaluation.used[0]

    def seconds(self) -> float:
        """Median time of an evaluation.

        On a GPU in a periodic cell the time of the graph alone; in free space that of a call, which
        reads the energy.
        """
        return self.call_seconds() if self.solver.box_vectors is None else self.graph_seconds()

    def call_seconds(self) -> float:
        """Median time of a call."""
        clock = self._device or timing
        return clock.median_seconds(lambda: self.solver.compute(self._positions))

    def groups_seconds(self, group: np.ndarray) -> float:
        """Median time of a call that computes the energies among groups, shape (n,)."""
        clock = self._device or timing
        return clock.median_seconds(
            lambda: self.solver.interaction_energies(self._positions, group)
        )

    def graph_seconds(self) -> float:
        """Median time of the graph alone on a GPU, else of a call."""
        if not self._device:
            return self.call_seconds()
        return self._device.median_seconds(self.evaluator.run.replay)

    def stage_seconds(self) -> dict[str, float]:
        """Median time of each stage of the FMM alone. Stages that only levels need are included if
        there are levels, summed over these."""
        if device := self._device:
            queued = {name: [name] for name in timing.STAGES}
            if levels := range(1, self.solver.parameters_for(None).levels + 1):
                of_levels = {
                    name: [f"{name}{level}" for level in levels] for name in ("m2l", "l2l")
                }
                queued |= {"m2m": ["m2m"], **of_levels}
            return {
                name: device.median_seconds(lambda parts=parts: self.evaluator.run.queue(*parts))
                for name, parts in queued.items()
            }
        width = self.solver.evaluation.planner.latest.width
        return timing.stage_seconds(self.evaluator, self._positions, width)

    def new_shape_seconds(self, cell: np.ndarray) -> float:
        """Time of an evaluation in a cell of a new shape. It is the third shape, since the second
        one creates a second set of stages.

        Args:
            cell: the present one, shape (3, 3), nm.
        """
        for shrink in (1e-6, 2e-6):
            begin = time.perf_counter()
            self.solver.compute(self._positions, cell * [[1.0], [1.0], [1.0 - shrink]])
            if self._device:
                self._device.wait()
        return time.perf_counter() - begin


@dataclass(frozen=True)
class Limits:
    """Limits of a device in one precision.

    Attributes:
        multiply_adds: multiply-adds per second.
        bandwidth: bytes per second read and written by a copy.
    """

    multiply_adds: float
    bandwidth: float


@cache
def gpu_limits(precision: str) -> Limits:
    """Measured limits of the GPU."""
    from fmm_openmm.bench import device

    return Limits(device.fma_rate(precision), device.bandwidth())


def limits(backend: str, precision: str) -> Limits | None:
    """Measured limits of the device; None for the CPU backends."""
    return gpu_limits(precision) if backend == "cuda" else None


def measure(
    size: Size,
    tolerance: float,
    smoothing: float | None = None,
    shape: str = "cube",
    backend: str = "auto",
    groups: int | None = None,
    **fixed,
) -> dict:
    """One row: chosen parameters, measured error, times in seconds, and work relative to the limits
    of the device; on request also the time of the energies among so many :func:`groups_of`.

    ``fixed`` holds explicit parameters: order, grid, near_radius. ``p2p_share`` is the instruction
    rate of p2p over the rate of multiply-adds alone. ``far_share`` is the bandwidth that p2m,
    lattice and l2p would need at least, over that of a copy. Both are None without limits.
    """
    base = water(size.edge, shape)
    charges = tiled_charges(base.charges, size.copies)
    positions, cell = in_cell(charges)
    evaluation = Evaluation(
        charges, tolerance=tolerance, smoothing=smoothing, backend=backend, **fixed
    )
    chosen, name = evaluation.solver.parameters_for(None), evaluation.solver.backend
    lattice = BoxLattice.from_cell(cell, chosen.counts, chosen.near_radius)
    width = box_width(cell, chosen.counts)
    start = sort(positions, charges.charges, lattice, width, chosen.smoothing, np.float32).start
    pairs = near_pairs(lattice, np.diff(start))
    far_bytes = compulsory_bytes(
        lattice, chosen.order, int(start[-1]), 4 if chosen.precision == "single" else 8
    )
    seconds, stages = evaluation.seconds(), evaluation.stage_seconds()
    best, far_seconds = (
        limits(name, chosen.precision),
        stages["p2m"] + stages["lattice"] + stages["l2p"],
    )
    among_groups = {}
    if groups:
        group = groups_of(positions, groups)
        seconds_among = evaluation.groups_seconds(group)
        among_groups = {"groups": 1 + int(group.max()), "groups_seconds": seconds_among}
    return {
        "atoms": len(charges),
        "cell": shape,
        "backend": name,
        "tolerance": tolerance,
        "smoothing": chosen.smoothing,
        "precision": chosen.precision,
        "order": chosen.order,
        "near_radius": chosen.near_radius,
        "grid": chosen.grid,
        "force_error": relative_error(evaluation.forces, base.exact),
        "seconds": seconds,
        "stages": stages,
        "new_shape_seconds": evaluation.new_shape_seconds(cell),
        "pairs": pairs,
        "pairs_per_second": pairs / stages["p2p"],
        "p2p_share": best
        and INSTRUCTIONS[chosen.precision] * pairs / stages["p2p"] / best.multiply_adds,
        "far_bytes": far_bytes,
        "far_share": best and far_bytes / far_seconds / best.bandwidth,
        **among_groups,
    }


def groups_of(positions: np.ndarray, count: int) -> np.ndarray:
    """The group of each atom of water, shape (n,): in the middle there are groups of five molecules
    next to each other, like residues, and one group is the rest.

    Args:
        positions: shape (n, 3), nm.
        count: number of groups; fewer if there is not enough water.
    """
    sites = positions[::3]
    residues = max(0, min(count - 1, (len(sites) - 1) // 5))
    nearest = np.argsort(np.linalg.norm(sites - sites.mean(0), axis=1))[: 5 * residues]
    blocks = np.floor(sites[nearest] / RESIDUE_EDGE)
    group = np.full(len(sites), residues)
    group[nearest[np.lexsort(blocks.T)]] = np.arange(5 * residues) // 5
    return np.repeat(group, 3)


def relative_error(forces: np.ndarray, exact: np.ndarray) -> float:
    """``|F - F_exact| / |F_exact|`` of forces, shape (n, 3); if the system consists of copies,
    ``exact`` may hold the forces of one copy."""
    forces = forces.reshape(-1, *exact.shape)
    return float(np.linalg.norm(forces - exact) / np.linalg.norm(exact) / np.sqrt(len(forces)))


def near_pairs(lattice: BoxLattice, count: np.ndarray) -> int:
    """Number of pairs (target, source) of parts in near boxes, a part with itself included.

    Args:
        count: parts of every box in memory order.
    """
    field, stencil = np.zeros((2, lattice.size))
    field[lattice.slots] = count
    np.add.at(stencil, lattice.slot(lattice.near), 1.0)
    shape = lattice.fft_shape
    spectra = [np.fft.rfftn(values.reshape(shape)) for values in (field, stencil)]
    return round(float(field @ np.fft.irfftn(spectra[0] * spectra[1], shape, (0, 1, 2)).ravel()))


def compulsory_bytes(lattice: BoxLattice, order: int, parts: int, real: int) -> int:
    """Bytes that p2m, lattice and l2p move if each kernel reads its input and writes its output
    once.

    Args:
        parts: number of parts, with four reals each as sources and four as results.
        real: bytes of a real number.
    """
    terms, (d0, d1, d2) = (order + 1) ** 2, lattice.fft_shape
    waves = d0 * d1 * (d2 // 2 + 1)
    fields = 4 * terms * lattice.size  # moments and local expansions, written and read
    spectra = 4 * terms * 2 * waves
    return real * (fields + spectra + (2 * order + 1) ** 2 * waves + 12 * parts)
