"""Particles that change their ranks: the way to the ranks that they had when a solver was made, and
back."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fmm_openmm.distributed.communication import agree, exchange, exchange_rows


@dataclass(frozen=True, eq=False)
class Homes:
    """Where each particle was when a solver was made.

    Attributes, for all n particles:
        ids: numbers of the particles, ascending, shape (n,).
        rank: the rank of each, shape (n,).
        place: its index on that rank, shape (n,).
    """

    comm: Any
    ids: np.ndarray
    rank: np.ndarray
    place: np.ndarray

    @classmethod
    def from_ranks(cls, comm, ids: np.ndarray | None, particles: int) -> "Homes":
        """The homes of particles that the ranks have, which are numbered through all ranks unless
        ``ids`` are given."""
        counts = np.array(comm.allgather(particles))
        numbers = np.concatenate(comm.allgather(np.empty(0, np.int64) if ids is None else ids))
        if not len(numbers):
            numbers = np.arange(counts.sum())
        order = np.argsort(numbers, kind="stable")
        rank = np.repeat(np.arange(comm.size), counts)
        place = np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts, counts)
        return cls(comm, numbers[order], rank[order], place[order])

    def route(self, ids: np.ndarray) -> "Route":
        """The way home of particles that this rank has now.

        Raises:
            AgreedError: with a ValueError, if not every particle is on one rank.
        """
        comm = self.comm

        def check():
            found = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
            unknown = ids[self.ids[found] != ids]
            if len(unknown):
                raise ValueError(f"`ids` must be those given at creation, got {unknown[0]}")
            return found

        found = agree(comm, check)
        order = np.argsort(self.rank[found], kind="stable")
        cuts = np.searchsorted(self.rank[found[order]], np.arange(1, comm.size))
        places = exchange(comm, np.split(self.place[found[order]], cuts))
        mine = self.rank == comm.rank
        arrivals = np.bincount(np.concatenate(places), minlength=np.count_nonzero(mine))

        def count():
            if (arrivals != 1).any():
                place = np.flatnonzero(arrivals != 1)[0]
                number = self.ids[mine][self.place[mine] == place][0]
                raise ValueError(
                    f"`ids` must name each particle once, on one rank: {number} is named "
                    f"{arrivals[place]} times"
                )

        agree(comm, count)
        return Route(comm, order, cuts, places)


@dataclass(frozen=True, eq=False)
class Route:
    """The way home of particles.

    Attributes:
        order: particles of this rank in the order of their homes.
        cuts: where those of each home but the first begin in it.
        places: places on this rank of the particles that each rank has.
    """

    comm: Any
    order: np.ndarray
    cuts: np.ndarray
    places: list[np.ndarray]

    def to_homes(self, rows: np.ndarray) -> np.ndarray:
        """Rows of the particles at home on this rank, from those of the particles that this rank
        has."""
        received = exchange_rows(self.comm, np.split(rows[self.order], self.cuts))
        found = np.empty((sum(map(len, received)), rows.shape[1]))
        found[np.concatenate(self.places)] = np.concatenate(received)
        return found

    def from_homes(self, rows: np.ndarray) -> np.ndarray:
        """The inverse of :meth:`to_homes`."""
        received = exchange_rows(self.comm, [rows[places] for places in self.places])
        found = np.empty((len(self.order), rows.shape[1]))
        found[self.order] = np.concatenate(received)
        return found
