"""Numba's threads share a loop."""

import os
import subprocess
import sys

import numpy as np
import pytest

from fmm_openmm.openmp import at_most_threads, get_num_threads, on_all_threads, portion


@on_all_threads()
def mark(thread, forbidden, numbers):
    """Add to each element one more than the number of the thread that computes it."""
    for i in portion(len(numbers), thread):
        if i == forbidden:
            raise ValueError("a number that is forbidden")
        numbers[i] += 1 + thread[0]


@pytest.mark.parametrize(("count", "threads"), [(0, 1), (0, 3), (2, 3), (7, 1), (7, 3), (64, 5)])
def test_portions_are_all_there_is(count, threads):
    portions = [portion.py_func(count, (number, threads)) for number in range(threads)]
    assert [i for each in portions for i in each] == list(range(count))
    assert max(map(len, portions)) - min(map(len, portions)) <= 1


def test_every_thread_computes_its_portion():
    for threads in {1, get_num_threads()}:
        numbers = np.zeros(1000)
        with at_most_threads(threads):
            mark(-1, numbers)
        assert (np.diff(numbers) >= 0).all() and set(numbers) == set(range(1, 1 + threads))


def test_an_exception_in_a_thread_is_raised():
    numbers = np.zeros(10)
    with pytest.raises(ValueError, match="a number that is forbidden"):
        mark(9, numbers)
    assert numbers[0] == 1


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["NUMBA_THREADING_LAYER=workqueue", "NUMBA_DISABLE_JIT=1"])
def test_with_other_threads_and_without(variable):
    program = (
        "import numpy as np\n"
        "from tests.test_openmp import mark\n"
        "numbers = np.zeros(10)\n"
        "mark(-1, numbers)\n"
        "print(sum(numbers > 0))\n"
    )
    environment = os.environ | {"NUMBA_NUM_THREADS": "2"} | dict([variable.split("=")])
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["10"], done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
def test_a_process_forked_after_the_threads_have_started():
    """GNU OpenMP would end it."""
    program = (
        "import os\n"
        "import numpy as np\n"
        "from tests.test_openmp import mark\n"
        "numbers = np.zeros(10)\n"
        "mark(-1, numbers)\n"
        "print(set(numbers.tolist()), flush=True)\n"
        "if os.fork() == 0:\n"
        "    mark(-1, numbers)\n"
        "    print(set(numbers.tolist()))\n"
        "else:\n"
        "    os.wait()\n"
    )
    environment = os.environ | {"NUMBA_NUM_THREADS": "2"}
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["{1.0, 2.0}", "{2.0, 3.0}"], done.stderr
