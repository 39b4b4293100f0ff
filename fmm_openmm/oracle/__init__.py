"""Reference answers in float64 that share no approximation with the FMM, one for each boundary:
Ewald sums with images along three directions, two or one, and the open direct sum."""

from collections.abc import Callable
from dataclasses import dataclass

from fmm_openmm.boundary import NAMES, OPEN, PERIODIC, Boundary
from fmm_openmm.oracle.direct import direct_sum
from fmm_openmm.oracle.ewald import EwaldResult, ewald_sum
from fmm_openmm.oracle.partial import partial_ewald_sum

__all__ = [
    "ORACLES",
    "EwaldResult",
    "Oracle",
    "direct_sum",
    "ewald_sum",
    "partial_ewald_sum",
]


@dataclass(frozen=True)
class Oracle:
    """A converged sum.

    Attributes:
        name: what a user calls it.
        title: what a report calls it.
        sum: :class:`EwaldResult` of positions, charges, cell, exclusions, and whether exclusions
            mean nearest images; arguments as in :func:`ewald_sum`.
    """

    name: str
    title: str
    sum: Callable[..., EwaldResult]


def _direct_sum(positions, charges, _cell, exclusions, _exclusions_periodic) -> EwaldResult:
    return direct_sum(positions, charges, exclusions)


ORACLES = {
    Boundary(axes): Oracle("ewald", "an Ewald sum", partial_ewald_sum) for axes in NAMES.values()
}
ORACLES |= {
    Boundary(PERIODIC): Oracle("ewald", "an Ewald sum", ewald_sum),
    Boundary(OPEN): Oracle("direct", "the sum over all pairs", _direct_sum),
}
