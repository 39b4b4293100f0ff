r"""What a dipole moment adds to the energy of a periodic cell: the boundary term of an infinite
crystal in a dielectric, and the correction that makes a stack of slabs one slab.

Both are sums over all pairs, excluded ones, images and a particle with itself included,

.. math::
    U = \frac{1}{2} \sum_{i,j} q_i q_j w(x_i - x_j), \qquad
    w(r) = -\sum_a c_a r_a^2 - d

so that the charge Q, the dipole moment M and the second moments :math:`T = \sum_i q_i x_i x_i^T`
of a set of charges give potentials, fields, energy and virial:

.. math::
    \phi(x) = -Q \sum_a c_a x_a^2 + \sum_a c_a (2 x_a M_a - T_{aa}) - Q d, \qquad
    U = \sum_a c_a (M_a^2 - Q T_{aa}) - \frac{d}{2} Q^2

With the volume V of the cell, the dielectric constant :math:`\epsilon'` of the surroundings and the
height L of the cell along the normal z of a and b,

.. math::
    c_a = \frac{2 \pi k_e}{(2 \epsilon' + 1) V}, \quad d = 0
    \qquad \text{or} \qquad
    c_z = \frac{2 \pi k_e}{V}, \quad c_x = c_y = 0, \quad d = \frac{2 \pi k_e}{V} \frac{L^2}{6} .

S. W. de Leeuw, J. W. Perram and E. R. Smith, Proc. R. Soc. A 373, 27 (1980),
doi:10.1098/rspa.1980.0135; I.-C. Yeh and M. L. Berkowitz, J. Chem. Phys. 111, 3155 (1999),
doi:10.1063/1.479595; with a net charge V. Ballenegger, A. Arnold and J. J. Cerda, J. Chem. Phys.
131, 094107 (2009), doi:10.1063/1.3216473.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fmm_openmm.arrays import namespace
from fmm_openmm.boundary import Boundary, net_charge
from fmm_openmm.checks import check_number
from fmm_openmm.errors import UnsupportedError, warn
from fmm_openmm.units import COULOMB_CONSTANT

NORMAL = 2
"""The normal of a and b in reduced box vectors is the axis z."""

TIN_FOIL = float("inf")
"""Dielectric constant of a conductor."""


@dataclass
class DipoleTerm:
    """The term of a periodic cell.

    Attributes:
        slab_correction: correct a stack of slabs.
        surface_dielectric: dielectric constant of the surroundings, 1 or more.
        has_warned: whether a warning has said that charges span more than the height of the cell.
    """

    slab_correction: bool = False
    surface_dielectric: float = TIN_FOIL
    has_warned: bool = False

    @classmethod
    def from_options(
        cls, slab_correction: bool, surface_dielectric: float, boundary: Boundary
    ) -> "DipoleTerm | None":
        """The term that a user asks for; None if it is zero.

        Raises:
            TypeError, ValueError: an option is invalid, both are given, or the boundary is not
                periodic along all axes.
        """
        if not isinstance(slab_correction, (bool, np.bool_)):
            raise TypeError(f"`slab_correction` must be True or False, got {slab_correction!r}")
        dielectric = check_number(surface_dielectric, "surface_dielectric", 1.0, TIN_FOIL)
        if slab_correction and dielectric != TIN_FOIL:
            raise ValueError(
                "`slab_correction` and `surface_dielectric` exclude each other: the correction "
                f"leaves vacuum around the slab, got surface_dielectric={dielectric:g}"
            )
        if not slab_correction and dielectric == TIN_FOIL:
            return None
        if not boundary.fills_space:
            name = "slab_correction" if slab_correction else "surface_dielectric"
            raise ValueError(
                f"`{name}` needs `boundary='periodic'`, got {boundary.name!r}, where no dipole "
                "moment is to be corrected"
            )
        return cls(bool(slab_correction), dielectric)

    def __str__(self) -> str:
        """The option as it is written."""
        if self.slab_correction:
            return "slab_correction=True"
        return f"surface_dielectric={self.surface_dielectric:g}"

    def check_charges(self, charges: Any) -> None:
        """Refuse a net charge of charges, shape (n,), e, in a dielectric.

        Raises:
            UnsupportedError: there is one.
        """
        total = 0.0 if self.slab_correction else net_charge(charges)
        if total:
            raise UnsupportedError(
                f"`charges` must be neutral in total with `{self}`, as the dipole moment depends "
                f"on the origin, got a net charge of {total:.6g} e: add counterions"
            )

    def at(self, positions: Any, cell: np.ndarray) -> "PlacedDipoleTerm":
        """The term of particles at positions as given, shape (n, 3), nm, on the host or a device,
        in a reduced cell, shape (3, 3), nm."""
        return PlacedDipoleTerm(self, positions, cell)

    def check_span(self, positions: np.ndarray, charges: np.ndarray, cell: np.ndarray) -> None:
        """Warn once if charged particles span more than the height of the cell.

        Warns:
            UserWarning: they do.
        """
        z, height = positions[charges != 0.0, NORMAL], cell[NORMAL, NORMAL]
        span = float(np.ptp(z)) if len(z) else 0.0
        if self.slab_correction and span > height and not self.has_warned:
            self.has_warned = True
            warn(
                f"`positions`: charges span {span:.4g} nm along the normal of the slab, more than "
                f"the height of the cell, {height:.4g} nm: `slab_correction` needs coordinates of "
                "one image of the slab"
            )


class PlacedDipoleTerm:
    """A :class:`DipoleTerm` of particles at fixed positions.

    Results are of the kind of the positions, NumPy's or CuPy's, float64. Sums are over elements:
    no library of linear algebra is needed.

    Args:
        term: the term.
        positions: shape (n, 3), nm, not wrapped.
        cell: reduced, shape (3, 3), nm.
    """

    def __init__(self, term: DipoleTerm, positions: Any, cell: np.ndarray):
        self._xp = namespace(positions)
        x = self._xp.asarray(positions, dtype=np.float64)
        # The term does not depend on the origin, but its rounding errors do.
        self._origin = x.mean(0)
        self._x = x - self._origin
        self._is_slab = term.slab_correction
        strength = 2.0 * np.pi * COULOMB_CONSTANT / float(np.prod(np.diag(cell)))
        if self._is_slab:
            self._strengths = {NORMAL: strength}
            self._constant = strength * cell[NORMAL, NORMAL] ** 2 / 6.0
        else:
            strength /= 2.0 * term.surface_dielectric + 1.0
            self._strengths = dict.fromkeys(range(3), strength)
            self._constant = 0.0

    def _moments(self, charges: Any):
        """Charge (K,), dipole moment (K, 3) and the weighted second moment
        :math:`\\sum_a c_a T_{aa}` (K,) of sets of charges, shape (K, n)."""
        xp, x = self._xp, self._x
        dipole = xp.stack([(charges * x[:, axis]).sum(1) for axis in range(3)], 1)
        weights = sum(c * x[:, axis] ** 2 for axis, c in self._strengths.items())
        return charges.sum(1), dipole, (charges * weights).sum(1)

    def _evaluated(self, moments, x: Any, fields: bool = True):
        """Potentials (K, m) and fields (K, m, 3), or None, at x, shape (m, 3), relative to the
        origin."""
        charge, dipole, second = moments
        potentials = self._xp.zeros((len(charge), len(x)))
        potentials -= (charge * self._constant + second)[:, None]
        field = self._xp.zeros((len(charge), len(x), 3)) if fields else None
        for axis, c in self._strengths.items():
            along, moment = x[:, axis], dipole[:, axis, None]
            potentials += c * along * (2.0 * moment - charge[:, None] * along)
            if field is not None:
                field[:, :, axis] = 2.0 * c * (charge[:, None] * along - moment)
        return potentials, field

    def _matrix(self, moments):
        """``sum_i q_s,i phi_t,i`` of sets, shape (K, K)."""
        charge, dipole, second = moments
        matrix = -(charge[:, None] * second + second[:, None] * charge)
        matrix -= self._constant * charge[:, None] * charge
        for axis, c in self._strengths.items():
            matrix += 2.0 * c * dipole[:, None, axis] * dipole[:, axis]
        return matrix

    def _virial(self, charges: Any, moments):
        """-dE/dstrain of a set of charges, shape (n,); shape (3, 3). With the volume V and lengths
        along the normal, the energy of a slab scales as their square over V."""
        charge, dipole, _ = moments
        xp, x = self._xp, self._x
        energy = 0.5 * self._matrix(moments)[0, 0]
        if self._is_slab:
            return energy * xp.asarray(np.diag([1.0, 1.0, -1.0]))
        products = [[(charges * x[:, a] * x[:, b]).sum() for a in range(3)] for b in range(3)]
        second = xp.stack([xp.stack(row) for row in products])
        stretched = dipole[0, :, None] * dipole[0] - charge[0] * second
        return energy * xp.eye(3) - 2.0 * self._strengths[0] * stretched

    def evaluate(self, charges: Any) -> tuple[Any, Any, Any]:
        """The energy, kJ/mol, potentials (n,), kJ/mol/e, and fields (n, 3), kJ/mol/nm/e, of
        charges, shape (n,), e."""
        moments = self._moments(self._xp.asarray(charges, dtype=np.float64)[None])
        potentials, fields = self._evaluated(moments, self._x)
        return 0.5 * self._matrix(moments)[0, 0], potentials[0], fields[0]

    def add(self, result: Any, charges: Any, points: Any = None) -> Any:
        """A :class:`fmm_openmm.results.CoulombResult`, or one of the oracle, with the term.

        Args:
            result: of these positions without the term; its arrays are left as they are.
            charges: shape (n,), e.
            points: shape (m, 3), nm, where the result has potentials and fields, too.
        """
        xp = self._xp
        q = xp.asarray(charges, dtype=np.float64)
        energy, potentials, fields = self.evaluate(q)
        added = {
            "energy": energy.reshape(1) if np.ndim(result.energy) else float(energy),
            "forces": q[:, None] * fields,
            "potentials": potentials,
            "fields": fields,
        }
        moments = self._moments(q[None])
        if getattr(result, "virial", None) is not None:
            added["virial"] = self._virial(q, moments)
        if points is not None:
            x = xp.asarray(points, dtype=np.float64) - self._origin
            potentials, fields = self._evaluated(moments, x)
            added |= {"point_potentials": potentials[0], "point_fields": fields[0]}
        return _with_added(result, added)

    def add_to_sets(self, result: Any, charges: Any) -> Any:
        """A :class:`fmm_openmm.results.ChargeSetsResult` with the term of its sets of charges,
        shape (K, n), e."""
        q = self._xp.asarray(charges, dtype=np.float64)
        moments = self._moments(q)
        potentials, fields = self._evaluated(moments, self._x, result.fields is not None)
        added = {"potentials": potentials, "matrix": self._matrix(moments)}
        if fields is not None:
            added |= {"fields": fields, "forces": q[:, :, None] * fields}
        return _with_added(result, added)

    def among_groups(self, charges: Any, group: np.ndarray) -> Any:
        """What the term adds to the energies among groups, shape (G, G), kJ/mol; arguments as of
        :meth:`fmm_openmm.charge_sets.CoulombMatrix.among_groups`."""
        xp = self._xp
        q = xp.asarray(charges, dtype=np.float64)
        groups, of = 1 + int(group.max()), xp.asarray(group)

        def total(values):
            return xp.bincount(of, weights=values, minlength=groups)

        x, weights = self._x, sum(c * self._x[:, a] ** 2 for a, c in self._strengths.items())
        dipole = xp.stack([total(q * x[:, axis]) for axis in range(3)], 1)
        return 0.5 * self._matrix((total(q), dipole, total(q * weights)))

    def operator(self, inner: Any) -> Any:
        """A linear operator of charges, SciPy's or CuPy's, with the term."""

        def product(columns):
            sets = self._xp.asarray(columns, dtype=np.float64).reshape(len(self._x), -1).T
            added, _ = self._evaluated(self._moments(sets), self._x, fields=False)
            return inner.dot(columns) + added.T.reshape(columns.shape)

        return type(inner)(
            inner.shape, matvec=product, rmatvec=product, matmat=product, dtype=inner.dtype
        )


def _with_added(result: Any, added: dict[str, Any]) -> Any:
    """A result with arrays added to its own, in the precision of these."""
    changed: dict[str, Any] = {}
    for name, term in added.items():
        value = getattr(result, name)
        changed[name] = value + (term if isinstance(value, float) else term.astype(value.dtype))
    return replace(result, **changed)


def add_dipole_term(
    result: Any,
    positions: np.ndarray,
    charges: np.ndarray,
    cell: np.ndarray,
    slab_correction: bool = False,
    surface_dielectric: float = TIN_FOIL,
) -> Any:
    """A result of charges, shape (n,), e, at positions, shape (n, 3), nm, in a periodic cell, shape
    (3, 3), nm, on the host, with the term.

    Raises:
        TypeError, ValueError, UnsupportedError: as of :class:`DipoleTerm`.
    """
    term = DipoleTerm.from_options(slab_correction, surface_dielectric, Boundary())
    if term is None:
        return result
    term.check_charges(charges)
    term.check_span(positions, charges, cell)
    return term.at(positions, cell).add(result, charges)
