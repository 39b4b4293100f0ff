"""What Python and the sources in C++ and CUDA both state is the same in both."""

import ctypes
import re
import subprocess

import pytest

from fmm_openmm.backends.cuda import abi
from fmm_openmm.backends.cuda.pairs.lennard_jones import CLUSTER, SITE_BITS
from fmm_openmm.backends.cuda.pipeline.level_tables import WARP
from fmm_openmm.backends.cuda.pipeline.m2m import TRACE_SUMS
from fmm_openmm.backends.cuda.program import Launch, Phase
from fmm_openmm.backends.cuda.source import kernel_folder, source_of
from fmm_openmm.integration.native import plugin
from tests.compiler import COMPILER
from tests.support.programs import CASES, of_sites, program

NATIVE = plugin._folder()
STRUCTS = abi._STRUCTS
LIBRARY = f"""
#include "openmm/abi.h"
#include "core/format.h"
using namespace fmm;
extern "C" const int sizes[] = {{{", ".join(f"sizeof({kind.__name__})" for kind in STRUCTS)}}};
extern "C" void ask(const Callbacks* python, Inbox* inbox) {{
    const Place place = {{MIXED_PRECISION, 3, 32, 132, 1 << 16, 5, "a model", 2, 1, 64}};
    python->open(inbox, nullptr, "text", 4, &place, inbox);
    const double box[9] = {{1, 0, 0, 0, 2, 0, 0, 0, 3}}, values[] = {{0.25, 0.5}};
    const char* names[] = {{"first", "second"}};
    const Sums sums = {{-1.5, 2.5, 3.5, 4.5}};
    python->request(inbox, CHARGES, box, nullptr, names, values, 2, nullptr, inbox);
    python->request(inbox, FORCES, box, nullptr, names, values, 2, &sums, inbox);
}}
"""


@pytest.mark.parametrize("path", abi.headers())
def test_headers_are_written(path):
    """``python -m fmm_openmm.backends.cuda.abi`` writes the headers."""
    assert (NATIVE / path).read_text() == abi.headers()[path]


def in_cuda(name: str) -> list[tuple[str, str]]:
    """Types and names of the members of a struct of the kernels."""
    texts = [path.read_text() for path in kernel_folder().rglob("*.cuh")]
    (body,) = re.findall(rf"^struct {name} {{\n(.*?)^}};", "".join(texts), re.MULTILINE | re.DOTALL)
    return re.findall(r"(\w+) (\w+(?:\[\d+\])?);", re.sub("//.*", "", body))


@pytest.mark.parametrize("kind", [abi.Parameters, abi.Placement, abi.Cell, abi.State])
def test_structs_are_those_of_the_kernels(kind):
    members = [tuple(abi.declared(member, name).split()) for name, member in kind._fields_]
    assert in_cuda(kind.__name__) == members


@pytest.mark.parametrize(
    ("file", "name", "value"),
    [
        ("sites.cuh", "CLUSTER", CLUSTER),
        ("sites.cuh", "SITE_BITS", SITE_BITS),
        ("levels.cuh", "WARP", WARP),
        ("trace_levels.cu", "SUMS", TRACE_SUMS),
    ],
)
def test_constants_are_those_of_the_kernels(file, name, value):
    (path,) = kernel_folder().rglob(file)
    assert re.findall(rf"^#define {name} (\d+)", path.read_text(), re.MULTILINE) == [str(value)]


@pytest.mark.parametrize("used", ["coulomb_program.cpp", "site_list.cpp"])
def test_phases_are_those_that_the_plugin_runs(used):
    """Every phase of a program but those of the other file."""
    named = set(re.findall(r"phase::(\w+)", (NATIVE / "openmm" / used).read_text()))
    pairs = {"LIST", "SEARCH", "FORCES", "ENERGY", "BOTH"}
    every = {name for name in vars(Phase) if name.isupper()}
    assert named == ({"SETUP"} | pairs if used == "site_list.cpp" else every - pairs)


def test_the_core_knows_neither_openmm_nor_the_fmm():
    texts = {path.name: path.read_text() for path in (NATIVE / "core").iterdir()}
    assert {"executor.cpp", "executor.h", "host.h"} <= {*texts}
    words = r'OpenMM|"openmm|posq|outside|potentials|parameters|charges|\bphase::'
    assert not [name for name, text in texts.items() if re.search(words, text)]


def test_buffers_are_those_of_the_programs():
    """Programs have all buffers that the plugin names, the host's arrays among them."""
    made = {
        "coulomb_program.cpp": [
            program(*CASES[name])
            for name in ("slab in OpenMM", "mixed in OpenMM", "dipole term in OpenMM")
        ],
        "site_list.cpp": [of_sites()],
    }
    external = set()
    for file, programs in made.items():
        text = (NATIVE / "openmm" / file).read_text()
        named = set(re.findall(r'(?:upload|download|address|takeFlag|has)\(\s*"(\w+)"', text))
        assert len(named) > 4
        assert named <= {name for each in programs for name in each.buffers}
        for each in programs:
            external |= {name for name, buffer in each.buffers.items() if buffer.kind == "external"}
    host = (NATIVE / "openmm" / "cuda_host.cpp").read_text()
    assert set(re.findall(r'array == "(\w+)"', host)) == external


def test_what_crosses_arrives(tmp_path):
    if COMPILER is None:
        pytest.skip("needs a C++ compiler")
    source, library = tmp_path / "abi.cpp", tmp_path / "abi.so"
    source.write_text(LIBRARY)
    options = "-std=c++17", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-I{NATIVE}"
    subprocess.run([COMPILER, *options, source, "-o", library], check=True)
    loaded = ctypes.CDLL(str(library))
    sizes = (ctypes.c_int * len(STRUCTS)).in_dll(loaded, "sizes")
    assert [*sizes] == [ctypes.sizeof(kind) for kind in STRUCTS]
    calls = []

    def opened(session, context, pickled, size, place, inbox):
        place = place.contents
        text = ctypes.string_at(pickled, size)
        calls.append((session, context, text, place.interface, place.model, place.devices))

    def requested(session, what, box, positions, names, values, count, sums, inbox):
        found = {names[k]: values[k] for k in range(count)}
        given = sums and tuple(getattr(sums.contents, name) for name, _ in abi.Sums._fields_)
        calls.append((what, box[:9], bool(positions), found, given or None, inbox.value))

    kinds = dict(abi.Callbacks._fields_)
    callbacks = abi.Callbacks(open=kinds["open"](opened), request=kinds["request"](requested))
    loaded.ask(ctypes.byref(callbacks), ctypes.c_void_p(77))
    box, values = [1, 0, 0, 0, 2, 0, 0, 0, 3], {b"first": 0.25, b"second": 0.5}
    assert calls == [
        (77, None, b"text", abi.Interface("mixed", 32), b"a model", 2),
        (abi.Delivery.CHARGES, box, False, values, None, 77),
        (abi.Delivery.FORCES, box, False, values, (-1.5, 2.5, 3.5, 4.5), 77),
    ]


def bounds_of(made) -> dict[str, int]:
    """Threads a block of the kernels of a program that are compiled for a number of them."""
    found = {}
    for file in {kernel.file for kernel in made.kernels.values()}:
        text = re.sub("#include <.*", "", source_of(file, made.macros))
        bounds = "-D__launch_bounds__(threads, ...)=BOUNDS[threads]"
        command = [COMPILER, "-E", "-P", "-w", "-x", "c++", bounds, "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
        for bounds, kernel in re.findall(r"BOUNDS\[(.*?)\]\s*(\w+)\(", done.stdout):
            found[kernel] = eval(bounds.replace("/", "//"))
    return {kernel: found[kernel] for kernel in found.keys() & made.kernels.keys()}


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("case", [*CASES, "sites"])
def test_blocks_are_those_that_kernels_are_compiled_for(case):
    made = program(*CASES[case]) if case in CASES else of_sites()
    bounds = bounds_of(made)
    assert len(bounds) > 2
    launched = {step.kernel: step.block for step in made.steps if isinstance(step, Launch)}
    other = {kernel for kernel, threads in bounds.items() if launched[kernel] != threads}
    assert all(re.match("m2l_|forward|inverse|sums", kernel) for kernel in other)  # at most so many
    assert all(launched[kernel] <= bounds[kernel] for kernel in other)
