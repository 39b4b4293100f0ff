"""What has to be computed, as far as accuracy and cost depend on it."""

from dataclasses import dataclass

import numpy as np

from fmm_openmm.expansions.error import charged_fraction, ionic_fraction, net_charge


@dataclass(frozen=True)
class Load:
    """What has to be computed, as far as accuracy and cost depend on it.

    Attributes:
        particles: number of particles.
        filled: fraction of the cell that holds them, a power of 1/2.
        ionic: ionic fraction of the charges (``expansions/error.py``).
        charged: fraction of the particles that carry the charge, likewise; that of three-site water
            where nothing is known.
        net: net charge over the RMS charge.
    """

    particles: int
    filled: float
    ionic: float
    charged: float = 2 / 3
    net: float = 0.0

    @classmethod
    def of(cls, charges: np.ndarray, exclusions: np.ndarray, filled: float = 1.0) -> "Load":
        """The load of charges (n,) and excluded pairs (k, 2)."""
        return cls(
            len(charges),
            filled,
            ionic_fraction(charges, exclusions),
            charged_fraction(charges),
            net_charge(charges),
        )


LEAST_FILLED = 2.0**-30
"""Least filled fraction of a cell: a droplet of a million atoms fills so much of one of 20 um."""


def filled_fraction(positions: np.ndarray, cell: np.ndarray) -> float:
    """Fraction of the cell that the particles fill, from how many companions most have in a box, as
    a power of 1/2.

    1 for every liquid and solid, so that there nothing depends on the positions; less for droplets
    and slabs. Up to half of the particles may be in one place without a change.
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
        refined = max(expected / max(found, expected), LEAST_FILLED)
        if refined > 0.7 * fraction:
            break
        fraction = refined
    return 1.0 if fraction > 0.6 else 0.5 ** round(-np.log2(fraction))
