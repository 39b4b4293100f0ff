"""The lattice operators of slabs and wires against plain sums over images and exact potentials."""

import numpy as np
import pytest
import scipy.fft
from scipy.linalg import expm

from fmm_openmm.boundary import EMPTY_SPACE
from fmm_openmm.box import PaddedLattice, index_grid
from fmm_openmm.expansions.harmonics import degrees, irregular_norm, regular
from fmm_openmm.expansions.operators import lattice_operator, slab, wire
from fmm_openmm.expansions.operators.derivatives import GENERATORS, operator_derivatives
from fmm_openmm.oracle import partial_ewald_sum
from fmm_openmm.units import COULOMB_CONSTANT

ORDER = 4
TOP = 2 * ORDER
L = degrees(TOP)
SCALE = irregular_norm(TOP) / 2.0 ** (L + 1)
"""Size of each term of S at the nearest far boxes, two box widths away."""

SLAB, WIRE = (False, False, True), (False, True, True)
LATTICES = {
    "slab": (SLAB, [3, 4, 3], np.eye(3)),
    "slab of one box": (SLAB, [1, 1, 1], np.diag([1.1, 0.9, 1 / 0.99])),
    "thick slab": (SLAB, [2, 1, 8], np.eye(3)),
    "oblique slab": (SLAB, [[5, 0, 0], [2, 4, 0], [0, 0, 2]], np.diag([0.95, 1.0, 1 / 0.95])),
    "skewed boxes": (SLAB, [4, 3, 2], np.array([[1.1, 0, 0], [0.3, 1.0, 0], [0, 0, 1 / 1.1]])),
    "wire": (WIRE, [4, 3, 2], np.eye(3)),
    "thick wire": (WIRE, [1, 5, 4], np.eye(3)),
    "wide wire": (WIRE, [1, 50, 1], np.eye(3)),
    "short boxes": (WIRE, [3, 2, 1], np.diag([0.64, 1.25, 1.25])),
}


def lattice_of(name, radius=2.3):
    padded, counts, boxes = LATTICES[name]
    counts = np.diag(counts) if np.ndim(counts) == 1 else np.array(counts)
    cell = np.where(np.array(padded)[:, None], EMPTY_SPACE, counts @ boxes)
    return PaddedLattice(counts, radius, cell=cell, padded=padded, boxes=boxes)


def occurring(lattice):
    """Displacements of boxes, one for each box where they repeat, shape (m, 3)."""
    span = lattice.span
    low = np.where(lattice.padded, 1 - span, 0)
    return index_grid(low, span).reshape(-1, 3)


def displacements(operator, lattice):
    """T_t at the displacements that occur, shape (terms, m)."""
    l = L[:, None, None, None]
    spectrum = np.array([1, 1, -1, -1])[l % 4] * np.where(l % 2, 1j, 1) * operator
    values = scipy.fft.irfftn(spectrum, lattice.fft_shape, axes=(1, 2, 3))
    return values.reshape(len(operator), -1)[:, lattice.slot(occurring(lattice))]


def images_of(lattice, reach):
    """Displacements of images up to a distance, boxes."""
    periodic = ~np.array(lattice.padded)
    cell = lattice.counts @ lattice.boxes
    most = np.ceil(reach / np.diag(cell)).astype(int) * periodic
    numbers = index_grid(-most, most + 1).reshape(-1, 3)
    return numbers[np.linalg.norm(numbers @ cell, axis=1) <= reach] @ lattice.counts


def far_harmonics(lattice, offsets):
    """The sum of S over the offsets (k, 3) that are not near, shape (terms,)."""
    x = offsets[~lattice.is_near(offsets)] @ lattice.boxes
    r = np.linalg.norm(x, axis=1)
    return irregular_norm(TOP) * (regular(x / r[:, None], TOP) / r ** (L[:, None] + 1)).sum(1)


@pytest.mark.parametrize("name", LATTICES)
def test_high_degrees_are_plain_sums_over_images(name):
    lattice = lattice_of(name)
    found = displacements(lattice_operator(lattice, ORDER), lattice)
    images = images_of(lattice, 60.0)
    for row in range(0, found.shape[1], max(1, found.shape[1] // 7)):
        expected = far_harmonics(lattice, occurring(lattice)[row] + images)
        error = np.abs(found[:, row] - expected) / SCALE
        assert error[L >= 5].max() < 1e-6


@pytest.mark.parametrize("name", LATTICES)
def test_low_degrees_are_the_potential_and_field_of_the_far_images(name):
    lattice = lattice_of(name)
    found = displacements(lattice_operator(lattice, ORDER), lattice)
    cell = np.where(np.array(lattice.padded)[:, None], EMPTY_SPACE, lattice.counts @ lattice.boxes)
    images = images_of(lattice, 12.0)
    for row in range(0, found.shape[1], max(1, found.shape[1] // 7)):
        offset = occurring(lattice)[row]
        charge_and_probe = np.array([[0.0, 0.0, 0.0], offset @ lattice.boxes])
        exact = partial_ewald_sum(
            charge_and_probe, [1.0, 0.0], cell, [] if offset.any() else [(0, 1)]
        )
        all_images = offset + images
        near = all_images[lattice.is_near(all_images) & all_images.any(1)] @ lattice.boxes
        r = np.linalg.norm(near, axis=1)
        potential = exact.potentials[1] / COULOMB_CONSTANT - (1 / r).sum()
        field = exact.fields[1] / COULOMB_CONSTANT - (near / r[:, None] ** 3).sum(0)
        assert found[0, row] == pytest.approx(potential, abs=1e-11)
        np.testing.assert_allclose(found[[3, 1, 2], row], field, atol=1e-11)


@pytest.mark.parametrize("name", LATTICES)
def test_splitting_does_not_matter(name, monkeypatch):
    lattice = lattice_of(name)
    chosen = displacements(lattice_operator(lattice, ORDER), lattice)
    monkeypatch.setattr(slab, "SEPARATION", 12.0)
    monkeypatch.setattr(wire, "RATIO", 0.1)
    monkeypatch.setattr(wire, "LINE", np.inf)
    other = displacements(lattice_operator(lattice, ORDER), lattice)
    assert (np.abs(other - chosen).max(1) / SCALE).max() < 1e-11


@pytest.mark.parametrize("generator", [2, 3, 4])
def test_shears_of_a_slab(generator):
    """The derivative of the potential at displacements beyond the near stencil. Shears along z tilt
    the images that the sum over the stack has, and a layer of boxes fills most of its period."""
    boxes = np.array([[1.18, 0.0, 0.0], [0.2, 0.89, 0.0], [0.0, 0.0, 0.952]])
    boxes /= np.cbrt(np.linalg.det(boxes))
    counts = np.array([[5, 0, 0], [2, 6, 0], [0, 0, 7]])
    cell = EMPTY_SPACE.copy()
    cell[:2] = counts[:2] @ boxes
    padded = False, False, True
    lattice = PaddedLattice(counts, 2.3, cell=cell, padded=padded, boxes=boxes)
    derivative = operator_derivatives(lattice, 1)[generator, 0]
    found = scipy.fft.irfftn(derivative, lattice.fft_shape).ravel()
    for offset in ([0, 0, 3], [2, 1, 5], [1, 2, -5], [2, -1, 4]):
        potentials = []
        for step in (1e-4, -1e-4):
            change = expm(step * GENERATORS[generator])
            strained = lattice.cell.copy()
            strained[:2] = lattice.cell[:2] @ change
            place = np.array([np.zeros(3), offset @ lattice.boxes @ change])
            charges = np.array([1.0, 0.0])
            potentials.append(partial_ewald_sum(place, charges, strained).potentials[1])
        expected = (potentials[0] - potentials[1]) / (2e-4 * COULOMB_CONSTANT)
        slot = lattice.slot(np.array([offset]))[0]
        assert found[slot] == pytest.approx(expected, abs=1e-9)
