r"""Real solid harmonics: the conventions of the whole package.

With the complex regular and irregular solid harmonics (no Condon-Shortley phase)

    R_lm(r) = r^l       P_lm(cos t) exp(i m phi) / (l + m)!
    S_lm(r) = r^-(l+1)  P_lm(cos t) exp(i m phi) (l - m)!
            = (l - m)! (l + m)! R_lm(r) / r^(2 l + 1)

the package computes with their real and imaginary parts only. A *term* ``a`` of degree l is

    a = l^2 + l + m,  m >= 0:   R_a = Re R_lm           a = l^2 + l - m,  m > 0:   R_a = Im R_lm

so an expansion of order p has ``(p + 1)^2`` real terms, ordered by degree. In these terms

    moments          M_a = sum_j q_j R_a(y_j)           y relative to the centre of the source's box
    local expansion  Phi(x) = sum_a Lambda_a R_a(x)     x relative to the centre of the target's box
    field            E(x) = -grad Phi(x),  d R_a / d x_axis = sum_b D[axis, a, b] R_b,
                     b of degree l - 1
    translation      Lambda_a = sum_b A_ab M_b,  A_ab = (-1)^l sum_t C[a, b, t] T_t

where ``T_t`` are the terms of S at the vector from the source's centre to the target's, of degree l
+ j for a of degree l and b of degree j, and ``C`` has at most two entries for each pair
(:func:`coupling`). The matrix ``A`` is symmetric under exchange of source and target, so energies
are bilinear and forces their exact gradients.

Source: E. O. Steinborn and K. Ruedenberg, Adv. Quantum Chem. 7, 1 (1973),
doi:10.1016/S0065-3276(08)60558-4 for the addition theorems; normalisation as in M. Challacombe, C.
White and M. Head-Gordon, J. Chem. Phys. 107, 10131 (1997), doi:10.1063/1.474150.
"""

from collections.abc import Iterator
from functools import cache
from math import factorial, isqrt, lgamma, log

import numpy as np


def term(l: int, m: int) -> int:
    """Index of the term of degree ``l``: the real part of order ``m`` if m >= 0, the imaginary
    part of ``-m`` if m < 0."""
    return l * l + l + m


def term_count(order: int) -> int:
    """Number of terms of an expansion of the given order."""
    return (order + 1) ** 2


@cache
def degrees(order: int) -> np.ndarray:
    """Degree l of every term, shape ``((order + 1)^2,)`` int64."""
    return np.repeat(np.arange(order + 1), 2 * np.arange(order + 1) + 1)


def by_degree(terms: int) -> Iterator[tuple[int, slice]]:
    """Each degree with the places of its terms, for work on arrays of which a copy of all terms
    would be large and one term at a time is slow."""
    for l in range(isqrt(terms)):
        yield l, slice(l * l, (l + 1) ** 2)


@cache
def irregular_norm(order: int) -> np.ndarray:
    """``(l - m)! (l + m)!`` of every term, so that ``S = norm * R / r^(2 l + 1)``, shape
    ``((order + 1)^2,)`` float64."""
    return np.array(
        [
            float(factorial(l - abs(m)) * factorial(l + abs(m)))
            for l in range(order + 1)
            for m in range(-l, l + 1)
        ]
    )


def irregular_in_range(degree: int, distance: float, dtype) -> bool:
    """Whether a type holds sums of irregular harmonics of a degree n at a distance r: they grow to
    ``(2n - 1)!! / r^(n + 1)``, and 16 times as much leaves room for sums."""
    n = degree
    largest = lgamma(2 * n + 1) - lgamma(n + 1) - n * log(2) - (n + 1) * log(distance)
    return largest + log(16) <= log(np.finfo(dtype).max)


def regular(x: np.ndarray, order: int) -> np.ndarray:
    """Regular solid harmonics ``R_a(x)``.

    Args:
        x: points, shape ``(..., 3)`` float.
        order: highest degree.

    Returns:
        array of shape ``((order + 1)^2, ...)`` of the dtype of ``x``: the term is the leading axis.
    """
    x = np.asarray(x)
    out = np.zeros((term_count(order), *x.shape[:-1]), x.dtype)
    x, y, z = np.moveaxis(x, -1, 0)
    r2 = x * x + y * y + z * z
    out[0] = 1.0
    for l in range(1, order + 1):
        of_degree, before = out[l * l : (l + 1) ** 2], out[(l - 1) ** 2 : l * l]
        c, s = before[-1], before[0] if l > 1 else 0.0
        of_degree[-1] = (x * c - y * s) / (2 * l)
        of_degree[0] = (x * s + y * c) / (2 * l)
        inner = of_degree[1:-1]  # orders 1 - l to l - 1
        np.multiply((2 * l - 1) * z, before, out=inner)
        if l > 1:
            inner[1:-1] -= r2 * out[(l - 2) ** 2 : (l - 1) ** 2]
        m = np.arange(1 - l, l).reshape(-1, *[1] * x.ndim)
        inner /= ((l + m) * (l - m)).astype(out.dtype)
    return out


def _component(l: int, m: int, imaginary: bool) -> tuple[float, int] | None:
    """Real or imaginary part of the complex harmonic (l, m), any sign of m, as ``factor * term``;
    None where it is 0."""
    if abs(m) > l or (imaginary and m == 0):
        return None
    # X_l,-m = (-1)^m conj(X_lm)
    sign = 1.0 if m >= 0 else (-1.0) ** m * (-1.0 if imaginary else 1.0)
    return sign, term(l, -abs(m) if imaginary else abs(m))


@cache
def gradient(order: int) -> np.ndarray:
    """The matrix D of ``d R_a / d x_axis = sum_b D[axis, a, b] R_b``.

    Shape ``(3, (order + 1)^2, order^2)`` float64, at most two entries in a row. From
    ``dR_lm/dz = R_l-1,m``, ``(d/dx + i d/dy) R_lm = -R_l-1,m+1`` and
    ``(d/dx - i d/dy) R_lm = R_l-1,m-1``.
    """
    out = np.zeros((3, term_count(order), order * order))
    for l in range(1, order + 1):
        for m in range(l + 1):
            for imaginary in (False, True) if m else (False,):
                a = term(l, -m if imaginary else m)
                # d/dy mixes parts: Re (i w) = -Im w, Im (i w) = Re w
                flip = -1.0 if not imaginary else 1.0
                for axis, k, part, factor in (
                    (0, m - 1, imaginary, 0.5),
                    (0, m + 1, imaginary, -0.5),
                    (1, m - 1, not imaginary, 0.5 * flip),
                    (1, m + 1, not imaginary, 0.5 * flip),
                    (2, m, imaginary, 1.0),
                ):
                    found = _component(l - 1, k, part)
                    if found:
                        out[axis, a, found[1]] += factor * found[0]
    return out


@cache
def coupling(order: int) -> tuple[np.ndarray, np.ndarray]:
    """The two entries of ``C`` for every pair of terms:
    ``sum_t C[a, b, t] T_t = sum_i weight[a, b, i] T_index[a, b, i]``.

    Returns:
        index: shape ``(n, n, 2)`` int32 with n = (order + 1)^2, terms of an expansion of order 2 *
            order.
        weight: shape ``(n, n, 2)`` float64, 0 where there is no second entry. Symmetric in a and b.
    """
    degree = degrees(order)
    number = np.arange(len(degree)) - degree * (degree + 1)  # -m of the imaginary part of m
    l, m = degree[:, None, None], number[:, None, None]
    j, k = degree[:, None], number[:, None]
    # L_lm = sum_jk T_l+j,m+k M_jk with M_jk = Re - i Im of the moments above and M_j,-k = (-1)^k
    # conj(M_jk): entries of k and of -k, which are one if k is 0
    signs = np.array([1, -1])
    found = abs(m) + signs * abs(k)
    imaginary = (m < 0) != (k < 0)
    exists = ((signs > 0) | (k != 0)) & ~(imaginary & (found == 0))
    # T_l,-m = (-1)^m conj(T_lm)
    weight = np.where(found < 0, (-1.0) ** found * np.where(imaginary, -1.0, 1.0), 1.0)
    weight *= np.where(signs < 0, (-1.0) ** k, 1.0) * np.where(m == 0, 1.0, 2.0)
    # times -i or i: Re (i c T) = -c Im T, Im (i c T) = c Re T
    weight *= np.where(k < 0, np.where(m < 0, -1.0, 1.0) * signs, 1.0)
    index = (l + j) * (l + j + 1) + np.where(imaginary, -1, 1) * abs(found)
    both = exists.all(-1) & (index[..., 0] == index[..., 1])
    weight[both, 0] += weight[both, 1]
    exists[both, 1] = False
    first = np.argsort(np.where(exists, index, np.iinfo(index.dtype).max), axis=-1, kind="stable")
    index, weight = (
        np.take_along_axis(np.where(exists, values, 0), first, -1) for values in (index, weight)
    )
    index = index.astype(np.int32)
    return index, weight
