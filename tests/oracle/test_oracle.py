"""The oracle against published constants, closed forms, identities of physics and OpenMM's
Reference platform."""

import tracemalloc

import numpy as np
import openmm
import pytest
from scipy.special import erfc

from fmm_openmm.oracle import direct_sum, ewald, ewald_sum
from fmm_openmm.units import COULOMB_CONSTANT
from tests.crystals import CRYSTALS
from tests.support.charges import SKEWED, random_charges, relative

RECTANGULAR = np.diag([2.2, 2.0, 2.5])


@pytest.mark.parametrize("name", CRYSTALS)
def test_madelung(name):
    crystal = CRYSTALS[name]
    result = ewald_sum(crystal.positions, crystal.charges, crystal.box_vectors)
    assert result.energy == pytest.approx(crystal.energy, rel=max(crystal.digits, 1e-12)), (
        crystal.origin
    )


@pytest.mark.parametrize("name", [name for name in CRYSTALS if name + "_primitive" in CRYSTALS])
def test_primitive_cell_conventional_cell_and_supercell_agree(name):
    cells = [CRYSTALS[name], CRYSTALS[name].supercell(2, 1, 3), CRYSTALS[name + "_primitive"]]
    cells.append(cells[-1].supercell(2, 2, 2))
    energies = [ewald_sum(c.positions, c.charges, c.box_vectors).energy / c.units for c in cells]
    np.testing.assert_allclose(energies, energies[0], rtol=1e-12)


def test_net_charge():
    """A unit charge in a 3 nm cube: -65.70019 in OpenMM from 8.3 on; 2.837297 is Hummer's
    constant (see ewald.py)."""
    result = ewald_sum([[0.3, -7.0, 1e3]], [1.0], 3 * np.eye(3))
    assert result.energy == pytest.approx(-65.70019, rel=5e-7)
    assert result.energy == pytest.approx(-2.837297 * COULOMB_CONSTANT / 6, rel=3e-7)
    assert result.potentials == pytest.approx(2 * result.energy)
    np.testing.assert_allclose(result.forces, 0, atol=1e-10)


@pytest.mark.parametrize("net", [0.0, 5.0])
@pytest.mark.parametrize(
    "cell",
    [SKEWED, np.diag([9.0, 0.6, 0.7]), np.diag([5.0, 5.0, 0.3])],
    ids=["skewed", "rod", "plate"],
)
def test_splitting_does_not_matter(cell, net):
    x, q = random_charges(40, cell, net=net)
    pairs = [(0, 1), (2, 3), (2, 4), (5, 39)]
    x[1], x[3] = x[0], x[2] + 1e-7
    chosen = ewald_sum(x, q, cell, pairs)
    for alpha in (2.5, 4.0, 8.0):
        other = ewald_sum(x, q, cell, pairs, alpha=alpha)
        assert other.energy == pytest.approx(chosen.energy, rel=1e-11)
        assert relative(other.forces, chosen.forces) < 1e-11
        assert relative(other.potentials, chosen.potentials) < 1e-11


def test_skewed_rod_takes_little_memory_and_blocks_do_not_matter(monkeypatch):
    """Some 500 of the 5 million wave vectors within the limits of the three indices count."""
    cell = np.array([[100.0, 0.0, 0.0], [50.0, 1.0, 0.0], [-50.0, 0.5, 0.5]])
    x, q = random_charges(2, cell)
    chosen = ewald_sum(x, q, cell)
    tracemalloc.start()
    try:
        ewald_sum(x, q, cell)
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()
    for chunk in (1 << 12, 1 << 40):
        monkeypatch.setattr(ewald, "CHUNK", chunk)
        other = ewald_sum(x, q, cell)
        assert other.energy == pytest.approx(chosen.energy, rel=1e-13)
        assert relative(other.forces, chosen.forces) < 1e-11
    other = ewald_sum(x, q, cell, alpha=1.5)
    assert other.energy == pytest.approx(chosen.energy, rel=1e-11)
    assert relative(other.forces, chosen.forces) < 1e-11


def test_accuracy_is_delivered():
    x, q = random_charges(100, SKEWED)
    exact = ewald_sum(x, q, SKEWED)
    errors = [
        relative(ewald_sum(x, q, SKEWED, accuracy=accuracy).forces, exact.forces)
        for accuracy in (1e-3, 1e-6)
    ]
    assert 1e-5 < errors[0] < 1e-3
    assert 1e-9 < errors[1] < 1e-6


@pytest.mark.parametrize("cell", [SKEWED, None], ids=["ewald", "direct"])
def test_forces_are_the_gradient_of_the_energy(cell):
    x, q = random_charges(30, SKEWED, net=1.0)
    pairs = [(0, 1), (7, 3), (0, 2)]
    x[1] = x[0] + 0.01

    def total(positions):
        return (
            direct_sum(positions, q, pairs)
            if cell is None
            else ewald_sum(positions, q, cell, pairs)
        )

    result, h = total(x), 1e-5
    for particle in (0, 1, 3, 29):
        for axis in range(3):
            step = np.zeros_like(x)
            step[particle, axis] = h
            slope = (total(x + step).energy - total(x - step).energy) / (2 * h)
            assert result.forces[particle, axis] == pytest.approx(-slope, rel=1e-6, abs=1e-3)


@pytest.mark.parametrize("cell", [SKEWED, None], ids=["ewald", "direct"])
def test_potential_is_the_derivative_by_the_charge(cell):
    """The energy is quadratic in the charges, so the central difference is exact."""
    x, q = random_charges(30, SKEWED, net=1.0)
    pairs = [(0, 1), (0, 2)]

    def total(charges):
        return direct_sum(x, charges, pairs) if cell is None else ewald_sum(x, charges, cell, pairs)

    result, step = total(q), 0.5 * np.eye(30)[0]
    assert total(q + step).energy - total(q - step).energy == pytest.approx(
        result.potentials[0], rel=1e-11
    )
    assert result.energy == pytest.approx(0.5 * q @ result.potentials, rel=1e-12)
    np.testing.assert_allclose(result.forces, q[:, None] * result.fields, rtol=1e-14)


def test_energy_scales_as_the_inverse_length():
    """Hence tr(virial) = energy, with the background too.

    At a fixed alpha every term changes, their sum must not.
    """
    x, q = random_charges(50, SKEWED, net=3.0)
    small, large = (
        ewald_sum(x, q, SKEWED, alpha=3.0),
        ewald_sum(1.5 * x, q, 1.5 * SKEWED, alpha=3.0),
    )
    assert 1.5 * large.energy == pytest.approx(small.energy, rel=1e-12)
    assert relative(2.25 * large.forces, small.forces) < 1e-12


def test_lattice_translations_and_order_do_not_matter():
    x, q = random_charges(50, SKEWED)
    base = ewald_sum(x, q, SKEWED)
    rng = np.random.default_rng(1)
    moved = ewald_sum(x + rng.integers(-1000, 1000, (50, 3)) @ SKEWED + 0.123, q, SKEWED)
    order = rng.permutation(50)
    shuffled = ewald_sum(x[order], q[order], SKEWED)
    assert relative(moved.forces, base.forces) < 1e-10
    assert relative(shuffled.forces, base.forces[order]) < 1e-13
    assert (
        base.energy
        == pytest.approx(moved.energy, rel=1e-11)
        == pytest.approx(shuffled.energy, rel=1e-12)
    )
    np.testing.assert_allclose(base.forces.sum(0), 0, atol=1e-9)


@pytest.mark.parametrize("distance", [0.0, 1e-200, 1e-12, 1e-9])
def test_excluded_pair_may_coincide(distance):
    """Together the two are one charge with its own images."""
    x, q = np.array([[0.1, 0.2, 0.3], [0.1, 0.2, 0.3 + distance]]), np.array([1.0, -0.3])
    pair = ewald_sum(x, q, SKEWED, [(0, 1)])
    one = ewald_sum(x[:1], [q.sum()], SKEWED)
    assert pair.energy == pytest.approx(one.energy, rel=1e-12)
    np.testing.assert_allclose(pair.potentials, one.potentials[0], rtol=1e-12)
    np.testing.assert_allclose(pair.fields, 0, atol=1e-6)


@pytest.mark.parametrize("image", [(0, 0, 0), (1, 0, 0), (2, -3, 1), (0, 0, 40)])
@pytest.mark.parametrize("periodic", [False, True])
def test_exclusion_takes_off_the_bare_interaction(image, periodic):
    """Of the displacement as given, or of its minimum image:
    here 0.3 nm whichever image is given."""
    near = np.array([0.1, 0.2, 0.2])
    x, q = (
        np.array([np.zeros(3), near + np.array(image) @ SKEWED, [1.0, 1.0, 1.0]]),
        np.array([1.0, -0.7, 0.4]),
    )
    delta = near if periodic else x[1]
    r = np.linalg.norm(delta)
    full = ewald_sum(x, q, SKEWED)
    excluded = ewald_sum(x, q, SKEWED, [(1, 0)], exclusions_periodic=periodic)
    bare = COULOMB_CONSTANT * q[0] * q[1] / r
    assert excluded.energy == pytest.approx(full.energy - bare, rel=1e-12)
    np.testing.assert_allclose(
        excluded.forces[0], full.forces[0] + bare * delta / r**2, rtol=1e-11, atol=1e-9
    )
    np.testing.assert_allclose(excluded.forces[2], full.forces[2], rtol=1e-11)


def reference_platform(
    x, q, box, pairs=(), periodic=False, tolerance=1e-10, method=openmm.NonbondedForce.Ewald
):
    """OpenMM's energy and forces, Coulomb only, for a cutoff of 0.99 nm."""
    system, force = openmm.System(), openmm.NonbondedForce()
    system.setDefaultPeriodicBoxVectors(*box)
    for charge in q:
        system.addParticle(1.0)
        force.addParticle(charge, 1.0, 0.0)
    for i, j in pairs:
        force.addException(int(i), int(j), 0.0, 1.0, 0.0)
    force.setNonbondedMethod(method)
    force.setCutoffDistance(0.99)
    force.setEwaldErrorTolerance(tolerance)
    force.setExceptionsUsePeriodicBoundaryConditions(periodic)
    system.addForce(force)
    context = openmm.Context(
        system, openmm.VerletIntegrator(0.001), openmm.Platform.getPlatform("Reference")
    )
    context.setPositions(x)
    state = context.getState(energy=True, forces=True)
    return state.getPotentialEnergy()._value, state.getForces(asNumpy=True)._value


def charges_with_pairs():
    """60 charges of net charge 2 in a rectangular box; the second of each excluded pair sits
    near the first."""
    x, q = random_charges(60, RECTANGULAR, net=2.0)
    x[1], x[3] = x[0] + 0.05, x[2] + [0.01, -0.08, 0.05]
    return x, q, [(0, 1), (2, 3)]


@pytest.mark.parametrize("periodic", [False, True])
def test_agrees_with_openmm(periodic):
    x, q, pairs = charges_with_pairs()
    if periodic:  # then any two may be excluded, however far apart
        x[1] += [2, -1, 3] @ RECTANGULAR
        pairs += [(i, i + 1) for i in range(4, 60, 2)]
    energy, forces = reference_platform(x, q, RECTANGULAR, pairs, periodic)
    result = ewald_sum(x, q, RECTANGULAR, pairs, exclusions_periodic=periodic)
    assert result.energy == pytest.approx(energy, rel=3e-11)
    assert relative(result.forces, forces) < 1e-10


def test_agrees_with_openmm_pme():
    x, q, pairs = charges_with_pairs()
    energy, forces = reference_platform(
        x, q, RECTANGULAR, pairs, tolerance=1e-7, method=openmm.NonbondedForce.PME
    )
    result = ewald_sum(x, q, RECTANGULAR, pairs)
    assert result.energy == pytest.approx(energy, rel=1e-7)
    assert relative(result.forces, forces) < 1e-6


def test_openmm_on_a_molecule_broken_across_the_box():
    """There OpenMM leaves the *minimum image* out of its direct sum, but takes erf(alpha r)/r of
    the displacement *as given* off the reciprocal sum, so its energy depends on its alpha. The
    oracle takes 1/r of one and the same image.
    """
    x, q, pairs = charges_with_pairs()
    near = [np.linalg.norm(x[j] - x[i]) for i, j in pairs]
    x[[1, 3]] += [RECTANGULAR[0], RECTANGULAR[2]]
    result = ewald_sum(x, q, RECTANGULAR, pairs)
    for tolerance in (1e-6, 1e-9):
        alpha = np.sqrt(-np.log(2 * tolerance)) / 0.99
        expected = result.energy
        for (i, j), r in zip(pairs, near, strict=True):
            far = np.linalg.norm(x[j] - x[i])
            expected -= (
                COULOMB_CONSTANT * q[i] * q[j] * (erfc(alpha * r) / r - erfc(alpha * far) / far)
            )
        energy, _ = reference_platform(x, q, RECTANGULAR, pairs, tolerance=tolerance)
        assert energy == pytest.approx(expected, rel=10 * tolerance)
        assert energy != pytest.approx(result.energy, rel=1e-2)


@pytest.mark.parametrize("cell", [SKEWED, None], ids=["ewald", "direct"])
def test_few_particles(cell):
    def total(x, q):
        return direct_sum(x, q) if cell is None else ewald_sum(x, q, cell)

    nothing = total(np.zeros((0, 3)), [])
    assert nothing.energy == 0.0
    assert nothing.forces.shape == nothing.fields.shape == (0, 3) and nothing.potentials.shape == (
        0,
    )
    np.testing.assert_array_equal(total(np.eye(3), [0, 0, 0]).forces, np.zeros((3, 3)))
    coincident = total([[0.1, 0.2, 0.3], [0.1, 0.2, 0.3], [1, 1, 1]], [1.0, 1.0, 1.0])
    assert not np.isfinite(coincident.potentials[:2]).any() and np.isfinite(
        coincident.potentials[2]
    )


@pytest.mark.parametrize(
    "total", [direct_sum, lambda x, q: ewald_sum(x, q, np.eye(3))], ids=["direct", "ewald"]
)
def test_shapes_are_checked(total):
    with pytest.raises(ValueError, match=r"got \(4, 3\) and \(5,\)"):
        total(np.zeros((4, 3)), np.zeros(5))


def test_box_shape_is_checked():
    with pytest.raises(ValueError, match=r"`box_vectors` must have shape \(3, 3\), got \(3,\)"):
        ewald_sum(np.zeros((1, 3)), [1.0], [3.0, 3.0, 3.0])


def test_direct_sum():
    x, q = random_charges(20, SKEWED)
    pairs = [(0, 1), (5, 2), (0, 19)]
    x[1] = x[0]
    included = ~np.eye(20, dtype=bool)
    included[tuple(np.transpose(pairs + [(j, i) for i, j in pairs]))] = False
    delta = x[:, None] - x
    r = np.where(included, np.linalg.norm(delta, axis=-1), np.inf)
    result = direct_sum(x, q, pairs)
    np.testing.assert_allclose(result.potentials, COULOMB_CONSTANT * (q / r).sum(1), rtol=1e-13)
    fields = COULOMB_CONSTANT * np.einsum("j,ij,ijk->ik", q, r**-3.0, delta)
    np.testing.assert_allclose(result.fields, fields, rtol=1e-11)
    assert result.energy == pytest.approx(
        0.5 * COULOMB_CONSTANT * (q[:, None] * q / r).sum(), rel=1e-13
    )


def test_ewald_sum_of_a_small_cluster_is_the_direct_sum():
    """In a cube of edge L the tin-foil boundary lowers the energy of a neutral cluster of dipole D
    by 2 pi D^2 / 3 L^3; what is left falls as L^-5.
    """
    x, q = random_charges(10, 0.3 * np.eye(3), gap=0.05)
    exact, errors = direct_sum(x, q).energy, []
    for edge in (5.0, 10.0):
        dipole = COULOMB_CONSTANT * 2 * np.pi / (3 * edge**3) * ((q @ x) ** 2).sum()
        errors.append(
            abs(ewald_sum(x, q, edge * np.eye(3), accuracy=1e-14).energy - exact + dipole) / dipole
        )
    assert errors[0] < 0.03
    assert errors[1] == pytest.approx(errors[0] / 4, rel=0.05)
