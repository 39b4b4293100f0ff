"""The readable reference implementation of every stage: NumPy, float64, one file per stage."""

from functools import cached_property

import numpy as np

from fmm_openmm.backends.reference.exclusions import exclusions
from fmm_openmm.backends.reference.l2l import l2l
from fmm_openmm.backends.reference.l2p import l2p
from fmm_openmm.backends.reference.lattice import lattice_m2l
from fmm_openmm.backends.reference.m2l import m2l
from fmm_openmm.backends.reference.m2m import m2m
from fmm_openmm.backends.reference.p2m import p2m
from fmm_openmm.backends.reference.p2p import p2p
from fmm_openmm.backends.reference.sort import gather, sort
from fmm_openmm.expansions.background import leaf_terms
from fmm_openmm.expansions.operators import lattice_operator
from fmm_openmm.expansions.operators.derivatives import operator_derivatives
from fmm_openmm.implementations import M2L, implementation
from fmm_openmm.octree import Octree
from fmm_openmm.specification import Specification
from fmm_openmm.stages import HostStages


class ReferenceStages(HostStages):
    """The stages in NumPy, see :class:`fmm_openmm.stages.Stages`."""

    def __init__(self, specification: Specification):
        super().__init__(specification)
        spec = specification
        self.order, self.smoothing = spec.order, spec.smoothing
        self.minimum_image = spec.minimum_image
        self.pairs = np.concatenate([spec.exclusions, spec.exclusions[:, ::-1]])
        self.octree = Octree(spec.lattice, spec.levels)
        if spec.levels:
            self.translations = implementation(M2L, spec.m2l, "reference")()
        self.operator = lattice_operator(self.octree.root, spec.order)

    def sort(self, positions, width):
        self.positions = positions / width
        return sort(positions, self.charges, self.lattice, width, self.smoothing)

    def p2m(self, parts):
        return p2m(parts, self.order)

    def m2m(self, targets, moments):
        if not self.octree.levels:
            return [moments]
        return m2m(moments, self.octree, self.order, self.translations)

    def lattice_m2l(self, moments):
        return lattice_m2l(moments, self.operator, self.octree.root, self.order)

    def l2l(self, local, level):
        return l2l(local, self.octree.lattices[level], self.order, self.translations)

    def m2l(self, moments, local, level):
        local = m2l(
            moments.boxes, local, self.octree, self.octree.lattices[level], self.translations
        )
        if level == self.octree.levels:
            local[:, :4] += leaf_terms(self.octree, moments.boxes, moments.charge, moments.dipole)
        return local

    def l2p(self, parts, moments, local):
        return l2p(parts, moments, local, self.lattice, self.order)

    def exclusions(self, parts, out, moment=None):
        return exclusions(
            parts, self.pairs, self._shifts(), len(self.charges), self.lattice, out, moment
        )

    def p2p(self, parts, near, out, moment=None, sources=None):
        p2p(parts, sources or parts, near, self.lattice, out, moment)

    def gather(self, parts, out):
        return gather(parts, out, 1 + parts.particle.max())

    def sort_points(self, points, width):
        return sort(points, np.zeros(len(points)), self.lattice, width, self.smoothing)

    def lattice_work(self, moments):
        return np.array(
            [
                0.5 * np.vdot(moments.boxes, lattice_m2l(moments, each, self.lattice, self.order))
                for each in self._derivatives
            ]
        )

    @cached_property
    def _derivatives(self):
        return operator_derivatives(self.lattice, self.order)

    def _shifts(self):
        shifts = np.zeros((len(self.pairs), 3), np.int64)
        if self.minimum_image:  # OpenMM's rule: c first, then b, then a
            cell = self.lattice.counts @ self.lattice.boxes
            i, j = self.pairs.T
            delta = self.positions[i] - self.positions[j]
            for axis in (2, 1, 0):
                shifts[:, axis] = np.rint(delta[:, axis] / cell[axis, axis])
                delta -= shifts[:, axis, None] * cell[axis]
        return shifts
