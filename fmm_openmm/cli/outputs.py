"""Checks of output files before a command begins: they are writable, distinct, and not inputs."""

import argparse
import os
import re
from pathlib import Path

INPUTS = ("files", "forcefield", "parameters", "trajectories")
OUTPUTS = ("json", "plot", "trajectory", "log", "pressure_log", "output", "checkpoint")
"""Names of the options of all commands."""

INCLUDED = re.compile(rb'(?:#include|<Include\s+file=)\s*["<](.+?)[">]')
"""How a GROMACS topology and an OpenMM force field name another file."""


def check_outputs(args: argparse.Namespace) -> None:
    """Check that every output file is writable, is not an input file under another path or link,
    does not lie in the folder of ``--include``, and is not another output.

    Raises:
        ValueError: an output is an input or another output; the message names option and file.
        OSError: the folder does not exist, the path is a folder, or permission is missing.
    """
    read = [Path(name) for option in INPUTS for name in getattr(args, option, None) or ()]
    fields = map(Path, getattr(args, "forcefield", None) or ())
    read += _included([*fields, *(path for path in read if path.suffix == ".top")])
    restart = getattr(args, "restart", None)
    folder = getattr(args, "include", None)
    written: dict[str, Path] = {}
    for option in OUTPUTS:
        name = getattr(args, option, None)
        if not isinstance(name, str):
            continue
        option = option.replace("_", "-")
        path = Path(name)
        check_writable(path)
        if option == "checkpoint" and not os.access(path.absolute().parent, os.W_OK):
            raise PermissionError(f"no permission to replace {path} in its folder")
        if restart and option != "checkpoint" and _are_one(path, Path(restart)):
            raise ValueError(f"--{option} {name} is a file that is read: give another")
        if any(_are_one(path, other) for other in read):
            raise ValueError(f"--{option} {name} is a file that is read: give another")
        if folder and path.exists() and Path(folder).resolve() in path.resolve().parents:
            raise ValueError(f"--{option} {name} is in the folder of --include: give another")
        for other, taken in written.items():
            if _are_one(path, taken):
                raise ValueError(f"--{option} and --{other} are one file, {name}: give two")
        written[option] = path


def check_writable(path: Path) -> None:
    """Check that a file can be written.

    Raises:
        OSError: the folder does not exist, the path is a folder, or permission is missing.
    """
    folder = path.absolute().parent
    if not folder.is_dir():
        raise FileNotFoundError(2, "no such folder", str(path.parent))
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: give the name of a file")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise PermissionError(f"no permission to write {path}")


def _included(paths: list[Path]) -> list[Path]:
    """Files that these and each other include from their own folders."""
    found: list[Path] = []
    while paths:
        path = paths.pop()
        names = INCLUDED.findall(path.read_bytes()) if path.is_file() else []
        others = [Path(os.path.normpath(path.parent / os.fsdecode(name))) for name in names]
        new = [other for other in others if other not in found]
        found += new
        paths += new
    return found


def _are_one(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:  # one of them is not there
        return path.resolve() == other.resolve()
