"""The shared library of the native plugin: selection, and build if there is none.

A wheel of this package holds a library for every supported minor version of OpenMM's own wheels,
which CUDA 12 and 13 share: ``.ci/wheel`` builds them, ``native/lib/manifest.json`` describes them.

If none of them fits, as for a source install, OpenMM from conda-forge or another version of OpenMM,
the library is built on first use on a computer with OpenMM's CUDA platform. ``pip install`` does
not build it, because pip builds in an isolated environment without the installed OpenMM, which may
also be upgraded later. The build needs the headers of OpenMM and of the CUDA runtime, which
OpenMM's packages provide, and a C++ compiler. The library is stored in ``$FMM_OPENMM_CACHE`` or in
the user's cache folder, under a name that depends on its sources, OpenMM and the compiler. It is
loaded from there only if no other user can have written it. If it cannot be stored, it is built for
the present process only."""

import ctypes
import functools
import hashlib
import importlib.util
import json
import logging
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import openmm

from fmm_openmm.cache import cache_folder, make_folder, private_folder, why_unsafe
from fmm_openmm.errors import UnsupportedError
from fmm_openmm.integration.native.compiler import STANDARD_INPUT, arguments, translation_unit

_log = logging.getLogger("fmm_openmm")

NO_PLATFORM = "OpenMM has no CUDA platform here"

BUILD_SECONDS = 300
"""Time limit of the compiler, s."""


@dataclass(frozen=True)
class Library:
    """A loaded library.

    Attributes:
        handle: its handle.
        origin: where the library came from, and why.
    """

    handle: ctypes.CDLL
    origin: str


@functools.cache
def find() -> Library | str:
    """The library, which is built if necessary, or the reason why there is none."""
    names = [
        openmm.Platform.getPlatform(index).getName()
        for index in range(openmm.Platform.getNumPlatforms())
    ]
    if "CUDA" not in names:
        return NO_PLATFORM
    try:
        return _find()
    except UnsupportedError as reason:
        return str(reason)


def load() -> ctypes.CDLL:
    """The handle of the library.

    Raises:
        UnsupportedError: there is no library; the message gives the reason.
    """
    found = find()
    if isinstance(found, str):
        raise UnsupportedError(found)
    return found.handle


def _find() -> Library:
    try:
        path = shipped()
        return Library(
            ctypes.CDLL(str(path)), f"{path} came with fmm_openmm, for OpenMM {minor_version()}"
        )
    except (UnsupportedError, OSError) as error:
        reason = str(error)
    try:
        return Library(
            _load(), f"it was built here for OpenMM {openmm.version.short_version}, since {reason}"
        )
    except UnsupportedError as error:
        raise UnsupportedError(f"{error} ({reason})") from error


def minor_version() -> str:
    """OpenMM's minor version, such as "8.6"."""
    return ".".join(openmm.version.short_version.split(".")[:2])


def shipped() -> Path:
    """The file of the library that the package contains for the installed OpenMM. It is undamaged,
    and only users who can write to the package's code can have written it.

    Raises:
        UnsupportedError: there is no such library; the message gives the reason.
        OSError: the library cannot be read.
    """
    folder = _folder() / "lib"
    if not (folder / "manifest.json").is_file():
        raise UnsupportedError("fmm_openmm was installed from its sources")
    libraries = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    if Path(openmm.version.openmm_library_path).parent.name != "OpenMM.libs":
        raise UnsupportedError(
            f"OpenMM, in {openmm.version.openmm_library_path}, is not that of its wheels"
        )
    entry = libraries.get(minor_version())
    if entry is None:
        raise UnsupportedError(
            f"fmm_openmm brings libraries for OpenMM {', '.join(libraries)}, not {minor_version()}"
        )
    path = folder / entry["file"]
    reason = why_unsafe(path) if why_unsafe(Path(__file__)) is None else None
    if reason is None and hashlib.sha256(path.read_bytes()).hexdigest() != entry["sha256"]:
        reason = "it is damaged"
    if reason is None:
        return path
    _log.warning("%s is not loaded, since %s: install fmm_openmm anew", path, reason)
    raise UnsupportedError(f"{path} is not loaded, since {reason}")


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
        UnsupportedError: there is no compiler, headers are missing, or the compilation failed; the
            message includes the compiler's.
    """
    compiler, options = command()
    digest = hashlib.sha256(repr((compiler, options, openmm.version.full_version)).encode())
    for path in sorted(_files("*")):
        digest.update(path.read_bytes())
    name = f"libfmm_openmm-{digest.hexdigest()[:16]}.so"
    try:
        target = _kept() / name
        if not anew and target.exists():
            reason = why_unsafe(target)
            if reason is None:
                return target
            _log.warning(
                "%s is not loaded, since %s: building the native plugin anew", target, reason
            )
        else:
            _log.info("building the native plugin, once")
        made = private_folder() / name
        _compile(made, compiler, options)
        return made if target == made else _store(made, target)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnsupportedError(f"the native plugin cannot be built: {error}") from error


def _compile(made: Path, compiler: list[str], options: list[str]) -> None:
    full = [*compiler, *STANDARD_INPUT, "-o", str(made), *options]
    text = translation_unit(sources())
    done = subprocess.run(full, input=text, capture_output=True, text=True, timeout=BUILD_SECONDS)
    if done.returncode:
        first = next(
            (line for line in done.stderr.splitlines() if "error" in line), done.stderr[-200:]
        )
        raise UnsupportedError(f"the native plugin does not compile: {first}")
    # independent of the umask, since a library that others can write is not loaded
    made.chmod(made.stat().st_mode & 0o755)


def _store(made: Path, target: Path) -> Path:
    """Move the library to the cache folder if that is writable; returns its path."""
    try:
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            copy = Path(shutil.copy(made, folder))
            with open(copy, "rb") as file:
                os.fsync(file.fileno())
            os.replace(copy, target)  # atomic, as other processes may build it too
    except OSError as error:
        _log.warning(
            "the native plugin is not kept in %s (%s): it is built for this process alone",
            target.parent,
            error,
        )
        return made
    made.unlink()
    return target


def sources() -> list[Path]:
    """Source files of the library."""
    return sorted(_files("*.cpp"))


def command() -> tuple[list[str], list[str]]:
    """The words of the compiler's command, from ``CXX`` if that is set, and its options.

    Raises:
        UnsupportedError: a compiler or headers are missing.
    """
    named = shlex.split(os.environ.get("CXX", ""))
    found = [path for path in map(shutil.which, ("g++", "c++", "clang++")) if path]
    compiler = named or found[:1]
    if not compiler:
        raise UnsupportedError(
            "the native plugin needs a C++ compiler to be built: install g++, "
            "or a wheel of fmm_openmm"
        )
    libraries = Path(openmm.version.openmm_library_path)
    own = [libraries.parent / "include", Path(sys.prefix) / "include"]
    folders = [folder for folder in own if (folder / "openmm" / "cuda" / "CudaContext.h").is_file()]
    if not folders:
        raise UnsupportedError(
            f"the native plugin needs OpenMM's headers, which are not in {own[0]}"
        )
    cuda = [
        folder
        for folder in _cuda_folders()
        if (folder / "cuda.h").is_file() or (folder / "crt").is_dir()
    ]
    if not any((folder / "cuda.h").is_file() for folder in cuda):
        raise UnsupportedError(
            "the native plugin needs cuda.h: pip install nvidia-cuda-runtime, or set CUDA_HOME"
        )
    return compiler, arguments(folders[0], cuda, libraries)


def _cuda_folders():
    """Candidate folders of CUDA's headers: the toolkit that the environment names, the packages
    that OpenMM depends on, and toolkits in the usual places."""
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
    return Path(str(resources.files("fmm_openmm"))) / "native"


def _files(pattern: str) -> Iterator[Path]:
    """Files of the library's source."""
    return (path for part in ("core", "openmm") for path in (_folder() / part).glob(pattern))


def _kept() -> Path:
    """Folder for the library: the cache folder, or a private one of the process if there is none or
    others can write to it."""
    folder = cache_folder()
    if folder is None:
        return private_folder()
    try:
        make_folder(folder)
        folder = folder.resolve()  # check and use the same folder, even if a link changes
        reason = why_unsafe(folder)
    except OSError as error:
        reason = str(error)
    if reason is None:
        return folder
    _log.warning(
        "the native plugin is not kept in %s, since %s: it is built for this process alone",
        folder,
        reason,
    )
    return private_folder()
