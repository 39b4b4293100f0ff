"""The fast CPU backend: Numba kernels on all cores and SciPy's FFT, float32 or float64, one file a stage."""

import numpy as np

from fmm_openmm.backends.cpu.exclusions import exclusions, near_table, partners
from fmm_openmm.backends.cpu.l2p import l2p
from fmm_openmm.backends.cpu.lattice import lattice_m2l
from fmm_openmm.backends.cpu.p2m import p2m
from fmm_openmm.backends.cpu.p2p import p2p
from fmm_openmm.backends.cpu.sort import gather, sort
from fmm_openmm.box import BoxLattice
from fmm_openmm.expansions.lattice import lattice_operator
from fmm_openmm.stages import Stages


class CpuStages(Stages):
    """See :class:`fmm_openmm.stages.Stages`; arguments as for ``ReferenceStages``.

    Moments and local expansions have shape (terms, boxes) in FFT order.
    """

    def __init__(self, lattice: BoxLattice, order: int, smoothing: float, charges, pairs, minimum_image: bool, dtype):
        self.lattice, self.order, self.smoothing, self.dtype = lattice, order, smoothing, np.dtype(dtype)
        self.charges, self.minimum_image = charges, minimum_image
        self.partner_start, self.partner = partners(pairs, len(charges))
        self.table, self.reach = near_table(lattice)
        accuracy = 1e-10 if self.dtype == np.float32 else 1e-17
        self.operator = lattice_operator(lattice, order, accuracy).reshape((2 * order + 1) ** 2, -1).astype(dtype)

    def set_charges(self, charges):
        self.charges = charges

    def sort(self, positions, width):
        self.positions = positions / width
        return sort(positions, self.charges, self.lattice, width, self.smoothing, self.dtype)

    def p2m(self, parts):
        return p2m(parts, self.lattice.slots, self.order)

    def lattice_m2l(self, moments):
        return lattice_m2l(moments.boxes, self.operator, self.lattice, self.order)

    def l2p(self, parts, moments, local):
        return l2p(parts, moments, local, self.lattice, self.order)

    def exclusions(self, parts, out):
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
        )

    def p2p(self, parts, near, out):
        p2p(parts, near, self.lattice, out)

    def gather(self, parts, out):
        return gather(parts, out)
