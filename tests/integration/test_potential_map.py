"""Maps of the potential: their values are those of the Ewald sum, and readers of other packages
find in the files what was written."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openmm
import pytest
from openmm import unit
from scipy import constants
from scipy.special import erf

import fmm_openmm as fmm
from fmm_openmm.integration.potential_map import PotentialMap
from fmm_openmm.oracle import direct_sum, ewald_sum
from fmm_openmm.units import COULOMB_CONSTANT
from tests.integration.trajectories import Backwards

SKEWED = np.array([[2.0, 0.0, 0.0], [0.5, 1.8, 0.0], [-0.4, 0.6, 2.2]])
NONE = np.zeros((0, 2), np.int64)


def ions(box, count=40):
    """Positions (count, 3) and charges (count,) of random ions with a net charge of zero."""
    random = np.random.default_rng(4)
    return random.uniform(0, 1, (count, 3)) @ box, np.resize([1.0, -1.0], count)


def exact(positions, charges, box, points):
    """Potentials at points, of the sum over all charges and images or, without a box, in free
    space: those of particles without charge that lie there."""
    x, q = np.vstack([positions, points]), np.append(charges, np.zeros(len(points)))
    found = direct_sum(x, q, NONE) if box is None else ewald_sum(x, q, box, NONE)
    return found.potentials[len(charges) :]


def error(found, expected):
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize("box", [np.diag([2.0, 2.4, 1.7]), SKEWED], ids=["cuboid", "skewed"])
def test_values_are_those_of_the_ewald_sum(box):
    positions, charges = ions(box)
    solver = fmm.CoulombSolver(charges, box, tolerance=1e-5)
    found = fmm.potential_map([positions], solver, 0.31, progress=False)
    assert found.values.shape == tuple(np.ceil(np.linalg.norm(box, axis=1) / 0.31))
    assert (np.linalg.norm(found.steps, axis=1) <= 0.31).all()
    assert np.array_equal(found.vectors, box) and found.frames == 1
    expected = exact(positions, charges, box, found.points.reshape(-1, 3))
    assert error(found.values.ravel(), expected) < 1e-5
    i, j, k = 2, 1, 3
    assert found.points[i, j, k] == pytest.approx(np.array([i, j, k]) @ found.steps)


def test_mean_of_frames_whose_box_changes():
    """At the same fractional coordinates, and of any executor the same to the last bit."""
    positions, charges = ions(SKEWED)
    scales = [1.0, 1.02, 0.97]
    frames = [(scale * positions, scale * SKEWED) for scale in scales]
    solver = fmm.CoulombSolver(charges, SKEWED, tolerance=1e-5)
    found = fmm.potential_map(iter(frames), solver, 0.4, progress=False)
    one = fmm.potential_map(frames[:1], solver, 0.4, progress=False)
    assert found.frames == 3
    assert found.vectors == pytest.approx(np.mean(scales) * SKEWED)
    # the potential of the scaled system is that of the first frame over the scale
    assert error(found.values, one.values * np.mean(1 / np.array(scales))) < 1e-5
    with ThreadPoolExecutor(2) as executor:
        again = fmm.potential_map(frames, solver, 0.4, executor, progress=False)
    assert np.array_equal(again.values, found.values)


@pytest.mark.slow
def test_any_split_gives_the_same_bits_in_free_space():
    """Where another solver has the points among its particles."""
    positions, charges = ions(np.eye(3), 200)
    frames = [positions + shift for shift in (0.0, 0.2, 0.7, 0.1)]
    solver = fmm.CoulombSolver(charges, None, boundary="open", tolerance=1e-4)
    expected = fmm.potential_map(frames, solver, 0.3, progress=False)
    found = fmm.potential_map(frames, solver, 0.3, Backwards(), progress=False)
    assert np.array_equal(found.values, expected.values)


def test_free_space():
    positions, charges = ions(np.eye(3))
    solver = fmm.CoulombSolver(charges, None, boundary="open", tolerance=1e-5)
    found = fmm.potential_map([positions], solver, 0.4, progress=False)
    assert found.origin == pytest.approx(positions.min(0) - 0.5)
    assert np.diag(found.vectors) == pytest.approx(np.ptp(positions, axis=0) + 1.0)
    expected = exact(positions, charges, None, found.points.reshape(-1, 3))
    assert error(found.values.ravel(), expected) < 1e-5


def test_a_region_of_its_own():
    positions, charges = ions(SKEWED)
    frames = [(positions, SKEWED), (1.1 * positions, 1.1 * SKEWED)]
    solver = fmm.CoulombSolver(charges, SKEWED, tolerance=1e-5)
    place = {"origin": [0.21, -0.33, 2.5], "vectors": np.diag([1.0, 0.5, 3.0])}
    found = fmm.potential_map(frames, solver, 0.25, progress=False, **place)
    assert found.values.shape == (4, 2, 12)
    assert np.array_equal(found.vectors, place["vectors"])
    points = found.points.reshape(-1, 3)
    expected = np.mean([exact(x, charges, box, points) for x, box in frames], axis=0)
    assert error(found.values.ravel(), expected) < 1e-5


def gaussian(positions, charges, box, points, width, averaged=False):
    """Potentials of Gaussian charges at points, by the Fourier series of the charge density;
    ``averaged`` over planes of the first two box vectors if that is asked for."""
    waves = np.indices((61, 61, 61)).reshape(3, -1).T - 30
    if averaged:
        waves = waves[~waves[:, :2].any(1)]
    waves = waves[len(waves) // 2 + 1 :]  # one of each pair of opposite ones
    waves = 2 * np.pi * waves @ np.linalg.inv(box).T
    square = (waves**2).sum(1)
    waves, square = waves[square < 40 / width**2], square[square < 40 / width**2]
    weight = 8 * np.pi * COULOMB_CONSTANT / np.linalg.det(box) * np.exp(-square * width**2 / 2)
    density = np.exp(-1j * waves @ positions.T) @ charges
    return (np.exp(1j * points @ waves.T) @ (weight / square * density)).real


@pytest.mark.slow
@pytest.mark.parametrize(("width", "spacing"), [(0.08, 0.08), (0.45, 0.2)])
def test_gaussian_charges(width, spacing):
    """The wider ones reach across the cell."""
    positions, charges = ions(SKEWED)
    solver = fmm.CoulombSolver(charges, SKEWED, tolerance=1e-6)
    found = fmm.potential_map([positions], solver, 0.4, charge_width=width, progress=False)
    expected = gaussian(positions, charges, SKEWED, found.points.reshape(-1, 3), width)
    assert error(found.values.ravel(), expected) < 2e-5
    fine = fmm.potential_map([positions], solver, spacing, charge_width=width, progress=False)
    assert abs(fine.values.mean()) < 1e-4 * np.abs(fine.values).max()
    places, means = fine.profile("z")
    ends = np.outer(np.arange(len(means)) / len(means), SKEWED[2])
    expected = gaussian(positions, charges, SKEWED, ends, width, averaged=True)
    assert means == pytest.approx(expected, abs=1e-3 * np.abs(fine.values).max())
    assert places == pytest.approx(ends[:, 2])


def test_gaussian_charges_in_free_space():
    positions, charges = ions(np.eye(3))
    solver = fmm.CoulombSolver(charges, None, boundary="open", tolerance=1e-6)
    found = fmm.potential_map([positions], solver, 0.5, charge_width=0.1, progress=False)
    distance = np.linalg.norm(found.points[..., None, :] - positions, axis=-1)
    expected = COULOMB_CONSTANT * (erf(distance / (0.1 * np.sqrt(2))) / distance) @ charges
    assert error(found.values, expected) < 2e-5


def test_a_system_and_its_exclusions():
    """The potential of a map is that of all charges."""
    system, force = openmm.System(), openmm.NonbondedForce()
    positions = [[0.1, 0.2, 0.3], [0.2, 0.2, 0.35], [1.0, 1.1, 1.2]]
    for charge in (0.5, -0.8, 0.3):
        system.addParticle(1.0)
        force.addParticle(charge, 1.0, 0.0)
    force.addException(0, 1, 0.0, 1.0, 0.0)
    force.setNonbondedMethod(force.PME)
    system.addForce(force)
    system.setDefaultPeriodicBoxVectors(*(2 * np.eye(3)))
    fmm.use_fmm(system, tolerance=1e-5)
    found = fmm.potential_map([positions], system, 0.5, progress=False)
    points = found.points.reshape(-1, 3)
    expected = exact(positions, [0.5, -0.8, 0.3], 2 * np.eye(3), points)
    assert error(found.values.ravel(), expected) < 1e-5


@pytest.mark.parametrize("axis", ["x", "y", "z"])
def test_profile(axis):
    """The profile of a function that changes only along the normal of the planes."""
    number = "xyz".index(axis)
    field = PotentialMap(np.zeros((6, 7, 8)), np.array([0.3, -0.2, 0.1]), SKEWED, 1)
    normal = np.linalg.inv(SKEWED)[:, number]  # of the planes of the other two vectors
    normal /= np.linalg.norm(normal)
    values = np.sin(field.points @ normal)
    places, means = PotentialMap(values, field.origin, SKEWED, 1).profile(axis)
    assert places == pytest.approx(np.moveaxis(field.points @ normal, number, 0)[:, 0, 0])
    assert means == pytest.approx(np.sin(places))
    uneven = PotentialMap(np.arange(336.0).reshape(6, 7, 8), field.origin, SKEWED, 1)
    others = tuple(index for index in range(3) if index != number)
    assert uneven.profile(axis)[1] == pytest.approx(uneven.values.mean(others))


@pytest.fixture(params=[np.diag([2.0, 2.4, 1.7]), SKEWED], ids=["cuboid", "skewed"])
def stored(request):
    """A map with as many points along each axis as fill lines, more, and fewer."""
    values = np.random.default_rng(5).normal(0, 100, (6, 7, 4))
    return PotentialMap(values, np.array([-0.3, 0.2, 0.5]), request.param, 3)


@pytest.mark.parametrize("units", ["kJ/mol/e", "kT/e", "V"])
def test_opendx(stored, units, tmp_path):
    griddata = pytest.importorskip("gridData")
    path = tmp_path / "map.dx"
    stored.save(path, units=units, temperature=310.0)
    found = griddata.OpenDX.field(0)
    found.read(str(path))
    components = found.components
    assert f"potential, {units}, mean of 3 frames" in path.read_text().splitlines()[0]
    assert np.array_equal(components["positions"].origin, 10 * stored.origin)
    assert components["positions"].delta == pytest.approx(10 * stored.steps, abs=1e-6)
    joule = constants.elementary_charge * constants.Avogadro / 1000  # 1 J/C in kJ/mol/e
    scale = {"kJ/mol/e": 1.0, "V": joule, "kT/e": constants.R * 310 / 1000}[units]
    values = components["data"].array.reshape(components["positions"].shape)
    assert values == pytest.approx(stored.values / scale, rel=1e-5)
    if not np.tril(stored.vectors, -1).any():
        grid = griddata.Grid(str(path))
        assert grid.grid == pytest.approx(values)
        assert grid.delta == pytest.approx(10 * np.diag(stored.steps), abs=1e-6)


def test_gaussian_cube(stored, tmp_path):
    cube = pytest.importorskip("ase.io.cube")
    path, places = tmp_path / "map.cube", [[0.1, 0.2, 0.3], [0.5, 0.7, 1.1]]
    stored.save(path, atoms=([8, 1], places))
    with open(path) as file:
        found = cube.read_cube(file)
    assert found["atoms"].numbers.tolist() == [8, 1]
    assert found["atoms"].positions == pytest.approx(10 * np.array(places), abs=1e-5)
    assert found["origin"] == pytest.approx(10 * stored.origin, abs=1e-5)
    assert found["atoms"].cell.array == pytest.approx(10 * stored.vectors, abs=1e-4)
    hartree = constants.physical_constants["Hartree energy"][0] * constants.Avogadro / 1000
    assert found["data"] == pytest.approx(stored.values / hartree, rel=2e-5)
    assert "Hartree/e" in path.read_text().splitlines()[0]
    rows = path.read_text().splitlines()[8:]
    assert len(rows) == 6 * 7 and all(len(row.split()) == 4 for row in rows)


def test_a_cube_without_atoms(stored, tmp_path):
    cube = pytest.importorskip("ase.io.cube")
    stored.save(tmp_path / "map.cub")
    with open(tmp_path / "map.cub") as file:
        found = cube.read_cube(file)
    assert len(found["atoms"]) == 0 and found["data"].shape == (6, 7, 4)


def test_npz(stored, tmp_path):
    stored.save(tmp_path / "map.npz")
    found = np.load(tmp_path / "map.npz")
    for name in "values", "origin", "vectors", "frames":
        assert np.array_equal(found[name], getattr(stored, name))


def test_values_in_a_row_are_whole_lines(tmp_path):
    """Lines hold six values, and the last line of a row holds the rest."""
    values = np.arange(2 * 3 * 8.0).reshape(2, 3, 8)
    PotentialMap(values, np.zeros(3), np.eye(3), 1).save(tmp_path / "map.cube")
    rows = (tmp_path / "map.cube").read_text().splitlines()[6:]
    assert [len(row.split()) for row in rows] == [6, 2] * 6


def test_lengths_may_have_units(tmp_path):
    solver = fmm.CoulombSolver([1.0, -1.0], np.diag([2.0, 2.0, 3.0]), boundary="slab")
    frame = [[0.1, 0.2, 0.3], [0.5, 0.5, 0.6]]
    plain, found = (
        fmm.potential_map(
            [frame], solver, 5 * nm, progress=False, margin=4 * nm, charge_width=2 * nm
        )
        for nm in (0.1, unit.angstrom)
    )
    assert np.array_equal(found.values, plain.values)
    assert np.array_equal(found.vectors, plain.vectors)
    plain.save(tmp_path / "plain.cube", atoms=([1], [[0.1, 0.2, 0.3]]))
    found.save(tmp_path / "found.cube", atoms=([1], [[1, 2, 3]] * unit.angstrom))
    assert (tmp_path / "found.cube").read_text() == (tmp_path / "plain.cube").read_text()
    plain.save(tmp_path / "plain.dx", units="kT/e", temperature=310.0)
    found.save(tmp_path / "found.dx", units="kT/e", temperature=310.0 * unit.kelvin)
    assert (tmp_path / "found.dx").read_text() == (tmp_path / "plain.dx").read_text()
    with pytest.raises(ValueError, match="`margin` must be in units of nanometer"):
        fmm.potential_map([frame], solver, margin=unit.kelvin * 1.0, progress=False)


def test_what_is_refused(stored, tmp_path):
    solver = fmm.CoulombSolver([1.0, -1.0], 2 * np.eye(3))
    frame = [[0.0, 0.0, 0.0], [0.5, 0.5, 0.6]]
    for frames, options, message in (
        ([frame], {"spacing": 0.0}, "`spacing` must lie between"),
        ([frame], {"charge_width": -0.1}, "`charge_width` must lie between"),
        ([], {}, "`frames` must have at least one frame"),
        ([frame], {"vectors": np.ones((3, 3))}, "`vectors` must be three independent rows"),
        ([frame], {"origin": [0.0, 0.0]}, r"`origin` must have shape \(3,\)"),
        ([frame], {"spacing": 0.5}, r"grid point at \[0.0, 0.0, 0.0\] nm lies on a charge"),
    ):
        with pytest.raises(ValueError, match=message):
            fmm.potential_map(frames, solver, progress=False, **options)
    for options, message in (
        ({"path": "map.txt"}, "`path` must end in .dx, .cube, .cub or .npz"),
        ({"path": "map.cube", "units": "V"}, "`units` must be 'kJ/mol/e' with .cube files"),
        ({"path": "map.dx", "units": "eV"}, "`units` must be one of"),
        ({"path": "map.dx", "temperature": 0.0}, "`temperature` must lie between"),
    ):
        options["path"] = tmp_path / options["path"]
        with pytest.raises(ValueError, match=message):
            stored.save(**options)
        assert not options["path"].exists()


def test_what_is_done_is_kept():
    positions, charges = ions(SKEWED)
    solver = fmm.CoulombSolver(charges, SKEWED)
    with pytest.raises(fmm.AnalysisError) as caught:
        fmm.potential_map([positions, positions[1:]], solver, 0.5, progress=False)
    one = fmm.potential_map([positions], solver, 0.5, progress=False)
    assert np.array_equal(caught.value.arrays["values"], one.values)
    assert np.array_equal(caught.value.arrays["vectors"], SKEWED)
