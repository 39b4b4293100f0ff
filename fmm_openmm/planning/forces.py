"""Corrections of estimated errors by the forces of an evaluation."""

from dataclasses import dataclass

import numpy as np

from fmm_openmm.arrays import inner
from fmm_openmm.expansions.error import (
    LEAST_FIELD,
    POTENTIAL_NOISE,
    Rounding,
    charged_fraction,
    known_spread,
    net_charge_noise,
    spread,
    usual_field,
    weights_slope,
)
from fmm_openmm.planning.boxes import Boxes
from fmm_openmm.planning.load import Load
from fmm_openmm.planning.problem import FIELD_SLACK
from fmm_openmm.planning.request import NOISE_MARGIN, Request

DOUBLE = 2.0**-29
"""Rounding in double precision relative to single precision."""


@dataclass(frozen=True)
class ForceLimits:
    """Limits within which forces suit the parameters of an evaluation, for the sums of q^2 E^2,
    q^2 |E|^3 and q^2 phi^2 over the charges, with fields in charges over squares of box widths and
    potentials in charges over box widths.

    Attributes:
        cubes, constant: precision suffices for the coordinates unless
            ``0 < squares < self.cubes * cubes + constant``.
        smallest, potentials, largest: the parameters suit
            ``smallest + self.potentials * potentials <= squares <= largest``.
    """

    cubes: float
    constant: float
    smallest: float
    potentials: float
    largest: float

    def hold(self, squares: float, cubes: float, potentials: float = 0.0) -> bool:
        """Whether the sums are within the limits; NaN is."""
        close = 0.0 < squares < self.cubes * cubes + self.constant
        small = squares < self.smallest + self.potentials * potentials
        return not (close or small or squares > self.largest)


@dataclass(frozen=True)
class ForceErrors:
    """Relative RMS errors of the forces on charges in the boxes of a plan, with fields in charges
    over squares of box widths.

    Attributes:
        total: sum of q^2, e^2.
        usual: RMS field of an ordinary liquid.
        expected: RMS field for which the error estimate is the expected error: ``usual``, over the
            margin of the estimate for small molecular systems, times the one for few charges of
            known forces (:func:`fmm_openmm.expansions.error.known_spread`).
        net: :func:`fmm_openmm.expansions.error.net_charge_noise`.
        steps: error of the field that a potential of 1 makes in single precision with smoothing.
        rounding: errors of coordinates in single precision.
        noise: relative error of single precision in an ordinary liquid.
        size: rounding of coordinates relative to single precision; in double precision, where they
            are relative to the cell, times its longest edge.
        is_double: whether the precision is double.
    """

    total: float
    usual: float
    expected: float
    net: float
    steps: float
    rounding: Rounding
    noise: float
    size: float
    is_double: bool

    @classmethod
    def from_boxes(
        cls, charges: np.ndarray, exclusions: np.ndarray, boxes: Boxes, load: Load, noise: float
    ) -> "ForceErrors":
        """The errors of charges, shape (n,), e, with excluded pairs, shape (m, 2); ``noise`` as of
        the attributes."""
        p, n = boxes.parameters, len(charges)
        usual = usual_field(charges, load.charged * n / boxes.filled, load.ionic)
        margin = spread(load.ionic, n * charged_fraction(charges))
        lengths = np.diag(boxes.lattice.cell)
        longest = float(lengths[np.isfinite(lengths)].max(initial=1.0))
        is_double = p.precision == "double"
        return cls(
            inner(charges, charges),
            usual,
            usual / margin * known_spread(charges, exclusions),
            net_charge_noise(charges, boxes.filled, p.near_radius, p.smoothing),
            POTENTIAL_NOISE * weights_slope(charges, p.smoothing),
            Rounding.from_charges(charges, n / (load.filled * boxes.lattice.size)),
            noise,
            DOUBLE * longest if is_double else 1.0,
            is_double,
        )

    @property
    def usual_noise(self) -> float:
        """Relative error of the precision in an ordinary liquid, with a margin."""
        return NOISE_MARGIN * self.noise * (DOUBLE if self.is_double else 1.0)

    def field(self, squares: float) -> float:
        """RMS force over the RMS charge for the sum of q^2 E^2."""
        return float(np.sqrt(squares / self.total)) if self.total > 0.0 else 0.0

    def ratio(self, field: float) -> float:
        """RMS force that the error estimate assumes over the RMS force found.

        The first is that of an ordinary liquid. Forces are far larger where particles come together
        in clusters or pairs, and far smaller in crystals near zero temperature.

        Args:
            field: :meth:`field`.
        """
        if self.usual == 0.0:
            return 1.0
        return self.expected / max(field, LEAST_FIELD * self.usual)

    def noise_error(self, field: float) -> float:
        """Relative error of float32 arithmetic. It is that of the terms of sums, which cancel where
        forces are small, and therefore scales with :attr:`usual` instead of :attr:`expected`."""
        if self.usual == 0.0:
            return self.noise
        return self.noise * self.usual / max(field, LEAST_FIELD * self.usual)

    def potential_error(self, field: float, squares: float) -> float:
        """Relative error of single precision by a net charge and, with smoothing, by potentials
        that are large compared with the forces.

        Args:
            field: :meth:`field`.
            squares: sum of q^2 phi^2 over the charges, with potentials in charges over box widths.
        """
        steps = self.steps * self.field(squares)
        return float(np.hypot(self.net, steps)) / field if field > 0.0 else 0.0

    def limits(
        self, request: Request, expected: float, assumed: float, rounding_limit: float | None
    ) -> ForceLimits:
        """Limits of the forces that parameters suit. The errors of single precision by coordinates
        of charges that are close to each other, and by large potentials, have limits of their own
        and are not added to truncation errors.

        Args:
            request: what the parameters were chosen for.
            expected: error of the parameters in an ordinary liquid, in the norm of the tolerance.
            assumed: RMS field that the parameters were chosen for, over that of a liquid.
            rounding_limit: largest error of single precision; None if none is too large.
        """
        smaller, larger = FIELD_SLACK[request.error_norm]
        norm = request.tolerance / request.rounding_tolerance
        rounded = np.hypot(self.net, self.field(self.rounding.constant))
        error = np.hypot(self.expected * assumed * expected, norm * self.size * rounded)
        left = request.tolerance**2 - (norm * self.usual_noise) ** 2
        inexact = error / np.sqrt(left) if left > 0.0 else np.inf
        smallest = self._reached(min(inexact, self.expected * assumed / smaller))
        rounding, steps = Rounding(0.0, 0.0), 0.0
        if rounding_limit is not None:
            rounding = self.rounding.relative_to(rounding_limit)
            noise = np.hypot(self.usual * self.noise, self.net) / rounding_limit
            smallest = max(smallest, self._reached(noise))
            steps = (self.steps / rounding_limit) ** 2
        largest = self.total * (self.expected * assumed * larger) ** 2 if assumed < 1.0 else np.inf
        return ForceLimits(
            rounding.cubes, rounding.constant, self.total * smallest**2, steps, float(largest)
        )

    def _reached(self, field: float) -> float:
        """A limit of the field; 0 if no field is below it that errors are relative to."""
        return float(field) if field > LEAST_FIELD * self.usual else 0.0
