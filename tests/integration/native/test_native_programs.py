"""The native bridge without a device: the plugin and its kernels compile, and a session gives it
what it asks for."""

import re
import subprocess
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import openmm
import pytest

import fmm_openmm as fmm
from fmm_openmm.backends.cuda.abi import Delivery
from fmm_openmm.backends.cuda.source import OPTIONS
from fmm_openmm.integration.native import plugin
from fmm_openmm.integration.native.compiler import STANDARD_INPUT, translation_unit
from fmm_openmm.planning import tuning
from fmm_openmm.planning.cost import CUDA_COST
from fmm_openmm.planning.load import Load
from fmm_openmm.planning.request import Request
from fmm_openmm.planning.search import candidates
from fmm_openmm.planning.tuning import Winner
from tests.integration.native_contexts import A_PROGRAM, BOXES, droplet_in_a_cell, session_of
from tests.support.programs import Reader


@pytest.mark.slow
@pytest.mark.parametrize(
    "all_particles", [False, True], ids=["", "where PythonForces act on all particles"]
)
def test_the_plugin_compiles(tmp_path, all_particles):
    try:
        compiler, options = plugin.command()
    except fmm.UnsupportedError as missing:
        pytest.skip(str(missing))
    options = [
        option
        for option in options
        if option not in ("-w", "-shared") and not option.startswith(("-l", "-L", "-Wl"))
    ]
    include = [f"-isystem{option[2:]}" if option.startswith("-I") else option for option in options]
    sources = plugin.sources()
    if all_particles:  # in OpenMM 8.5
        sources = [path for path in sources if "getParticles()" in path.read_text()]
        header = (
            next(Path(option[8:]) for option in include if option.startswith("-isystem"))
            / "openmm"
            / "PythonForce.h"
        )
        (tmp_path / "openmm").mkdir()
        (tmp_path / "openmm" / header.name).write_text(
            header.read_text().replace("getParticles", "getNothing")
        )
        include = [f"-isystem{tmp_path}", *include, f"-isystem{header.parent}"]
    warnings = ["-Wall", "-Wextra", "-Wno-unused-parameter"]
    done = subprocess.run(
        [*compiler, *include, *warnings, "-fsyntax-only", *STANDARD_INPUT],
        input=translation_unit(sources),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "/native/" not in done.stderr, done.stderr  # no warnings in our own files


def test_the_compiler_may_be_several_words(monkeypatch):
    monkeypatch.setenv("CXX", "ccache 'my g++' -m64")
    try:
        assert plugin.command()[0] == ["ccache", "my g++", "-m64"]
    except fmm.UnsupportedError as missing:
        pytest.skip(str(missing))


def test_without_a_compiler(monkeypatch):
    """There is no compiler and no library of the wheel; without a CUDA platform of OpenMM this is
    no fault."""

    def none():
        raise fmm.UnsupportedError("none came with it")

    monkeypatch.setattr(plugin, "shipped", none)
    monkeypatch.setenv("FMM_OPENMM_CACHE", "off")
    monkeypatch.setenv("CXX", "no such compiler")
    for name in ("CPU", "CUDA"):
        present = {
            "getNumPlatforms": lambda: 1,
            "getPlatform": lambda _, name=name: SimpleNamespace(getName=lambda: name),
            "getOpenMMVersion": lambda: "8.6.1",
        }
        with monkeypatch.context() as patch:
            patch.setattr(openmm, "Platform", SimpleNamespace(**present))
            reason = plugin.find.__wrapped__()
        assert (reason == plugin.NO_PLATFORM) == (name == "CPU")
        assert name == "CPU" or reason.startswith("the native plugin ")
        assert name == "CPU" or reason.endswith("(none came with it)")


OPENMM_DEFINES = """
#define SQRT sqrtf
#define RSQRT rsqrtf
#define RECIP 1.0f/
#define EXP expf
#define LOG logf
#define POW powf
#define COS cosf
#define SIN sinf
#define ERF erff
#define FMA fmaf
#define FABS fabsf
#define SYNC_WARPS __syncwarp();
#define make_real4 make_float4
typedef float real; typedef float2 real2; typedef float3 real3; typedef float4 real4;
typedef double mixed; typedef double2 mixed2; typedef double3 mixed3; typedef double4 mixed4;
typedef unsigned int tileflags;
#define KERNEL extern "C" __global__
#define DEVICE __device__
#define LOCAL __shared__
#define GLOBAL
#define RESTRICT __restrict__
#define LOCAL_ID threadIdx.x
#define LOCAL_SIZE blockDim.x
#define GLOBAL_ID (blockIdx.x*blockDim.x+threadIdx.x)
#define GLOBAL_SIZE (blockDim.x*gridDim.x)
#define GROUP_ID blockIdx.x
#define NUM_GROUPS gridDim.x
#define SYNC_THREADS __syncthreads();
#define MEM_FENCE __threadfence_block();
#define ATOMIC_ADD(dest, value) atomicAdd(dest, value)
#define FLT_MAX 3.40282347e+38f
typedef long long mm_long;
typedef unsigned long long mm_ulong;
#define SUPPORTS_64_BIT_ATOMICS 1
#define SUPPORTS_DOUBLE_PRECISION 1
__device__ inline long long realToFixedPoint(real x) {
    return static_cast<long long>(x * 0x100000000);
}
"""
"""What OpenMM 8.6 puts before a source, in the main (``CudaContext::createModule``)."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "is_open"), [("mixed", False), ("double", False), ("mixed", True)]
)
def test_kernels_compile_behind_the_definitions_of_openmm(nvrtc, chains, precision, is_open):
    executor = next(path for path in plugin.sources() if path.name == "cuda_host.cpp").read_text()
    own_names = "".join(re.findall(r'"(#define .*)"', executor)).replace("\\n", "\n")
    assert own_names.count("\n") == 5
    force = fmm.FMMForce.from_nonbonded(chains.nonbonded)
    force.setUsesPeriodicBoundaryConditions(not is_open)
    session = session_of(force, len(chains.positions), precision=precision)
    reader = Reader(session.program(chains.cell, {}, chains.positions)[Delivery.PROGRAM])
    reader.integer()
    for file, source in [(reader.name(), reader.name()) for _ in range(reader.integer())]:
        text = OPENMM_DEFINES + own_names + source
        program = nvrtc.createProgram(text, f"{file}.cu", [], [])
        try:
            nvrtc.compileProgram(program, [*OPTIONS, "-arch=compute_90"])
        except nvrtc.NVRTCError:
            pytest.fail(nvrtc.getProgramLog(program))


def test_why_the_host_bridge_is_used(ions):
    force = fmm.use_fmm(ions.system)
    found = force.getFMMParametersInContext(ions.context("CPU"))
    assert (found["bridge"], found["bridge_reason"]) == (
        "host",
        "the Context is on the CPU platform",
    )
    fmm.restore_pme(ions.system)
    asked = fmm.use_fmm(ions.system, bridge="host")
    assert (
        asked.getFMMParametersInContext(ions.context("CPU"))["bridge_reason"] == "it was asked for"
    )


def test_a_program_is_asked_for_once(ions):
    """Other shapes of the cell, as a barostat tries them, have the same boxes, until these are
    chosen anew; other charges need charges only."""
    session = session_of(fmm.FMMForce.from_nonbonded(ions.nonbonded))
    first = session.program(ions.cell, {})
    assert set(first) == A_PROGRAM
    assert first[Delivery.PROGRAM].startswith(b"FMMprog")
    boxes = {kind: first[kind] for kind in BOXES}
    for stretch in ([1.001, 0.998, 1.0], [1.02, 1.01, 0.99], [1.3, 1.3, 1.3], [1.0, 1.0, 1.0]):
        assert session.program(ions.cell @ np.diag(stretch), {}) == boxes
    other = session.program(ions.cell @ np.diag([1.0, 1.0, 1.04]), {})
    assert set(other) == A_PROGRAM
    assert other[Delivery.PARAMETERS] != first[Delivery.PARAMETERS]
    assert set(session.program(ions.cell @ np.diag([1.0, 1.0, 1.02]), {})) == BOXES
    assert (
        session.program(ions.cell @ np.diag([1.0, 1.0, 0.995]), {})[Delivery.PARAMETERS]
        == first[Delivery.PARAMETERS]
    )
    charges = session.charges(ions.cell, {}, None)
    np.testing.assert_array_equal(
        np.frombuffer(charges[Delivery.CHARGES], np.float32), [1, -1, 1, -1]
    )
    session.forget()
    assert session.program(ions.cell, {}) == first


def test_a_shear_of_a_rectangular_cell_takes_one_program(ions):
    """The program for sheared cells serves the rectangular one as well, so that a flexible barostat
    asks for one once."""
    session = session_of(fmm.FMMForce.from_nonbonded(ions.nonbonded))
    session.program(ions.cell, {})
    sheared = ions.cell + np.array([[0, 0, 0], [0.01, 0, 0], [-0.02, 0.02, 0]])
    assert set(session.program(sheared, {})) == A_PROGRAM
    for cell in (ions.cell, sheared, ions.cell @ np.diag([1.01, 1.0, 1.0])):
        assert set(session.program(cell, {})) == BOXES


def test_precision_follows_the_context(ions):
    force = fmm.FMMForce.from_nonbonded(ions.nonbonded)
    for precision, expected in (("single", "single"), ("mixed", "single"), ("double", "double")):
        session = session_of(force, precision=precision)
        session.program(ions.cell, {})
        assert session.parameters_for(ions.cell).precision == expected


def test_an_energy_that_is_not_a_number_is_explained(ions):
    session = session_of(fmm.FMMForce.from_nonbonded(ions.nonbonded))
    bad = ions.positions.copy()
    bad[2, 1] = np.nan
    with pytest.raises(ValueError, match="for particle 2"):
        session.explain(ions.cell, bad)
    bad = ions.positions.copy()
    bad[3] = bad[1] - ions.cell[0]
    assert (
        session.explain(ions.cell, bad)
        == "`positions`: particles 1 and 3 coincide and are not excluded"
    )
    excluding = fmm.FMMForce.from_nonbonded(ions.nonbonded)
    excluding.addExclusion(3, 1)
    assert session_of(excluding).explain(ions.cell, bad) == "the energy is not a number"


def test_coinciding_particles_are_not_listed_as_pairs(ions):
    """Up to a quarter of n^2 pairs would have to be listed."""
    session = session_of(fmm.FMMForce.from_nonbonded(ions.nonbonded), 20_000)
    tracemalloc.start()
    try:
        said = session.explain(ions.cell, np.ones((20_000, 3)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert said == "`positions`: particles 0 and 1 coincide and are not excluded"
    assert peak < 20e6


@pytest.mark.slow
@pytest.mark.parametrize("edge", [3.0, 6.0, 12.0])
def test_parameters_before_and_after_the_first_evaluation(edge):
    """Cells that the first positions show to be full, emptier and nearly empty."""
    box = droplet_in_a_cell(edge)
    session = session_of(fmm.FMMForce.from_nonbonded(box.nonbonded), len(box.positions))
    session.program(box.cell, {})
    before = session.parameters_for(box.cell, box.positions)
    session.charges(box.cell, {}, box.positions)
    assert session.parameters_for(box.cell, box.positions) == before


@pytest.mark.slow
def test_what_was_found_by_timing_is_used(water, tmp_path, monkeypatch):
    monkeypatch.setenv("FMM_OPENMM_CACHE", str(tmp_path))
    force = fmm.FMMForce.from_nonbonded(water.nonbonded)
    load = Load.from_charges(
        force._definition.parameters.base, force._definition.structure.exclusions
    )
    request = Request(force._definition.options.tolerance)
    first, *_, winner = candidates(request, water.cell, load, CUDA_COST)[:6]
    for model, expected in ((b"NVIDIA H200", winner), (b"another", first)):
        tuning.KEPT.store(
            {
                tuning.key("NVIDIA H200", request, water.cell, load): Winner.from_parameters(
                    winner, load.particles, 1e-5
                )
            }
        )
        session = session_of(force, load.particles, model=model)
        session.program(water.cell, {})
        assert session.parameters_for(water.cell) == expected


def test_a_wrong_number_of_particles_is_named(ions):
    with pytest.raises(ValueError, match="4 particles, but the System has 5"):
        session_of(fmm.FMMForce.from_nonbonded(ions.nonbonded), particles=5).program(ions.cell, {})
