"""Compiler arguments and source of the native plugin, on first use and for wheels: ``.ci/wheel``
runs this file without the package."""

from collections.abc import Iterable
from pathlib import Path

STANDARD_INPUT = ("-x", "c++", "-", "-x", "none")
"""Arguments of the compiler that name :func:`translation_unit` as its source."""


def translation_unit(sources: Iterable[Path]) -> str:
    """All sources as one: the compiler reads the headers of OpenMM and CUDA once, not for each of
    them, which saves two thirds of its time."""
    return "".join(f'#include "{path.as_posix()}"\n' for path in sources)


def arguments(include: Path, cuda: Iterable[Path], libraries: Path) -> list[str]:
    """Arguments of the compiler other than sources and output.

    Args:
        include: folder of OpenMM's headers.
        cuda: folders of CUDA's headers.
        libraries: folder of OpenMM's libraries, with those of its platforms in ``plugins``.
    """
    return [
        "-std=c++17",
        "-O2",
        "-w",  # OpenMM's and CUDA's headers are full of warnings
        "-fPIC",
        "-shared",
        f"-I{include}",
        f"-I{include / 'openmm' / 'cuda'}",
        *(f"-I{folder}" for folder in cuda),
        f"-L{libraries}",
        f"-L{libraries / 'plugins'}",
        "-lOpenMM",
        "-lOpenMMCUDA",
        "-Wl,--allow-shlib-undefined",
    ]
