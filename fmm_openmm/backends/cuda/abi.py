"""The definitions that Python and the plugin's C++ share, stated once.

``python -m fmm_openmm.backends.cuda.abi`` writes them to the headers of :func:`headers`. A test
compares the files, and the structs of the CUDA sources that must be the same.
"""

import ctypes
import inspect
from _ctypes import CFuncPtr
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_double, c_int, c_int64, c_uint, c_void_p
from enum import IntEnum
from importlib import resources
from pathlib import Path

from fmm_openmm.backends.cuda.program import (
    BACKGROUND,
    Device,
    Interface,
    Launch,
    Memset,
    Phase,
    Record,
    Wait,
)
from fmm_openmm.backends.cuda.source import OPTIONS
from fmm_openmm.box import SAME_SHAPE

MAGIC, VERSION = b"FMMprog\0", 13
"""First bytes of a serialised program, and the version of its format."""

STEP_KINDS = (Launch, Memset, Record, Wait)
"""Kinds of steps in a serialised program, numbered from 0."""

BUFFER_KINDS = ("own", "external", "flag")
"""Kinds of buffers in a serialised program, numbered from 0: :class:`Buffer` of ``program``."""

WHOLE = 65536
"""Units in which the rows of Lennard-Jones sites are shared among devices: ``WHOLE`` of
``kernels/pairs/search.cuh``."""

PRECISIONS = ("single", "mixed", "double")
"""Precisions of a Context, numbered from 0."""


class Delivery(IntEnum):
    """Items that Python delivers on request. The last one is DONE; if it is missing, Python was
    interrupted (Ctrl-C)."""

    CLAIM = 0
    PROGRAM = 1
    PARAMETERS = 2
    CHARGES = 3
    FAILURE = 4
    EXCLUSIONS = 5
    BAD_INPUT = 6
    FORCES = 7
    DEVICES = 8
    COLLECTOR = 9
    DONE = 10


class Inbox(c_void_p):
    """Address of the inbox that receives the deliveries of one call."""


class Place(ctypes.Structure):
    """Properties of a Context and of its first device: precision (an index of PRECISIONS), numbers
    of particles, model, multiprocessors, shared memory per block, the number of devices; the number
    of others of this model with access to its memory, and of elements of the energy buffer."""

    _fields_ = (
        ("precision", c_int),
        ("particles", c_int),
        ("padded", c_int),
        ("processors", c_int),
        ("shared", c_int),
        ("group", c_int),
        ("model", c_char_p),
        ("devices", c_int),
        ("peers", c_int),
        ("energies", c_int),
    )

    @property
    def device(self) -> Device:
        """The device."""
        return Device(self.processors, self.shared)

    @property
    def interface(self) -> Interface:
        """OpenMM's arrays."""
        return Interface(PRECISIONS[self.precision], self.padded)


class Pairs(ctypes.Structure):
    """A force with pairs, in a Context whose PythonForces have these pickled callables: its name,
    whether it has a cutoff, why its pairs cannot be computed among its sites (or empty), and the
    name of another force that makes OpenMM list all near pairs anyway (or empty)."""

    _fields_ = (
        ("context", c_void_p),
        ("pickled", POINTER(c_void_p)),
        ("sizes", POINTER(c_int64)),
        ("count", c_int),
        ("force", c_char_p),
        ("particles", c_int),
        ("sites", c_int),
        ("limited", c_int),
        ("obstacle", c_char_p),
        ("companion", c_char_p),
    )


class Sites(ctypes.Structure):
    """Input of a program for Lennard-Jones interactions: ``Sites`` of ``lennard_jones.py``. Zero
    means no such distance and no box; ``functions`` is the source of f and g if they are not 1/r^12
    and 1/r^6; ``shared`` tells whether several devices share the pairs."""

    _fields_ = (
        ("number", c_int),
        ("types", c_int),
        ("partners", c_int),
        ("deterministic", c_int),
        ("entries", c_int),
        ("masked", c_int),
        ("shared", c_int),
        ("cutoff", c_double),
        ("switching", c_double),
        ("radius", c_double),
        ("box", c_double * 9),
        ("functions", c_char_p),
    )


class Parameters(ctypes.Structure):
    """The parameter block of the pipeline, documented in ``kernels/common/parameters.cuh``."""

    _fields_ = (
        ("inverse", c_double * 9),
        ("boxes", c_double * 9),
        ("slope", c_double * 9),
        ("potential", c_double),
        ("field", c_double),
        ("cell", c_double * 9),
        ("origin", c_double * 3),
    )


class Placement(ctypes.Structure):
    """The place of a slab or wire, documented in ``kernels/common/parameters.cuh``; zeros for
    others."""

    _fields_ = (
        ("middle", c_double * 3),
        ("farthest", c_double * 3),
        ("normals", c_double * 9),
        ("vectors", c_double * 9),
        ("axes", c_double * 9),
    )


class BoxesData(ctypes.Structure):
    """The boxes of a program: the limits of the strains for which they are valid; for a region, the
    evaluations after which it is compared with its particles again, and how many times in a row
    it may move for the same positions; the unstrained cell, nm, and in it the place of a slab or
    wire and the parameter block."""

    _fields_ = (
        ("stretch", c_double),
        ("shear", c_double),
        ("recheck", c_double),
        ("moves", c_double),
        ("cell", c_double * 9),
        ("placement", Placement),
        ("parameters", Parameters),
    )


class Sums(ctypes.Structure):
    """Sums over the particles that an evaluation with energy delivers: the energy, kJ/mol, and
    the sums of q^2 E^2, q^2 |E|^3 and q^2 phi^2, in units of charges and box widths."""

    _fields_ = tuple((name, c_double) for name in ("energy", "squares", "cubes", "potentials"))


class ForceLimits(ctypes.Structure):
    """Limits of Sums within which the parameters suit the forces, documented in
    ``planning/forces.py``."""

    _fields_ = (
        ("cubes", c_double),
        ("constant", c_double),
        ("smallest", c_double),
        ("potentials", c_double),
        ("largest", c_double),
    )


class Cell(ctypes.Structure):
    """The cell of Lennard-Jones sites, documented in ``sites.cuh``."""

    _fields_ = (("vectors", c_double * 9), ("radius", c_double), ("limit", c_double))


class State(ctypes.Structure):
    """The persistent state of the list of Lennard-Jones pairs, documented in ``sites.cuh``."""

    _fields_ = (
        ("built", c_int),
        ("sorted", c_int),
        ("builds", c_int),
        ("entries", c_int),
        ("masked", c_int),
        ("too_long", c_int),
        ("strayed", c_int),
        ("arrived", c_uint),
    )


class Callbacks(ctypes.Structure):
    """Python's callbacks. Each that has an inbox delivers its answer there before it returns.

    open(session, context, pickled, size, place): asks whether a force is an FMMForce. Delivers
    EXCLUSIONS, pairs of int32, unless exclusions are periodic; and CLAIM if the plugin computes the
    force: names of global parameters, separated by 0. If several devices share the work, also
    DEVICES, indices or UUIDs separated by 0, or "auto"; and COLLECTOR, the program of
    ``fmm_openmm.backends.cuda.shares``.

    request(session, what, box, positions, names, values, count, sums): asks for data for a box and
    values of the global parameters. PROGRAM: a program and, as PARAMETERS, its BoxesData.
    PARAMETERS: BoxesData alone if the present program is valid for the box, else a program too; if
    positions are given, boxes that cover them; without them possibly nothing. CHARGES: charges, or
    a program if they need another one. FORCES: the same as PARAMETERS, with a program in double
    precision or with other parameters if the sums of the last evaluation require it; for all others
    they are null. Each answer has FORCES, its ForceLimits. FAILURE: why the energy is not finite.
    Errors are delivered instead of an answer: BAD_INPUT for an error of the user, else FAILURE.

    settle(session, reason): the host bridge computes this force from now on. Delivers FAILURE if
    the user allows only the native bridge.

    claim_pairs(claim, pairs): asks whether the plugin computes the Lennard-Jones pairs of a force.
    Delivers CLAIM if so, FAILURE if it must but cannot.

    pair_program(sites, place): delivers PROGRAM, or FAILURE.

    report_compilation(): logs that kernels are being compiled, which takes seconds.

    note(text): logs a text.

    close(session) and close_pairs(claim) are null once Python exits.
    """

    _fields_ = (
        (
            "open",
            CFUNCTYPE(None, c_void_p, c_void_p, c_void_p, c_int64, POINTER(Place), Inbox),
        ),
        (
            "request",
            CFUNCTYPE(
                None,
                c_void_p,
                c_int,
                POINTER(c_double),
                POINTER(c_double),
                POINTER(c_char_p),
                POINTER(c_double),
                c_int,
                POINTER(Sums),
                Inbox,
            ),
        ),
        ("settle", CFUNCTYPE(None, c_void_p, c_char_p, Inbox)),
        ("close", CFUNCTYPE(None, c_void_p)),
        ("claim_pairs", CFUNCTYPE(None, c_void_p, POINTER(Pairs), Inbox)),
        ("pair_program", CFUNCTYPE(None, POINTER(Sites), POINTER(Place), Inbox)),
        ("close_pairs", CFUNCTYPE(None, c_void_p)),
        ("report_compilation", CFUNCTYPE(None)),
        ("note", CFUNCTYPE(None, c_char_p)),
    )


_STRUCTS = (
    *(Place, Pairs, Sites, Parameters, Placement, BoxesData, Sums, ForceLimits, Cell, State),
    Callbacks,
)

_TYPES = {
    c_int: "int",
    c_uint: "unsigned",
    c_int64: "int64_t",
    c_double: "double",
    c_char_p: "const char*",
    c_void_p: "const void*",
    Inbox: "Inbox*",
}


def declared(kind, name: str) -> str:
    """The C++ declaration of a ctypes type: a member, or a parameter if ``name`` is empty."""
    if issubclass(kind, ctypes.Array):
        return f"{declared(kind._type_, name)}[{kind._length_}]"
    if issubclass(kind, CFuncPtr):
        parameters = ", ".join(declared(each, "").strip() for each in kind._argtypes_)
        return f"void (*{name})({parameters})"
    if issubclass(kind, ctypes._Pointer):
        target = declared(kind._type_, "").strip()
        return f"{target} const* {name}" if target.endswith("*") else f"const {target}* {name}"
    return f"{_TYPES.get(kind, kind.__name__)} {name}"


def _struct(kind: type[ctypes.Structure]) -> str:
    lines = (inspect.getdoc(kind) or "").splitlines()
    about = "".join(f"// {line.strip()}".rstrip() + "\n" for line in lines)
    members = "".join(f"    {declared(member, name)};\n" for name, member, *_ in kind._fields_)
    return f"{about}struct {kind.__name__} {{\n{members}}};\n"


def _enum(name: str, members) -> str:
    return f"enum {name} {{ {', '.join(members)} }};\n"


def _header(about: str, include: str, *parts: str) -> str:
    return "\n".join(
        (
            f"// {about}\n// Written by python -m fmm_openmm.backends.cuda.abi: change it there.",
            "// clang-format off",
            f"#pragma once\n{include}",
            "namespace fmm {\n",
            *parts,
            "}  // namespace fmm\n",
        )
    )


def headers() -> dict[str, str]:
    """The text of each header, by its path in ``fmm_openmm/native/``."""
    characters = ", ".join(f"'{chr(byte)}'" if byte else "0" for byte in MAGIC)
    phases = {name: value for name, value in vars(Phase).items() if name.isupper()}
    wire = _header(
        "The format of serialised programs.",
        "",
        f"constexpr char MAGIC[] = {{{characters}}};\nconstexpr int VERSION = {VERSION};\n",
        _enum("StepKind", (kind.__name__.upper() for kind in STEP_KINDS)),
        _enum("BufferKind", map(str.upper, BUFFER_KINDS)),
        f"// The stream of lower priority.\nconstexpr int BACKGROUND = {BACKGROUND};\n",
    )
    shared = _header(
        "The interface between Python and the plugin, and the phases of programs.",
        "#include <cstdint>\n",
        f'constexpr char COMPILER_OPTIONS[] = "{" ".join(OPTIONS)}";\n'
        f"constexpr double SAME_SHAPE = {SAME_SHAPE!r};\n"
        f"constexpr int WHOLE = {WHOLE};\n",
        "namespace phase {",
        *(f'constexpr char {name}[] = "{value}";' for name, value in phases.items()),
        "}  // namespace phase\n",
        _enum("Precision", (f"{name.upper()}_PRECISION" for name in PRECISIONS)),
        _enum("Delivery", Delivery.__members__),
        "struct Inbox;\n",
        *map(_struct, _STRUCTS),
    )
    return {"core/format.h": wire, "openmm/abi.h": shared}


if __name__ == "__main__":
    for path, text in headers().items():
        (Path(str(resources.files("fmm_openmm"))) / "native" / path).write_text(text)
