"""The sums over images along two directions and one against published constants, plain sums, the
Ewald sum with vacuum, and identities of physics."""

import numpy as np
import pytest

from fmm_openmm.boundary import EMPTY_SPACE
from fmm_openmm.oracle import direct_sum, ewald_sum, partial_ewald_sum
from fmm_openmm.units import COULOMB_CONSTANT
from tests.support.charges import SKEWED, random_charges, relative
from tests.support.partial import PARTIAL, cell_of

ROTATION = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
PAIRS = [(0, 1), (2, 3), (2, 4), (5, 29)]


@pytest.mark.parametrize("turn", [np.eye(3), ROTATION], ids=["z", "any direction"])
def test_a_chain_of_ions(turn):
    """-2 ln 2 per pair: the alternating harmonic series."""
    x = np.array([[0.0, 0.0, 0.1], [0.0, 0.0, 0.6]]) @ turn
    cell = EMPTY_SPACE.copy()
    cell[2] = turn[2]
    result = partial_ewald_sum(x, [1.0, -1.0], cell)
    assert result.energy / COULOMB_CONSTANT * 0.5 == pytest.approx(-2 * np.log(2), rel=1e-13)
    np.testing.assert_allclose(result.forces, 0.0, atol=1e-9)


@pytest.mark.parametrize("turn", [np.eye(3), ROTATION], ids=["z", "any direction"])
def test_a_square_sheet_of_ions(turn):
    """D. Borwein, J. M. Borwein and K. F. Taylor, J. Math. Phys. 26, 2999 (1985),
    doi:10.1063/1.526675: 4 (sqrt(2) - 1) zeta(1/2) beta(1/2)."""
    edge = np.sqrt(2)
    x = np.array([[0.0, 0.0, 0.0], [edge / 2, edge / 2, 0.0]]) @ turn
    cell = EMPTY_SPACE.copy()
    cell[:2] = edge * turn[:2]
    result = partial_ewald_sum(x, [1.0, -1.0], cell)
    assert result.energy / COULOMB_CONSTANT == pytest.approx(-1.6155426267128247, rel=1e-13)


def test_the_potential_far_away():
    """-2 pi |z| / A, and -(2 / c) ln(rho / c)."""
    plane = partial_ewald_sum([[0, 0, 0], [0.3, 0.2, -7.0]], [1, 0], cell_of("slab", SKEWED))
    area = SKEWED[0, 0] * SKEWED[1, 1]
    expected = -2 * np.pi * 7.0 / area * COULOMB_CONSTANT
    assert plane.potentials[1] == pytest.approx(expected, rel=1e-8)
    line = partial_ewald_sum(
        [[0, 0, 0], [6.0, -8.0, 0.2]], [1, 0], cell_of("wire", np.diag([1, 1, 2.0]))
    )
    assert line.potentials[1] == pytest.approx(-COULOMB_CONSTANT * np.log(5.0), rel=1e-10)


@pytest.mark.parametrize("boundary", PARTIAL)
def test_splitting_does_not_matter(boundary):
    x, q = random_charges(30, SKEWED, net=2.0)
    x[1], x[3] = x[0], x[2] + 1e-7
    cell = cell_of(boundary, SKEWED)
    chosen = partial_ewald_sum(x, q, cell, PAIRS)
    for alpha in (2.0, 3.5):
        other = partial_ewald_sum(x, q, cell, PAIRS, alpha=alpha)
        assert other.energy == pytest.approx(chosen.energy, rel=1e-11)
        assert relative(other.forces, chosen.forces) < 1e-11
        assert relative(other.potentials, chosen.potentials) < 1e-11


def image_sum(x, q, vectors, reach):
    """Potentials summed over images up to a number of cells along each vector."""
    axes = [np.arange(-reach, reach + 1)] * len(vectors)
    images = np.stack(np.meshgrid(*axes), -1).reshape(-1, len(vectors)) @ vectors
    phi = direct_sum(x, q).potentials / COULOMB_CONSTANT
    for image in images[images.any(1)]:
        phi += (q / np.linalg.norm(x[:, None] - x - image, axis=-1)).sum(1)
    return COULOMB_CONSTANT * phi


@pytest.mark.parametrize("boundary", PARTIAL)
def test_sums_over_images(boundary):
    """The images of a neutral cell whose moments vanish up to the quadrupole: the error of their
    sum falls with the inverse cut-off to the third power at least."""
    corners = np.stack(np.meshgrid(*3 * [[0, 1]]), -1).reshape(-1, 3)
    x, q = 0.4 * corners + 0.1, (-1.0) ** corners.sum(1)
    cell = cell_of(boundary, SKEWED)
    exact = partial_ewald_sum(x, q, cell).potentials
    vectors = cell[np.isfinite(cell).all(1)]
    errors = [relative(image_sum(x, q, vectors, reach), exact) for reach in (4, 8)]
    assert errors[0] < 2e-4
    assert errors[1] < errors[0] / 4


def test_vacuum_approaches_a_slab():
    """Between layers of which the dipole moment is corrected for: I.-C. Yeh and M. L. Berkowitz, J.
    Chem. Phys. 111, 3155 (1999), doi:10.1063/1.479595."""
    x, q = random_charges(30, SKEWED)
    x[:, 2] = 0.5 * (x[:, 2] - x[:, 2].mean())
    exact, errors = partial_ewald_sum(x, q, cell_of("slab", SKEWED)).forces, []
    for height in (np.ptp(x[:, 2]) + 2.0, np.ptp(x[:, 2]) + 6.0):
        cell = np.array([*SKEWED[:2], [0.0, 0.0, height]])
        forces, dipole = ewald_sum(x, q, cell).forces, q @ x[:, 2]
        forces[:, 2] -= COULOMB_CONSTANT * 4 * np.pi * q * dipole / np.prod(np.diag(cell))
        errors.append(relative(forces, exact))
    assert errors[1] < 1e-6 < errors[0] < 0.1


@pytest.mark.parametrize("boundary", PARTIAL)
def test_forces_and_potentials_are_derivatives_of_the_energy(boundary):
    x, q = random_charges(30, SKEWED, net=1.0)
    cell, h = cell_of(boundary, SKEWED), 1e-5
    result = partial_ewald_sum(x, q, cell, PAIRS, exclusions_periodic=True)

    def energy(positions, charges):
        return partial_ewald_sum(positions, charges, cell, PAIRS, exclusions_periodic=True).energy

    for particle, axis in ((0, 0), (3, 1), (29, 2)):
        step = np.zeros_like(x)
        step[particle, axis] = h
        slope = (energy(x + step, q) - energy(x - step, q)) / (2 * h)
        assert result.forces[particle, axis] == pytest.approx(-slope, rel=1e-6, abs=1e-3)
    step = 0.5 * np.eye(30)[2]
    assert energy(x, q + step) - energy(x, q - step) == pytest.approx(
        result.potentials[2], rel=1e-10
    )


def test_what_is_refused():
    x, q = random_charges(4, SKEWED)
    for cell in (SKEWED, EMPTY_SPACE, SKEWED[:2]):
        with pytest.raises(ValueError, match="one or two finite rows"):
            partial_ewald_sum(x, q, cell)
    with pytest.raises(ValueError, match=r"`positions` must have shape \(n, 3\)"):
        partial_ewald_sum(x[1:], q, cell_of("slab", SKEWED))
