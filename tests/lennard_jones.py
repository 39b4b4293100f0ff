"""The Lennard-Jones interaction of a few hundred sites, written down as it is defined: what the
kernels are compared with."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Functions:
    """f and g of an energy a f(r) - b g(r), and their slopes, with source that defines them for
    ``kernels/pairs/pair.cuh``."""

    f: Callable
    f_slope: Callable
    g: Callable
    g_slope: Callable
    source: str = ""


PLAIN = Functions(
    lambda r: r**-12.0, lambda r: -12 * r**-13.0, lambda r: r**-6.0, lambda r: -6 * r**-7.0
)


FORCE_SWITCH = """
    step(on-r)*(a*i6*i6 - b*i6 + b*i3on*i3off - a*i6on*i6off)
    + step(r-on)*step(off-r)*(aSlope*d6 - bSlope*d3)
    - step(r-on)*step(on-r)*(aSlope*d6 - bSlope*d3);
    aSlope = a*d6/(1 - i6off/i6on); bSlope = b*d3/(1 - i3off/i3on); d3 = i1*i2-i3off; d6 = i6-i6off;
    i1 = sqrt(i2); i6 = i2*i2*i2; i2 = 1.0/s; s = r*r;
    i6on = i3on*i3on; i6off = i3off*i3off; i3on = 1.0/(on*on*on); i3off = 1.0/(off*off*off);
"""
"""CHARMM's force switch of a/r^12 - b/r^6 as an energy function of OpenMM, with the operations
of CHARMM-GUI's scripts."""


def force_switch(on: float, off: float) -> Functions:
    """CHARMM's force switch, doi:10.1002/jcc.540150702: up to ``on`` energies are shifted, at
    ``off`` forces vanish as well."""

    def part(n):  # (r^-n - off^-n)^2 from `on` to `off`
        k = 1 / (1 - (on / off) ** n)
        return (
            lambda r: np.where(
                r < on, r ** (-2.0 * n) - (on * off) ** -n, k * (r**-n - off**-n) ** 2
            ),
            lambda r: np.where(
                r < on,
                -2 * n * r ** (-2 * n - 1.0),
                -2 * n * k * (r**-n - off**-n) * r ** (-n - 1.0),
            ),
        )

    def source(name, n):
        power = "*".join(n * ["inverse"])
        k, end, shift = 1 / (1 - (on / off) ** n), off**-n, (on * off) ** -n
        return (
            f"const real {name}n = {power}, {name}d = {name}n - real({end!r}); "
            f"const real {name} = r < real({on}) ? {name}n*{name}n - real({shift!r}) : "
            f"real({k!r})*{name}d*{name}d; "
            f"const real {name}_slope = {-2 * n}*{name}n*inverse*"
            f"(r < real({on}) ? {name}n : real({k!r})*{name}d); "
        )

    return Functions(*part(6.0), *part(3.0), source("f", 6) + source("g", 3))


@dataclass(frozen=True, eq=False)
class LennardJones:
    """Sites with types.

    Attributes:
        types: shape (n,).
        a, b: coefficients of 1/r^12 and -1/r^6, or of f and -g, for every pair of types, shape
            (types, types).
        excluded: pairs of sites, shape (m, 2).
        cutoff, switching: nm, or None.
        vectors: box vectors in rows, nm, or None.
        functions: f and g.
    """

    types: np.ndarray
    a: np.ndarray
    b: np.ndarray
    excluded: np.ndarray
    cutoff: float | None = None
    switching: float | None = None
    vectors: np.ndarray | None = None
    functions: Functions = PLAIN

    @classmethod
    def from_sigmas(cls, types, sigma, epsilon, excluded=(), **limits) -> "LennardJones":
        """Sites whose types have these parameters, shape (types,), which combine as Lorentz and
        Berthelot say."""
        sigma6 = (0.5 * np.add.outer(sigma, sigma)) ** 6
        epsilon4 = 4 * np.sqrt(np.multiply.outer(epsilon, epsilon))
        pairs = np.array(excluded, np.int64).reshape(-1, 2)
        return cls(np.asarray(types), epsilon4 * sigma6**2, epsilon4 * sigma6, pairs, **limits)

    def pairs(
        self, positions: np.ndarray, reach: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Every pair within reach that is not excluded, each image for itself: its two sites,
        from the second to the first."""
        found = []
        n = len(positions)
        include = ~np.eye(n, dtype=bool)
        include[self.excluded[:, 0], self.excluded[:, 1]] = include[
            self.excluded[:, 1], self.excluded[:, 0]
        ] = False
        shifts = np.zeros((1, 3))
        if self.vectors is not None:
            inverse = np.linalg.inv(self.vectors)
            positions = positions - np.floor(positions @ inverse) @ self.vectors
            # of sites in the cell: distances between its faces are 1 / |column of the inverse|
            most = np.ceil(reach * np.linalg.norm(inverse, axis=0)).astype(int)
            shifts = [image - most for image in np.ndindex(*2 * most + 1)] @ self.vectors
        between = positions[:, None] - positions
        for shift in shifts:
            d = between - shift
            i, j = np.nonzero(include & (np.einsum("ijk,ijk->ij", d, d) < reach**2))
            found.append((i, j, d[i, j]))
        return tuple(np.concatenate(part) for part in zip(*found, strict=True))

    def evaluate(self, positions: np.ndarray) -> tuple[float, np.ndarray]:
        """Energy in kJ/mol, forces (n, 3) in kJ/mol/nm."""
        i, j, d = self.pairs(positions, np.inf if self.cutoff is None else self.cutoff)
        r = np.linalg.norm(d, axis=1)
        a, b = self.a[self.types[i], self.types[j]], self.b[self.types[i], self.types[j]]
        functions = self.functions
        energy, slope = (
            a * functions.f(r) - b * functions.g(r),
            a * functions.f_slope(r) - b * functions.g_slope(r),
        )
        if self.switching is not None:
            u = np.clip((r - self.switching) / (self.cutoff - self.switching), 0, 1)
            share, rate = (
                1 - 10 * u**3 + 15 * u**4 - 6 * u**5,
                -30 * u**2 * (1 - u) ** 2 / (self.cutoff - self.switching),
            )
            energy, slope = energy * share, slope * share + energy * rate
        forces = np.zeros_like(positions)
        np.add.at(forces, i, (-slope / r)[:, None] * d)
        return 0.5 * float(energy.sum()), forces
