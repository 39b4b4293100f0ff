"""Caches of compiled code where nothing can be written, where files are damaged, and where they
may be another user's."""

import errno
import importlib.util
import logging
import os
import pickle
import re
import shutil
import stat
import subprocess
import sys
import warnings
from hashlib import sha256
from pathlib import Path

import pytest

import fmm_openmm
from fmm_openmm import cache, openmp
from tests.support.folders import disown

PACKAGE = Path(fmm_openmm.__file__).parent

KERNEL = """
from fmm_openmm.openmp import njit

@njit(cache=True)
def double(x):
    return 2 * x
"""


@pytest.fixture
def kernel(tmp_path, monkeypatch, caplog):
    """Makes a new process's view of a compiled function, whose files are in ``kept``."""
    monkeypatch.setattr(openmp, "_warned", False)
    caplog.set_level(logging.INFO, "fmm_openmm")
    path = tmp_path / "module.py"
    path.write_text(KERNEL)

    def imported():
        spec = importlib.util.spec_from_file_location("module", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.double

    return imported


def kept(folder, suffix):
    (file,) = (folder / "__pycache__").glob(f"*.{suffix}")
    return file


def with_checksum(content):
    return content + sha256(content).digest()


def test_compiled_kernels_are_kept(kernel, tmp_path, caplog):
    for hits in (0, 1):
        double = kernel()
        assert double(3) == 6
        assert sum(double.stats.cache_hits.values()) == hits
    assert kept(tmp_path, "nbi").parent == Path(double.stats.cache_path)
    assert not caplog.records


def test_without_a_compiler(kernel, monkeypatch):
    monkeypatch.setattr("numba.core.config.DISABLE_JIT", True)
    assert kernel()(3) == 6


@pytest.mark.parametrize(
    ("suffix", "damage", "reason"),
    [
        ("nbc", lambda content: b"", "its checksum is wrong"),
        ("nbc", lambda content: content[: len(content) // 2], "its checksum is wrong"),
        # ends the process
        (
            "nbc",
            lambda content: content[:200] + bytes(2000) + content[2200:],
            "its checksum is wrong",
        ),
        ("nbc", lambda content: with_checksum(b"not a pickle"), "UnpicklingError"),
        ("nbc", lambda content: with_checksum(pickle.dumps(())), "TypeError"),
        ("nbi", lambda content: b"", "EOFError: Ran out of input"),
        ("nbi", lambda content: content[: len(content) // 2], "UnpicklingError|EOFError"),
        ("nbi", lambda content: b"#!/bin/sh", "UnpicklingError"),
    ],
)
def test_damaged_kernels_are_named_and_compiled_anew(
    kernel, tmp_path, caplog, suffix, damage, reason
):
    assert kernel()(3) == 6
    file = kept(tmp_path, suffix)
    file.write_bytes(damage(file.read_bytes()))
    assert kernel()(3) == 6
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert re.match(
        rf"{re.escape(str(file))} is ignored \(.*({reason}).*\): it is compiled anew$",
        record.getMessage(),
    )
    double = kernel()
    assert double(3) == 6
    assert sum(double.stats.cache_hits.values()) == 1
    assert len(caplog.records) == 1


def test_files_in_the_format_of_numba_are_not_read(kernel, tmp_path, caplog, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(openmp, "_Cache", openmp.FunctionCache)
        assert kernel()(3) == 6
    for hits in (0, 1):
        double = kernel()
        assert double(3) == 6
        assert sum(double.stats.cache_hits.values()) == hits
    assert not caplog.records


@pytest.mark.parametrize("written", ["_save_index", "_save_data"])
def test_a_full_disk_is_reported_once(kernel, tmp_path, caplog, monkeypatch, written):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(openmp._Files, written, full)
    for _ in range(2):
        double = kernel()
        assert (double(3), double(1.5)) == (6, 3.0)
    folder = re.escape(str(tmp_path / "__pycache__"))
    (record,) = caplog.records
    assert re.match(
        rf"Numba keeps no compiled kernels in {folder} \(.*No space left on device\): "
        r"each process compiles its own; "
        "the variable NUMBA_CACHE_DIR may name another folder$",
        record.getMessage(),
    )


def read_only_run(program, folder, **variables):
    """Standard error of Python where ``folder``, which is the user's home, cannot be written,
    also if the user is root."""
    for path in (folder, *folder.rglob("*")):
        if path.is_dir():
            path.chmod(0o555)
    command = [sys.executable, "-c", program]
    if os.geteuid() == 0:
        if not shutil.which("setpriv"):
            pytest.skip("needs `setpriv`, which takes from root the capability to write everywhere")
        command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", *command]
    unset = (
        "NUMBA_CACHE_DIR",
        "CUPY_CACHE_DIR",
        "CUPY_CACHE_IN_MEMORY",
        "XDG_CACHE_HOME",
        "FMM_OPENMM_CACHE",
        "PYTHONPATH",
    )
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"HOME": str(folder), "PYTHONPATH": str(folder)} | variables
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/")
    finally:
        for path in (folder, *folder.rglob("*")):
            if path.is_dir():
                path.chmod(0o755)
    assert done.returncode == 0, done.stderr
    return done.stderr


needs_modes = pytest.mark.skipif(os.name != "posix", reason="Windows has no such modes")


@pytest.fixture
def installed(tmp_path):
    """A folder with a copy of the package, as installed."""
    site = tmp_path / "site"
    shutil.copytree(PACKAGE, site / "fmm_openmm", ignore=shutil.ignore_patterns("__pycache__"))
    return site


@pytest.mark.slow
@needs_modes
def test_the_package_is_imported_where_nothing_can_be_written(installed):
    program = f"""
import fmm_openmm
from fmm_openmm.backends.cpu import CpuStages
assert fmm_openmm.__file__.startswith({str(installed)!r})
"""
    (line,) = read_only_run(program, installed).splitlines()
    assert line.startswith("Numba keeps no compiled kernels (cannot cache function ")
    assert line.endswith(
        ": each process compiles its own; the variable NUMBA_CACHE_DIR may name another folder"
    )


@pytest.mark.slow
@needs_modes
def test_the_folder_that_the_message_asks_for_is_used(installed, tmp_path):
    folder = tmp_path / "numba"
    program = (
        "from fmm_openmm.oracle.direct import _pair_sums\n"
        f"assert _pair_sums.stats.cache_path.startswith({str(folder)!r}), "
        "_pair_sums.stats.cache_path"
    )
    assert read_only_run(program, installed, NUMBA_CACHE_DIR=str(folder)) == ""


@pytest.mark.slow
@needs_modes
def test_cupy_is_imported_where_its_cache_cannot_be_made(installed):
    pytest.importorskip("cupy", reason="needs CuPy: pip install 'fmm_openmm[cuda13]'")
    program = """
import os
from fmm_openmm.backends.cuda.execute.cupy import loader
assert loader.cupy.RawModule
assert os.environ["CUPY_CACHE_IN_MEMORY"] == "1"
assert "CUPY_CACHE_DIR" not in os.environ
"""
    lines = [line for line in read_only_run(program, installed).splitlines() if "CuPy" in line]
    folder = installed / ".cupy" / "kernel_cache"
    (line,) = lines
    assert line.startswith(f"CuPy's kernel cache {folder} is not used (PermissionError: ")
    assert line.endswith("): this process compiles its kernels anew")


@pytest.fixture
def loader(monkeypatch, tmp_path):
    pytest.importorskip("cupy", reason="needs CuPy: pip install 'fmm_openmm[cuda13]'")
    from fmm_openmm.backends.cuda.execute.cupy import loader

    monkeypatch.setenv("CUPY_CACHE_IN_MEMORY", "0")
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    return loader


def test_what_cupy_warns_of_when_it_is_imported_is_logged(loader, monkeypatch, tmp_path, caplog):
    """The warning is logged, also where warnings are errors."""
    (tmp_path / "cupy.py").write_text("import warnings\nwarnings.warn('two CuPy\\n  packages')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cupy")
    caplog.set_level(logging.INFO, logger="fmm_openmm")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loader._imported().__file__ == str(tmp_path / "cupy.py")
    assert caplog.messages == ["CuPy: two CuPy packages"]


class Module:
    """Stands for CuPy's, which fails on its cache; or always, if ``hopeless``."""

    hopeless = False

    def __init__(self, **options):
        pass

    def compile(self):
        if self.hopeless or os.environ["CUPY_CACHE_IN_MEMORY"] == "0":
            raise OSError(errno.ENOSPC, "No space left on device")


def test_a_kernel_cache_that_fails_is_named_and_done_without(loader, monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(loader.cupy, "RawModule", Module)
    for _ in range(2):
        assert isinstance(loader.load("gather", {}), Module)
    (record,) = caplog.records
    reason = f"OSError: [Errno {errno.ENOSPC}] No space left on device"
    expected = (
        f"CuPy's kernel cache {tmp_path} is not used ({reason}): "
        "this process compiles its kernels anew"
    )
    assert record.getMessage() == expected


def test_compilation_is_announced_once(loader, monkeypatch, caplog):
    """One message on compilation, and none for kernels read from CuPy's folder."""
    monkeypatch.setenv("CUPY_CACHE_IN_MEMORY", "1")
    monkeypatch.setattr(loader.cupy, "RawModule", Module)
    caplog.set_level(logging.INFO, logger="fmm_openmm")
    loader._tell_of_compilation.cache_clear()
    loader.load("gather", {})
    assert not caplog.messages
    monkeypatch.setattr(loader, "SLOW", -1.0)
    for _ in range(2):
        loader.load("gather", {})
    assert caplog.messages == ["compiling kernels (once per precision)"]
    loader._tell_of_compilation.cache_clear()


def test_what_is_not_the_caches_fault_is_raised(loader, monkeypatch, caplog):
    monkeypatch.setattr(loader.cupy, "RawModule", Module)
    monkeypatch.setattr(Module, "hopeless", True)
    with pytest.raises(OSError, match="No space left") as caught:
        loader.load("gather", {})
    assert caught.value.__context__ is None
    assert os.environ["CUPY_CACHE_IN_MEMORY"] == "0"
    assert not caplog.records


@needs_modes
def test_a_new_folder_is_the_users_alone(tmp_path):
    cache.make_folder(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    (tmp_path / "a" / "b").chmod(0o755)
    cache.make_folder(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o755


@needs_modes
@pytest.mark.parametrize(
    ("mode", "safe"),
    [(0o700, True), (0o755, True), (0o775, False), (0o702, False), (0o1777, False)],
)
def test_what_others_can_write_is_unsafe(tmp_path, mode, safe):
    tmp_path.chmod(mode)
    reason = cache.why_unsafe(tmp_path)
    assert reason == (None if safe else f"other users can write to it (mode {mode:04o})")


@needs_modes
def test_what_belongs_to_another_user_is_unsafe(tmp_path, monkeypatch):
    assert cache.why_unsafe(tmp_path) is None
    assert cache.why_unsafe(Path("/")) is None  # it is root's
    disown(tmp_path, monkeypatch)
    assert cache.why_unsafe(tmp_path) == f"it belongs to user {tmp_path.stat().st_uid}"


@needs_modes
def test_a_private_folder_goes_with_its_process():
    program = """
import os
from fmm_openmm.cache import private_folder
folder = private_folder()
assert folder == private_folder()
(folder / "file").touch()
if os.fork() == 0:
    raise SystemExit  # a fork leaves it alone
os.wait()
assert (folder / "file").exists()
print(oct(folder.stat().st_mode & 0o777), folder)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    mode, folder = done.stdout.split()
    assert mode == "0o700"
    assert not Path(folder).exists()
