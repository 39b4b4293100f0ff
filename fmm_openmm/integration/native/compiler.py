"""Compiler arguments for the native plugin, on first use and for wheels: ``.ci/wheel`` runs this
file without the package."""

from collections.abc import Iterable
from pathlib import Path


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
