"""``Builder``: a program under construction, which each stage extends."""

import numpy as np

from fmm_openmm.backends.cuda.program import Device, ProgramBuilder, Share
from fmm_openmm.box import BoxLattice

TRACE_SIDE = 2
"""The stream of the trace term, which needs only the moments."""


class Builder(ProgramBuilder):
    """A program under construction, and the facts of the problem that stages need.

    Attributes:
        n, boxes, terms, parts: numbers of particles, of boxes that can hold some, of terms of an
            expansion, of parts at most.
        levels, root: levels below the root grid, and the lattice of its boxes: ``lattice`` is that
            of the leaves.
        corners: maximum number of parts of a particle.
        crowd: number of parts in a box that holds any, on average.
        sets: sets of charges that are evaluated together.
        real, complex: types of the far and near field.
        virial: whether the stages also compute what the virial needs.
        share: the boxes whose parts get results, or None: all.
        targets: maximum number of these boxes.
        waves: range of the last indices of the wave vectors of the convolution: all, unless ranks
            share them.
    """

    def __init__(
        self, lattice: BoxLattice, order: int, smoothing: float, n: int, dtype, device: Device,
        levels: int = 0, sets: int = 1, virial: bool = False, share: Share | None = None
    ):  # fmt: skip
        super().__init__()
        self.lattice, self.order, self.smoothing, self.device = lattice, order, smoothing, device
        self.sets, self.virial = sets, virial
        self.levels, self.root = levels, lattice.coarsened(levels) if levels else lattice
        self.n, self.boxes, self.terms = n, int(lattice.span.prod()), (order + 1) ** 2
        self.share, self.targets = share, share.most if share else self.boxes
        self.waves = slice(0, self.root.fft_shape[2] // 2 + 1)
        self.corners = 8 if smoothing > 0 else 1
        self.parts = n * self.corners
        self.crowd = n * (1 + 2 * smoothing) ** 3 / (self.boxes * lattice.filled)
        self.real = np.dtype(dtype)
        self.complex = np.result_type(self.real, np.complex64)
