"""How the native plugin is compiled, here and for wheels: ``.ci/wheel`` runs this file without
the package it is in."""

from collections.abc import Iterable
from pathlib import Path


def arguments(include: Path, cuda: Iterable[Path], libraries: Path) -> list[str]:
    """What a compiler is told beside sources and output.

    Args:
        include: OpenMM's headers.
        cuda: folders with CUDA's.
        libraries: OpenMM's libraries, with those of its platforms in ``plugins``.
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
