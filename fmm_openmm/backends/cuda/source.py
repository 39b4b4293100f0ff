"""The kernel sources: where they are, and one self-contained text per stage, with macros and
headers."""

import re
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np

OPTIONS = ("--std=c++17", "--ftz=true")
"""Compiler options of every kernel."""

_HEADER = re.compile(r'^#include "([\w/]+\.cuh)"$', re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_DEFINITION = re.compile(r"^ *#define (\w+)(.*)$", re.MULTILINE)


@cache
def kernel_folder() -> Path:
    """Folder of the kernel sources, in the installed package or next to it in a source tree."""
    package = Path(str(resources.files("fmm_openmm")))
    installed = package / "kernels"
    return installed if installed.is_dir() else package.parent / "kernels"


@cache
def kernel_files() -> dict[str, Path]:
    """The kernel sources by name, which is unique among all folders."""
    return {path.stem: path for path in sorted(kernel_folder().rglob("*.cu"))}


def real_type(dtype) -> str:
    """The name in CUDA of float32 or float64."""
    return "float" if np.dtype(dtype) == np.float32 else "double"


def source_of(stage: str, macros: dict) -> str:
    """The complete source of a stage: the macros that it uses, included headers and the file, with
    the line numbers of the files for the compiler's messages.

    With everything in the text, caches of compiled kernels that go by the text never return an
    outdated one. Programs that differ in other macros share the kernels of the stage.

    Args:
        stage: name of the file, in whichever folder of ``kernels/``.
        macros: values by name; ``kernels/common/types.cuh`` lists them.
    """
    text, names = _template(stage)
    used = sorted(names & macros.keys())
    return "".join(f"#define {name} {macros[name]}\n" for name in used) + text


@cache
def _template(stage: str) -> tuple[str, set[str]]:
    """The source of a stage before its macros, and the names that the compiler meets in it; those
    in the definition of a macro only if that macro is used."""
    text = _expanded(kernel_files()[stage], set())
    code = _COMMENT.sub("", text)
    bodies: dict[str, set[str]] = {}
    for name, body in _DEFINITION.findall(code):
        bodies.setdefault(name, set()).update(_words(body))
    names, new = set(), _words(_DEFINITION.sub("", code))
    while new:
        names |= new
        new = set().union(*(bodies.get(name, set()) for name in new)) - names
    return text, names


def _words(code: str) -> set[str]:
    return set(re.findall(r"\w+", code))


def _expanded(path: Path, seen: set[Path]) -> str:
    """The text of a file with its headers in place, each once."""
    seen.add(path)
    folder = kernel_folder()
    name = path.relative_to(folder).as_posix()
    text = path.read_text().replace("#pragma once\n", "\n")

    def header(match):
        neighbour, after = path.parent / match[1], text.count("\n", 0, match.start()) + 2
        included = neighbour if neighbour.exists() else folder / match[1]
        return "" if included in seen else f'{_expanded(included, seen)}#line {after} "{name}"'

    return f'#line 1 "{name}"\n' + _HEADER.sub(header, text)
