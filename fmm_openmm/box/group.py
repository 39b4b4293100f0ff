"""The boxes of a cell as a finite group, on which a sum over all boxes and all their periodic
images is a plain three-dimensional circular convolution.

Box indices i and i + m @ counts are the same box. The group is Z_d1 x Z_d2 x Z_d3: rows of boxes
are the last cycle where they split off; the rest follows from the Smith normal form
``U counts V = diag(d)``, and as Z_mn is Z_m x Z_n for coprime m and n, long and thin groups become
as compact as they can be.
"""

from math import gcd
from operator import mul

import numpy as np


def smith_normal_form(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``U @ counts @ V = diag(d)`` with unimodular integer U and V and positive d.

    Returns:
        u, v: shape (n, n), like counts, integers of any length: object.  d: shape (n,) int64.
    """
    a, n = np.array(counts, dtype=object), len(counts)
    u, v = np.eye(n, dtype=object), np.eye(n, dtype=object)
    for t in range(n):
        while True:
            i, j = min(
                ((i, j) for i in range(t, n) for j in range(t, n) if a[i, j]),
                key=lambda ij: abs(a[ij]),
            )
            a[[t, i]], u[[t, i]] = a[[i, t]], u[[i, t]]
            a[:, [t, j]], v[:, [t, j]] = a[:, [j, t]], v[:, [j, t]]
            for i in range(t + 1, n):
                f = a[i, t] // a[t, t]
                a[i], u[i] = a[i] - f * a[t], u[i] - f * u[t]
            for j in range(t + 1, n):
                f = a[t, j] // a[t, t]
                a[:, j], v[:, j] = a[:, j] - f * a[:, t], v[:, j] - f * v[:, t]
            if not any(a[t + 1 :, t]) and not any(a[t, t + 1 :]):
                break
        if a[t, t] < 0:
            a[t], u[t] = -a[t], -u[t]
    return u, v, np.diag(a).astype(np.int64)


def compact_cycles(v: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The group of ``index @ v mod d`` as one of as many cycles whose lengths are as equal as they
    get, the longest last.

    Cycles are split into cycles of prime powers, and those for different primes joined again, by
    ``n = sum_q n_q (length / q) mod length`` (I. J. Good, doi:10.1111/j.2517-6161.1958.tb00300.x).

    Returns:
        v: shape (n, n) int64, reduced modulo the lengths.  lengths: shape (n,) int64.
    """
    n = len(d)
    powers: dict[int, list] = {}
    for axis, length in enumerate(d.tolist()):
        for prime, power in _prime_powers(length).items():
            powers.setdefault(prime, []).append((power, axis))
    lengths = [1] * n
    parts: list[list[tuple[int, int]]] = [[] for _ in range(n)]
    for of_one_prime in sorted(
        (sorted(each, reverse=True) for each in powers.values()), reverse=True
    ):
        shortest = sorted(range(n), key=lengths.__getitem__)
        for cycle, (power, axis) in zip(shortest, of_one_prime, strict=False):
            lengths[cycle] *= power
            parts[cycle].append((power, axis))
    order = sorted(range(n), key=lengths.__getitem__)
    columns = [
        sum(((lengths[k] // power) * v[:, axis] for power, axis in parts[k]), np.zeros(n, np.int64))
        for k in order
    ]
    sorted_lengths = np.array([lengths[k] for k in order], np.int64)
    return np.mod(np.stack(columns, 1), sorted_lengths), sorted_lengths


def row_cycle(counts: np.ndarray) -> tuple[int, ...] | None:
    """Integers v with v[0] = 1 for which ``counts @ v`` is zero modulo ``counts[0, 0]``; None if
    there are none. Then ``index @ v`` numbers the boxes of each row along the first axis
    consecutively, and the group is the product of that cycle and another group.

    Args:
        counts: lower triangular, shape (n, n).
    """
    length = int(counts[0, 0])

    def completed(v: tuple[int, ...]) -> tuple[int, ...] | None:
        if len(v) == len(counts):
            return v
        *before, own = counts[len(v), : len(v) + 1].tolist()
        rest, common = sum(map(mul, before, v)), gcd(own, length)
        if rest % common:
            return None
        step = length // common
        # of the k with rest + own k = 0 mod length
        first = -rest // common * pow(own // common, -1, step) % step
        return next(filter(None, (completed((*v, k)) for k in range(first, length, step))), None)

    return completed((1,))


def group_cycles(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """V and d of the group of boxes: two indices denote the same box if their ``index @ V mod d``
    are equal.

    Neighbours along the first axis are neighbours in the last cycle wherever that is possible, then
    those along the second in the one before; what is left is made of compact cycles. A rectangular
    grid is left as it is, its axes reversed.

    Args:
        counts: lower triangular, shape (n, n).

    Returns:
        v: shape (n, n) int64.  d: shape (n,) int64.
    """
    if not len(counts):
        return np.zeros((0, 0), np.int64), np.zeros(0, np.int64)
    row = row_cycle(counts)
    if row is None:
        _, v, d = smith_normal_form(counts)
        return compact_cycles((v % d).astype(np.int64), d)
    v, d = group_cycles(counts[1:, 1:])
    v = np.pad(v, [(1, 0), (0, 1)])
    v[:, -1] = row
    return v, np.append(d, counts[0, 0])


def _prime_powers(n: int) -> dict[int, int]:
    """The largest power of each prime that divides n."""
    powers: dict[int, int] = {}
    prime = 2
    while n > 1:
        if prime * prime > n:
            prime = n
        while n % prime == 0:
            powers[prime] = powers.get(prime, 1) * prime
            n //= prime
        prime += 1
    return powers
