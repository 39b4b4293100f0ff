"""The user's cache folder, for results that take time to find or to build. It may be deleted at any
time.

Files of entries are replaced atomically. The folder is created with mode 0700, and code in it is
loaded only if no user but the owner and root can have written it (:func:`why_unsafe`).
"""

import atexit
import functools
import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fmm_openmm.errors import warn

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

ENVIRONMENT = "FMM_OPENMM_CACHE"
OFF = "off"

_reported: set[Path | None] = set()


def cache_folder() -> Path | None:
    """The folder that ``FMM_OPENMM_CACHE`` names, else the usual one of the platform; None if the
    variable is "off" or the user has no home."""
    folder = os.environ.get(ENVIRONMENT)
    if folder:
        return None if folder == OFF else Path(folder)
    try:
        if sys.platform == "win32":
            base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
        elif sys.platform == "darwin":
            base = Path.home() / "Library" / "Caches"
        else:
            base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # a user without a home
        return None
    return Path(base) / "fmm_openmm"


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, accessible to the user only."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


@functools.cache
def private_folder() -> Path:
    """A folder of mode 0700 for this process, removed at exit.

    Raises:
        OSError: there is no folder for temporary files.
    """
    folder = Path(tempfile.mkdtemp(prefix="fmm_openmm-")).resolve()
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # not a process that was forked
        shutil.rmtree(folder, ignore_errors=True)


def why_unsafe(path: Path) -> str | None:
    """Reason why another user may have written a file or folder; None if only the user and root
    can.

    Windows has no such modes and is not checked.

    Raises:
        OSError: the file or folder does not exist.
    """
    if os.name != "posix":
        return None
    status = path.stat()
    if status.st_uid not in (0, os.geteuid()):
        return f"it belongs to user {status.st_uid}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"other users can write to it (mode {stat.S_IMODE(status.st_mode):04o})"
    return None


@dataclass(frozen=True)
class Entries:
    """A JSON file of entries by name in the cache folder.

    Attributes:
        name: name of the file.
        kind: name of the entries in the file and in messages.
        format: format identifier in the file; files with another one are not read.
        remedy: how to create the entries again, for warnings.
        checked: converts an entry of the file, or raises ValueError, TypeError or KeyError.
        plain: converts an entry for the file.
    """

    name: str
    kind: str
    format: str
    remedy: str
    checked: Callable
    plain: Callable

    @property
    def path(self) -> Path | None:
        """Path of the file; None without a cache folder."""
        folder = cache_folder()
        return folder and folder / self.name

    def read(self) -> dict:
        """All entries.

        A damaged or foreign file counts as empty, with one warning.
        """
        path = self.path
        try:
            content: dict = (
                json.loads(path.read_text(encoding="utf-8"))
                if path
                else {"format": self.format, self.kind: {}}
            )
            if content["format"] != self.format:
                raise ValueError(f"its format is {content['format']!r}")
            return {name: self.checked(entry) for name, entry in content[self.kind].items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            if path not in _reported:
                _reported.add(path)
                reason = f"{type(error).__name__}: {error}"
                warn(f"{path} is ignored ({reason}): delete it, or {self.remedy}")
            return {}

    def store(self, entries: dict) -> Path:
        """Add entries to the file; returns its path.

        Raises:
            OSError: the file cannot be written, or there is no cache folder. It is unchanged then.
        """
        path = self.path
        if path is None:
            raise OSError(
                f"there is no folder to keep {self.kind} in: {ENVIRONMENT} is "
                f"{os.environ.get(ENVIRONMENT)!r}"
            )
        make_folder(path.parent)
        with _locked(path.parent):
            everything = {
                name: self.plain(entry)
                for name, entry in sorted({**self.read(), **entries}.items())
            }
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
            try:
                with open(handle, "w", encoding="utf-8") as file:
                    json.dump({"format": self.format, self.kind: everything}, file, indent=1)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, path)
            except BaseException:
                os.unlink(temporary)
                raise
        return path


@contextmanager
def _locked(folder: Path):
    """Lock a folder for one writer at a time, where the platform has such locks."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
