"""Excluded partners by patterns: lists of differences between particle numbers, which the particles
of like molecules share."""

from dataclasses import dataclass

import numpy as np

from fmm_openmm.distributed.communication import exchange


@dataclass(frozen=True, eq=False)
class Patterns:
    """Lists of excluded partners, each as the partner's number less that of the particle.

    Attributes:
        pattern: list of each particle of this rank, shape (n,).
        start: where pattern i begins in ``partner``, and where the last one ends, shape
            (patterns + 1,).
        partner: differences, ascending in each list.
    """

    pattern: np.ndarray
    start: np.ndarray
    partner: np.ndarray

    @classmethod
    def from_links(cls, particle: np.ndarray, difference: np.ndarray, n: int) -> "Patterns":
        """The patterns of one rank.

        Args:
            particle: particle of each link, shape (k,), ascending.
            difference: its partner's number less its own, shape (k,).
            n: number of particles.
        """
        length = np.bincount(particle, minlength=n)
        start = np.cumsum(length) - length
        low = difference.min(initial=0)
        width = difference.max(initial=0) - low + 1
        pattern, known = np.zeros(n, np.int64), 1  # of the lists up to ``place``
        for place in range(length.max(initial=0)):
            longer = np.flatnonzero(length > place)
            keys = pattern[longer] * width + (difference[start[longer] + place] - low)
            number, found = _ranked(keys)
            pattern[longer] = known + number
            known += found
        pattern, found = _ranked(pattern)
        example = np.empty(found, np.int64)
        example[pattern] = np.arange(n)
        length = length[example]
        end = np.cumsum(length)
        places = np.arange(length.sum()) + np.repeat(start[example] - (end - length), length)
        return cls(pattern, np.concatenate([[0], end]), difference[places])

    def shared(self, comm) -> "Patterns":
        """The same with the patterns of all ranks, those of rank 0 first."""
        lengths = _gathered(comm, np.diff(self.start))
        counts = comm.allgather(len(self.start) - 1)
        pattern = self.pattern + sum(counts[: comm.rank])
        start = np.cumsum(np.concatenate([[0], lengths]))
        return Patterns(pattern, start, _gathered(comm, self.partner))


def _ranked(keys: np.ndarray) -> tuple[np.ndarray, int]:
    """The rank of each key among the distinct keys, and how many these are. Keys are at least 0."""
    end = keys.max(initial=-1) + 1
    if end > 4 * len(keys):  # a table of all possible keys would take more memory
        distinct, number = np.unique(keys, return_inverse=True)
        return number, len(distinct)
    exists = np.zeros(end, bool)
    exists[keys] = True
    number = np.cumsum(exists) - 1
    return number[keys], int(number[-1]) + 1 if end else 0


def _gathered(comm, values: np.ndarray) -> np.ndarray:
    """The values of all ranks, one rank after the other."""
    return np.concatenate(exchange(comm, [values] * comm.size))
