"""What a GPU that is missing, or too small, does to ``CoulombSolver``.

Needs no GPU: the faults are played.
"""

import logging
import re
import sys
import warnings
import weakref
from functools import partial

import numpy as np
import pytest

from fmm_openmm import CoulombSolver, UnsupportedError, backends, errors
from fmm_openmm.backends.reference import ReferenceStages
from fmm_openmm.planning.cost import CPU_COST

CELL = 2 * np.eye(3)
X = np.random.default_rng(0).uniform(0, 2, (20, 3))
Q = np.resize([1.0, -1.0], 20)
OPTIONS = {
    "order": 6,
    "near_radius": 1.87,
    "grid": (3, 3, 3),
    "precision": "double",
    "tolerance": 0.1,
}


class SmallDevice(ReferenceStages):
    """A GPU with room for so many stages, at creation or at their first evaluation,
    or without a compiler."""

    room, late, compiler = 0, False, True
    made: weakref.WeakSet

    def __init__(self, *arguments):
        if not self.compiler:
            raise UnsupportedError("`backend='cuda'` cannot be set up here: sort.cu(3): error")
        super().__init__(*arguments)
        self.made.add(self)
        self._check(not self.late)

    def evaluate(self, *arguments):
        self._check(self.late)
        return super().evaluate(*arguments)

    def _check(self, now):
        if now and len(self.made) > self.room:
            raise MemoryError(
                "`backend='cuda'` needs 1,000 bytes of device memory here: out of memory"
            )


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setattr(SmallDevice, "made", weakref.WeakSet(), raising=False)
    monkeypatch.setattr(backends, "_cuda", lambda: SmallDevice)
    return monkeypatch


def solver(backend, **options):
    return CoulombSolver(Q, CELL, backend=backend, **OPTIONS | options)


def stretched(factor):
    return CELL * [[1.0], [1.0], [factor]]


@pytest.mark.parametrize("late", [False, True])
def test_too_little_memory_falls_back(device, late):
    device.setattr(SmallDevice, "late", late)
    automatic = solver("auto")
    assert automatic.backend == "cuda"
    with pytest.warns(
        UserWarning, match=r"^backend 'auto' means 'cpu' here: `backend='cuda'` needs 1,000 bytes"
    ) as caught:
        found = automatic.compute(X)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert automatic.backend == "cpu"
    assert automatic.evaluation.planner.problem.cost is CPU_COST
    assert len(SmallDevice.made) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert automatic.compute(X).energy == found.energy == solver("cpu").compute(X).energy


@pytest.mark.parametrize("late", [False, True])
def test_too_little_memory_is_an_error_and_nothing_is_lost(device, late):
    device.setattr(SmallDevice, "late", late)
    device.setattr(SmallDevice, "room", 1)
    first = solver("cuda")
    energy = first.compute(X).energy
    second = solver("cuda")
    with pytest.raises(MemoryError, match="needs 1,000 bytes of device memory") as caught:
        second.compute(X)
    assert len(SmallDevice.made) == 1  # although the error is still at hand
    assert caught.value.__context__ is None
    assert first.compute(X).energy == energy
    del first
    assert second.compute(X).energy == energy


@pytest.mark.parametrize("late", [False, True])
def test_another_shape_may_use_the_room_of_the_first(device, late):
    device.setattr(SmallDevice, "late", late)
    device.setattr(SmallDevice, "room", 1)
    one = solver("cuda")
    energies = [one.compute(X, stretched(factor)).energy for factor in (1.0, 1.01, 1.0)]
    assert energies[0] == energies[2] == solver("reference").compute(X).energy
    assert len(SmallDevice.made) == 1


def test_memory_may_run_out_after_a_change_of_the_box(device):
    device.setattr(SmallDevice, "room", 1)
    automatic = solver("auto")
    automatic.compute(X)
    device.setattr(SmallDevice, "room", 0)
    with pytest.warns(UserWarning, match="needs 1,000 bytes"):
        found = automatic.compute(X, stretched(1.01))
    assert found.energy == solver("cpu").compute(X, stretched(1.01)).energy


class OnDevice:
    """Stands for a CuPy array."""

    __cuda_array_interface__ = {}  # noqa: RUF012
    shape = X.shape

    def get(self):
        return X


def test_positions_on_the_device_are_fetched_for_the_cpu():
    on_host = solver("cpu")
    np.testing.assert_array_equal(on_host.compute(OnDevice()).forces, on_host.compute(X).forces)


def test_kernels_that_do_not_compile(device):
    device.setattr(SmallDevice, "compiler", False)
    with pytest.raises(UnsupportedError, match=r"cannot be set up here: sort.cu\(3\): error"):
        solver("cuda").compute(X)
    automatic = solver("auto")
    with pytest.warns(UserWarning, match=r"sort.cu\(3\): error"):
        automatic.compute(X)
    assert automatic.backend == "cpu"


@pytest.fixture
def unusable(monkeypatch):
    """There is no usable GPU, and no warning of that has been given."""

    def missing():
        raise UnsupportedError("`backend='cuda'` needs an NVIDIA GPU and its driver:\n none found")

    monkeypatch.setattr(backends, "_cuda", missing)
    monkeypatch.setattr(backends, "_reported", False)
    return monkeypatch


FALLBACK = (
    "backend 'auto' means 'cpu' here: `backend='cuda'` needs an NVIDIA GPU and its driver: "
    "none found"
)


def test_a_gpu_that_cannot_be_used_is_warned_of_once(unusable, caplog):
    unusable.setattr(backends, "has_gpu", lambda: True)
    with caplog.at_level("INFO", "fmm_openmm"), pytest.warns(UserWarning) as caught:
        assert solver("auto").backend == solver("auto").backend == "cpu"
    (warning,) = caught
    assert str(warning.message) == FALLBACK
    assert warning.filename == __file__
    assert not caplog.records


def test_without_a_gpu_it_is_logged_once(unusable, caplog):
    unusable.setattr(backends, "has_gpu", lambda: False)
    with caplog.at_level("INFO", "fmm_openmm"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert solver("auto").backend == solver("auto").backend == "cpu"
    assert caplog.record_tuples == [("fmm_openmm", logging.INFO, FALLBACK)]


@pytest.mark.parametrize(
    ("files", "visible", "found"),
    [
        (["nvidia0", "nvidiactl"], None, True),
        (["nvidia12"], "1,3", True),
        (["nvidia0"], "GPU-8932f937", True),
        (["nvidia0"], "", False),
        (["nvidia0"], "-1", False),
        (["nvidia0"], "NoDevFiles", False),
        (["nvidiactl", "nvidia-uvm"], None, False),
        ([], "0", False),
    ],
)
def test_a_gpu_is_found_by_its_device_file(monkeypatch, tmp_path, files, visible, found):
    for name in files:
        (tmp_path / name).touch()
    monkeypatch.setattr(backends, "GPU_FILES", (str(tmp_path / "nvidia[0-9]*"),))
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert backends.has_gpu() is found


# warnings


@pytest.mark.filterwarnings("error")
def test_a_warning_never_ends_a_run(device, caplog):
    """Made an error it is raised where Python calls, and logged where OpenMM does."""
    with pytest.raises(UserWarning, match="needs 1,000 bytes"):
        solver("auto").compute(X)
    with errors.openmm_callback():
        found = solver("auto").compute(X)
    ((name, level, text),) = caplog.record_tuples
    assert (name, level) == ("fmm_openmm", logging.WARNING)
    assert text.startswith("backend 'auto' means 'cpu' here: `backend='cuda'` needs 1,000 bytes")
    assert found.energy == solver("cpu").compute(X).energy
    with pytest.raises(UserWarning):  # no longer in the block
        errors.warn("a warning")


def test_a_warning_in_a_callback_is_a_warning(caplog):
    with errors.openmm_callback(), pytest.warns(UserWarning, match="^a warning$") as caught:
        errors.warn("a warning")
    assert caught[0].filename == __file__
    assert not caplog.records


def test_warnings_point_past_openmm(monkeypatch):
    """A warning names the line that calls a step, not a line of OpenMM, and comes once for each
    line."""
    code = compile("def step(act):\n    act()", "openmm.py", "exec")
    scope = {"__name__": "openmm.openmm"}
    exec(code, scope)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            scope["step"](partial(errors.warn, "a warning"))
    (warning,) = caught
    assert warning.filename == __file__


@pytest.mark.parametrize(
    ("has_gpu", "needed"),
    [
        (True, r"CuPy \(.*\): pip install 'fmm_openmm\[cuda13\]' or 'fmm_openmm\[cuda12\]'"),
        (False, "an NVIDIA GPU and CuPy"),
    ],
)
def test_without_cupy(has_gpu, needed, monkeypatch):
    monkeypatch.setattr(backends, "has_gpu", lambda: has_gpu)
    for name in [name for name in sys.modules if name.startswith("fmm_openmm.backends.cuda.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(UnsupportedError, match=f"^`backend='cuda'` needs {needed}$"):
        solver("cuda")


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (lambda cupy: cupy.cuda.runtime.CUDARuntimeError(35), "driver version is insufficient"),
        (lambda cupy: RuntimeError("CuPy failed to load libnvrtc.so.13"), "libnvrtc"),
    ],
)
def test_an_old_driver_or_no_compiler(monkeypatch, fault, text):
    cupy = pytest.importorskip("cupy", reason="needs CuPy")

    def failing():
        raise fault(cupy)

    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", failing)
    with pytest.raises(
        UnsupportedError, match=rf"^`backend='cuda'` needs an NVIDIA GPU and its driver: .*{text}"
    ):
        solver("cuda")


def test_faults_of_cuda_are_explained():
    cupy = pytest.importorskip("cupy", reason="needs CuPy")
    from fmm_openmm.backends.cuda.execute.cupy.faults import missing, out_of_memory

    # CUDADriverError needs a driver to be made
    full_driver = RuntimeError("CUDA_ERROR_OUT_OF_MEMORY: out of memory")
    runtime = cupy.cuda.runtime.CUDARuntimeError
    full = [cupy.cuda.memory.OutOfMemoryError(1000, 2000, 3000), runtime(2), full_driver]
    for error in full:
        text = re.escape(f"`backend='cuda'` needs 1,234 bytes of device memory here: {error}")
        with pytest.raises(MemoryError, match=f"^{text}$"):
            raise out_of_memory(error, 1234)
    source = cupy.cuda.compiler.CompileException(
        "sort.cu(3): error\nand more", "", "sort.cu", (), "nvrtc"
    )
    for error in (source, runtime(209), ImportError("no libnvrtc")):
        assert out_of_memory(error, 1) is None
        assert re.fullmatch(
            r"`backend='cuda'` cannot be set up here: "
            r"(sort.cu\(3\): error|cuda\w+: .*|no libnvrtc)",
            str(missing(error)),
        )
    assert missing(ValueError("a bug")) is out_of_memory(ValueError("a bug"), 1) is None
