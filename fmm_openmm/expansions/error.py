r"""A-priori estimate of the relative RMS force error from order and geometry of the boxes.

A box at distance d contributes a truncation error proportional to ``(a / d^b)^(p + 1) / d``. The
contributions of the boxes are independent, and more particles in a box average them. Boxes along a
diagonal face each other with their corners, which has the effect of a smaller distance. For the
offset i it is

    d = |i @ boxes| (1 - L (|i|_1 / (2 |i|_2) - 0.7))                                 (box widths)

With the effective distance of the closest far boxes,

    R = ( sum over far boxes of d^(-2 (p + 2)) ) ^ (-1 / (2 (p + 2)))

the estimate is

    error = SAFETY (1 + SCATTER (1 - chi) / sqrt(N)) * C * n^X * R^-Z * (A D^G / R^B)^(p + 1)
            * exp(Q ((p + 1) / R)^2 + IONIC * chi) * f(s)
    f(s)  = max(W, (S0 (7 / (p + 1))^K / s)^Y)   for a smoothing s > 0,   1 without

where n is the number of charged particles in a filled box, N the number of all charged particles, D
the deformation of the boxes and chi the ionic fraction. The term in Q describes the few pairs in
facing corners that dominate at high order. The constants are fitted by least squares to errors
relative to Ewald sums: 1,680 of water, molten salt, brine and a solvated peptide (radii 1.87 to
5.15, orders 4 to 24), then C, G and those of f to 2,900 of all systems of the test set (radii 1.87
to 3.24, orders 5 to 13, smoothing 0 to 0.2; standard deviation of log(measured / fitted) 0.25, at
narrow transitions 0.4, for which f was raised). These errors are of quintic weights; S0 was lowered
for cubic weights, whose errors are 0.90 of them. ``SAFETY`` covers the spread between liquids in
large systems, ``SCATTER`` the additional spread in small molecular systems, where few pairs of
particles dominate the error; ``IONIC`` was raised from 0.66 to cover crystals.
``docs/explanation/accuracy.md`` has the comparison for the whole test set.

The ratio of the largest error of a single force to the RMS error grows with the order and with
narrow transitions:

    largest error = M (p + 1) max(1, (SM / s)^(1/2)) * error
                    (the second factor for a smoothing s > 0 only)

relative to the RMS force, and at most the square root of the number of particles. That of rounding
errors is ``ROUNDING_RATIO``. M and SM cover nine tenths of 310 cases without smoothing and 80 with
(water, 8,844 to 34,176 atoms, radii 1.87 to 2.91, orders 5 to 16); the worst were 2.3 times as
large.

The estimate is relative to the RMS force of an ordinary liquid. In units of ``Q / a^2``, where Q is
the RMS charge of the charged particles and 1 / a^3 their density, the RMS field at the charges is
1.05 in water, 0.87 to 1.6 in other models of water, 1.4 in a membrane, and 0.3 to 0.65 among ions
in thermal crystals and melts. Forces that are known rescale the estimate
(:class:`fmm_openmm.planning.forces.ForceErrors`). They replace the factor with ``SCATTER``, which
covers unknown forces as well, by

    max(1, (FEW / (N m))^T)
    m = (sum q^2)^2 / (sum q^4 + 2 sum over excluded pairs q_i^2 q_j^2)

where m is the number of independent charges: N for bare ions, and the number of molecules if these
are alike and their particles exclude each other. If a few charges make all errors they may all lie
near corners of boxes, where errors are largest. Charges that exclude all others feel only periodic
images, whose forces are small, and whose errors are alike where the charges are close to each
other; therefore m counts as well as N. The constants are chosen with 28,400 errors in double
precision of 14,400 random systems of 2 to 72 charges, in groups that exclude each other, with every
boundary (orders 1 to 19, tolerances 1e-7 to 5e-2). Without the factor nine tenths of the errors are
below the estimate, and the largest is 16 times the estimate. Of the errors 32 exceed the tolerance,
by a factor of up to 3.8, all of them where m is at most 2; with the factor none does.
"""

from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike

from fmm_openmm.arrays import inner
from fmm_openmm.boundary import Boundary
from fmm_openmm.box import BoxLattice

C, X, Z = 0.65, -0.296, 1.95
A, B, G = 0.870, 1.036, 1.5
L, Q = 0.26, 0.0487
S0, K, Y, W = 0.0634, 0.784, 0.703, 0.55
IONIC = 1.2
SAFETY, SCATTER = 1.55, 26.0
FEW, T = 100.0, 0.75
M, SM = 1.9, 0.03
ROUNDING_RATIO = 5.0
FIELD, FIELD_IONIC = 1.3, -0.95
NOISE, NOISE_IONIC, NOISE_SLOPE = 0.65e-6, 1.0, 1.1


ROUNDED = 2.0**-25
"""RMS error of a distance between float32 coordinates, in box widths. Each coordinate is rounded
relative to the centre of its box, and one of the two again when it is shifted to the other box."""

CROWD = 5.6
"""2 (sum r^-6)^(1/2) over the neighbours in a simple cubic lattice, times the volume of a site."""


def ionic_fraction(charges: np.ndarray, exclusions: np.ndarray) -> float:
    """``sum Q_g^2 / sum q^2``, at most 1, where Q_g are the net charges of groups of particles
    connected by exclusions.

    It is 0 for neutral molecules and 1 for bare ions, whose boxes have larger moments at the same
    net forces.
    """
    total = inner(charges, charges)
    if total == 0.0:
        return 0.0
    net = np.bincount(molecules(len(charges), exclusions), charges)
    return min(1.0, inner(net, net) / total)


def molecules(particles: int, exclusions: np.ndarray) -> np.ndarray:
    """Index of the group of particles connected by exclusions that each particle belongs to, shape
    (particles,)."""
    links = scipy.sparse.coo_array(
        (np.ones(len(exclusions)), (exclusions[:, 0], exclusions[:, 1])),
        shape=(particles, particles),
    )
    return scipy.sparse.csgraph.connected_components(links, directed=False)[1]


def leaders(particles: int, exclusions: np.ndarray, minimum_image: bool) -> np.ndarray:
    """For each particle the index of the one with whose periodic image it is placed, shape
    (particles,): the first of its molecule, or itself if exclusions apply to nearest images."""
    if minimum_image:
        return np.arange(particles)
    _, first, number = np.unique(
        molecules(particles, exclusions), return_index=True, return_inverse=True
    )
    return first[number]


def charged_fraction(charges: np.ndarray) -> float:
    """``(sum q^2)^2 / (n sum q^4)``: the fraction of the particles that carry the charge; 2/3 for
    three-site water."""
    squares = charges * charges
    fourth = inner(squares, squares)
    return float(squares.sum()) ** 2 / (len(charges) * fourth) if fourth > 0.0 else 1.0


def net_charge(charges: np.ndarray) -> float:
    """Net charge ``|sum q|`` relative to the RMS charge."""
    rms = float(np.sqrt(np.mean(charges * charges)))
    return abs(float(charges.sum())) / rms if rms > 0.0 else 0.0


def rms_charge(charges: np.ndarray) -> float:
    """RMS charge of the particles that carry the charge (:func:`charged_fraction`)."""
    squares = charges * charges
    total = float(squares.sum())
    return float(np.sqrt(inner(squares, squares) / total)) if total > 0.0 else 0.0


def far_distances(lattice: BoxLattice) -> np.ndarray:
    """Distances d, defined above, of the boxes just beyond the near stencil, box widths; if all
    boxes are near, those of their images."""
    far = lattice.occurring(lattice.far)
    if len(far) == 0:
        far = lattice.images
    diagonal = np.abs(far).sum(1) / (2.0 * np.linalg.norm(far, axis=1))
    return np.linalg.norm(far @ lattice.boxes, axis=1) * (1.0 - L * (diagonal - 0.7))


def estimate_error(
    distances: np.ndarray,
    order: ArrayLike,
    smoothing: ArrayLike,
    per_box: float,
    deformation: float,
    ionic: float,
    charged: float,
) -> np.ndarray:
    """Relative RMS force error by the formula of this module, for each pair of ``order`` and
    ``smoothing``, which are broadcast against each other.

    Args:
        distances: distances of the first far boxes, from :func:`far_distances`.
        order: expansion order p.
        smoothing: half width of the transition regions, box widths.
        per_box: mean number of charged particles in a filled box.
        deformation: deformation of the boxes, from :func:`fmm_openmm.box.deformation`.
        ionic: from :func:`ionic_fraction`.
        charged: number of charged particles.
    """
    order, smoothing = np.asarray(order), np.asarray(smoothing, float)
    if len(distances) == 0:
        return np.zeros(np.broadcast_shapes(order.shape, smoothing.shape))
    nearest = distances.min()
    powers = np.vander((nearest / distances) ** 2, int(order.max()) + 3, increasing=True)
    effective = nearest * powers.sum(0)[order + 2] ** (-0.5 / (order + 2))
    with np.errstate(divide="ignore"):
        narrow = (S0 * (7.0 / (order + 1)) ** K / smoothing) ** Y
    transition = np.where(smoothing > 0.0, np.maximum(W, narrow), 1.0)
    decay = A * deformation**G / effective**B
    growth = np.exp(Q * ((order + 1) / effective) ** 2 + IONIC * ionic)
    safety = SAFETY * spread(ionic, charged)
    return (
        safety
        * C
        * max(per_box, 1.0) ** X
        * effective**-Z
        * decay ** (order + 1)
        * growth
        * transition
    )


def spread(ionic: float, charged: float) -> float:
    """Factor that covers the spread of errors in small molecular systems.

    Args:
        ionic: from :func:`ionic_fraction`.
        charged: number of charged particles.
    """
    return 1.0 + SCATTER * (1.0 - ionic) / float(np.sqrt(max(charged, 1.0)))


def known_spread(charges: np.ndarray, exclusions: np.ndarray) -> float:
    """Factor that covers the spread of errors in systems of few charges whose forces are known: 1
    if the product of the numbers of charged particles and of independent charges is at least
    ``FEW``, as for ten ions or eight molecules of water.

    Args:
        charges: shape (n,), e.
        exclusions: excluded pairs, shape (m, 2), each of them once.
    """
    charged, total = len(charges) * charged_fraction(charges), inner(charges, charges)
    if charged >= FEW or total == 0.0:  # enough, even if they are not independent
        return 1.0
    shares = charges * charges / total
    excluded = 2.0 * inner(shares[exclusions[:, 0]], shares[exclusions[:, 1]])
    independent = 1.0 / (1.0 / charged + excluded)
    return max(1.0, (FEW / (charged * independent)) ** T)


def largest_ratio(order: ArrayLike, smoothing: ArrayLike) -> np.ndarray:
    """Ratio of the largest error of a single force, relative to the RMS force, to
    :func:`estimate_error`, for the same orders and smoothings."""
    order, smoothing = np.asarray(order), np.asarray(smoothing, float)
    with np.errstate(divide="ignore"):
        narrow = np.maximum(1.0, (SM / smoothing) ** 0.5)
    return M * (order + 1) * np.where(smoothing > 0.0, narrow, 1.0)


LEAST_FIELD = 0.01
"""Smallest RMS field that errors are relative to, over that of a liquid. In a perfect crystal the
field is zero."""


def force_sums(
    charges: np.ndarray, fields: np.ndarray, potentials: np.ndarray | None = None
) -> tuple[float, float, float]:
    """Sums of q^2 E^2, q^2 |E|^3 and q^2 phi^2 over the charges, shape (n,), in fields, shape (n,
    3), and potentials, shape (n,); the last one is 0 without potentials, which matter with
    smoothing only."""
    charged = charges != 0.0
    if not charged.all():  # results at others may be undefined
        fields, charges = fields[charged], charges[charged]
        potentials = None if potentials is None else potentials[charged]
    weights = charges * charges
    squares = np.einsum("ij,ij->i", fields, fields, dtype=float)
    of_potentials = 0.0 if potentials is None else inner(weights, np.square(potentials))
    return inner(weights, squares), inner(weights, squares * np.sqrt(squares)), of_potentials


def usual_field(charges: np.ndarray, per_box: float, ionic: float) -> float:
    """RMS field of an ordinary liquid, in charges over squares of box widths, which
    :func:`estimate_error` assumes.

    Args:
        charges: shape (n,).
        per_box: mean number of charged particles in a filled box.
        ionic: from :func:`ionic_fraction`.
    """
    return float(FIELD * np.exp(FIELD_IONIC * ionic) * per_box ** (2 / 3) * rms_charge(charges))


def net_charge_noise(
    charges: np.ndarray, boxes: float, near_radius: float, smoothing: float
) -> float:
    """RMS error of the field, in charges over squares of box widths, that float32 arithmetic makes
    of a net charge with smoothing.

    The net charge within the near radius R makes a potential of ``2 pi R^2 |sum q| / boxes``, which
    that of the far boxes cancels. The slope of the weights (:func:`weights_slope`) multiplies its
    rounding. Measured 0.5 to 1.2 times the estimate in crystals of like charges, up to 3 times in
    mixtures of large and small ones.

    Args:
        charges: shape (n,).
        boxes: number of filled boxes.
        near_radius: R, box widths.
        smoothing: half width s of the transition regions, box widths.
    """
    potential = 2.0 * np.pi * near_radius**2 * abs(float(charges.sum())) / boxes
    return float(2.0**-24 * weights_slope(charges, smoothing) * potential)


def weights_slope(charges: np.ndarray, smoothing: float) -> float:
    """RMS slope of the weights, in the inverse of a box width: what a rounding error of potentials
    is multiplied by in forces.

    It is s^(-1/2) in the mean over the particles, and 1 / s where one in a transition region
    carries most of the charge; 0 without smoothing.
    """
    if smoothing == 0.0:
        return 0.0
    number = len(charges) * charged_fraction(charges)
    return float(1.0 / np.sqrt(smoothing * min(1.0, smoothing * number)))


POTENTIAL_NOISE = 3e-7
"""Relative rounding error of potentials in float32 that differ from box to box, with smoothing.
Measured 1 to 9e-7 where charges of opposite sign are far apart and in thin cells."""


def single_noise(ionic: float, smoothing: float) -> float:
    """Relative RMS force error of float32 arithmetic.

    Measured 0.6e-6 in water and 1.7e-6 in salt crystals without smoothing. The slope of the weights
    multiplies the rounding of potentials: 2 to 4e-6 and 5 to 8e-6 at smoothing 0.025 to 0.05.
    """
    slope = NOISE_SLOPE / smoothing**0.5 if smoothing > 0.0 else 0.0
    return float(NOISE * np.exp(NOISE_IONIC * ionic) * np.hypot(1.0, slope))


NEIGHBOURS = 8
"""Number of closest neighbours of each particle that :func:`rounding_of_positions` examines."""


def rounding_of_positions(
    positions: np.ndarray,
    charges: np.ndarray,
    cell: np.ndarray,
    exclusions: np.ndarray,
    width: float,
    least: float,
) -> float:
    """:meth:`Rounding.error` before there are fields, from the closest neighbours of every
    particle.

    The result is too small where many fields cancel, and too large where the fields of close
    neighbours are small compared with the others.

    Args:
        positions: shape (n, 3), nm.
        charges: shape (n,).
        cell: vectors in reduced form, shape (3, 3), nm.
        exclusions: shape (m, 2).
        width: box width, nm.
        least: smallest error of interest; neighbours too far apart for it are not examined.
    """
    n, limit = len(positions), 2.0 * ROUNDED * width / (0.2 * least)
    boundary = Boundary.from_cell(cell)
    vectors, points = boundary.vectors(cell), boundary.wrap(positions, cell)
    stretch = np.linalg.norm(np.linalg.inv(vectors), 2)
    _, found = boundary.tree(points).query(
        points, k=min(NEIGHBOURS + 1, n), distance_upper_bound=limit * stretch
    )
    found = found.reshape(n, -1)
    first, second = np.nonzero(found < n)[0], found[found < n]
    delta = points[first] - points[second]
    delta -= boundary.images(delta)
    distance = np.linalg.norm(delta @ vectors, axis=1)
    excluded = np.sort(exclusions, axis=1) @ [n, 1]
    pairs = np.minimum(first, second) * n + np.maximum(first, second)
    counts = (
        (distance < limit)
        & (first != second)
        & ~np.isin(pairs, excluded)
        & (charges[first] * charges[second] != 0.0)
    )
    first, second, distance = first[counts], second[counts], distance[counts] / width
    if not len(first):
        return 0.0
    if not distance.all():
        return np.inf
    weights, products = charges * charges, (charges[first] * charges[second]) ** 2
    extent = np.maximum(np.ptp(positions, axis=0), width)
    volume = np.where(boundary.periodic, np.diag(vectors), extent).prod()
    usual = weights.mean() ** 2 * (n * width**3 / volume) ** (4 / 3)
    squares = products / distance**4
    return float(
        2.0 * ROUNDED * np.sqrt((squares / distance**2).sum() / (squares.sum() + n * usual))
    )


@dataclass(frozen=True)
class Rounding:
    """Relative RMS force error of float32 coordinates, from sums over the charges in their fields:

        error^2 = (cubes sum q^2 |E|^3 + constant) / sum q^2 E^2

    For charges that are close to each other in wide boxes, as in a cluster or a pair, it is far
    larger than :func:`single_noise`. A charge Q at a distance r makes a field E = Q / r^2. An error
    of the distance changes the field by 2 E ROUNDED / r = 2 ROUNDED (E^3 / Q)^(1/2). Since the
    source of a field is unknown, Q is the RMS charge. Where the fields of many neighbours cancel,
    as in a crystal, their errors do not; they add up to CROWD ROUNDED Q per_box.

    Attributes:
        cubes: coefficient of the sum of q^2 |E|^3.
        constant: what does not depend on the fields.
    """

    cubes: float
    constant: float

    @classmethod
    def from_charges(cls, charges: np.ndarray, per_box: float) -> "Rounding":
        """The coefficients for charges, shape (n,), and ``per_box`` particles in a filled box, with
        fields in charges over squares of box widths."""
        weights = charges * charges
        total = float(weights.sum())
        if total == 0.0:
            return cls(0.0, 0.0)
        typical = float(np.sqrt(total / np.count_nonzero(weights)))
        return cls(4.0 * ROUNDED**2 / typical, total * (ROUNDED * CROWD * typical * per_box) ** 2)

    def error(self, squares: float, cubes: float) -> float:
        """The error for the sums of q^2 E^2 and q^2 |E|^3; 0 where there are no forces."""
        if squares == 0.0:
            return 0.0
        return float(np.sqrt((self.cubes * cubes + self.constant) / squares))

    def relative_to(self, limit: float) -> "Rounding":
        """The coefficients of the error over a limit, which is exceeded where
        ``squares < cubes * sum q^2 |E|^3 + constant``."""
        return Rounding(self.cubes / limit**2, self.constant / limit**2)
