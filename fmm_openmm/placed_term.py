"""Terms of the energy that are sums over pairs of charges, of which a few moments of the charges
give potentials, fields, energies and the virial of any number of sets of charges.

Results are of the kind of the positions, NumPy's or CuPy's, float64. Sums are over elements: no
library of linear algebra is needed.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from fmm_openmm.arrays import is_on_device, namespace, to_host

NORMAL = 2
"""The normal of a and b in reduced box vectors is the axis z."""


class PlacedTerm(ABC):
    """A term of particles at fixed positions; subclasses define its moments.

    Args:
        positions: shape (n, 3), nm.
        origin: origin of the coordinates used internally, shape (3,), nm, on which rounding errors
            depend; None for the mean of the positions.
    """

    def __init__(self, positions: Any, origin: Any = None):
        self._xp = namespace(positions)
        x = self._xp.asarray(positions, dtype=np.float64)
        self._origin = x.sum(0) / max(len(x), 1) if origin is None else self._xp.asarray(origin)
        self._x = x - self._origin
        self._over_ranks: Callable[[Any], Any] = lambda sums: sums

    def shared(self, over_ranks: Callable[[Any], Any]) -> "PlacedTerm":
        """The term of all particles that ranks share, for those of this rank, which may have none.

        Args:
            over_ranks: returns the sums over all ranks of an array of sums over the particles of
                this one.
        """
        placed, number = copy(self), len(self._x)
        sums = over_ranks(self._xp.append(number * self._origin, number))
        placed._origin = sums[:3] / sums[3]
        placed._x = self._x + (self._origin - placed._origin)
        placed._over_ranks = over_ranks
        return placed

    @abstractmethod
    def _moments(self, total: Any) -> Any:
        """Moments of K sets of charges, each of shape (K, ...), where ``total`` takes values, shape
        (n,), to their sums weighted by the charges, shape (K,)."""

    @abstractmethod
    def _evaluated(self, moments: Any, x: Any, fields: bool = True) -> tuple[Any, Any]:
        """Potentials (K, m) and fields (K, m, 3), or None, at x, shape (m, 3), relative to the
        origin."""

    @abstractmethod
    def _matrix(self, moments: Any) -> Any:
        """``sum_i q_s,i phi_t,i`` of sets, shape (K, K)."""

    @abstractmethod
    def _virial(self, charges: Any, moments: Any) -> Any:
        """-dE/dstrain of a set of charges, shape (n,); shape (3, 3)."""

    def _moments_of(self, charges: Any) -> Any:
        """Moments of sets of charges, shape (K, n)."""
        return self._moments(lambda values: self._over_ranks((charges * values).sum(1)))

    def evaluate(self, charges: Any) -> tuple[Any, Any, Any]:
        """The energy, kJ/mol, potentials (n,), kJ/mol/e, and fields (n, 3), kJ/mol/nm/e, of
        charges, shape (n,), e."""
        return self._from_moments(
            self._moments_of(self._xp.asarray(charges, dtype=np.float64)[None])
        )

    def _from_moments(self, moments: Any) -> tuple[Any, Any, Any]:
        """:meth:`evaluate` for the moments of one set of charges."""
        potentials, fields = self._evaluated(moments, self._x)
        return 0.5 * self._matrix(moments)[0, 0], potentials[0], fields[0]

    def add(self, result: Any, charges: Any, points: Any = None) -> Any:
        """A :class:`fmm_openmm.results.CoulombResult`, or one of the oracle, with the term.

        Args:
            result: result for these positions without the term; its arrays are not changed.
            charges: shape (n,), e.
            points: shape (m, 3), nm, where the result also has potentials and fields.
        """
        xp = self._xp
        q = xp.asarray(charges, dtype=np.float64)
        moments = self._moments_of(q[None])
        energy, potentials, fields = self._from_moments(moments)
        added = {
            "energy": energy.reshape(1) if np.ndim(result.energy) else float(energy),
            "forces": q[:, None] * fields,
            "potentials": potentials,
            "fields": fields,
        }
        if getattr(result, "virial", None) is not None:
            added["virial"] = self._virial(q, moments)
        if points is not None:
            x = xp.asarray(points, dtype=np.float64) - self._origin
            potentials, fields = self._evaluated(moments, x)
            added |= {"point_potentials": potentials[0], "point_fields": fields[0]}
        return _with_added(result, added)

    def add_to_sets(self, result: Any, charges: Any, points: Any = None) -> Any:
        """A :class:`fmm_openmm.results.ChargeSetsResult` with the term of its sets of charges,
        shape (K, n), e; points as in :meth:`add`."""
        q = self._xp.asarray(charges, dtype=np.float64)
        moments = self._moments_of(q)
        added = {"matrix": self._matrix(moments)}
        fields = None
        if result.potentials is not None:
            added["potentials"], fields = self._evaluated(
                moments, self._x, result.fields is not None
            )
        if fields is not None:
            added |= {"fields": fields, "forces": q[:, :, None] * fields}
        if result.virial is not None:
            virials = [self._virial(each, self._moments_of(each[None])) for each in q]
            added["virial"] = self._xp.stack(virials)
        if points is not None:
            x = self._xp.asarray(points, dtype=np.float64) - self._origin
            added["point_potentials"], added["point_fields"] = self._evaluated(moments, x)
        return _with_added(result, added)

    def among_groups(self, charges: Any, group: np.ndarray) -> Any:
        """Contributions of the term to the energies among groups, shape (G, G), kJ/mol; arguments
        as in :meth:`fmm_openmm.charge_sets.CoulombMatrix.among_groups`."""
        xp = self._xp
        q, groups = xp.asarray(charges, dtype=np.float64), 1 + int(group.max())
        of = xp.asarray(group)

        def total(values):
            return xp.bincount(of, weights=q * values, minlength=groups)

        return 0.5 * self._matrix(self._moments(total))

    def operator(self, inner: Any) -> Any:
        """A linear operator of charges, SciPy's or CuPy's, with the term."""

        def product(columns):
            sets = self._xp.asarray(columns, dtype=np.float64).reshape(len(self._x), -1).T
            added, _ = self._evaluated(self._moments_of(sets), self._x, fields=False)
            return inner.dot(columns) + added.T.reshape(columns.shape)

        return type(inner)(
            inner.shape, matvec=product, rmatvec=product, matmat=product, dtype=inner.dtype
        )


def _with_added(result: Any, added: dict[str, Any]) -> Any:
    """A result with arrays added to its own, where these are and in their precision."""
    changed: dict[str, Any] = {}
    for name, term in added.items():
        value = getattr(result, name)
        if not isinstance(value, float):
            term = (term if is_on_device(value) else to_host(term)).astype(value.dtype)
        changed[name] = value + term
    return replace(result, **changed)
