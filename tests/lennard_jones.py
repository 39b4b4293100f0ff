"""The Lennard-Jones interaction of a few hundred sites, written down as it is defined: what the kernels are compared with."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class LennardJones:
    """Sites with types.

    Attributes:
        types: shape (n,).
        a, b: coefficients of 1/r^12 and -1/r^6 for every pair of types, shape (types, types).
        excluded: pairs of sites, shape (m, 2).
        cutoff, switching: nm, or None.
        vectors: box vectors in rows, nm, or None.
    """

    types: np.ndarray
    a: np.ndarray
    b: np.ndarray
    excluded: np.ndarray
    cutoff: float | None = None
    switching: float | None = None
    vectors: np.ndarray | None = None

    @classmethod
    def from_sigmas(cls, types, sigma, epsilon, excluded=(), **limits) -> "LennardJones":
        """Sites whose types have these parameters, shape (types,), which combine as Lorentz and Berthelot say."""
        sigma6 = (0.5 * np.add.outer(sigma, sigma)) ** 6
        epsilon4 = 4 * np.sqrt(np.multiply.outer(epsilon, epsilon))
        pairs = np.array(excluded, np.int64).reshape(-1, 2)
        return cls(np.asarray(types), epsilon4 * sigma6**2, epsilon4 * sigma6, pairs, **limits)

    def pairs(self, positions: np.ndarray, reach: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Every pair within reach that is not excluded, each image for itself: its two sites, from the second to the first."""
        found = []
        n = len(positions)
        include = ~np.eye(n, dtype=bool)
        include[self.excluded[:, 0], self.excluded[:, 1]] = include[self.excluded[:, 1], self.excluded[:, 0]] = False
        images = np.zeros((1, 3), np.int64)
        if self.vectors is not None:
            images = np.stack(np.meshgrid(*3 * [np.arange(-3, 4)], indexing="ij"), -1).reshape(-1, 3)
            positions = positions - np.floor(positions @ np.linalg.inv(self.vectors)) @ self.vectors
        for image in images:
            shift = image @ self.vectors if self.vectors is not None else np.zeros(3)
            d = positions[:, None] - positions[None] - shift
            near = include & ((d * d).sum(2) < reach**2)
            i, j = np.nonzero(near)
            found.append((i, j, d[i, j]))
        return tuple(np.concatenate(part) for part in zip(*found, strict=True))

    def evaluate(self, positions: np.ndarray) -> tuple[float, np.ndarray]:
        """Energy in kJ/mol, forces (n, 3) in kJ/mol/nm."""
        i, j, d = self.pairs(positions, np.inf if self.cutoff is None else self.cutoff)
        r = np.linalg.norm(d, axis=1)
        a, b = self.a[self.types[i], self.types[j]], self.b[self.types[i], self.types[j]]
        energy, slope = a / r**12 - b / r**6, -12 * a / r**13 + 6 * b / r**7
        if self.switching is not None:
            u = np.clip((r - self.switching) / (self.cutoff - self.switching), 0, 1)
            share, rate = 1 - 10 * u**3 + 15 * u**4 - 6 * u**5, -30 * u**2 * (1 - u) ** 2 / (self.cutoff - self.switching)
            energy, slope = energy * share, slope * share + energy * rate
        forces = np.zeros_like(positions)
        np.add.at(forces, i, (-slope / r)[:, None] * d)
        return 0.5 * float(energy.sum()), forces
