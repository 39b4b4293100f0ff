"""Which tests run: plain ``pytest`` takes the first case of every test that is not marked slow,
``pytest --rest`` the others, ``pytest --all`` every case. Where files or tests are named, all their
cases run. What this machine cannot run is one line at the end; ``pytest -rs`` lists it.
"""

import gc
import os
import signal
from collections import Counter

import pytest
from pytest import Config


def pytest_configure(config):
    # background jobs of a script ignore Ctrl-C, and so would processes that tests start
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    workers = config.getoption("numprocesses", None)
    if workers:  # which would each start as many threads as there are processors
        threads = str(max(2, (os.cpu_count() or 1) // workers))
        for library in ("NUMBA_NUM", "OMP_NUM", "OPENMM_CPU"):
            os.environ.setdefault(f"{library}_THREADS", threads)
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if "PYTEST_XDIST_WORKER" in os.environ:
        os.environ.pop("GLIBC_TUNABLES", None)  # small programs start faster without huge pages
        config.pluginmanager.register(Gate(config.cache.mkdir("gate")))


class Gate:
    """While a worker of pytest-xdist runs tests that are marked alone, one after the other, no
    other worker runs a test.

    Args:
        folder: a folder that all workers share.
    """

    def __init__(self, folder):
        self._queue, self._gate = (open(folder / name, "w") for name in ("queue", "gate"))
        self._passed = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item, nextitem):
        """Wait until the test may run."""
        import fcntl  # not on Windows

        if not self._passed:
            mode = fcntl.LOCK_EX if runs_alone(item) else fcntl.LOCK_SH
            fcntl.flock(self._queue, mode)  # while one waits to run alone, no other test begins
            fcntl.flock(self._gate, mode)
            fcntl.flock(self._queue, fcntl.LOCK_UN)
        self._passed = runs_alone(item) and runs_alone(nextitem)
        try:
            return (yield)
        finally:
            if not self._passed:
                fcntl.flock(self._gate, fcntl.LOCK_UN)


def runs_alone(item):
    return item is not None and item.get_closest_marker("alone") is not None


def pytest_addoption(parser):
    parser.addoption(
        "--all",
        action="store_true",
        help="run every case of every test, not only the first of quick ones",
    )
    parser.addoption("--rest", action="store_true", help="run what plain pytest leaves out")


def pytest_collection_modifyitems(config, items):
    items.sort(key=runs_alone, reverse=True)  # first, when nothing else has begun
    if (
        config.getoption("--all")
        or config.args_source is Config.ArgsSource.ARGS
        or config.getoption("keyword")
    ):
        return
    seen, kept, left = set(), [], []
    for item in items:
        name = item.nodeid.partition("[")[0]
        (left if name in seen or item.get_closest_marker("slow") else kept).append(item)
        seen.add(name)
    if config.getoption("rest"):
        kept, left = left, kept
    items[:] = kept
    config.hook.pytest_deselected(items=left)


def pytest_collection_finish():
    gc.freeze()  # what is imported stays: collections of garbage need not visit it again and again


def pytest_terminal_summary(terminalreporter, config):
    skipped = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", ())
    )
    if skipped:
        reasons = "; ".join(f"{count} {reason}" for reason, count in skipped.most_common())
        terminalreporter.write_line(f"skipped on this machine: {reasons}")
    left = len(terminalreporter.stats.get("deselected", ()))
    if left and not config.getoption("keyword") and not config.getoption("rest"):
        terminalreporter.write_line(f"{left} more cases run with: pytest --all --numprocesses auto")


@pytest.fixture(scope="session")
def folder(pytestconfig):
    """The folder for what a C++ compiler makes (``tests/compiler.py``)."""
    return pytestconfig.cache.mkdir("compiled")


@pytest.fixture
def nvrtc():
    """CuPy's interface to NVIDIA's runtime compiler, which needs no GPU."""
    compiler = pytest.importorskip(
        "cupy_backends.cuda.libs.nvrtc", reason="needs CuPy: pip install 'fmm_openmm[cuda13]'"
    )
    try:
        compiler.getVersion()
    except RuntimeError as error:
        pytest.skip(f"needs the NVRTC library: {error}")
    return compiler


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def backend(request):
    """Backends of the sums over pairs; that of the GPU where there is one."""
    from fmm_openmm import UnsupportedError
    from fmm_openmm.backends import open_sum

    try:
        open_sum(request.param, "direct")
    except UnsupportedError as reason:
        pytest.skip(f"no GPU to run on: {reason}")
    return request.param
