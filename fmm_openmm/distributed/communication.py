"""What the ranks do together: exchange arrays, agree on faults, and end together.

``comm`` is a communicator of mpi4py everywhere.
"""

import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from fmm_openmm.arrays import to_host
from fmm_openmm.errors import UnsupportedError

Value = TypeVar("Value")

FORWARDING = 1.0
"""Seconds between the last message of a rank and the end of all: mpirun loses what it has not yet
passed on."""


COMPARED = 512
"""Maximum bytes of what ranks have in common, to be compared at once."""


class AgreedError(Exception):
    """An error that every rank raises."""

    def __init__(self, error: Exception):
        super().__init__(str(error))
        self.error = error


def agree(
    comm,
    compute: Callable[[], Value],
    common: Callable[[Value], dict[str, Any]] | None = None,
    meanwhile: Callable[[Value], None] | None = None,
) -> Value:
    """What ``compute`` returns on this rank, once it has succeeded on all of them.

    Args:
        compute: called on every rank.
        common: from the value, what the ranks must have in common, by the messages that refuse it
            on a rank that has something else than rank 0.
        meanwhile: called with the value while it is compared, on ranks on which ``compute`` has
            succeeded; given on all ranks or on none.

    Raises:
        AgreedError: with the error of the first rank that has refused its arguments, or a
            ValueError.
    """
    value, fault = _attempted(comm, compute)
    succeeded = fault is None
    shared = common(value) if common and succeeded else {}  # type: ignore[arg-type]

    def begin() -> None:
        if meanwhile and succeeded:
            meanwhile(value)  # type: ignore[arg-type]

    if _equal(comm, (succeeded, shared), begin if meanwhile else None) and succeeded:
        return value  # type: ignore[return-value]
    faults, found = zip(*comm.allgather((fault, shared)), strict=True)
    for each in faults:
        _raise(each)
    for rank, theirs in enumerate(found):
        for message, other in theirs.items():
            if other != found[0][message]:
                raise AgreedError(ValueError(message.format(rank=rank)))
    return value  # type: ignore[return-value]


def _equal(comm, mine: Any, meanwhile: Callable[[], None] | None = None) -> bool:
    """Whether the ranks have equal objects, found without the objects of the others, which take the
    host longer; large ones are not compared, and taken to be different. ``meanwhile`` is called
    once this rank has sent its own."""
    if comm.size == 1:
        if meanwhile:
            meanwhile()
        return True
    packed = pickle.dumps(mine)
    if len(packed) > COMPARED:
        packed = f"large, of rank {comm.rank}".encode()
    found = bytearray(COMPARED * comm.size)
    packed = packed.ljust(COMPARED)
    if meanwhile:
        request = comm.Iallgather(packed, found)
        meanwhile()
        request.Wait()
    else:
        comm.Allgather(packed, found)
    return found == packed * comm.size


def decide(comm, compute: Callable[[], Value]) -> Value:
    """What ``compute`` returns on rank 0, on all ranks.

    Raises:
        AgreedError: with the error of rank 0, if it has refused.
    """
    value, fault = comm.bcast(_attempted(comm, compute) if comm.rank == 0 else None)
    _raise(fault)
    return value


def _attempted(comm, compute: Callable[[], Value]) -> tuple[Value | None, Exception | None]:
    """The value and no error, or no value and the error that refuses arguments, which names the
    rank."""
    try:
        return compute(), None
    except (ValueError, TypeError, UnsupportedError) as error:
        return None, type(error)(str(error) if comm.size == 1 else f"rank {comm.rank}: {error}")


def _raise(fault: Exception | None) -> None:
    if fault:
        raise AgreedError(fault)


@contextmanager
def shared_fate(comm) -> Iterator[None]:
    """End all ranks if this one fails with an error that the others do not have: they would wait
    for it forever."""
    try:
        yield
    except AgreedError as agreed:
        raise agreed.error from None
    except BaseException as error:
        if comm.size == 1:
            raise
        name = type(error).__name__
        print(
            f"{traceback.format_exc()}fmm_openmm: rank {comm.rank} of {comm.size} failed with "
            f"{name}: {error}. All ranks end.",
            file=sys.stderr,
            flush=True,
        )
        time.sleep(FORWARDING)
        comm.Abort(1)
        os._exit(1)  # Abort may return before the process ends


def summed(comm, values) -> np.ndarray:
    """Sums over the ranks of arrays float64, on the host, bit for bit the same on all of them."""
    mine = to_host(values)
    found = np.empty((comm.size, *mine.shape))
    comm.Allgather(mine, found)
    return found.sum(0)


def exchange(comm, blocks: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Send ``blocks[r]`` to rank r, and return what each rank has sent, one-dimensional; all blocks
    have the same type. That of this rank for itself may be returned without a copy."""
    own, others = blocks[comm.rank], list(blocks)
    others[comm.rank] = own[:0]
    sent = np.array([block.size for block in others])
    received = np.empty_like(sent)
    comm.Alltoall(sent, received)
    outgoing = np.concatenate([block.reshape(-1) for block in others])
    incoming = np.empty(received.sum(), outgoing.dtype)
    comm.Alltoallv([outgoing, sent], [incoming, received])
    found = np.split(incoming, np.cumsum(received)[:-1])
    found[comm.rank] = own.reshape(-1)
    return found


def on_first(comm, values: np.ndarray) -> list[np.ndarray]:
    """The one-dimensional arrays of all ranks, of one type, on rank 0; empty ones on the others."""
    return exchange(comm, [values] + [values[:0]] * (comm.size - 1))


def from_first(comm, blocks: Sequence[np.ndarray]) -> np.ndarray:
    """What rank 0 has in ``blocks[r]``, on rank r; arrays on other ranks are empty."""
    return exchange(comm, blocks)[0]


def exchange_rows(comm, rows: Sequence[np.ndarray]) -> list[np.ndarray]:
    """:func:`exchange` of arrays (k, columns), with the same columns on all ranks."""
    columns = rows[0].shape[1]
    return [block.reshape(-1, columns) for block in exchange(comm, rows)]
