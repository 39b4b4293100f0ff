"""The native bridge: what the plugin computes in OpenMM's CUDA context is what the host bridge computes.

Where there is a GPU the other tests of this folder run with it as well; these are about the bridge itself.
"""

import copy
import ctypes
import gc
import pickle
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import openmm
import pytest
from openmm import unit

import fmm_openmm as fmm
from fmm_openmm import tuning
from fmm_openmm.backends.cuda import serial
from fmm_openmm.backends.cuda.program import Buffer
from fmm_openmm.backends.cuda.source import OPTIONS
from fmm_openmm.bench.systems import Sample, tiled
from fmm_openmm.integration import native, plugin
from fmm_openmm.oracle import direct_sum, ewald_sum
from fmm_openmm.parameters import CUDA_COST, Load, Request, candidates
from fmm_openmm.tuning import Winner
from tests import endurance
from tests.integration.boxes import Box, energy_of, relative_difference
from tests.integration.conftest import usable_platforms
from tests.integration.test_open_boundary import charges_and_pairs, opened
from tests.test_open import droplet
from tests.test_program import Reader
from tests.test_sparse import wrapped

REASON = native.activate() or (None if "CUDA" in usable_platforms() else "the CUDA platform finds no device")
on_gpu = pytest.mark.skipif(REASON is not None, reason=f"no native bridge here: {REASON}")
with_two = pytest.mark.skipif(
    REASON is not None or len(openmm.Platform.getPlatformByName("CUDA").getDevices()) < 2, reason="needs two GPUs"
)
on_devices = pytest.mark.parametrize("devices", ["0", pytest.param("0,1", marks=with_two)])
ROUNDING = {"single": 2e-5, "mixed": 2e-5, "double": 1e-9}


def test_the_plugin_compiles(tmp_path):
    try:
        compiler, options = plugin.command()
    except fmm.UnsupportedError as missing:
        pytest.skip(str(missing))
    options = [option for option in options if option not in ("-w", "-shared") and not option.startswith(("-l", "-L", "-Wl"))]
    include = [f"-isystem{option[2:]}" if option.startswith("-I") else option for option in options]
    for source in plugin.sources():
        done = subprocess.run(
            [*compiler, *include, "-Wall", "-Wextra", "-Wno-unused-parameter", "-fsyntax-only", source],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert "/plugin/" not in done.stderr, done.stderr  # no warnings in our own files


def test_the_compiler_may_be_several_words(monkeypatch):
    monkeypatch.setenv("CXX", "ccache 'my g++' -m64")
    try:
        assert plugin.command()[0] == ["ccache", "my g++", "-m64"]
    except fmm.UnsupportedError as missing:
        pytest.skip(str(missing))


def test_a_plugin_that_cannot_be_built_is_told(monkeypatch, caplog):
    """Where OpenMM has the CUDA platform: elsewhere nobody misses it."""
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
            reason = plugin.load.__wrapped__()
        told = [record.getMessage() for record in caplog.records]
        assert told == ([] if name == "CPU" else [f"FMMForces use the host bridge: {reason}"])


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
__device__ inline long long realToFixedPoint(real x) { return static_cast<long long>(x * 0x100000000); }
"""
"""What OpenMM 8.6 puts before a source, in the main (``CudaContext::createModule``)."""


@pytest.mark.parametrize(("precision", "is_open"), [("mixed", False), ("double", False), ("mixed", True)])
def test_kernels_compile_behind_the_definitions_of_openmm(chains, precision, is_open):
    nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="needs CuPy: pip install 'fmm_openmm[cuda13]'")
    try:
        nvrtc.getVersion()
    except RuntimeError as error:
        pytest.skip(f"needs the NVRTC library: {error}")
    executor = next(Path(path) for path in plugin.sources() if path.endswith("executor.cpp")).read_text()
    own_names = "".join(re.findall(r'"(#define .*)"', executor)).replace("\\n", "\n")
    assert own_names.count("\n") == 5
    force = fmm.FMMForce.from_nonbonded(chains.nonbonded)
    force.setUsesPeriodicBoundaryConditions(not is_open)
    session = session_of(force, len(chains.positions), precision=precision)
    reader = Reader(session.program(chains.cell, {}, chains.positions)[native.PROGRAM])
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
    assert (found["bridge"], found["bridge_reason"]) == ("host", "the Context is on the CPU platform")
    fmm.restore_pme(ions.system)
    asked = fmm.use_fmm(ions.system, bridge="host")
    assert asked.getFMMParametersInContext(ions.context("CPU"))["bridge_reason"] == "it was asked for"


def session_of(force, particles=4, **device) -> native.Session:
    precision = native.PRECISIONS.index(device.get("precision", "mixed"))
    place = native.Place(precision, particles, 32, 132, 227 * 1024, 0, device.get("model", b"NVIDIA H200"))
    return native.Session(force._bridge, 0, 0, place)


def test_a_program_is_asked_for_once(ions):
    """Other shapes of the cell, as a barostat tries them, need a parameter block only; other charges need charges only."""
    session = session_of(fmm.FMMForce.from_nonbonded(ions.nonbonded))
    first = session.program(ions.cell, {})
    assert set(first) == {native.PROGRAM, native.PARAMETERS}
    assert first[native.PROGRAM].startswith(b"FMMprog")
    other = session.program(ions.cell @ np.diag([1.001, 0.998, 1.0]), {})
    assert set(other) == {native.PARAMETERS}
    assert other[native.PARAMETERS] != first[native.PARAMETERS]
    assert session.program(ions.cell, {}) == {native.PARAMETERS: first[native.PARAMETERS]}
    charges = session.charges(ions.cell, {}, None)
    np.testing.assert_array_equal(np.frombuffer(charges[native.CHARGES], np.float32), [1, -1, 1, -1])
    session.forget()
    assert session.program(ions.cell, {}) == first


def no_room(*_):
    raise MemoryError("no room")


def covers_particles(program: bytes) -> bool:
    """Whether the boxes are over the particles only."""
    return b"#define OPEN 1" in program


def test_boxes_follow_the_particles_in_empty_space(chains):
    """A parameter block while there are enough of them, another program when there are not, or far too many."""
    chains.nonbonded.setNonbondedMethod(openmm.NonbondedForce.NoCutoff)
    force, x = fmm.FMMForce.from_nonbonded(chains.nonbonded, smoothing=0.05), chains.positions
    session, cell = session_of(force, len(x)), np.zeros((3, 3))
    assert session.program(cell, {}) == {}
    expected = session.parameters_for(cell, x)
    first = session.program(cell, {}, x)
    assert session.parameters_for(cell) == expected
    assert set(first) == {native.PROGRAM, native.PARAMETERS}
    assert covers_particles(first[native.PROGRAM])
    assert set(session.charges(cell, {}, x)) == {native.CHARGES}
    moved = session.program(cell, {}, x + np.array([3.0, -500.0, 0.0]))
    assert set(moved) == {native.PARAMETERS}
    before, after = (np.frombuffer(found[native.PARAMETERS]) for found in (first, moved))
    np.testing.assert_array_equal(after[:-3], before[:-3])
    np.testing.assert_allclose(after[-3:] - before[-3:], [3.0, -500.0, 0.0])
    far = x.copy()
    far[-1] += 8.0
    assert set(session.program(cell, {}, far)) == {native.PROGRAM, native.PARAMETERS}
    assert set(session.program(cell, {}, x)) == {native.PARAMETERS}
    assert set(session.charges(cell, {}, x)) == {native.PROGRAM, native.PARAMETERS}
    assert session.parameters_for(cell) == expected
    far[5, 0] = np.nan
    for ask in (session.program, session.charges):
        with pytest.raises(ValueError, match="for particle 5"):
            ask(cell, {}, far)
    x[3] = x[9]
    assert session.explain(cell, x) == "`positions`: particles 3 and 9 coincide and are not excluded"


def droplet_in_a_cell(edge=12.0, molecules=300, at=0.0) -> Box:
    """Rigid water, 900 atoms as a sphere in a cube, or in empty space for ``edge=None``; whole molecules, wrapped."""
    x, q, pairs = droplet(molecules)
    x += at - x.mean(0)
    system, force = openmm.System(), openmm.NonbondedForce()
    force.setNonbondedMethod(openmm.NonbondedForce.PME if edge else openmm.NonbondedForce.NoCutoff)
    for particle, charge in enumerate(q):
        system.addParticle(1.008 if particle % 3 else 15.999)
        force.addParticle(charge, 0.315, 0.0 if particle % 3 else 0.636)
    for first in range(0, len(q), 3):
        for pair, distance in (((0, 1), 0.09572), ((0, 2), 0.09572), ((1, 2), 0.15139)):
            system.addConstraint(first + pair[0], first + pair[1], distance)
    for pair in pairs:
        force.addException(*map(int, pair), 0.0, 1.0, 0.0)
    system.addForce(force)
    if edge:
        system.setDefaultPeriodicBoxVectors(*(edge * np.eye(3)))
        x = wrapped(x, edge * np.eye(3))
    return Box(system, x)


def test_boxes_follow_the_particles_in_a_nearly_empty_cell():
    """A uniform scaling of the cell needs a parameter block, another shape a program with its operator; what falls apart gets
    boxes over the whole cell, for good."""
    box = droplet_in_a_cell()
    force, x, cell = fmm.FMMForce.from_nonbonded(box.nonbonded), box.positions, box.cell
    session = session_of(force, len(x))
    assert not covers_particles(session.program(cell, {})[native.PROGRAM])
    found = session.charges(cell, {}, x)
    assert covers_particles(found[native.PROGRAM])
    assert set(session.charges(cell, {}, x)) == {native.CHARGES}
    assert set(session.program(cell, {}, wrapped(x + np.array([5.0, 2.0, -7.0]), cell))) == {native.PARAMETERS}
    assert set(session.program(1.01 * cell, {}, x)) == {native.PARAMETERS}
    assert covers_particles(session.program(cell * [[1.0], [1.0], [1.02]], {}, x)[native.PROGRAM])
    apart = x.reshape(-1, 3, 3) + np.random.default_rng(0).uniform(0, 12, (len(x) // 3, 1, 3))
    found = session.program(cell, {}, apart.reshape(-1, 3))
    assert not covers_particles(found[native.PROGRAM])
    assert set(session.program(cell, {}, x)) == {native.PARAMETERS}
    assert set(session.charges(cell, {}, None)) == {native.CHARGES}


def test_a_program_that_failed_is_asked_for_again(monkeypatch):
    """Whatever is asked next: the plugin has none for the boxes that were chosen."""
    box = droplet_in_a_cell()
    session = session_of(fmm.FMMForce.from_nonbonded(box.nonbonded), len(box.positions))
    session.program(box.cell, {})
    for cell, ask in ((box.cell, session.charges), (box.cell * [[1.0], [1.0], [1.02]], session.program)):
        with monkeypatch.context() as patch, pytest.raises(MemoryError):
            patch.setattr(native, "build", no_room)
            ask(cell, {}, box.positions)
        assert covers_particles(session.charges(cell, {}, box.positions)[native.PROGRAM])


@pytest.mark.parametrize("option", [{"grid": (16, 16, 16)}, {"levels": 1}])
def test_boxes_over_the_whole_cell_where_they_are_asked_for(option):
    box = droplet_in_a_cell()
    session = session_of(fmm.FMMForce.from_nonbonded(box.nonbonded, **option), len(box.positions))
    session.program(box.cell, {})
    assert not covers_particles(session.charges(box.cell, {}, box.positions)[native.PROGRAM])
    assert not session.placement.follows


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
    assert session.explain(ions.cell, bad) == "`positions`: particles 1 and 3 coincide and are not excluded"
    excluding = fmm.FMMForce.from_nonbonded(ions.nonbonded)
    excluding.addExclusion(3, 1)
    assert session_of(excluding).explain(ions.cell, bad) == "the energy is not a number"


def test_what_was_found_by_timing_is_used(water, tmp_path, monkeypatch):
    monkeypatch.setenv("FMM_OPENMM_CACHE", str(tmp_path))
    force = fmm.FMMForce.from_nonbonded(water.nonbonded)
    load = Load.of(force._definition.parameters.base, force._definition.structure.exclusions)
    request = Request(force._definition.options.tolerance)
    first, *_, winner = candidates(request, water.cell, load, CUDA_COST)[:6]
    for model, expected in ((b"NVIDIA H200", winner), (b"another", first)):
        tuning.KEPT.store({tuning.key("NVIDIA H200", request, water.cell, load): Winner.of(winner, load.particles, 1e-5)})
        session = session_of(force, load.particles, model=model)
        session.program(water.cell, {})
        assert session.parameters_for(water.cell) == expected


def test_a_wrong_number_of_particles_is_named(ions):
    with pytest.raises(ValueError, match="4 particles, but the System has 5"):
        session_of(fmm.FMMForce.from_nonbonded(ions.nonbonded), particles=5).program(ions.cell, {})


def context_of(box, precision="mixed", integrator=None, **properties):
    integrator = integrator or openmm.VerletIntegrator(0.001)
    properties["Precision"] = precision
    context = openmm.Context(box.system, integrator, openmm.Platform.getPlatformByName("CUDA"), properties)
    context.setPositions(box.positions)
    return context


def coulomb(context, force):
    """Energy and forces of the FMMForce alone."""
    state = context.getState(energy=True, forces=True, groups={force.getForceGroup()})
    return state.getPotentialEnergy()._value, state.getForces(asNumpy=True)._value


def converted(box, **options):
    force = fmm.use_fmm(box.system, **options)
    force.setForceGroup(7)
    return force


def both_bridges(box, context_precision, **options):
    """Energy and forces by the native bridge and by the host's."""
    found = []
    for bridge in ("native", "host"):
        mine = copy.deepcopy(box)
        force = converted(mine, bridge=bridge, **options)
        context = context_of(mine, context_precision)
        assert force.getFMMParametersInContext(context)["bridge"] == bridge
        found.append(coulomb(context, force))
    return found


@on_gpu
@pytest.mark.parametrize(
    ("precision", "system", "smoothing"),
    [
        ("single", "water", 0.05),
        ("single", "chains", 0.0),
        ("mixed", "water", 0.0),
        ("mixed", "chains", 0.05),
        ("mixed", "tip5p", 0.05),
        ("double", "water", 0.05),
        ("double", "chains", 0.0),
    ],
)
def test_agrees_with_the_host_bridge(request, system, precision, smoothing):
    options = {"precision": "double" if precision == "double" else "single", "smoothing": smoothing, "order": 6}
    options |= {"grid": (6, 6, 6), "near_radius": 2.34} if system != "chains" else {}
    (energy, forces), (host_energy, host_forces) = both_bridges(request.getfixturevalue(system), precision, **options)
    assert relative_difference(forces, host_forces) < ROUNDING[precision]
    assert energy == pytest.approx(host_energy, rel=ROUNDING[precision])


@on_gpu
@pytest.mark.parametrize("precision", ROUNDING)
def test_agrees_with_pme(water, precision):
    water.nonbonded.setEwaldErrorTolerance(1e-6)
    pme = context_of(copy.deepcopy(water), precision).getState(energy=True, forces=True)
    force = converted(water, tolerance=1e-5, bridge="native")
    context = context_of(water, precision)
    state = context.getState(energy=True, forces=True)
    assert force.getFMMParametersInContext(context)["precision"] == ("double" if precision == "double" else "single")
    assert relative_difference(state.getForces(asNumpy=True)._value, pme.getForces(asNumpy=True)._value) < 2e-5
    assert state.getPotentialEnergy()._value == pytest.approx(pme.getPotentialEnergy()._value, rel=3e-5)


@on_gpu
def test_repeats_bit_for_bit_and_parts_agree_with_the_whole(water):
    force = converted(water, bridge="native")
    context = context_of(water)
    energy, forces = coulomb(context, force)
    again, same = coulomb(context, force)
    assert energy == again
    np.testing.assert_array_equal(forces, same)
    assert context.getState(energy=True, groups={7}).getPotentialEnergy()._value == energy
    np.testing.assert_array_equal(context.getState(forces=True, groups={7}).getForces(asNumpy=True)._value, forces)
    assert context.getState(energy=True, groups={3}).getPotentialEnergy()._value == 0


@on_gpu
def test_follows_the_reordering_of_atoms(water):
    """After many steps OpenMM's order of atoms is another; a fresh Context, in the user's order, must agree."""
    force = converted(water, bridge="native")
    integrator = openmm.LangevinMiddleIntegrator(400 * unit.kelvin, 5.0, 0.002)
    context = context_of(water, integrator=integrator)
    integrator.step(1500)
    moved = copy.deepcopy(water)
    moved.positions = context.getState(positions=True).getPositions(asNumpy=True)._value
    energy, forces = coulomb(context, force)
    expected_energy, expected = coulomb(context_of(moved), fmm.find_fmm(moved.system)[0])
    assert energy == pytest.approx(expected_energy, abs=0.02)
    assert relative_difference(forces, expected) < 1e-5


@on_gpu
@pytest.mark.parametrize("bridge", ["native", "host"])
def test_excluded_pairs_that_nothing_else_binds(bridge):
    """OpenMM keeps both particles of an excluded pair in one image, across the faces of the box, and particles of other charges
    may swap places in its order: the interaction left out stays that of the coordinates the user gave."""
    random = np.random.default_rng(2)
    cell = 3 * np.eye(3)
    sites = np.stack(np.meshgrid(*3 * [np.arange(4)], indexing="ij"), -1).reshape(-1, 1, 3) * 0.75
    positions = (sites + random.uniform(-0.12, 0.12, (64, 2, 3))).reshape(-1, 3)
    charges, pairs = random.normal(scale=0.2, size=128), np.arange(128).reshape(-1, 2)
    system, force, others = openmm.System(), fmm.FMMForce(tolerance=1e-6, bridge=bridge), openmm.NonbondedForce()
    system.setDefaultPeriodicBoxVectors(*cell)
    others.setNonbondedMethod(openmm.NonbondedForce.CutoffPeriodic)
    for charge in charges:
        system.addParticle(20.0)
        force.addParticle(charge)
        others.addParticle(0.0, 0.1, 0.1)
    for pair in pairs:
        force.addExclusion(*map(int, pair))
    force.setForceGroup(7)
    system.addForce(force)
    system.addForce(others)
    integrator = openmm.LangevinMiddleIntegrator(100.0, 1.0, 0.001)
    context = context_of(Box(system, positions), "double", integrator)
    for steps in (0, 600):
        integrator.step(steps)
        now = context.getState(positions=True).getPositions(asNumpy=True)._value
        expected = ewald_sum(now, charges, cell, pairs)
        energy, forces = coulomb(context, force)
        assert energy == pytest.approx(expected.energy, abs=1e-4)
        assert relative_difference(forces, expected.forces) < 2e-6


@on_gpu
@pytest.mark.parametrize("precision", ROUNDING)
def test_potentials_without_the_host(chains, precision):
    """Those of the host bridge, from the evaluation on the device."""
    chains.nonbonded.addGlobalParameter("a", 0.5)
    chains.nonbonded.addParticleParameterOffset("a", 3, 0.2, 0.0, 0.0)
    found = []
    for bridge in ("native", "host"):
        mine = copy.deepcopy(chains)
        force = converted(mine, bridge=bridge, precision="double" if precision == "double" else "single")
        context = context_of(mine, precision)
        force.setForceGroup(3)  # without effect on the Context
        context.setParameter("a", -1.0)
        found.append((force.getPotentialsInContext(context), force.getEnergyParameterDerivativesInContext(context)["a"]))
        assert (force._bridge._solver is None) == (bridge == "native")
    (potentials, derivative), (expected, host_derivative) = found
    assert relative_difference(potentials, expected) < ROUNDING[precision]
    assert derivative == pytest.approx(host_derivative, rel=10 * ROUNDING[precision])
    assert derivative == pytest.approx(0.2 * potentials[3], rel=1e-12)


def forces_alone(context, force):
    return context.getState(forces=True, groups={force.getForceGroup()}).getForces(asNumpy=True)._value


@on_gpu
@pytest.mark.parametrize("precision", ROUNDING)
def test_a_droplet_in_empty_space(precision):
    """The boxes are where it is: also where only forces are asked for, after jumps, and when a molecule flies away."""
    box = droplet_in_a_cell(None)
    charges, pairs = charges_and_pairs(box.nonbonded)
    force = converted(box, bridge="native")
    context = context_of(box, precision)
    assert force.getFMMParametersInContext(context)["bridge"] == "native"
    assert not box.system.usesPeriodicBoundaryConditions()
    for jump, escape in ((0.0, 0.0), (0.7, 0.0), (40.0, 0.0), (0.0, 0.2), (0.0, 5.0), (0.0, 0.0)):
        x = box.positions + np.array([jump, -jump, 0.0])
        x[:3, 1] += escape
        expected = direct_sum(x, charges, pairs)
        context.setPositions(x)
        assert relative_difference(forces_alone(context, force), expected.forces) <= 5e-4
        energy, forces = coulomb(context, force)
        assert energy == pytest.approx(expected.energy, rel=5e-4)
        assert relative_difference(forces, expected.forces) <= 5e-4
    potentials = force.getPotentialsInContext(context)
    assert 0.5 * charges @ potentials == pytest.approx(energy, rel=1e-5)


@on_gpu
@on_devices
@pytest.mark.parametrize("edge", [None, 12.0])
def test_a_droplet_in_motion(edge, devices):
    """OpenMM's order of atoms changes, a wind takes the droplet away, through the boundary, and the cell follows a barostat."""
    box = droplet_in_a_cell(edge)
    charges, pairs = charges_and_pairs(box.nonbonded)
    if edge:
        box.system.addForce(openmm.MonteCarloBarostat(1.0, 300.0, 10))
    force = converted(box, bridge="native")
    context = context_of(box, integrator=openmm.LangevinMiddleIntegrator(300.0, 1.0, 0.002), DeviceIndex=devices)
    context.setVelocitiesToTemperature(300.0, 1)
    velocities = context.getState(velocities=True).getVelocities(asNumpy=True)._value
    for wind in ([0.0, 0.0, 0.0], [8.0, -6.0, 7.0]):
        context.setVelocities(velocities + wind)
        context.getIntegrator().step(400)
        state = context.getState(positions=True)
        x, cell = state.getPositions(asNumpy=True)._value, state.getPeriodicBoxVectors(asNumpy=True)._value
        expected = ewald_sum(x, charges, cell, pairs) if edge else direct_sum(x, charges, pairs)
        assert relative_difference(forces_alone(context, force), expected.forces) <= 5e-4
        assert coulomb(context, force)[0] == pytest.approx(expected.energy, rel=5e-4)
    assert force.getFMMParametersInContext(context)["bridge"] == "native"


@on_gpu
def test_a_droplet_in_cells_of_other_shapes():
    box = droplet_in_a_cell()
    charges, pairs = charges_and_pairs(box.nonbonded)
    force = converted(box, bridge="native")
    context = context_of(box)
    apart = box.positions.reshape(-1, 3, 3) + np.random.default_rng(0).uniform(0, 12, (len(charges) // 3, 1, 3))
    cases = [(box.positions, scale) for scale in (1.0, 1.02, np.array([1.0, 1.03, 1.0]), 1.0)]
    for positions, scale in (*cases, (apart.reshape(-1, 3), 1.0)):
        cell = box.cell * scale
        context.setPeriodicBoxVectors(*cell)
        context.setPositions(positions)
        expected = ewald_sum(positions, charges, cell, pairs)
        assert relative_difference(forces_alone(context, force), expected.forces) <= 5e-4
        assert coulomb(context, force)[0] == pytest.approx(expected.energy, rel=5e-4)
    session, _ = native.status(force._bridge, context)
    assert not session.placement.follows


@on_gpu
@on_devices
def test_what_a_force_in_empty_space_is_asked(chains, devices):
    """Other charges, two forces, one inside a CustomCVForce, and bad coordinates, after which nothing is lost."""
    charges, pairs = charges_and_pairs(opened(chains).nonbonded)
    expected = direct_sum(chains.positions, charges, pairs)
    force = converted(chains, bridge="native", tolerance=1e-6)
    other = fmm.FMMForce.from_nonbonded(chains.nonbonded, bridge="native", tolerance=1e-6)
    for particle in range(len(charges)):
        other.setParticleParameters(particle, charges[particle])
    other.setForceGroup(8)
    variable = openmm.CustomCVForce("3*electrostatic")
    variable.addCollectiveVariable("electrostatic", copy.deepcopy(other))
    variable.setForceGroup(9)
    chains.system.addForce(other)
    chains.system.addForce(variable)
    context = context_of(chains, "double", DeviceIndex=devices)
    for group, factor in ((7, 1), (8, 1), (9, 3)):
        state = context.getState(energy=True, forces=True, groups={group})
        assert state.getPotentialEnergy()._value == pytest.approx(factor * expected.energy, rel=1e-6)
        assert relative_difference(state.getForces(asNumpy=True)._value, factor * expected.forces) <= 1e-6
    before = coulomb(context, force)[0]
    for particle in range(len(charges)):
        force.setParticleParameters(particle, 2 * charges[particle])
    force.updateParametersInContext(context)
    assert coulomb(context, force)[0] == pytest.approx(4 * before, rel=1e-12)
    assert coulomb(context, other)[0] == pytest.approx(before, rel=1e-12)
    for bad in (np.nan, np.inf, 1e30):
        positions = chains.positions.copy()
        positions[17, 1] = bad
        context.setPositions(positions)
        for _ in range(2):
            with pytest.raises(openmm.OpenMMException, match=r"for particle 17|NaN"):
                forces_alone(context, force)
    positions = chains.positions.copy()
    positions[17] = positions[40]
    context.setPositions(positions)
    with pytest.raises(openmm.OpenMMException, match="particles 17 and 40 coincide"):
        coulomb(context, force)
    context.setPositions(chains.positions)
    assert coulomb(context, force)[0] == pytest.approx(4 * before, rel=1e-12)


@on_gpu
@pytest.mark.parametrize("bridge", ["auto", "native"])
def test_a_failure_at_the_first_evaluation(chains, bridge, monkeypatch):
    """In empty space programs wait for positions; if there can be none the host bridge takes over, unless it must not."""
    expected = direct_sum(chains.positions, *charges_and_pairs(opened(chains).nonbonded))
    force = converted(chains, bridge=bridge)
    context = context_of(chains)
    with monkeypatch.context() as patch:
        patch.setattr(native, "build", no_room)
        if bridge == "native":
            for _ in range(2):
                with pytest.raises(openmm.OpenMMException, match="not possible: FMMForce: MemoryError: no room"):
                    coulomb(context, force)
        else:
            assert relative_difference(force.getPotentialsInContext(context), expected.potentials) <= 1e-3
            assert coulomb(context, force)[0] == pytest.approx(expected.energy, rel=5e-4)
    energy, forces = coulomb(context, force)
    assert energy == pytest.approx(expected.energy, rel=5e-4)
    assert relative_difference(forces, expected.forces) <= 5e-4
    found = force.getFMMParametersInContext(context)
    assert found["bridge"] == ("native" if bridge == "native" else "host")
    assert bridge == "native" or "no room" in found["bridge_reason"]


@on_gpu
def test_a_force_in_empty_space_beside_a_periodic_one(chains):
    """OpenMM would move molecules into the box: the host bridge knows where the user has them."""
    force = converted(opened(chains))
    bonds = openmm.HarmonicBondForce()
    bonds.setUsesPeriodicBoundaryConditions(True)
    chains.system.addForce(bonds)
    found = force.getFMMParametersInContext(context_of(chains))
    assert (found["bridge"], found["bridge_reason"]) == ("host", "it is not periodic, but another force of the System is")


def interrupted(*_):
    raise KeyboardInterrupt


def test_an_interrupt_delivers_nothing_more(monkeypatch):
    delivered = []
    monkeypatch.setattr(native, "_deliver", lambda inbox, kind, data: delivered.append((inbox, kind)))
    native._answering(lambda *_: native._deliver("inbox", native.CLAIM, b""))("kernel", "inbox")
    assert delivered == [("inbox", native.CLAIM), ("inbox", native.DONE)]
    with pytest.raises(KeyboardInterrupt):
        native._answering(interrupted)("kernel", "inbox")
    assert len(delivered) == 2


def test_what_a_failed_context_left_is_dropped(ions, monkeypatch):
    """Its memory may have become that of the next one, which finds no session of another force either."""
    force = converted(ions)
    left = {key: SimpleNamespace(bridge=bridge, context=5, kernel=key) for key, bridge in ((1, force._bridge), (2, None))}
    monkeypatch.setattr(native, "_sessions", left)
    monkeypatch.setattr(native, "_deliver", lambda *_: None)
    monkeypatch.setattr(native, "Session", lambda *arguments: arguments)
    pickled = pickle.dumps(force._bridge)
    place = ctypes.pointer(native.Place(particles=force.getNumParticles()))
    native._open(9, 5, ctypes.c_char_p(pickled), len(pickled), place, None)
    assert set(left) == {2, 9}


@on_gpu
def test_an_interrupt_stops_the_evaluation_and_nothing_else(ions, monkeypatch):
    """Before the first evaluation, in a change of the box and in one of the charges; afterwards all is as if there was none."""
    force = converted(ions, bridge="native")
    wider = ions.cell * [[1.0], [1.0], [1.03]]
    changes = (
        ("charges", lambda context: None),
        ("program", lambda context: context.setPeriodicBoxVectors(*wider)),
        ("charges", lambda context: (force.setParticleParameters(0, 0.5), force.updateParametersInContext(context))),
    )
    context, fresh, ignored = context_of(ions), context_of(ions), []
    for method, change in changes:
        change(context)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "unraisablehook", lambda ignoring: ignored.append(ignoring.exc_type))
            patch.setattr(native.Session, method, interrupted)
            for _ in range(2):
                with pytest.raises(openmm.OpenMMException, match="FMMForce: interrupted"):
                    coulomb(context, force)
        fresh.setPeriodicBoxVectors(*context.getState().getPeriodicBoxVectors())
        assert coulomb(context, force)[0] == pytest.approx(coulomb(fresh, force)[0], rel=ROUNDING["mixed"])
    assert ignored == 2 * len(changes) * [KeyboardInterrupt]


@on_gpu
def test_a_context_after_one_that_could_not_be_made(ions):
    force = converted(ions, bridge="native")
    first = context_of(ions)
    expected = force.getPotentialsInContext(first)
    for _ in range(5):
        with pytest.raises(openmm.OpenMMException, match="already bound"):
            context_of(ions, integrator=first.getIntegrator())
        np.testing.assert_allclose(force.getPotentialsInContext(context_of(ions)), expected, rtol=1e-5, atol=1e-3)


@on_gpu
def test_levels(water):
    options = {"precision": "single", "order": 6, "grid": (3, 3, 3), "levels": 1, "near_radius": 2.34}
    (energy, forces), (host_energy, host_forces) = both_bridges(water, "mixed", **options)
    assert relative_difference(forces, host_forces) < ROUNDING["mixed"]
    assert energy == pytest.approx(host_energy, rel=ROUNDING["mixed"])


@on_gpu
@pytest.mark.parametrize("levels", [0, 1])
def test_box_changes(water, levels):
    """Isotropic ones change a parameter block, others the lattice operator too. What is restored gives the same energy, but
    for rounding: OpenMM moves molecules into the box."""
    force = converted(water, bridge="native", tolerance=1e-5, levels=levels)
    context = context_of(water, "double")
    before, _ = coulomb(context, force)
    for factors in ((1.02, 1.02, 1.02), (0.99, 1.03, 1.0), (1.0, 1.0, 1.01), (0.97, 0.97, 0.97)):
        cell = np.diag(factors) @ water.cell
        context.setPeriodicBoxVectors(*cell)
        fresh = copy.deepcopy(water)
        fresh.system.setDefaultPeriodicBoxVectors(*cell)
        expected, _ = coulomb(context_of(fresh, "double"), fmm.find_fmm(fresh.system)[0])
        assert coulomb(context, force)[0] == pytest.approx(expected, rel=1e-5)
        context.setPeriodicBoxVectors(*water.cell)
        assert coulomb(context, force)[0] == pytest.approx(before, rel=1e-12)


@on_gpu
def test_charges_change(water):
    """By the definition, by updateParametersInContext, by a global parameter."""
    force = converted(water, bridge="native")
    context = context_of(water)
    before, _ = coulomb(context, force)
    for particle in range(force.getNumParticles()):
        force.setParticleParameters(particle, 2 * force.getParticleParameters(particle))
    assert coulomb(context, force)[0] == pytest.approx(4 * before, rel=1e-6)
    force.updateParametersInContext(context)
    for particle in range(force.getNumParticles()):
        force.setParticleParameters(particle, 0.5 * force.getParticleParameters(particle))
    assert coulomb(context, force)[0] == pytest.approx(4 * before, rel=1e-6), "an updated Context keeps its charges"
    force.updateParametersInContext(context)
    assert coulomb(context, force)[0] == before


@on_gpu
def test_global_parameters(ions, monkeypatch):
    force = fmm.FMMForce(bridge="native", tolerance=1e-6)
    force.addGlobalParameter("scale", 1.0)
    for particle in range(4):
        force.addParticle(0.0)
        force.addParticleParameterOffset("scale", particle, (-1.0) ** particle)
    ions.system.removeForce(0)
    ions.system.addForce(force)
    context = context_of(ions, "double")
    energy = energy_of(context)
    context.setParameter("scale", 0.5)
    assert energy_of(context) == pytest.approx(0.25 * energy, rel=1e-9)
    context.setParameter("scale", np.inf)
    for _ in range(2):
        with pytest.raises(openmm.OpenMMException, match="finite"):
            energy_of(context)
    context.setParameter("scale", 0.0)
    assert energy_of(context) == 0
    context.setParameter("scale", 1.0)
    assert energy_of(context) == energy
    with monkeypatch.context() as patch:
        patch.setattr(native.Session, "program", no_room)
        context.setParameter("scale", 0.5)
        context.setPeriodicBoxVectors(*(np.diag([1.3, 1.0, 1.0]) @ ions.cell))
        with pytest.raises(openmm.OpenMMException, match="no room"):
            energy_of(context)
    context.setPeriodicBoxVectors(*ions.cell)
    assert energy_of(context) == pytest.approx(0.25 * energy, rel=1e-9)


@on_gpu
def test_charges_change_while_openmm_computes():
    """Forces that are added after those of OpenMM, which take longer, keep the charges of their own step."""
    sites = np.stack(np.meshgrid(*3 * [np.arange(8)], indexing="ij"), -1).reshape(-1, 3)
    system, force = openmm.System(), fmm.FMMForce(bridge="native", precision="single")
    system.setDefaultPeriodicBoxVectors(*(3.2 * np.eye(3)))
    force.addGlobalParameter("scale", 1.0)
    slow = openmm.CustomNonbondedForce("+".join(f"exp(-{k}*r)" for k in range(1, 201)))
    for particle, site in enumerate(sites):
        system.addParticle(20.0)
        force.addParticle(0.0)
        force.addParticleParameterOffset("scale", particle, (-1.0) ** site.sum())
        slow.addParticle([])
    system.addForce(force)
    system.addForce(slow)
    box = Box(system, 0.4 * sites + np.random.default_rng(5).uniform(-0.05, 0.05, sites.shape))
    velocities = []
    for waits in (True, False):
        context = context_of(box, "double")
        for scale in (1.0, 0.0, 1.0, 0.0):
            context.setParameter("scale", scale)
            context.getIntegrator().step(20)
            if waits:
                context.getState(positions=True)
        velocities.append(context.getState(velocities=True).getVelocities(asNumpy=True)._value)
    assert relative_difference(velocities[1], velocities[0]) < 1e-6


@on_gpu
def test_forces_of_a_step_that_openmm_gave_up(water):
    """OpenMM refuses a small box when the FMM has begun. What this adds to the forces then is not among the next ones."""

    def forces(groups):
        return context.getState(forces=True, groups=groups).getForces(asNumpy=True)._value

    converted(water, bridge="native", grid=(24, 24, 24), order=16, precision="double")
    context = context_of(water, "double")
    for groups in ({0, 7}, {7}, {0}):
        expected = forces(groups)
        context.setPeriodicBoxVectors(*(0.8 * water.cell))
        with pytest.raises(openmm.OpenMMException, match="less than twice the nonbonded cutoff"):
            forces({0, 7})
        context.setPeriodicBoxVectors(*water.cell)
        assert relative_difference(forces(groups), expected) < 1e-9


@on_gpu
def test_beside_forces_that_add_at_the_same_time(water):
    """Total forces, of which OpenMM adds its own while the FMM adds these."""
    groups = openmm.CustomCentroidBondForce(2, "5*(distance(g1, g2) - 1)^2")
    chains = openmm.CustomCompoundBondForce(3, "20*distance(p1, p2)*distance(p2, p3)")
    pairs = openmm.CustomNonbondedForce("50*exp(-4*r)")
    hydrogen = openmm.CustomHbondForce("-20*exp(-3*distance(d1, a1))")
    for force in (pairs, hydrogen):
        force.setNonbondedMethod(force.CutoffPeriodic)
        force.setCutoffDistance(water.nonbonded.getCutoffDistance())
    for _ in water.positions:
        pairs.addParticle([])
    for index in range(water.nonbonded.getNumExceptions()):
        pairs.addExclusion(*water.nonbonded.getExceptionParameters(index)[:2])
    for oxygen in range(0, len(water.positions), 3):
        hydrogen.addAcceptor(oxygen, -1, -1, [])
        hydrogen.addDonor(oxygen + 1, -1, -1, [])
        hydrogen.addExclusion(oxygen // 3, oxygen // 3)
        chains.addBond([oxygen, oxygen + 1, oxygen + 2], [])
        groups.addBond([groups.addGroup([oxygen, oxygen + 1]), groups.addGroup([oxygen + 2])], [])
    for force in (groups, chains, pairs, hydrogen):
        water.system.addForce(force)
    totals = []
    for bridge in ("native", "host"):
        mine = copy.deepcopy(water)
        fmm.use_fmm(mine.system, bridge=bridge, precision="double", order=6, near_radius=2.34, grid=(6, 6, 6), smoothing=0.05)
        context = context_of(mine, "double")
        for _ in range(5):
            totals.append(context.getState(forces=True).getForces(asNumpy=True)._value)
    for total in totals[1:]:
        assert relative_difference(total, totals[0]) < ROUNDING["double"]


@on_gpu
def test_a_large_system(water):
    """Until the FMM is finished, OpenMM works on a stream of the plugin; also if it gives a step up."""
    sample = tiled(Sample(water.system, water.positions, np.zeros_like(water.positions)), (5, 5, 4))
    velocities = []
    for bridge in ("native", "host"):
        box = Box(copy.deepcopy(sample.system), sample.positions)
        converted(box, bridge=bridge, precision="double", order=6, near_radius=1.87, grid=(20, 20, 16), smoothing=0.05)
        context = context_of(box, "double")
        context.getIntegrator().step(5)
        context.setPeriodicBoxVectors(*(0.2 * box.cell))
        with pytest.raises(openmm.OpenMMException, match="less than twice the nonbonded cutoff"):
            context.getState(forces=True)
        context.setPeriodicBoxVectors(*box.cell)
        context.getIntegrator().step(5)
        velocities.append(context.getState(velocities=True).getVelocities(asNumpy=True)._value)
    assert relative_difference(*velocities) < 1e-6


@on_gpu
def test_inside_a_custom_cv_force(ions):
    force = fmm.FMMForce.from_nonbonded(ions.nonbonded, bridge="native", tolerance=1e-6)
    ions.system.removeForce(0)
    alone = copy.deepcopy(ions)
    alone.system.addForce(copy.deepcopy(force))
    energy, forces = alone_state = coulomb_of(context_of(alone, "double"))
    variable = openmm.CustomCVForce("3*electrostatic")
    variable.addCollectiveVariable("electrostatic", force)
    ions.system.addForce(variable)
    inner_energy, inner_forces = coulomb_of(context_of(ions, "double"))
    assert inner_energy == pytest.approx(3 * energy, rel=1e-9), alone_state
    np.testing.assert_allclose(inner_forces, 3 * forces, rtol=1e-7, atol=1e-6)


def coulomb_of(context):
    state = context.getState(energy=True, forces=True)
    return state.getPotentialEnergy()._value, state.getForces(asNumpy=True)._value


@on_gpu
def test_contexts_in_threads_are_independent(water):
    force = converted(water, bridge="native")
    contexts = [context_of(water) for _ in range(3)]
    expected = coulomb(contexts[0], force)[0]
    found = []

    def run(context):
        found.extend(coulomb(context, force)[0] for _ in range(20))

    threads = [threading.Thread(target=run, args=(context,)) for context in contexts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {expected}


@on_gpu
def test_memory_is_given_back(ions):
    cupy = pytest.importorskip("cupy")
    converted(ions, bridge="native")

    def use():
        energy_of(context_of(ions))
        gc.collect()

    use()
    before = cupy.cuda.runtime.memGetInfo()[0]
    for _ in range(20):
        use()
    assert before - cupy.cuda.runtime.memGetInfo()[0] < 16 << 20
    assert not native._sessions


@on_gpu
@on_devices
def test_a_bad_coordinate_is_named_and_nothing_is_lost(water, devices):
    force = converted(water, bridge="native")
    context = context_of(water, DeviceIndex=devices)
    before = coulomb(context, force)[0]
    for bad in (np.nan, np.inf, 1e30):
        positions = water.positions.copy()
        positions[17, 1] = bad
        context.setPositions(positions)
        with pytest.raises(openmm.OpenMMException, match=r"for particle 17|NaN"):
            coulomb(context, force)
    context.setPositions(water.positions)
    assert coulomb(context, force)[0] == pytest.approx(before, rel=1e-6)  # molecules are in other images now


@on_gpu
def test_a_huge_force_does_not_wrap(ions):
    force = converted(ions, bridge="native")
    ions.positions[1] = ions.positions[0] + [1e-7, 0, 0]  # opposite charges
    _, forces = coulomb(context_of(ions), force)
    assert forces[0, 0] > 1e9 and forces[1, 0] < -1e9


@on_gpu
def test_a_failure_falls_back_to_the_host_bridge(water, monkeypatch):
    expected = both_bridges(water, "mixed")[1][0]
    monkeypatch.setattr(native.Session, "program", no_room)
    mine = copy.deepcopy(water)
    force = converted(mine)
    context = context_of(mine)
    found = force.getFMMParametersInContext(context)
    assert found["bridge"] == "host" and "no room" in found["bridge_reason"]
    assert coulomb(context, force)[0] == pytest.approx(expected, rel=1e-9)
    converted(water, bridge="native")
    with pytest.raises(openmm.OpenMMException, match="no room"):
        context_of(water)


@on_gpu
def test_too_little_memory(ions):
    cupy = pytest.importorskip("cupy")
    force = converted(ions, grid=(128, 128, 128), order=10, near_radius=1.87)
    taken = cupy.cuda.memory.alloc(cupy.cuda.runtime.memGetInfo()[0] - (2 << 30))
    found = native.status(force._bridge, context := context_of(ions))
    assert found[0] is None and "allocating" in found[1]
    del taken, context
    cupy.get_default_memory_pool().free_all_blocks()
    assert np.isfinite(coulomb(context_of(ions), force)[0])


@on_gpu
def test_a_failure_while_a_simulation_runs(water, monkeypatch):
    """Another shape of the box may need a program that cannot be made: an error, and the Context goes on once it can."""
    force = converted(water, bridge="native")
    context = context_of(water, "double")
    before = coulomb(context, force)[0]
    with monkeypatch.context() as patch:
        patch.setattr(native.Session, "program", no_room)
        context.setPeriodicBoxVectors(*(np.diag([1.3, 1.0, 1.0]) @ water.cell))
        for _ in range(2):
            with pytest.raises(openmm.OpenMMException, match="FMMForce: MemoryError: no room"):
                coulomb(context, force)
    assert coulomb(context, force)[0] != before
    context.setPeriodicBoxVectors(*water.cell)
    assert coulomb(context, force)[0] == pytest.approx(before, rel=1e-9)


@on_gpu
def test_memory_that_runs_out_while_a_simulation_runs(water, monkeypatch):
    def hungry(*arguments):
        program = build(*arguments)
        program.buffers["hunger"] = Buffer((2**42,), np.dtype(np.uint8))
        return program

    force = converted(water, bridge="native")
    context = context_of(water, "double")
    before, build = coulomb(context, force)[0], native.build
    with monkeypatch.context() as patch:
        patch.setattr(native, "build", hungry)
        context.setPeriodicBoxVectors(*(np.diag([2.0, 1.0, 1.0]) @ water.cell))
        for _ in range(2):
            with pytest.raises(openmm.OpenMMException, match=r"FMMForce: allocating \d+ MiB: .*memory"):
                coulomb(context, force)
        context.setPeriodicBoxVectors(*water.cell)
        with pytest.raises(openmm.OpenMMException, match="memory"):
            coulomb(context, force)
    assert coulomb(context, force)[0] == pytest.approx(before, rel=1e-9)


@on_gpu
def test_kernels_that_do_not_compile(water, monkeypatch):
    expected = both_bridges(water, "mixed")[1][0]
    monkeypatch.setattr(serial, "source_of", lambda *_: "#error no such luck")
    force = converted(mine := copy.deepcopy(water))
    context = context_of(mine)
    found = force.getFMMParametersInContext(context)
    assert found["bridge"] == "host" and "no such luck" in found["bridge_reason"]
    assert coulomb(context, force)[0] == pytest.approx(expected, rel=1e-9)
    converted(water, bridge="native")
    with pytest.raises(openmm.OpenMMException, match="no such luck"):
        context_of(water)


@on_gpu
@pytest.mark.parametrize("damage", ["empty", "cut", "noise"])
def test_a_damaged_kernel_cache(water, damage, tmp_path, monkeypatch):
    """OpenMM keeps compiled kernels in a folder. Whatever becomes of ours, forces are right."""
    monkeypatch.delenv("OPENMM_CACHE_DIR", raising=False)
    context_of(water, TempDirectory=str(tmp_path))
    others = set(tmp_path.iterdir())
    force = converted(water)
    context = context_of(water, TempDirectory=str(tmp_path))
    assert force.getFMMParametersInContext(context)["bridge"] == "native"
    energy, forces = coulomb(context, force)
    del context
    files = set(tmp_path.iterdir()) - others
    assert len(files) > 4
    for path in files:
        content = path.read_bytes()
        path.write_bytes({"empty": b"", "cut": content[: len(content) // 2], "noise": bytes(len(content))}[damage])
    context = context_of(water, TempDirectory=str(tmp_path))
    again, same = coulomb(context, force)
    assert again == pytest.approx(energy, rel=1e-6)
    assert relative_difference(same, forces) < 1e-5
    found = force.getFMMParametersInContext(context)
    assert found["bridge"] == "native" or "Error creating kernel" in found["bridge_reason"]


@on_gpu
@with_two
@pytest.mark.parametrize("index", ["1", "0,1", "1,0"])
def test_other_devices_and_several(water, index):
    """On several devices OpenMM shares its own work; the FMM is computed on the first that is named."""
    force = converted(water, bridge="native")
    whole = {"energy": True, "forces": True}
    found = []
    for device in ("0", index):
        context = context_of(water, DeviceIndex=device)
        assert force.getFMMParametersInContext(context)["bridge"] == "native"
        found.append((*coulomb(context, force), context.getState(**whole), force.getPotentialsInContext(context)))
    (energy, forces, state, potentials), (other_energy, other_forces, other_state, other_potentials) = found
    assert other_energy == pytest.approx(energy, rel=1e-9)
    assert relative_difference(other_forces, forces) < 1e-6
    assert relative_difference(other_potentials, potentials) < 1e-6
    assert other_state.getPotentialEnergy()._value == pytest.approx(state.getPotentialEnergy()._value, rel=1e-6)
    assert relative_difference(other_state.getForces(asNumpy=True)._value, state.getForces(asNumpy=True)._value) < 1e-5
    context.getIntegrator().step(300)
    assert np.isfinite(energy_of(context))


LOCKED = """
import openmm
from tests.integration.test_native import context_of, converted, droplet_in_a_cell

class Reporter(openmm.MinimizationReporter):
    calls = 0

    def report(self, *_):
        Reporter.calls += 1
        return False

for edge in (None, 12.0, 3.0):
    box = droplet_in_a_cell(edge)
    converted(box, bridge="native")
    context = context_of(box, DeviceIndex={devices!r})
    before = context.getState(energy=True).getPotentialEnergy()
    openmm.LocalEnergyMinimizer.minimize(context, 10.0, 20, Reporter())
    assert context.getState(energy=True).getPotentialEnergy() < before
assert Reporter.calls >= 3
"""


@on_gpu
@on_devices
def test_python_is_asked_while_it_is_locked(devices):
    """OpenMM keeps Python's lock while it minimises with a reporter; in a process of its own, which would wait forever."""
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", LOCKED.format(devices=devices)], cwd=root, check=True, timeout=120)


@pytest.fixture(scope="module")
def sample():
    return endurance.sample()


@on_gpu
@pytest.mark.parametrize("case", endurance.CASES)
def test_nothing_piles_up(case, sample):
    """``python -m tests.endurance`` with fewer repetitions; nothing else may use the GPU meanwhile."""
    pytest.importorskip("cupy")
    repetitions = {"steps": 2000, "contexts": 10}.get(case, 100)
    outcome = endurance.run(endurance.CASES[case], sample, repetitions)
    assert not outcome.failures(endurance.CASES[case]), outcome


@on_gpu
def test_a_callable_of_somebody_else_is_left_alone(ions):
    ions.system.addForce(openmm.PythonForce(lambda state: (42.0, np.zeros((4, 3))), {}))
    ions.system.getForce(1).setForceGroup(3)
    converted(ions, bridge="native")
    assert energy_of(context_of(ions), groups={3}) == 42.0
