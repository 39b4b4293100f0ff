"""The GPU's programs on the host: kernels compiled by a C++ compiler, executed step by step,
without CUDA or a GPU.

Slow, and nothing like a GPU in its timing; but the same sources, the same macros, the same steps
and buffers. Writing beyond a buffer is noticed and, if the compiler is g++, reading what was never
written in a buffer or in shared memory. Paths for newer architectures (tensor cores) are
not covered.
"""

import ctypes
import re
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np

from fmm_openmm.backends.cuda.pipeline.description import build, parameter_block
from fmm_openmm.backends.cuda.pipeline.term import Term
from fmm_openmm.backends.cuda.pipeline.virial import azimuth_program
from fmm_openmm.backends.cuda.program import (
    SETUP,
    At,
    Device,
    Interface,
    Launch,
    Memset,
    Program,
    Share,
)
from fmm_openmm.backends.cuda.source import source_of
from fmm_openmm.box import BoxLattice
from fmm_openmm.expansions.operators.derivatives import operator_derivatives
from fmm_openmm.specification import Specification
from fmm_openmm.units import COULOMB_CONSTANT
from tests.compiler import COMPILER, SHARED, built, digest, version

SOURCES = Path(__file__).parent
OPTIONS = (*SHARED, "-Og", "-w", "-fvisibility=hidden", "-fno-strict-aliasing", f"-I{SOURCES}")
OPTIONS += ("-U_FORTIFY_SOURCE",)  # which would forbid jumps between stacks
NOTICES_READS = "g++" in str(COMPILER)
"""Whether reading what was never written is noticed."""

if NOTICES_READS:
    OPTIONS += ("-fno-aggressive-loop-optimizations",)  # rows of an array are run over
    OPTIONS += ("-fsanitize=kernel-address",)
    OPTIONS += tuple(
        f"--param=asan-{what}=0" for what in ("instrumentation-with-call-threshold", "stack")
    )
GUARD = 64
"""Bytes on either side of a buffer that nobody may write."""

GARBAGE = 0xA5
"""As in ``machine.cpp``."""

DEVICE = Device(4, 227 * 1024)

_DYNAMIC = re.compile(r"extern __shared__ (\w+) (\w+)\[\];")


def compiled(file: str, macros: dict, kernels: list[str], folder: Path) -> ctypes.CDLL:
    """A kernel file as a library with a function ``launch_<kernel>`` for each of its kernels.

    Compiling takes far longer than what the tests compute: few optimisations, and the linker does
    not search libraries that the process has loaded.
    """
    source = _DYNAMIC.sub(
        r"\1* const \2 = reinterpret_cast<\1*>(emulator::dynamic_shared);", source_of(file, macros)
    )
    entries = "".join(f"LAUNCHER({name})\n" for name in kernels)
    text = f'#include "cuda.h"\nnamespace {{\n{source}\n}}\n{entries}'
    runner = machine(folder)
    # first where the header is in its fast form
    header, *linked = f"-I{runner.parent}", "-nodefaultlibs", "-x", "none", runner
    options = header, *OPTIONS, "-x", "c++", "-", *linked
    path = built(runner.with_name(f"{file}_{digest(text)}.so"), *options, text=text)
    return ctypes.CDLL(str(path))


def machine(folder: Path) -> Path:
    """The library that runs the blocks of every kernel; next to it the header in a form that g++
    reads much faster. Both, and what is compiled with them, are in a folder of their own."""
    header, source = SOURCES / "cuda.h", SOURCES / "machine.cpp"
    folder = folder / _tools()
    built(folder / "cuda.h.gch", *OPTIONS, "-x", "c++-header", header)
    return built(folder / "machine.so", *OPTIONS, "-O2", "-fno-sanitize=all", source)


@cache
def _tools() -> str:
    """A digest of the compiler and of what every kernel is compiled with."""
    return digest(
        version(), *OPTIONS, *((SOURCES / name).read_text() for name in ("cuda.h", "machine.cpp"))
    )


class Emulator:
    """A program, its kernels compiled and its buffers made."""

    def __init__(self, program: Program, folder: Path, given: dict | None = None):
        self.program = program
        files: dict[str, list[str]] = {}
        for name, kernel in program.kernels.items():
            files.setdefault(kernel.file, []).append(name)
        machine(folder)  # before several files ask for it at once
        with ThreadPoolExecutor(2) as pool:
            made = pool.map(
                lambda each: compiled(each[0], program.macros, each[1], folder), files.items()
            )
        libraries = dict(zip(files, made, strict=True))
        self._functions = {}
        for name, kernel in program.kernels.items():
            self._functions[name] = getattr(libraries[kernel.file], f"launch_{name}")
            self._functions[name].restype = ctypes.c_char_p
        self._memory, self.buffers = {}, {}
        for name, buffer in program.buffers.items():
            host, first = buffer.within or (name, 0)
            if given and host in given:
                self._memory[host] = given[host].base
            if host not in self._memory:
                size = program.buffers[host].nbytes
                self._memory[host] = np.full(GUARD + size + GUARD, GARBAGE, np.uint8)
            memory = self._memory[host][GUARD + first :][: buffer.nbytes]
            self.buffers[name] = memory.view(buffer.dtype).reshape(buffer.shape)
            if buffer.data is not None and not (given and name in given):
                self.buffers[name][...] = buffer.data

    def run(self, stages=None) -> None:
        """The steps of some stages, or of all but the setup,
        in the order in which they are queued."""
        for step in self.program.steps:
            if step.stage not in stages if stages else step.stage == SETUP:
                continue
            if isinstance(step, Launch):
                self._launch(step)
            elif isinstance(step, Memset):
                self.buffers[step.buffer][...] = 0

    def _launch(self, step: Launch) -> None:
        keep = []
        for argument in step.arguments:
            if isinstance(argument, At):
                buffer = self.buffers[argument.buffer]
                keep.append(
                    ctypes.c_void_p(buffer.ctypes.data + argument.element * buffer.itemsize)
                )
            else:
                keep.append(ctypes.create_string_buffer(argument.tobytes(), argument.nbytes))
        arguments = (ctypes.c_void_p * len(keep))(*(ctypes.addressof(each) for each in keep))
        fault = self._functions[step.kernel](*step.grid, step.block, arguments)
        assert fault is None, f"{step.kernel}: {fault.decode()}"
        for name, memory in self._memory.items():
            edges = memory[:GUARD], memory[len(memory) - GUARD :]
            assert all((edge == GARBAGE).all() for edge in edges), (
                f"{step.kernel} wrote beyond {name}"
            )


def fill_derivatives(
    out: np.ndarray, lattice: BoxLattice, order: int, folder: Path, first: int = 0
) -> None:
    """As :func:`fmm_openmm.backends.cuda.virial.fill_derivatives`."""
    shape = out.shape[2:5]
    stored = (slice(None), *map(slice, shape[:2]), slice(first, first + shape[2]))
    azimuths = Emulator(azimuth_program(order, shape, out.dtype), folder)
    derivatives = operator_derivatives(lattice, order) / np.prod(lattice.fft_shape)
    for rows, derivative in zip(out, derivatives, strict=True):
        azimuths.buffers["derivative"][...] = derivative[stored]
        azimuths.run([SETUP])
        rows[...] = azimuths.buffers["rows"]


class EmulatedStages:
    """The program of a specification, for a device, on OpenMM's arrays if these are given, with the
    virial, for a share of the boxes, or with a term; the folder is for compiled kernels."""

    def __init__(
        self,
        specification: Specification,
        folder: Path,
        interface: Interface | None = None,
        device: Device = DEVICE,
        with_virial: bool = False,
        share: Share | None = None,
        term: Term | None = None,
    ):
        self.lattice = specification.lattice
        program = build(specification, device, interface, with_virial, share, term)
        self.emulator = Emulator(program, folder)
        self.buffers = self.emulator.buffers

    def evaluate(
        self, positions: np.ndarray, width: float, origin=(0.0, 0.0, 0.0), set_up: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        """Potentials (n,) and fields (n, 3) of ``Evaluator``; ``origin`` of open boxes."""
        self.buffers["positions"][...] = positions
        self.run(width, origin, set_up)
        scale = width / COULOMB_CONSTANT
        return self.buffers["potentials"].astype(float) * scale, self.buffers["fields"].astype(
            float
        ) * (scale * width)

    def run(
        self, width: float, origin=(0.0, 0.0, 0.0), set_up: bool = True, without: tuple = ()
    ) -> None:
        """All stages but those of the phases ``without``, for the positions that are in place;
        without the setup if the shape of the cell is in place as well."""
        self.buffers["parameters"][...] = parameter_block(self.lattice, width, origin)
        if set_up:
            self.emulator.run([SETUP])
        program = self.emulator.program
        self.emulator.run(
            {step.stage for step in program.steps if program.phase_of(step) not in without}
            - {SETUP}
        )
