"""Direct sum over all pairs of charges in free space: quadratic in their number, exact to
rounding."""

import numpy as np

from fmm_openmm.backends.cpu.compilation import prepare
from fmm_openmm.backends.cpu.threads import inline, kernel, kernels_in
from fmm_openmm.backends.pairs import partners
from fmm_openmm.openmp import portion
from fmm_openmm.stages import OpenSum

TILE = 1024
"""Sources summed in the working precision before the sum is added in float64."""


DUMMY_X = 1e12
"""First coordinate, nm, of sources without charge, so that only coinciding charges are at zero
distance."""


class DirectSum(OpenSum):
    """The direct sum in Numba, see :class:`fmm_openmm.stages.OpenSum`."""

    def __init__(self, charges, pairs, dtype):
        self.dtype = np.dtype(dtype)
        prepare(kernels_in("direct"), self.dtype)
        self._partners = partners(pairs, len(charges))
        self.set_charges(charges)

    def set_charges(self, charges) -> None:
        self.charges = np.asarray(charges, self.dtype)

    def evaluate(self, positions) -> tuple[np.ndarray, np.ndarray]:
        sums = np.empty((len(positions), 4))
        x, y, z = np.ascontiguousarray(positions.T)
        _direct(x, y, z, sources(x, self.charges), self.charges, *self._partners, sums)
        return sums[:, 0].copy(), sums[:, 1:].copy()


def sources(x, charges):
    """First coordinates of the particles as sources: uncharged ones are moved away."""
    return np.where(charges == 0.0, DUMMY_X, x)


@inline
def add_range(xi, yi, zi, x, y, z, charge, begin, end, sums):
    """Add the contribution of a range of sources at a point to ``sums`` (4,) float64."""
    real = charge.dtype.type
    for first in range(begin, end, TILE):
        phi = ex = ey = ez = real(0.0)
        for j in range(first, min(first + TILE, end)):
            dx, dy, dz = real(xi - x[j]), real(yi - y[j]), real(zi - z[j])
            inverse = real(1.0) / np.sqrt(dx * dx + dy * dy + dz * dz)
            v = charge[j] * inverse
            f = v * inverse * inverse
            phi += v
            ex += f * dx
            ey += f * dy
            ez += f * dz
        sums[0] += phi
        sums[1] += ex
        sums[2] += ey
        sums[3] += ez


@kernel("f8[::1], f8[::1], f8[::1], f8[::1], real[::1], i8[::1], i8[::1], f8[:,::1]")
def _direct(thread, x, y, z, source, charge, start, partner, out):
    for i in portion(len(charge), thread):
        sums, begin = out[i], 0
        sums[:] = 0.0
        for k in range(start[i], start[i + 1] + 1):
            end = partner[k] if k < start[i + 1] else len(charge)
            add_range(x[i], y[i], z[i], source, y, z, charge, begin, end, sums)
            begin = end + 1
