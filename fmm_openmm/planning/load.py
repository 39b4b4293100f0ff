"""The properties of a system that accuracy and cost depend on."""

from dataclasses import dataclass

import numpy as np

from fmm_openmm.expansions.error import charged_fraction, ionic_fraction, net_charge


@dataclass(frozen=True)
class Load:
    """The properties of a system that accuracy and cost depend on.

    Attributes:
        particles: number of particles.
        filled: fraction of the cell that holds particles, a power of 1/2.
        ionic: ionic fraction of the charges (``expansions/error.py``).
        charged: fraction of the particles that carry the charge (``expansions/error.py``); by
            default that of three-site water.
        net: net charge over the RMS charge.
        field: smallest RMS field over that of an ordinary liquid that errors are relative to, a
            power of 1/2; 1 until an evaluation finds smaller forces than a liquid's.
    """

    particles: int
    filled: float
    ionic: float
    charged: float = 2 / 3
    net: float = 0.0
    field: float = 1.0

    @classmethod
    def from_charges(
        cls, charges: np.ndarray, exclusions: np.ndarray, filled: float = 1.0
    ) -> "Load":
        """The load of charges, shape (n,), e, and excluded pairs, shape (k, 2)."""
        return cls(
            len(charges),
            filled,
            ionic_fraction(charges, exclusions),
            charged_fraction(charges),
            net_charge(charges),
        )


MIN_FILLED = 2.0**-30
"""Smallest filled fraction of a cell: a droplet of a million atoms in a cell of 20 um."""


def filled_fraction(positions: np.ndarray, cell: np.ndarray) -> float:
    """Fraction of the cell that the particles fill, a power of 1/2, from the median number of other
    particles in a particle's box.

    The fraction is 1 for every liquid and solid, whose parameters therefore do not depend on the
    positions, and smaller for droplets and slabs. As a median, it does not change if up to half of
    the particles come together in one place.
    """
    n, companions = len(positions), 8.0
    scaled = positions @ np.linalg.inv(cell)
    scaled -= np.floor(scaled)
    fraction = 1.0
    for _ in range(8):
        width = np.cbrt(np.prod(np.diag(cell)) * min(1.0, fraction * companions / n))
        grid = np.maximum(1, np.rint(np.diag(cell) / width)).astype(np.int64)
        index = np.minimum((scaled * grid).astype(np.int64), grid - 1)
        count = np.unique(index @ [1, grid[0], grid[0] * grid[1]], return_counts=True)[1]
        found = float(np.median(np.repeat(count - 1.0, count)))
        expected = n / float(grid.prod())
        refined = max(expected / max(found, expected), MIN_FILLED)
        if refined > 0.7 * fraction:
            break
        fraction = refined
    return 1.0 if fraction > 0.6 else 0.5 ** round(-np.log2(fraction))
