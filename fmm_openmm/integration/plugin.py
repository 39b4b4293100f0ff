"""The native plugin's shared library: where its compiler and headers are, building it, loading it.

It is built at first use on a computer with OpenMM's CUDA platform, not by ``pip install``: pip builds in an environment of its
own, without the OpenMM that the library must match, which later may be upgraded as well. What it needs came with OpenMM's own
packages: its headers, and those of the CUDA runtime; beside them only a C++ compiler. The library is kept in
``$FMM_OPENMM_CACHE``, or else in the user's cache folder, under a name that depends on its sources, OpenMM and the compiler.
It is loaded from there only if no other user can have written it. Where it cannot be kept, it is built for the process alone.
"""

import ctypes
import functools
import hashlib
import importlib.util
import logging
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path

import openmm

from fmm_openmm.cache import cache_folder, make_folder, private_folder, why_unsafe
from fmm_openmm.errors import UnsupportedError

_log = logging.getLogger("fmm_openmm")

BUILD_SECONDS = 300
"""A compiler that takes longer has failed."""


@functools.cache
def load() -> ctypes.CDLL | str:
    """The library, built if need be; or why there is none, which is logged where OpenMM has the CUDA platform."""
    names = [openmm.Platform.getPlatform(index).getName() for index in range(openmm.Platform.getNumPlatforms())]
    if "CUDA" not in names:
        return "OpenMM has no CUDA platform here"
    try:
        return _load()
    except UnsupportedError as reason:
        _log.warning("FMMForces use the host bridge: %s", reason)
        return str(reason)


def _load() -> ctypes.CDLL:
    try:
        library = build()
        try:
            return ctypes.CDLL(str(library))
        except OSError as error:
            if not str(error).startswith(str(library)) or "undefined symbol" in str(error):
                raise  # it is whole, but not what it needs
            _log.warning("%s: building the native plugin anew", error)
        return ctypes.CDLL(str(build(anew=True)))
    except OSError as error:
        raise UnsupportedError(f"the native plugin cannot be loaded: {error}") from error


def build(anew: bool = False) -> Path:
    """The library's file, compiled unless it is there.

    Args:
        anew: compile it even so.

    Raises:
        UnsupportedError: no compiler, no headers, or the compiler's complaint.
    """
    compiler, options = command()
    digest = hashlib.sha256(repr((compiler, options, openmm.version.full_version)).encode())
    for path in sorted(_folder().glob("*.*")):
        digest.update(path.read_bytes())
    name = f"libfmm_openmm-{digest.hexdigest()[:16]}.so"
    try:
        target = _kept() / name
        if not anew and target.exists():
            reason = why_unsafe(target)
            if reason is None:
                return target
            _log.warning("%s is not loaded, since %s: building the native plugin anew", target, reason)
        else:
            _log.info("building the native plugin, once")
        made = private_folder() / name
        _compile(made, compiler, options)
        return made if target == made else _store(made, target)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnsupportedError(f"the native plugin cannot be built: {error}") from error


def _compile(made: Path, compiler: list[str], options: list[str]) -> None:
    full = [*compiler, *sources(), "-o", str(made), *options]
    done = subprocess.run(full, capture_output=True, text=True, timeout=BUILD_SECONDS)
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[-200:])
        raise UnsupportedError(f"the native plugin does not compile: {first}")
    made.chmod(made.stat().st_mode & 0o755)  # whatever the umask, or the next process would not load it


def _store(made: Path, target: Path) -> Path:
    """Move the library to the cache folder; returns where it is, which is where it was if that folder cannot be written."""
    try:
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            copy = Path(shutil.copy(made, folder))
            with open(copy, "rb") as file:
                os.fsync(file.fileno())
            os.replace(copy, target)  # whole or not at all, whoever else builds it
    except OSError as error:
        _log.warning("the native plugin is not kept in %s (%s): it is built for this process alone", target.parent, error)
        return made
    made.unlink()
    return target


def sources() -> list[str]:
    """What is compiled."""
    return [str(path) for path in sorted(_folder().glob("*.cpp"))]


def command() -> tuple[list[str], list[str]]:
    """The compiler, with what may come before or after its name in ``CXX``, and its options.

    Raises:
        UnsupportedError: what is missing.
    """
    named = shlex.split(os.environ.get("CXX", ""))
    found = [path for path in map(shutil.which, ("g++", "c++", "clang++")) if path]
    compiler = named or found[:1]
    if not compiler:
        raise UnsupportedError("the native plugin needs a C++ compiler to be built: install g++")
    libraries = Path(openmm.version.openmm_library_path)
    own = [libraries.parent / "include", Path(sys.prefix) / "include"]
    folders = [folder for folder in own if (folder / "openmm" / "cuda" / "CudaContext.h").is_file()]
    if not folders:
        raise UnsupportedError(f"the native plugin needs OpenMM's headers, which are not in {own[0]}")
    cuda = [folder for folder in _cuda_folders() if (folder / "cuda.h").is_file() or (folder / "crt").is_dir()]
    if not any((folder / "cuda.h").is_file() for folder in cuda):
        raise UnsupportedError("the native plugin needs cuda.h: pip install nvidia-cuda-runtime, or set CUDA_HOME")
    return compiler, [
        "-std=c++17",
        "-O2",
        "-w",  # OpenMM's and CUDA's headers are full of warnings
        "-fPIC",
        "-shared",
        f"-I{folders[0]}",
        f"-I{folders[0] / 'openmm' / 'cuda'}",
        *(f"-I{folder}" for folder in cuda),
        f"-L{libraries}",
        f"-L{libraries / 'plugins'}",
        "-lOpenMM",
        "-lOpenMMCUDA",
        "-Wl,--allow-shlib-undefined",
    ]


def _cuda_folders():
    """Where CUDA's headers may be: a toolkit that was named, the packages OpenMM depends on, a toolkit in the usual place."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(name):
            yield Path(os.environ[name]) / "include"
    found = importlib.util.find_spec("nvidia")
    for root in found.submodule_search_locations if found else ():
        yield from sorted(Path(root).glob("cu*/include"), reverse=True)
        yield from (Path(root) / name / "include" for name in ("cuda_runtime", "cuda_nvcc"))
    yield Path(sys.prefix) / "targets" / "x86_64-linux" / "include"
    yield Path("/usr/local/cuda/include")


def _folder() -> Path:
    return Path(str(resources.files("fmm_openmm"))) / "plugin"


def _kept() -> Path:
    """Where the library is kept: the cache folder, or this process's own if there is none, or others can write to it."""
    folder = cache_folder()
    if folder is None:
        return private_folder()
    try:
        make_folder(folder)
        folder = folder.resolve()  # what is checked is what is used, whoever may change a link
        reason = why_unsafe(folder)
    except OSError as error:
        reason = str(error)
    if reason is None:
        return folder
    _log.warning("the native plugin is not kept in %s, since %s: it is built for this process alone", folder, reason)
    return private_folder()
