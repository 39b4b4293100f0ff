"""How the native bridge follows a cell without Python: the arithmetic in C++ alone,
and Contexts on a GPU."""

import copy
import ctypes
from functools import cache
from pathlib import Path

import numpy as np
import openmm
import pytest
from openmm import app

import fmm_openmm as fmm
from fmm_openmm.backends.cuda.pipeline.description import parameter_block
from fmm_openmm.backends.cuda.program import SETUP, Memset
from fmm_openmm.boundary import Boundary
from fmm_openmm.box import MAX_STRAIN, box_width, choose_counts, counts_matrix
from fmm_openmm.integration.native import callbacks, plugin
from fmm_openmm.integration.native.placement import Placement
from fmm_openmm.integration.native.session import Session, build, describe
from fmm_openmm.oracle import ewald_sum
from fmm_openmm.planning.boxes import Filling, Region
from fmm_openmm.planning.request import FMMParameters
from tests import compiler
from tests.integration.boxes import Box, relative_difference
from tests.integration.native_contexts import (
    context_of,
    converted,
    coulomb,
    droplet_in_a_cell,
    on_gpu,
    session_of,
)
from tests.integration.vacuum import in_vacuum
from tests.support.cells import DODECAHEDRON
from tests.support.strains import CORNERS, SKEWED, deformation, lattice_of

HEADER = Path(plugin.__file__).parents[2] / "native" / "openmm" / "cell.h"
LIBRARY = """
#include "cell.h"
extern "C" int size() { return sizeof(fmm::Boxes); }
extern "C" int serve(const fmm::Boxes* boxes, const double* box) { return boxes->serve(box); }
extern "C" void parameters_in(const fmm::Boxes* boxes, const double* box, fmm::Parameters* found) {
    *found = boxes->parametersIn(box);
}
"""
PARAMETERS = FMMParameters(6, 2.64, (), 0.0, 0, "double", 0.0)
CELLS = {
    "cuboid": (np.diag([3.0, 3.3, 4.1]), counts_matrix((6, 7, 8))),
    "skewed": (SKEWED, counts_matrix([[6, 0, 0], [1, 5, 0], [-1, 1, 7]])),
    "dodecahedron": (3.7 * DODECAHEDRON, choose_counts(DODECAHEDRON, 1 / 8)),
}


@pytest.fixture(scope="module")
def library(folder):
    if compiler.COMPILER is None:
        pytest.skip("needs a C++ compiler")
    options = "-O2", "-Wall", "-Wextra", "-Werror", f"-I{HEADER.parent}"
    return compiler.library(folder, "cell", *options, text=LIBRARY)


class Compiled:
    """``Boxes`` of ``cell.h``, as :func:`describe` makes them."""

    def __init__(self, library, *arguments):
        self._library, self._bytes = library, describe(*arguments).tobytes()

    def serve(self, cell) -> bool:
        return bool(self._library.serve(self._bytes, np.ascontiguousarray(cell, float).tobytes()))

    def parameters_in(self, cell) -> np.ndarray:
        found = np.empty(41)
        cell = np.ascontiguousarray(cell, float).tobytes()
        self._library.parameters_in(self._bytes, cell, found.ctypes.data_as(ctypes.c_void_p))
        return found


def filling(cell, counts) -> Filling:
    return Filling(PARAMETERS, lattice_of(cell, counts), box_width(cell, counts))


def test_the_boxes_have_their_size(library):
    boxes = filling(*CELLS["cuboid"])
    assert library.size() == describe(boxes.lattice, boxes, CELLS["cuboid"][0]).nbytes


@pytest.mark.parametrize("name", CELLS)
def test_the_parameter_block_of_a_strained_cell(library, name):
    """The plugin's block equals Python's, whatever cell the program was made for, and is the same
    for one cell to the last bit."""
    cell, counts = CELLS[name]
    reference = filling(cell, counts)
    asked = reference.strained(cell @ deformation(CORNERS[11], 0.004))
    boxes = Compiled(library, asked.lattice, asked, cell)
    for number, direction in enumerate(CORNERS[::5]):
        other = (0.8 + 0.1 * number) * cell @ deformation(direction)
        strained = reference.strained(other)
        expected, found = (
            parameter_block(strained.lattice, strained.width),
            boxes.parameters_in(other),
        )
        for part in np.split(np.arange(41), [9, 18, 27, 28, 29, 38]):
            np.testing.assert_allclose(
                found[part], expected[part], rtol=0, atol=4e-15 * np.abs(expected[part]).max()
            )
        np.testing.assert_array_equal(boxes.parameters_in(other), found)
    if name == "cuboid":
        assert np.count_nonzero(boxes.parameters_in(2 * cell @ np.diag([1.01, 1.0, 0.99]))[:9]) == 3


@pytest.mark.parametrize("name", CELLS)
def test_which_cells_boxes_serve(library, name):
    """The plugin agrees with :meth:`BoxLattice.strained`, except that a cuboid that is sheared
    needs another program."""
    cell, counts = CELLS[name]
    reference = filling(cell, counts)
    boxes = Compiled(library, reference.lattice, reference, cell)
    assert boxes.serve(cell) and boxes.serve(7 * cell) and boxes.serve(0.1 * cell)
    for size, within in ((1 - 1e-6, True), (1 + 1e-6, False)):
        for direction in (np.diag([1.0, 1, -1]), *CORNERS[::7]):
            other = cell @ deformation(direction, size * MAX_STRAIN)
            expected = within and (name == "skewed" or not np.tril(direction, -1).any())
            assert boxes.serve(other) == expected
            assert (reference.strained(other) is not None) == within
    mirrored, flipped = cell * np.diag([1, -1, -1]), cell + np.outer([0, 0, 1], cell[1])
    for bad in (np.nan * cell, 0 * cell, -cell, mirrored, flipped, cell.T + 1e-9):
        assert not boxes.serve(bad)
    sheared = reference.strained(cell @ deformation(CORNERS[0], 1e-4))
    assert Compiled(library, sheared.lattice, sheared, cell).serve(
        cell @ deformation(CORNERS[3], 0.015)
    )


@pytest.mark.slow
def test_boxes_that_follow_particles_serve_one_shape(library):
    box = droplet_in_a_cell()
    session = session_of(fmm.FMMForce.from_nonbonded(box.nonbonded), len(box.positions))
    session.program(box.cell, {})
    session.charges(box.cell, {}, box.positions)
    region = session.planner.latest
    assert isinstance(region, Region)
    boxes = Compiled(library, region.lattice, region, box.cell)
    expected = parameter_block(region.lattice, region.width, region.origin)
    np.testing.assert_array_equal(boxes.parameters_in(box.cell), expected)
    larger = region.scaled(1.1 * box.cell)
    expected = parameter_block(larger.lattice, larger.width, larger.corner + 0.125 * larger.width)
    np.testing.assert_allclose(
        boxes.parameters_in(1.1 * box.cell), expected, rtol=1e-14, atol=1e-14
    )
    assert boxes.serve(1.1 * box.cell) and not boxes.serve(box.cell * [[1.0], [1.0], [1 + 1e-9]])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wire", "a", "bc"])
def test_boxes_of_wires_serve_one_cell(library, water, name):
    """As those of slabs along other vectors than a and b."""
    box = in_vacuum(water, name)
    session = session_of(
        fmm.FMMForce.from_nonbonded(box.nonbonded, boundary=name), len(box.positions)
    )
    session.program(box.cell, {}, box.positions)
    region = session.planner.latest
    placement = Placement(Boundary.from_name(name), box.cell, box.positions).packed(np.eye(3))
    boxes = Compiled(library, region.lattice, region, box.cell, placement)
    expected = parameter_block(region.lattice, region.width, region.origin)
    np.testing.assert_array_equal(boxes.parameters_in(box.cell), expected)
    assert boxes.serve(box.cell)
    for factors in (1.01, [[1.01], [1.0], [1.0]], [[1.0], [1.01], [1.0]], [[1.0], [1.0], [1.01]]):
        assert not boxes.serve(box.cell * factors)


# on a GPU


def moved(context, cell, positions) -> float:
    """The energy in another box, kJ/mol."""
    context.setPeriodicBoxVectors(*cell)
    context.setPositions(positions)
    return context.getState(energy=True).getPotentialEnergy()._value


@pytest.fixture
def asked(monkeypatch):
    """Counts the requests to Python, other than those for charges."""
    calls, program = [], Session.program
    monkeypatch.setattr(Session, "program", lambda *args: calls.append(1) or program(*args))
    return calls


@on_gpu
@pytest.mark.parametrize("levels", [0, 1])
def test_trial_moves_do_not_ask_python(water, asked, levels):
    """Within the strain that the boxes serve; beyond it once."""
    force = converted(water, bridge="native", tolerance=1e-5, levels=levels)
    context = context_of(water, "double")
    coulomb(context, force)
    charges = fmm.ChargeSystem.from_openmm(water.system, water.positions)
    before, random = len(asked), np.random.default_rng(1)
    for trial in range(30):
        change = np.diag(1 + random.uniform(-0.012, 0.012, 3))
        cell, x = water.cell @ change, water.positions @ change
        context.setPeriodicBoxVectors(*cell)
        context.setPositions(x)
        energy, forces = coulomb(context, force)
        if trial % 10 == 0:
            expected = ewald_sum(x, charges.charges, cell, charges.exclusions)
            assert relative_difference(forces, expected.forces) < 1e-5
            assert energy == pytest.approx(expected.energy, rel=1e-5)
    assert len(asked) == before
    for _ in range(2):
        context.setPeriodicBoxVectors(*(water.cell * [[1.0], [1.0], [1.04]]))
        coulomb(context, force)
    assert len(asked) == before + 1


@on_gpu
@pytest.mark.filterwarnings("ignore:`tolerance")
@pytest.mark.parametrize("levels", [0, 1])
def test_a_rejected_move_sets_nothing_up(water, monkeypatch, levels):
    """The programs here clear the charges in their setup, and so tell of it: the energy is 0
    then until charges are sent. The parameters are fixed, since others would be chosen for forces
    that are 0."""

    def telling(*arguments, **options):
        program = build(*arguments, **options)
        program.steps.insert(0, Memset(SETUP, 0, "charges"))
        return program

    monkeypatch.setattr("fmm_openmm.integration.native.session.build", telling)
    fixed = {"order": 9, "near_radius": 1.87, "smoothing": 0.0, "levels": levels}
    force = converted(water, bridge="native", tolerance=1e-5, **fixed)
    context = context_of(water, "double")

    def energy(change=(1.0, 1.0, 1.0)):
        context.setPeriodicBoxVectors(*(water.cell @ np.diag(change)))
        context.setPositions(water.positions * change)
        return coulomb(context, force)[0]

    before = energy()
    assert before != 0.0
    for number, trial in enumerate(([1.01, 1.01, 1.0], [1.0, 1.0, 0.99], [1.003, 0.998, 1.0])):
        assert energy(trial) == 0.0
        callbacks.changed()  # charges are sent
        assert abs(energy(trial)) > 0.9 * abs(before)
        assert energy() == before  # rejected, to the last bit
        assert energy([1.001 + 0.001 * number] * 3) != 0.0  # a uniform scaling
        assert energy() == before
    assert energy([1.003, 0.998, 1.0]) == 0.0  # another one is not kept


@cache
def membrane() -> Box:
    """POPC in water, 32,512 atoms of amber14, without Lennard-Jones and bonds."""
    pdb = app.PDBFile(str(Path(app.__file__).parent / "data" / "POPC.pdb"))
    field = app.ForceField("amber14-all.xml", "amber14/tip3p.xml")
    whole = field.createSystem(pdb.topology, nonbondedMethod=app.PME, nonbondedCutoff=0.9)
    (nonbonded,) = (
        copy.deepcopy(f) for f in whole.getForces() if isinstance(f, openmm.NonbondedForce)
    )
    nonbonded.setUseDispersionCorrection(False)
    for particle in range(nonbonded.getNumParticles()):
        charge, sigma, _ = nonbonded.getParticleParameters(particle)
        nonbonded.setParticleParameters(particle, charge, sigma, 0.0)
    for exception in range(nonbonded.getNumExceptions()):
        first, second, product, sigma, _ = nonbonded.getExceptionParameters(exception)
        nonbonded.setExceptionParameters(exception, first, second, product, sigma, 0.0)
    system = openmm.System()
    system.setDefaultPeriodicBoxVectors(*whole.getDefaultPeriodicBoxVectors())
    for particle in range(whole.getNumParticles()):
        system.addParticle(whole.getParticleMass(particle))
    system.addForce(nonbonded)
    return Box(system, np.array(pdb.positions._value))


@on_gpu
@pytest.mark.slow
@pytest.mark.parametrize("tolerance", [5e-4, 1e-5])
def test_energies_of_trial_scalings_of_a_membrane(tolerance, asked):
    """Scalings in x-y and along z, as by a membrane barostat, have energies nearer to PME at 1e-6
    than those of PME at the same tolerance."""
    box = membrane()

    def by_pme(tolerance):
        system = copy.deepcopy(box.system)
        Box(system, box.positions).nonbonded.setEwaldErrorTolerance(tolerance)
        return context_of(Box(system, box.positions), "double")

    mine = copy.deepcopy(box)
    converted(mine, bridge="native", tolerance=tolerance)
    contexts = [context_of(mine, "double"), by_pme(tolerance), by_pme(1e-6)]
    random, energies = np.random.default_rng(3), []
    for context in contexts:
        moved(context, box.cell, box.positions)
    before = len(asked)
    for trial in range(200):
        e = random.uniform(-0.012, 0.012)
        change = np.diag([1 + e, 1 + e, 1.0] if trial % 2 else [1.0, 1.0, 1 + e])
        energies.append(
            [moved(context, box.cell @ change, box.positions @ change) for context in contexts]
        )
    fmm_energy, pme_energy, exact = np.transpose(energies)
    assert len(asked) == before
    for error in (np.max, lambda x: np.sqrt(np.mean(x * x))):
        assert error(np.abs(fmm_energy - exact)) <= error(np.abs(pme_energy - exact))


@pytest.mark.slow
def test_boxes_of_a_slab_serve_its_area(library, water):
    """The boxes of a slab serve every cell with an area of the same shape, of any size, and the
    same third vector. They stay centred on the slab."""
    box = in_vacuum(water, "slab")
    cell, scale = box.cell, 1.03
    cell[2, :2] = 0.3, -0.2
    session = session_of(fmm.FMMForce.from_nonbonded(box.nonbonded, boundary="slab"), 555)
    session.program(cell, {}, box.positions)
    region, middle = session.planner.latest, np.ptp(box.positions[:, 2]) / 2
    middle += box.positions[:, 2].min()
    placement = Placement(Boundary.from_name("slab"), cell, box.positions).packed(np.eye(3))
    boxes = Compiled(library, region.lattice, region, cell, placement)
    expected = parameter_block(region.lattice, region.width, region.origin)
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(boxes.parameters_in(cell), expected)
    larger = cell * [[scale], [scale], [1.0]]
    origin = scale * (region.origin - [0.0, 0.0, middle]) + [0.0, 0.0, middle]
    expected = parameter_block(region.lattice, scale * region.width, origin)
    np.testing.assert_allclose(boxes.parameters_in(larger), expected, rtol=1e-13, atol=1e-13)
    assert boxes.serve(cell) and boxes.serve(larger)
    tilted = cell + np.outer([0, 0, 1], [1e-9, 0, 0])
    sheared = cell + np.outer([0, 1, 0], [1e-9, 0, 0])
    for other in (scale * cell, cell * [[1.0], [scale], [1.0]], tilted, sheared):
        assert not boxes.serve(other)
    for bad in (np.nan * cell, 0 * cell, cell * [[-1.0], [1.0], [1.0]], cell * [[-1], [-1], [1]]):
        assert not boxes.serve(bad)
