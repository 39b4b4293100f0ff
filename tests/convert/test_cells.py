"""Cells of any orientation in OpenMM's reduced form."""

import numpy as np
import openmm
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openmm.app.internal.unitcell import computePeriodicBoxVectors, reducePeriodicBoxVectors

from fmm_openmm.boundary import NAMES, Boundary
from fmm_openmm.convert.cells import (
    cell_from_lengths,
    is_no_cell,
    is_reduced,
    reduce_box,
    reduced,
    standard_orientation,
)


def cells():
    number = st.floats(-3, 3)
    return st.lists(number, min_size=9, max_size=9).map(lambda x: np.array(x).reshape(3, 3))


@given(cells().filter(lambda cell: abs(np.linalg.det(cell)) > 0.05))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_the_turned_and_reduced_cell_spans_the_same_lattice(cell):
    turned, rotation = standard_orientation(cell)
    box = reduced(turned)
    assert rotation @ rotation.T == pytest.approx(np.eye(3), abs=1e-12)
    assert np.linalg.det(rotation) == pytest.approx(1)
    assert not np.triu(box, 1).any()
    assert np.diag(box).min() > 0
    integers = np.linalg.solve(box.T, (cell @ rotation).T)
    assert np.abs(integers - np.rint(integers)).max() < 1e-6
    assert abs(np.linalg.det(np.rint(integers))) == pytest.approx(1)
    openmm.System().setDefaultPeriodicBoxVectors(*box)


@given(cells().map(lambda cell: np.tril(cell, -1) + np.diag(np.abs(cell.diagonal()) + 0.5)))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_reduced_is_openmms_own_reduction(cell):
    vectors = [openmm.Vec3(*row) for row in cell]
    assert reduced(cell) == pytest.approx(
        np.array(
            reducePeriodicBoxVectors(vectors).value_in_unit_system(openmm.unit.md_unit_system)
        ),
        abs=1e-12,
    )


@given(
    st.lists(
        st.sampled_from([3.0, 2.0, 1.0, -1.0, -1.5, 0.0, 1e-9, 2e9, np.nan, np.inf, -np.inf]),
        min_size=6,
        max_size=6,
    ),
    st.sampled_from(list(NAMES.values())),
    st.sampled_from([0.0, 0.0, 0.0, 1e-7, np.nan]),
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_a_reduced_box_passes_all_checks(triangle, periodic, above):
    box = np.zeros((3, 3))
    box[np.tril_indices(3)], box[0, 2] = triangle, above
    if is_reduced(box):
        assert np.array_equal(reduce_box(box, Boundary(periodic)), box)


def test_boxes_that_are_reduced():
    assert is_reduced(np.diag([3.0, 2.0, 1.0]))
    assert is_reduced(np.array([[3.0, 0, 0], [-1.5, 2.0, 0], [1.5, 1.0, 1.0]]))
    for row, column, value in (1, 0, 1.6), (2, 0, -1.6), (2, 1, 1.1), (2, 2, np.nan), (0, 1, 1e-9):
        box = np.diag([3.0, 2.0, 1.0])
        box[row, column] = value
        assert not is_reduced(box)


def test_a_cell_of_lengths_and_angles_is_openmms():
    angles = np.radians([80.0, 105.0, 130.0])
    expected = computePeriodicBoxVectors(1.0, 2.0, 3.0, *angles)
    found = cell_from_lengths([1.0, 2.0, 3.0], angles)
    assert np.linalg.norm(found, axis=1) == pytest.approx([1.0, 2.0, 3.0])
    assert reduced(found) == pytest.approx(
        np.array(expected.value_in_unit_system(openmm.unit.md_unit_system))
    )
    assert np.array_equal(cell_from_lengths([1, 2, 3], 3 * [np.pi / 2]), np.diag([1.0, 2.0, 3.0]))
    with pytest.raises(ValueError, match="no cell with these angles"):
        cell_from_lengths([1, 2, 3], np.radians([150.0, 150.0, 150.0]))


def test_a_standard_cell_is_not_touched():
    cell = np.array([[2.0, 0, 0], [0.3, 2, 0], [0.1, 0.2, 3]])
    turned, rotation = standard_orientation(cell)
    assert np.array_equal(turned, cell)
    assert np.array_equal(rotation, np.eye(3))


def test_cells_that_mean_none():
    assert is_no_cell(None) and is_no_cell(np.zeros((3, 3))) and is_no_cell(0.1 * np.eye(3))
    assert not is_no_cell(np.eye(3)) and not is_no_cell(np.diag([0.1, 0.1, 2.0]))


@pytest.mark.parametrize(
    "cell", [np.zeros((3, 3)), np.ones((3, 3)), np.full((3, 3), np.nan), np.diag([1, 1, 0])]
)
def test_no_volume(cell):
    with pytest.raises(ValueError, match="positive volume"):
        standard_orientation(cell)
