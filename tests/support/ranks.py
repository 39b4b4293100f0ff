"""Python on several ranks of MPI."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.compiler import COMPILER, built

ROOT = Path(__file__).resolve().parents[2]
MPIRUN = Path(sys.executable).with_name("mpirun")
LIMIT = 300
"""Seconds that the ranks may take."""

SLEEP = """#include <unistd.h>
extern "C" int sched_yield() { return usleep(200); }
"""
"""What MPICH calls while it waits. A rank that polls takes the processor from others, as there are
more ranks than processors."""


def run(ranks, *arguments):
    """The ended ranks of ``python ARGUMENTS``, on one thread each."""
    environment = {**os.environ, "NUMBA_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    if sys.platform == "linux" and COMPILER:
        environment["LD_PRELOAD"] = str(Path(_folder().name, "sleep.so"))
    command = [MPIRUN, "-n", str(ranks), sys.executable, *map(str, arguments)]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
    )


@cache
def _folder() -> TemporaryDirectory:
    """A folder with the library that is loaded before others, until this process ends."""
    folder = TemporaryDirectory()
    built(Path(folder.name, "sleep.so"), "-shared", "-fPIC", "-x", "c++", "-", text=SLEEP)
    return folder
