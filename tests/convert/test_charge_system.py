"""The container itself: what it accepts, what it refuses, and its solver."""

import numpy as np
import openmm
import pytest
from openmm import unit

import fmm_openmm as fmm
from fmm_openmm.boundary import Boundary
from fmm_openmm.oracle import partial_ewald_sum

CUBE = 2.0 * np.eye(3)


def test_keeps_and_orders_what_it_gets():
    system = fmm.ChargeSystem([1, -1, 2], np.zeros((3, 3)), CUBE, exclusions=[[2, 0], [1, 0]])
    assert system.charges.dtype == system.positions.dtype == np.float64
    assert system.exclusions.dtype == np.int32
    assert system.exclusions.tolist() == [[0, 1], [0, 2]]
    assert system.exclusions_periodic is False
    assert len(system) == 3
    assert repr(system) == "ChargeSystem(3 particles, total charge 2 e, periodic, 2 exclusions)"
    bare = "ChargeSystem(1 particles, total charge 1 e, open, 0 exclusions, no positions)"
    assert repr(fmm.ChargeSystem([1.0])) == bare
    assert "total charge 0 e" in repr(fmm.ChargeSystem([0.1, 0.1, 0.1, -0.3]))  # their sum is not


def test_is_independent_of_the_arrays_it_was_made_from():
    charges, positions = np.array([1.0, -1.0]), np.zeros((2, 3))
    system = fmm.ChargeSystem(charges, positions)
    charges[:], positions[:] = 9, 9
    assert system.charges.tolist() == [1, -1]
    assert not system.positions.any()


def test_quantities_are_converted():
    system = fmm.ChargeSystem(
        np.array([1.602176634e-19]) * unit.coulomb,
        [[1, 2, 3]] * unit.angstrom,
        [[20, 0, 0], [0, 20, 0], [0, 0, 20]] * unit.angstrom,
    )
    assert system.charges == pytest.approx([1.0], rel=1e-9)
    assert system.positions == pytest.approx(np.array([[0.1, 0.2, 0.3]]))
    assert system.box_vectors == pytest.approx(CUBE)


def test_a_box_that_is_not_reduced_is_reduced():
    system = fmm.ChargeSystem([1.0], box_vectors=[[2, 0, 0], [1.5, 2, 0], [1.9, -1.5, 3]])
    assert system.box_vectors == pytest.approx(np.array([[2, 0, 0], [-0.5, 2, 0], [-0.6, 0.5, 3]]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"charges": []}, "no particles"),
        ({"charges": [[1.0]]}, r"`charges` must have shape \(n,\), got \(1, 1\)"),
        ({"charges": [1.0, np.nan]}, "`charges` must be finite, got nan for particle 1"),
        (
            {"charges": np.ones(2) * unit.nanometer},
            "`charges` must be in units of elementary charge, got nanometer",
        ),
        ({"positions": np.zeros((3, 3))}, r"`positions` must have shape \(n, 3\) with n = 2"),
        ({"positions": [[0, 0, 0], [0, np.inf, 0]]}, "`positions` must be finite.* particle 1"),
        (
            {"positions": np.zeros((2, 3)) * unit.kelvin},
            "`positions` must be in units of nanometer, got kelvin",
        ),
        ({"box_vectors": np.eye(2)}, r"`box_vectors` must have shape \(3, 3\)"),
        ({"box_vectors": np.zeros((3, 3))}, "positive volume"),
        ({"box_vectors": [[2, 1, 0], [0, 2, 0], [0, 0, 2]]}, "reduced form"),
        (
            {"box_vectors": np.eye(3) * unit.picosecond},
            "`box_vectors` must be in units of nanometer, got picosecond",
        ),
        ({"exclusions": [[0, 2]]}, r"`exclusions` must hold indices from 0 to 1, got \[0, 2\]"),
        ({"exclusions": [[1, 1]]}, "`exclusions` pairs particle 1 with itself"),
        ({"exclusions": [[0, 1], [1, 0]]}, r"lists the pair \[0, 1\] twice"),
        ({"exclusions": [[0.0, 1.0]]}, "integer pairs"),
    ],
)
def test_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        fmm.ChargeSystem(**({"charges": [1.0, -1.0]} | arguments))


def test_a_flag_is_no_text():
    message = "^`{}` must be True or False, got 'no'$"
    with pytest.raises(TypeError, match=message.format("exclusions_periodic")):
        fmm.ChargeSystem([1.0, -1.0], exclusions_periodic="no")
    with pytest.raises(TypeError, match=message.format("periodic")):
        fmm.FMMForce().setExclusionsUsePeriodicBoundaryConditions("no")


def test_solver_gets_the_system_and_the_options():
    positions = np.array([[0.1, 0.2, 0.3], [0.6, 0.2, 0.3], [1.1, 1.3, 1.7]])
    system = fmm.ChargeSystem([1.0, -2.0, 1.0], positions, CUBE, exclusions=[[0, 1]])
    options = {"tolerance": 1e-6, "precision": "double", "backend": "reference"}
    result = system.solver(**options).compute(system.positions)
    direct = fmm.CoulombSolver(system.charges, CUBE, system.exclusions, **options).compute(
        positions
    )
    assert result.energy == direct.energy
    assert np.array_equal(result.forces, direct.forces)


def test_solver_follows_the_image_rule():
    """Excluded partners two boxes apart: their nearest image is left out,
    or the far pair as it stands."""
    positions = np.array([[0.1, 0.2, 0.3], [0.4, 0.2, 0.3]])
    far = positions + np.array([[0, 0, 0], [4.0, 0, 0]])
    nearest = fmm.ChargeSystem([1.0, -1.0], far, CUBE, [[0, 1]], exclusions_periodic=True)
    literal = fmm.ChargeSystem([1.0, -1.0], far, CUBE, [[0, 1]])
    near = fmm.ChargeSystem([1.0, -1.0], positions, CUBE, [[0, 1]])
    options = {"tolerance": 1e-8, "precision": "double", "backend": "reference"}
    energies = [
        cs.solver(**options).compute(cs.positions).energy for cs in (nearest, literal, near)
    ]
    assert energies[0] == pytest.approx(energies[2], abs=1e-6)
    expected = fmm.units.COULOMB_CONSTANT * (1 / 4.3 - 1 / 0.3)
    assert energies[1] - energies[0] == pytest.approx(expected, rel=1e-6)


def test_a_periodic_system_may_get_an_open_solver():
    system = fmm.ChargeSystem([1.0, -1.0], box_vectors=3 * np.eye(3))
    result = system.solver(boundary="open", precision="double").compute(
        [[0.0, 0.0, 0.0], [0.0, 0.0, 2.5]]
    )
    assert result.energy == pytest.approx(-fmm.units.COULOMB_CONSTANT / 2.5, rel=1e-9)


def test_an_open_system_gets_an_open_solver():
    result = (
        fmm.ChargeSystem([1.0, -1.0])
        .solver(precision="double")
        .compute([[0.0, 0.0, 0.0], [0.0, 0.5, 0.0]])
    )
    assert result.energy == pytest.approx(-fmm.units.COULOMB_CONSTANT / 0.5, rel=1e-9)


def test_a_boundary_goes_with_the_system(tmp_path):
    given = {"positions": [[0, 0, 0], [0.3, 0, 0]], "box_vectors": np.diag([1.0, 1.0, 2.0])}
    system = fmm.ChargeSystem([1.0, -1.0], **given, boundary="ab")
    assert system.boundary == "slab" and ", slab, " in repr(system)
    assert fmm.ChargeSystem([1.0, -1.0], **given).boundary == "periodic"
    assert fmm.ChargeSystem([1.0, -1.0]).boundary == "open"
    system.save(tmp_path / "slab.npz")
    loaded = fmm.ChargeSystem.load(tmp_path / "slab.npz")
    assert loaded.boundary == "slab"
    energy = loaded.solver(backend="cpu", tolerance=1e-8).compute(given["positions"]).energy
    cell = np.diag([1.0, 1.0, np.inf])
    exact = partial_ewald_sum(np.array(given["positions"]), [1.0, -1.0], cell).energy
    assert energy == pytest.approx(exact, rel=1e-8)


@pytest.mark.parametrize(("box", "name"), [(None, "slab"), (np.eye(3), "open")])
def test_a_boundary_that_does_not_go_with_the_box(box, name):
    with pytest.raises(ValueError, match=f"`boundary='{name}'` does not go with"):
        fmm.ChargeSystem([1.0], box_vectors=box, boundary=name)


@pytest.mark.parametrize(
    ("boundary", "box"),
    [
        ("wire", [[1, 0, 0], [0, 1, 0], [0, 0.7, 2]]),
        ("ac", [[1, 0, 0], [0, 1, 0], [0, 0.7, 2]]),
        ("b", [[1, 0, 0], [0.8, 1, 0], [0, 0, 2]]),
    ],
)
def test_vectors_of_images_are_not_reduced_by_vectors_without(boundary, box, tmp_path):
    """The sum would be over another lattice, also in a solver of another boundary."""
    charges, x, box = (
        [1.0, -1.0],
        np.array([[0.1, 0.2, 0.3], [0.2, 0.4, 1.1]]),
        np.array(box, float),
    )
    exact = partial_ewald_sum(x, charges, Boundary.from_name(boundary).cell(box)).energy
    system = fmm.ChargeSystem(charges, x, box)
    assert not np.array_equal(system.box_vectors, box)
    assert system.solver(boundary=boundary).compute(x).energy == pytest.approx(exact, rel=1e-3)
    system.save(tmp_path / "saved.npz")
    loaded = fmm.ChargeSystem.load(tmp_path / "saved.npz")
    assert np.array_equal(loaded.box_vectors, system.box_vectors)
    assert loaded.solver(boundary=boundary).compute(x).energy == pytest.approx(exact, rel=1e-3)
    named = fmm.ChargeSystem(charges, x, box, boundary=boundary)
    assert np.array_equal(named.box_vectors, box)
    assert named.solver().compute(x).energy == pytest.approx(exact, rel=1e-3)


def test_vectors_of_images_are_reduced_by_each_other():
    box = np.array([[1.0, 0, 0], [0.8, 1, 0], [0.9, 0.7, 2]])
    found = fmm.ChargeSystem([1.0, -1.0], None, box, boundary="slab").box_vectors
    assert found[:2] == pytest.approx(np.array([[1, 0, 0], [-0.2, 1, 0]]))
    found = fmm.ChargeSystem([1.0, -1.0], None, [box[0], [0, 1, 0], [0.9, 0, 2]], boundary="ac")
    assert found.box_vectors[2] == pytest.approx(np.array([-0.1, 0, 2]))


def test_a_slab_of_openmm_is_unwrapped():
    system = openmm.System()
    system.setDefaultPeriodicBoxVectors(*np.diag([1.0, 1.0, 4.0]))
    force = fmm.FMMForce(boundary="slab", backend="cpu")
    for charge in (1.0, -1.0, 0.0):
        system.addParticle(1.0)
        force.addParticle(charge)
    system.addForce(force)
    made = fmm.ChargeSystem.from_openmm(system, [[0.1, 0, 0.1], [0.2, 0, 3.9], [0.3, 0, 7.8]])
    assert made.boundary == "slab"
    np.testing.assert_allclose(made.positions[:, 2] - made.positions[0, 2], [0, -0.2, -0.3])
