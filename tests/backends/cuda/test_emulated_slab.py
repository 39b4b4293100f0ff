"""The lattice operator of slabs on the GPU, through ``tests/emulator``, against
``lattice_operator``. Needs no GPU."""

import numpy as np
import pytest

from fmm_openmm.backends.cuda.pipeline.description import builder, parameter_block
from fmm_openmm.backends.cuda.pipeline.p2p import nearest_first
from fmm_openmm.backends.cuda.pipeline.setup_tables import (
    built_lattice,
    mirrored,
    serves,
    setup_tables,
)
from fmm_openmm.backends.cuda.program import SETUP
from fmm_openmm.box import PaddedLattice
from fmm_openmm.expansions.operators import lattice_operator
from fmm_openmm.specification import Specification
from tests.compiler import COMPILER
from tests.emulator import DEVICE, Emulator

if COMPILER is None:
    pytest.skip("needs a C++ compiler", allow_module_level=True)

ORDER = 4
STRETCH = np.diag([1.01, 1.0, 1.0])
SLABS = {
    "square": (np.diag([3.0, 3, 3]), np.diag([4, 4, 7]), STRETCH),
    "oblique": (
        np.array([[3.0, 0, 0], [1.3, 2.7, 0], [0, 0, 3]]),
        np.array([[4, 0, 0], [1, 4, 0], [0, 0, 6]]),
        STRETCH + np.outer([0, 1, 0], [0.006, 0, 0]),
    ),
}


def slab(vectors, counts):
    """The boxes of a slab with cubes, if its cell is a square."""
    boxes = np.linalg.solve(counts.astype(float), vectors)
    boxes[2] = [0, 0, np.sqrt(boxes[0, 0] * boxes[1, 1])]
    boxes /= boxes[2, 2]
    cell = np.vstack([(counts @ boxes)[:2], [0, 0, np.inf]])
    return PaddedLattice(counts, 1.87, cell=cell, padded=(False, False, True), boxes=boxes)


def in_plane(cell, change):
    """The cell of a slab after a change of its plane."""
    return np.vstack([cell[:2] @ change, cell[2]])


def of(lattice, dtype):
    return Specification(
        lattice, ORDER, 0.0, np.zeros(1), np.zeros((0, 2), np.int64), False, np.dtype(dtype)
    )


def set_up(lattice, dtype):
    """A program that consists of the set-up."""
    b = builder(of(lattice, dtype), DEVICE)
    b.table("offsets", np.pad(nearest_first(lattice), ((0, 0), (0, 1))), np.int32)
    b.macros(**{f"D{k}": length for k, length in enumerate(lattice.fft_shape)})
    setup_tables(b)
    return b.program


@pytest.mark.parametrize(("dtype", "accuracy"), [("float64", 1e-13), ("float32", 1e-6)])
@pytest.mark.parametrize("name", SLABS)
def test_one_program_serves_strained_slabs(name, dtype, accuracy, folder):
    vectors, counts, change = SLABS[name]
    made = slab(vectors, counts)
    moved = made.strained(in_plane(made.cell, change))
    assert mirrored(made) == (name == "square")
    emulator = Emulator(set_up(made, dtype), folder)
    for lattice in (moved, made):
        assert serves(of(made, dtype), of(lattice, dtype))
        emulator.buffers["parameters"][...] = parameter_block(lattice, 1.0)
        emulator.run([SETUP])
        expected = lattice_operator(lattice, ORDER, octant=mirrored(lattice))
        found = emulator.buffers["operator"].reshape(expected.shape) * lattice.size
        for l in range(2 * ORDER + 1):
            terms = slice(l**2, (l + 1) ** 2)
            error = np.abs(found[terms] - expected[terms]).max()
            assert error <= accuracy * np.abs(expected[terms]).max()


def test_thin_slabs_are_built_on_the_host():
    """Their grid has no room for images at a distance."""
    thin = slab(np.diag([3.0, 3, 3]), np.diag([6, 6, 2]))
    moved = thin.strained(in_plane(thin.cell, STRETCH))
    assert built_lattice(thin) is None
    assert serves(of(thin, "float64"), of(thin, "float64"))
    assert not serves(of(thin, "float64"), of(moved, "float64"))
