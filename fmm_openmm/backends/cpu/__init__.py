"""The CPU backend: Numba kernels on all cores and SciPy's FFT, float32 or float64, one file per
stage."""

from dataclasses import replace
from functools import cached_property

import numpy as np
import scipy

from fmm_openmm.backends.cpu.compilation import prepare
from fmm_openmm.backends.cpu.exclusions import exclusions
from fmm_openmm.backends.cpu.groups import Fragments, energies_among
from fmm_openmm.backends.cpu.l2l import l2l
from fmm_openmm.backends.cpu.l2p import l2p
from fmm_openmm.backends.cpu.lattice import lattice_m2l, transform
from fmm_openmm.backends.cpu.lattice_matrices import LatticeMatrices
from fmm_openmm.backends.cpu.lattice_work import lattice_work
from fmm_openmm.backends.cpu.m2l import Interactions, m2l
from fmm_openmm.backends.cpu.m2m import filled_boxes, m2m, parent_matrices
from fmm_openmm.backends.cpu.operator import harmonic_sums
from fmm_openmm.backends.cpu.p2m import p2m
from fmm_openmm.backends.cpu.p2p import p2p
from fmm_openmm.backends.cpu.sets import l2p_sets, p2m_sets, p2p_sets
from fmm_openmm.backends.cpu.sort import CpuParts, gather, sort
from fmm_openmm.backends.cpu.threads import kernels_in
from fmm_openmm.backends.pairs import near_table, partners
from fmm_openmm.driver import expand
from fmm_openmm.expansions.background import leaf_terms, polynomial
from fmm_openmm.expansions.operators import check_range, lattice_operator
from fmm_openmm.expansions.operators.derivatives import operator_derivatives
from fmm_openmm.expansions.operators.periodic import transformed_back
from fmm_openmm.implementations import M2L, implementation
from fmm_openmm.octree import Octree
from fmm_openmm.specification import Specification
from fmm_openmm.stages import (
    Accumulator,
    HostStages,
    Moments,
    RepeatedEvaluation,
    no_exclusions,
)


class CpuStages(HostStages):
    """The stages in Numba, see :class:`fmm_openmm.stages.Stages`.

    Moments and local expansions have shape (terms, boxes) in FFT order at the leaves and at the
    root grid, and (boxes, terms) in memory order on the levels between. Levels use float64, because
    the near part that the lattice sum of a coarse root grid omits, and that m2l adds, is large.
    """

    def __init__(self, specification: Specification):
        super().__init__(specification)
        spec = specification
        self.order, self.smoothing = spec.order, spec.smoothing
        self.minimum_image = spec.minimum_image
        self.dtype = np.dtype(spec.dtype)
        self.partner_start, self.partner = partners(spec.exclusions, len(spec.charges))
        self.table, self.reach = near_table(spec.lattice.near)
        self.octree = Octree(spec.lattice, spec.levels)
        self._small = LatticeMatrices.suit(self.octree.root, spec.order)
        lattice = "lattice_matrices" if self._small else "lattice"
        needed = kernels_in("operator", "sort", "p2m", lattice, "l2p", "exclusions", "p2p")
        if spec.levels:
            self.translation = implementation(M2L, spec.m2l, "cpu")
            needed += (self.translation.kernel,)
        prepare(needed, self.dtype)
        if spec.levels:
            self.interactions = Interactions.from_octree(self.octree, spec.order, self.translation)
            self.parent_matrices = parent_matrices(spec.lattice.boxes, spec.order)
        single = self.dtype == np.float32 and not spec.levels
        far = np.dtype(np.float32 if single else np.float64)
        check_range(spec.lattice, spec.order, far)
        operator = lattice_operator(
            self.octree.root, spec.order, 1e-10 if single else 1e-17, harmonic_sums
        )
        self.operator = operator.reshape(len(operator), -1).astype(far)
        self.has_far_field = bool(spec.levels or spec.lattice.background or self.operator.any())

    def sort(self, positions, width):
        self.positions = positions / width
        return sort(positions, self.charges, self.lattice, width, self.smoothing, self.dtype)

    def p2m(self, parts):
        return p2m(parts, self.lattice.slots, self.order)

    def m2m(self, targets, moments):
        if not self.octree.levels:
            return [moments]
        self.wanted = filled_boxes(np.diff(targets.start) > 0, self.octree)
        leaves = np.ascontiguousarray(moments.boxes[:, self.lattice.slots].T, np.float64)
        root, *finer = m2m(leaves, self.octree, self.parent_matrices)
        return [
            replace(moments, boxes=boxes)
            for boxes in (self._in_fft_order(root, self.octree.root), *finer)
        ]

    def lattice_m2l(self, moments):
        if self._small:
            return self._matrices.lattice_m2l(moments.boxes)
        return lattice_m2l(moments.boxes, self.operator, self.octree.root, self.order)

    @cached_property
    def _matrices(self) -> LatticeMatrices:
        return LatticeMatrices(self.operator, self.octree.root, self.order)

    def l2l(self, local, level):
        if level == 1:
            local = np.ascontiguousarray(local[:, self.octree.root.slots].T)
        return l2l(local, self.octree.lattices[level], self.parent_matrices)

    def m2l(self, moments, local, level):
        m2l(
            moments.boxes,
            local,
            self.wanted[level],
            self.octree,
            self.interactions,
            level,
            self.translation,
        )
        if level < self.octree.levels:
            return local
        local[:, :4] += leaf_terms(self.octree, moments.boxes, moments.charge, moments.dipole)
        return self._in_fft_order(local, self.lattice).astype(self.dtype)

    @staticmethod
    def _in_fft_order(boxes, lattice):
        """Transpose expansions (boxes, terms) in memory order to (terms, boxes) in FFT order."""
        out = np.empty(boxes.shape[::-1], boxes.dtype)
        out[:, lattice.slots] = boxes.T
        return out

    def l2p(self, parts, moments, local):
        return l2p(parts, moments, local, self.lattice, self.order)

    def exclusions(self, parts, out, moment=None, own=slice(None)):
        return exclusions(
            parts,
            self.partner_start,
            self.partner,
            self.positions,
            self.minimum_image,
            self.lattice,
            self.table,
            self.reach,
            out,
            moment,
            own,
        )

    def p2p(self, parts, near, out, moment=None, sources=None):
        p2p(parts, sources or parts, near, self.lattice, out, moment)

    def gather(self, parts, out):
        return gather(parts, out)

    def sort_points(self, points, width):
        charges = np.zeros(len(points))
        return sort(points, charges, self.lattice, width, self.smoothing, self.dtype)

    def lattice_work(self, moments):
        prepare(kernels_in("lattice_work"), self.dtype)
        spectrum = transform(moments.boxes, self.lattice)
        return lattice_work(spectrum, self._derivatives, self.lattice, self.order)

    @cached_property
    def _derivatives(self):
        accuracy = 1e-10 if self.dtype == np.float32 else 1e-17
        derivatives = operator_derivatives(self.lattice, self.order, accuracy, harmonic_sums)
        return derivatives.reshape(*derivatives.shape[:2], -1).astype(self.dtype)

    @cached_property
    def operator_in_space(self) -> np.ndarray:
        """The lattice operator in real space at each place of the Fourier transform, shape (places,
        terms); without levels."""
        operator = self.operator.reshape(len(self.operator), *self.lattice.fft_shape[:2], -1)
        in_space = transformed_back(operator, self.lattice.fft_shape)
        return np.ascontiguousarray(in_space.reshape(len(operator), -1).T)

    def charge_sets(self, positions, width):
        prepare(kernels_in("sets", "lattice"), self.dtype)
        return CpuChargeSets(self, positions, width)


class CpuChargeSets(RepeatedEvaluation):
    """Charge sets in one pass over parts that are sorted once, but for the virial."""

    def __init__(self, stages: CpuStages, positions: np.ndarray, width: float):
        super().__init__(stages, positions, width)
        self._stages, self._parts = stages, stages.sort(positions, width)

    def evaluate(self, charges, fields):
        stages, parts = self._stages, self._parts
        q = self._of_parts(charges)
        out = self._far(q, parts, fields)
        near, unwanted = None, np.zeros((0 if fields else len(parts.x), 3))
        for k, charge in enumerate(q):
            single = Accumulator(out.potentials[k], out.fields[k] if fields else unwanted)
            near = stages.exclusions(replace(parts, charge=charge), single)
            if (near.offset >= 0).all():
                break  # nothing to subtract, from any set
        p2p_sets(parts, parts, q, near, stages.lattice, out)
        return _gather(parts, out)

    def evaluate_at(self, charges, points):
        stages, q = self._stages, self._of_parts(charges)
        targets = stages.sort_points(points, self._width)
        out = self._far(q, targets, True)
        p2p_sets(targets, self._parts, q, no_exclusions(targets), stages.lattice, out)
        return _gather(targets, out)

    def among_groups(self, charges, group, limit):
        prepare(kernels_in("groups"), self._stages.dtype)
        charge = self._of_parts(charges[None])[0]
        fragments = Fragments.from_parts(self._parts, charge, group)
        return energies_among(fragments, self._stages, limit)

    def _of_parts(self, charges: np.ndarray) -> np.ndarray:
        """Charges of the parts, shape (sets, m)."""
        parts = self._parts
        return np.ascontiguousarray(charges[:, parts.particle] * parts.weight, self._stages.dtype)

    def _far(self, q: np.ndarray, targets: CpuParts, fields: bool) -> Accumulator:
        """Far potentials and fields at targets of sets of charges of the parts."""
        stages, parts = self._stages, self._parts
        boxes = p2m_sets(parts, q, stages.lattice.slots, stages.order)
        x = parts.x.astype(np.float64)
        moments = [
            Moments(each, charge.sum(), charge @ x, charge @ (x * x))
            for each, charge in zip(boxes, q.astype(np.float64), strict=True)
        ]
        if stages.octree.levels:
            local = np.stack([expand(stages, targets, each) for each in moments])
        else:
            local = lattice_m2l(boxes, stages.operator, stages.lattice, stages.order)
        traces = np.stack(
            [polynomial(stages.lattice, each.charge, each.dipole, each.square) for each in moments]
        )
        return l2p_sets(targets, local, traces, stages.lattice, stages.order, fields)


def _gather(parts: CpuParts, out: Accumulator) -> tuple[np.ndarray, np.ndarray | None]:
    """See :meth:`fmm_openmm.stages.Stages.gather`."""
    n, m = len(parts.first) - 1, len(parts.x)

    def total(values, factor):
        rows = scipy.sparse.csr_array((factor[parts.place], parts.place, parts.first), (n, m))
        return (rows @ values.T).T

    potentials = total(out.potentials, parts.weight)
    if not len(out.fields):
        return potentials, None
    fields = [
        total(out.fields[:, :, axis], parts.weight) - total(out.potentials, parts.slope[:, axis])
        for axis in range(3)
    ]
    return potentials, np.stack(fields, 2)
