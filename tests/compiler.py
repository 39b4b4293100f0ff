"""The C++ compiler of the tests. What it makes is kept for all processes of a run and for later
runs, under a name with a digest of everything that went into it."""

import ctypes
import hashlib
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

COMPILER = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
SHARED = ("-std=c++17", "-shared", "-fPIC")


def run(*arguments, text: str | None = None) -> str:
    """Run the compiler and return its output; an error of the compiler fails the test."""
    done = subprocess.run([COMPILER, *arguments], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@cache
def version() -> str:
    return run("--version")


def digest(*parts) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]


def built(path: Path, *arguments, text: str | None = None) -> Path:
    """A file that the compiler makes of arguments and the text of its standard input; by one
    process, while others wait."""
    import fcntl  # Windows has none

    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                part = path.with_suffix(".part")
                run(*arguments, "-o", part, text=text)
                part.rename(path)
    return path


def library(folder: Path, name: str, *arguments, text: str | None = None) -> ctypes.CDLL:
    """Sources and options as a library; ``text`` is another source."""
    return ctypes.CDLL(str(shared(folder, name, *arguments, text=text)))


def shared(folder: Path, name: str, *arguments, text: str | None = None) -> Path:
    """The file of :func:`library`."""
    arguments = (*SHARED, *arguments, *(("-x", "c++", "-") if text else ()))
    key = digest(version(), *arguments, run(*arguments, "-E", text=text))
    return built(folder / f"{name}_{key}.so", *arguments, text=text)
