r"""Translations of expansions from box to box: m2m, m2l and l2l, in the terms of ``harmonics.py``.

With x measured from the new centre and ``shift`` from the old centre to the new one for m2l (source
to target), but from the parent's centre to the child's for m2m and l2l, all in one unit of length,

    m2m   M'     = E(shift) M               R_a(x + shift) = sum_b E_ab(shift) R_b(x)
    l2l   Lambda' = E(shift)^T Lambda
    m2l   Lambda  = A(shift) M              A as in harmonics.py

E and A follow from the addition theorems of the complex harmonics,

    R_lm(x + y) = sum_jk R_jk(x) R_l-j,m-k(y)

Lengths of a level are in its own box widths: :func:`to_parent` and :func:`to_child` change
the unit.

There are two operators of each kind, equal to rounding. They take expansions of any number of boxes
that share one shift, shape ``(terms, ...)``, and return as many:

``p4``        the dense matrix, O(p^4) operations
``rotation``  rotate the shift onto the z axis, translate along it, rotate back, O(p^3) operations.
              With (r, theta, phi) the shift's spherical coordinates, terms rotate by

                  B = J Z(theta) J Z(-phi)

              where ``Z(g)`` turns by g about z, that is multiplies ``R_lm`` by ``exp(i m g)``, and
              J exchanges y and z: the Wigner matrix of a quarter turn about x and a mirroring, the
              same for all shifts, ``J J = 1``. So a rotation by any angle about y is two fixed
              matrices with a diagonal one between. As E and A along z keep m,

                  m2m   B^-1 E(r z) B        l2l   B^T E(r z)^T B^-T        m2l   B^T A(r z) B
                  E(r z)_lm,jm = r^(l-j) / (l-j)!,  j <= l
                  A(r z)_lm,jm = (-1)^(l+m) (2 - [m = 0]) (l+j)! / r^(l+j+1)

Sources: C. A. White and M. Head-Gordon, J. Chem. Phys. 105, 5061 (1996), doi:10.1063/1.472369
(rotation to the z axis); D. Pinchon and P. E. Hoggan, J. Phys. A 40, 1597 (2007),
doi:10.1088/1751-8113/40/7/011 (the exchange of two axes as the one matrix); J comes from the
generating function ``(z + (x + i y) / 2 w - (x - i y) w / 2)^l / l! = sum_m R_lm w^-m``, in which
exchanging y and z is a Moebius transform of w.
"""

from dataclasses import dataclass
from functools import cache
from math import comb, factorial, isqrt
from typing import Protocol

import numpy as np

from fmm_openmm.expansions.harmonics import (
    coupling,
    degrees,
    irregular_norm,
    regular,
    term,
    term_count,
)


def irregular(x: np.ndarray, order: int) -> np.ndarray:
    """Irregular solid harmonics ``S_a(x)``; shapes as for
    :func:`fmm_openmm.expansions.harmonics.regular`."""
    r = np.linalg.norm(x, axis=-1)
    inverse = (1.0 / r) ** (np.arange(order + 1).reshape(-1, *[1] * r.ndim) + 1)
    along = (-1,) + (1,) * r.ndim
    return (
        irregular_norm(order).reshape(along)
        * regular(x / r[..., None], order)
        * inverse[degrees(order)]
    )


def order_of(expansions: np.ndarray) -> int:
    """The order of expansions of shape ``(terms, ...)``."""
    return isqrt(len(expansions)) - 1


def to_parent(order: int) -> np.ndarray:
    """``2^-l`` of every term: the factor that takes moments in box widths of a level to moments in
    those of its parent level, which are twice as long."""
    return 0.5 ** degrees(order)


def to_child(order: int) -> np.ndarray:
    """``2^-(l + 1)`` of every term: the factor that takes local expansions in box widths of the
    parent level to those in box widths of a level."""
    return 0.5 ** (degrees(order) + 1)


# Dense matrices


def m2m_matrix(shift: np.ndarray, order: int) -> np.ndarray:
    """E(shift), shape (terms, terms) float64, with ``M_parent = E M_child``; ``shift``, shape (3,),
    leads from the parent's centre to the child's."""
    l, m = _degree_and_order(order)
    row, column = np.subtract.outer(l, l), np.subtract.outer(m, m)
    found = np.abs(column) <= row
    harmonics = _complex(order) @ regular(np.asarray(shift, float), order)
    complex_matrix = np.where(found, harmonics[np.where(found, row * (row + 1) + column, 0)], 0.0)
    return (_real(order) @ complex_matrix @ _complex(order)).real


def l2l_matrix(shift: np.ndarray, order: int) -> np.ndarray:
    """E(shift)^T, with ``L_child = E^T L_parent``; arguments as for :func:`m2m_matrix`."""
    return m2m_matrix(shift, order).T


def m2l_matrix(shift: np.ndarray, order: int) -> np.ndarray:
    """A(shift), shape (terms, terms) float64, with ``L = A M``; ``shift``, shape (3,), leads from
    the source's centre to the target's."""
    index, weight = coupling(order)
    sign = (-1.0) ** degrees(order)[:, None]
    return sign * (weight * irregular(np.asarray(shift, float), 2 * order)[index]).sum(-1)


# Rotations


@cache
def exchange(order: int) -> tuple[np.ndarray, ...]:
    """The matrix J of ``R_a(x, z, y) = sum_b J_ab R_b(x, y, z)``: its blocks of degree 0 to
    ``order``, (2l + 1, 2l + 1).

    For complex terms ``2^-l (-1)^(l+m+k) i^(m+k) sum_n (-1)^n C(l+k, n) C(l-k, l-m-n)``; the sum is
    exact.
    """
    return tuple(_exchange(l) for l in range(order + 1))


def _exchange(l: int) -> np.ndarray:
    orders = range(-l, l + 1)

    def entry(m, k):
        ways = sum((-1) ** n * comb(l + k, n) * comb(l - k, l - m - n) for n in range(l - m + 1))
        return (1, 1j, -1, -1j)[(2 * (l + m + k) + m + k) % 4] * (ways / 2**l)

    own = slice(l * l, (l + 1) ** 2)
    matrix = np.array([[entry(m, k) for k in orders] for m in orders])
    return (_real(l)[own, own] @ matrix @ _complex(l)[own, own]).real


def turn(expansions: np.ndarray, angle: float) -> np.ndarray:
    """``Z(angle)`` of every expansion: R_lm times exp(i m angle)."""
    order = order_of(expansions)
    m = _degree_and_order(order)[1]
    along = (-1,) + (1,) * (expansions.ndim - 1)
    cosine, sine = np.cos(m * angle).reshape(along), np.sin(m * angle).reshape(along)
    # of the same degree, order -m: the other part of the complex number
    other = np.arange(len(m)) - 2 * m
    return (cosine * expansions - sine * expansions[other]).astype(expansions.dtype, copy=False)


def exchanged(expansions: np.ndarray, transposed: bool = False) -> np.ndarray:
    """J, or its transpose, of every expansion."""
    columns = expansions.reshape(len(expansions), -1)
    blocks = [
        (block.T if transposed else block).astype(expansions.dtype) @ columns[l * l : (l + 1) ** 2]
        for l, block in enumerate(exchange(order_of(expansions)))
    ]
    return np.concatenate(blocks).reshape(expansions.shape)


@dataclass(frozen=True)
class Rotation:
    """The rotation that takes a shift onto the z axis: B, its inverse and their transposes,
    applied to expansions."""

    r: float
    theta: float
    phi: float

    @classmethod
    def from_shift(cls, shift: np.ndarray) -> "Rotation":
        x, y, z = map(float, shift)
        return cls(
            float(np.sqrt(x * x + y * y + z * z)),
            float(np.arctan2(np.hypot(x, y), z)),
            float(np.arctan2(y, x)),
        )

    def moments(self, expansions: np.ndarray) -> np.ndarray:
        """B."""
        return exchanged(turn(exchanged(turn(expansions, -self.phi)), self.theta))

    def moments_back(self, expansions: np.ndarray) -> np.ndarray:
        """B^-1."""
        return turn(exchanged(turn(exchanged(expansions), -self.theta)), self.phi)

    def local(self, expansions: np.ndarray) -> np.ndarray:
        """B^-T, as local expansions rotate."""
        return exchanged(turn(exchanged(turn(expansions, -self.phi), True), self.theta), True)

    def local_back(self, expansions: np.ndarray) -> np.ndarray:
        """B^T."""
        return turn(exchanged(turn(exchanged(expansions, True), -self.theta), True), self.phi)


def _along_z(expansions: np.ndarray, matrix) -> np.ndarray:
    """``sum_j matrix(m)[l, j] X_jm`` of every expansion, l and j from |m| on."""
    order = order_of(expansions)
    columns = expansions.reshape(len(expansions), -1)
    out = np.empty_like(columns)
    for m in range(order + 1):
        own = matrix(m).astype(expansions.dtype)
        for signed in {m, -m}:
            rows = [term(l, signed) for l in range(m, order + 1)]
            out[rows] = own @ columns[rows]
    return out.reshape(expansions.shape)


def m2m_along_z(r: float, order: int, m: int) -> np.ndarray:
    """``E(r z)_lm,jm`` for l, j from m to ``order``."""
    l = range(m, order + 1)
    return np.array([[r ** (i - j) / factorial(i - j) if j <= i else 0.0 for j in l] for i in l])


def m2l_along_z(r: float, order: int, m: int) -> np.ndarray:
    """``A(r z)_lm,jm`` for l, j from m to ``order``."""
    degree = np.arange(m, order + 1)
    total = np.add.outer(degree, degree)
    factorials = np.array([float(factorial(n)) for n in range(2 * order + 1)])
    sign = (-1.0) ** (degree + m) * (2 if m else 1)
    return sign[:, None] * factorials[total] / r ** (total + 1.0)


# The operators


class Translations(Protocol):
    """m2m, m2l and l2l of expansions (terms, ...) by one shift (3,)."""

    def m2m(self, moments: np.ndarray, shift: np.ndarray) -> np.ndarray: ...

    def m2l(self, moments: np.ndarray, shift: np.ndarray) -> np.ndarray: ...

    def l2l(self, local: np.ndarray, shift: np.ndarray) -> np.ndarray: ...


class P4:
    """Dense matrices."""

    def m2m(self, moments, shift):
        return _applied(m2m_matrix, moments, shift)

    def m2l(self, moments, shift):
        return _applied(m2l_matrix, moments, shift)

    def l2l(self, local, shift):
        return _applied(l2l_matrix, local, shift)


def _applied(matrix, expansions, shift):
    return np.tensordot(matrix(shift, order_of(expansions)).astype(expansions.dtype), expansions, 1)


class ByRotation:
    """Translations along z between rotations."""

    def m2m(self, moments, shift):
        frame, order = Rotation.from_shift(shift), order_of(moments)
        return frame.moments_back(
            _along_z(frame.moments(moments), lambda m: m2m_along_z(frame.r, order, m))
        )

    def m2l(self, moments, shift):
        frame, order = Rotation.from_shift(shift), order_of(moments)
        return frame.local_back(
            _along_z(frame.moments(moments), lambda m: m2l_along_z(frame.r, order, m))
        )

    def l2l(self, local, shift):
        frame, order = Rotation.from_shift(shift), order_of(local)
        return frame.local_back(
            _along_z(frame.local(local), lambda m: m2m_along_z(frame.r, order, m).T)
        )


# Real and complex terms


def _degree_and_order(order: int) -> tuple[np.ndarray, np.ndarray]:
    """l and m of every term, shape ((order + 1)^2,)."""
    l = degrees(order)
    return l, np.arange(term_count(order)) - l * l - l


@cache
def _complex(order: int) -> np.ndarray:
    """The matrix that makes complex harmonics (l, m), m = -l ... l, of real terms:
    ``X_l,-m = (-1)^m conj(X_lm)``."""
    out = np.zeros((term_count(order),) * 2, complex)
    for l in range(order + 1):
        out[term(l, 0), term(l, 0)] = 1.0
        for m in range(1, l + 1):
            out[term(l, m), [term(l, m), term(l, -m)]] = 1.0, 1j
            out[term(l, -m), [term(l, m), term(l, -m)]] = (-1.0) ** m, -1j * (-1.0) ** m
    return out


@cache
def _real(order: int) -> np.ndarray:
    """The inverse of :func:`_complex`."""
    return np.linalg.inv(_complex(order))
