"""The option ``--workers``: processes that share the frames of a trajectory."""

import multiprocessing
import signal
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from fmm_openmm.cli import options
from fmm_openmm.openmp import get_num_threads

MAX_WORKERS = 1024


def add_workers_argument(group) -> None:
    """Add ``--workers N``."""
    group.add_argument(
        "--workers",
        type=options.count,
        metavar="N",
        help="number of processes, each of which evaluates one frame at a time; especially for "
        "small systems this is faster than one frame after the other on all cores",
    )


def check_workers(args) -> None:
    """Check ``--workers``.

    Raises:
        ValueError: the number is out of range.
    """
    if args.workers is not None and not 1 <= args.workers <= MAX_WORKERS:
        raise ValueError(f"--workers must lie between 1 and {MAX_WORKERS}, got {args.workers}")


@contextmanager
def workers(count: int | None):
    """Context manager of an executor with so many processes, and the number of threads of each; of
    two None for None."""
    if count is None:
        yield None, None
        return
    with ProcessPoolExecutor(
        count,
        multiprocessing.get_context("spawn"),
        signal.signal,  # Ctrl-C is left to this process
        (signal.SIGINT, signal.SIG_IGN),
    ) as executor:
        yield executor, max(1, get_num_threads() // count)
