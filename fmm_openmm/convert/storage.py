"""Arrays in a checked ``.npz`` file.

The file is an ordinary uncompressed ``.npz`` (a zip of ``.npy`` members) holding the arrays and
three members more: ``format`` (which kind of data), ``version`` (an integer) and ``checksum``
(SHA-256 of the arrays' names, types, shapes and bytes). Nothing in it is pickled, and nothing in it
is unpickled.
"""

import hashlib
import os
import secrets
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np

MARKS = ("format", "version", "checksum")

# What zipfile, zlib and numpy.load raise on bytes they cannot read.
UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    KeyError,
    NotImplementedError,
    TypeError,
    ValueError,
)


def checksum(arrays: dict[str, np.ndarray]) -> str:
    """SHA-256, in hexadecimal, of the names, dtypes, shapes and little-endian
    bytes of ``arrays``."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def write(path, kind: str, version: int, arrays: dict[str, np.ndarray]) -> None:
    """Write ``arrays`` to ``path``: under another name first, so that a file of this name is always
    a whole one.

    Raises:
        OSError: naming ``path``.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    marks = {
        "format": np.array(kind),
        "version": np.array(version),
        "checksum": np.array(checksum(arrays)),
    }
    try:
        with open(partial, "xb") as file:
            np.savez(file, **arrays, **marks)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with suppress(OSError):  # its folder may not be there
            partial.unlink()


def read(path, kind: str, version: int) -> dict[str, np.ndarray]:
    """The arrays of a file that :func:`write` made with this ``kind`` and at most this ``version``.

    Raises:
        FileNotFoundError, IsADirectoryError, PermissionError: as ``open`` does.
        ValueError: the file is damaged, is something else, or is newer than this program.
    """
    with open(path, "rb") as file:
        members = _members(file, path, kind)
    if str(members.get("format")) != kind:
        raise ValueError(f"{path} is not a {kind} file")
    try:
        found, expected = int(members["version"]), str(members["checksum"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: it names no version or no checksum") from error
    if found > version:
        raise ValueError(
            f"{path} was written by a newer fmm_openmm: its format version is {found}, "
            f"this one reads up to {version}"
        )
    arrays = {name: array for name, array in members.items() if name not in MARKS}
    if checksum(arrays) != expected:
        raise ValueError(f"{path} is damaged: its checksum does not match its contents")
    return arrays


def _members(file, path, kind: str) -> dict[str, np.ndarray]:
    """Every array of an ``.npz`` file, marks included."""
    if not zipfile.is_zipfile(file):
        file.seek(0)
        cut_short = file.read(2) == b"PK"
        raise ValueError(
            f"{path} is damaged or cut short" if cut_short else f"{path} is not a {kind} file"
        )
    file.seek(0)
    try:
        with np.load(file, allow_pickle=False) as members:
            return {name: members[name] for name in members.files}
    except UNREADABLE as error:
        raise ValueError(f"{path} is damaged or not a {kind} file: {error}") from error
