"""Charges in free space by a treecode: the choice of its parameters."""

import numpy as np

from fmm_openmm.planning.request import Request, warn_if_missed
from fmm_openmm.sums import ORDERS, SumParameters

THETAS = (0.3, 0.4, 0.5, 0.6, 0.7)
"""Candidate opening parameters."""

AMPLITUDE, WIDENING, DECAY, SAFETY = 0.21, -3.8, 1.45, 2.5
"""The treecode's relative RMS force error is
``SAFETY * AMPLITUDE * (theta / 0.5)^WIDENING * theta^(DECAY (p + 1))``, fitted to droplets of water
of 10,000 to 1,000,000 atoms; net and bare charges have larger forces and smaller relative
errors."""


def treecode_error(order: int, theta: float) -> float:
    """Estimated relative RMS force error of the treecode, see ``SAFETY``."""
    return SAFETY * AMPLITUDE * (theta / 0.5) ** WIDENING * theta ** (DECAY * (order + 1))


def parameters(request: Request, precision: str, rounding: float) -> SumParameters:
    """The cheapest parameters whose estimated error meets the request.

    The cost per particle is about ``(p + 1)^2 / theta^3`` terms.

    Args:
        rounding: relative rounding error of sums in this precision.
    """
    orders = range(1, ORDERS + 1) if request.order is None else (request.order,)
    candidates = [
        (float(np.hypot(treecode_error(p, theta), rounding)), p, theta)
        for p in orders
        for theta in THETAS
    ]
    accurate = [candidate for candidate in candidates if candidate[0] <= request.tolerance] or [
        min(candidates)
    ]
    error, order, theta = min(
        accurate, key=lambda candidate: (candidate[1] + 1) ** 2 / candidate[2] ** 3
    )
    warn_if_missed(request, error, f"a treecode in {precision} precision")
    return SumParameters("treecode", order, theta, precision, error)
