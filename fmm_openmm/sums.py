"""Parameters of the methods without boxes, for free space."""

from dataclasses import dataclass

import numpy as np

from fmm_openmm.errors import UnsupportedError
from fmm_openmm.expansions.error import ROUNDING_RATIO, single_noise
from fmm_openmm.implementations import SUMS, implementation
from fmm_openmm.planning.load import Load
from fmm_openmm.planning.problem import Problem
from fmm_openmm.planning.request import Request

ORDERS = 20
"""Largest order of a treecode."""

ROUNDING = 1e-14
"""Relative error of float64 sums."""


@dataclass(frozen=True)
class SumParameters:
    """Parameters of a solver whose method is not "fmm".

    Attributes:
        method: "direct" or "treecode".
        order: order of the treecode's moments; None for the direct sum.
        theta: opening ratio. The moments of a cell act on a particle if the corners of the cell are
            at most ``theta`` times as far from its centre as the particle is; None for the direct
            sum.
        precision: "single" or "double".
        expected_error: estimated relative RMS force error.
    """

    method: str
    order: int | None
    theta: float | None
    precision: str
    expected_error: float

    @property
    def expected_largest_error(self) -> float | None:
        """Estimated largest error of the force on a particle, relative to the RMS force; None for
        the treecode."""
        return ROUNDING_RATIO * self.expected_error if self.method == "direct" else None

    @property
    def settings(self) -> tuple:
        """Arguments of the method that follow charges, exclusions and dtype."""
        return () if self.method == "direct" else (self.order, self.theta)


def choose_sum(method: str, request: Request, load: Load) -> SumParameters:
    """The cheapest parameters whose estimated error satisfies the request.

    An explicit order is used as it is, with a warning if it misses the tolerance.

    Raises:
        UnsupportedError: parameters of boxes are fixed, an order of the direct sum or beyond
            ``ORDERS``, or the largest error of the treecode.
    """
    for name in ("near_radius", "smoothing", "levels"):
        if getattr(request, name) is not None:
            raise UnsupportedError(f"`{name}` is a parameter of `method='fmm'`, not of {method!r}")
    if request.order is not None and (method == "direct" or request.order > ORDERS):
        raise UnsupportedError(
            f"`order` must be at most {ORDERS} with the treecode, "
            f"and None with the direct sum, got {request.order}"
        )
    if request.error_norm == "max" and method != "direct":
        raise UnsupportedError(
            f"`error_norm` must be 'rms' with `method={method!r}`, got {request.error_norm!r}"
        )
    precision = request.resolve_precision(load.ionic)
    rounding = single_noise(load.ionic, 0.0) if precision == "single" else ROUNDING
    return implementation(SUMS, method, "parameters")(request, precision, rounding)


def direct_parameters(request: Request, precision: str, rounding: float) -> SumParameters:
    """Parameters of the direct sum, which has nothing to choose."""
    return SumParameters("direct", None, None, precision, rounding)


class SumPlanner:
    """The counterpart of :class:`fmm_openmm.planning.planner.Planner` for methods without boxes."""

    def __init__(self, method: str, problem: Problem):
        self._method = method
        self.revise(problem)

    def revise(self, problem: Problem) -> None:
        """Choose parameters for another problem."""
        self.parameters = choose_sum(self._method, problem.request, problem.load)
        self.problem = problem

    def forget(self) -> None:
        """Do nothing, as there are no boxes to discard."""

    def accepts(self, charges: np.ndarray) -> bool:
        """Whether the parameters are kept for other charges, shape (n,), e."""
        problem = self.problem.with_charges(charges)
        if problem is self.problem:
            return True
        self.revise(problem)
        return False
