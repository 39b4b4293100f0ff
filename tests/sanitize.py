"""The kernels of periodic cells without levels, and the plugin's, under compute-sanitizer; needs an
NVIDIA GPU.

    compute-sanitizer --tool memcheck --error-exitcode 1 python -m tests.sanitize [CASE ...]

Buffers are allocated one by one, so that none hides behind another. Answers are checked against the
reference backend: a case fails also if these are wrong.
"""

import sys
from dataclasses import dataclass

import cupy
import numpy as np

from fmm_openmm.backends.cuda.evaluator import CudaEvaluator
from fmm_openmm.backends.cuda.execute.cupy.executor import Run, current_device
from fmm_openmm.backends.cuda.pipeline.description import build, parameter_block
from fmm_openmm.backends.cuda.program import SETUP, Interface
from fmm_openmm.backends.reference import ReferenceStages
from fmm_openmm.box import BoxLattice, PaddedLattice, box_width, counts_matrix
from fmm_openmm.driver import evaluate
from fmm_openmm.specification import Specification
from fmm_openmm.stages import STAGES
from fmm_openmm.units import COULOMB_CONSTANT

CELLS = {
    "cube": 3 * np.eye(3),
    "skewed": np.array([[2.0, 0, 0], [0.3, 1.5, 0], [-0.5, 0.6, 1.7]]),
    "long": np.diag([12.0, 1, 1]),
}
OBLIQUE_GRID = [[8, 0, 0], [1, 6, 0], [-2, 2, 7]]
ACCURACY = {"float32": 3e-5, "float64": 1e-11}


@dataclass(frozen=True)
class Case:
    """What is evaluated: ``spread`` is the part of the cell, along each axis, that holds the
    particles. Without ``covers_cell`` the grid covers them alone, in a cell that is 16 boxes
    wide for each nm of ``cell``."""

    dtype: str
    grid: object
    order: int
    cell: str = "cube"
    near_radius: float = 1.87
    smoothing: float = 0.0
    particles: int = 500
    spread: float = 1.0
    minimum_image: bool = False
    covers_cell: bool = True
    openmm: str | None = None


CASES = {
    "float": Case("float32", (6, 6, 6), 5),
    "float smoothed": Case("float32", (6, 6, 6), 6, smoothing=0.1),
    "double": Case("float64", (5, 5, 5), 12, near_radius=2.34),
    # staging the operator takes too much
    "skewed": Case("float64", OBLIQUE_GRID, 12, "skewed", 2.5, 0.05, minimum_image=True),
    "skewed float": Case("float32", OBLIQUE_GRID, 6, "skewed", 2.5, 0.05),
    "one particle": Case("float32", (1, 1, 1), 3, particles=1),
    "crowd": Case("float32", (8, 8, 8), 4, smoothing=0.05, particles=2001, spread=0.1),
    "crowd double": Case("float64", (8, 8, 8), 4, particles=1501, spread=0.1),
    "planes": Case("float32", (32, 33, 30), 3, smoothing=0.05),
    "planes double": Case("float64", (22, 27, 32), 3),
    "sums": Case("float32", (17, 19, 23), 3),
    "long": Case("float32", (36, 3, 3), 4, "long"),
    "nearly empty": Case("float32", (4, 5, 3), 5, spread=0.8, covers_cell=False),
    "nearly empty skewed": Case(
        "float64", (4, 5, 3), 5, "skewed", smoothing=0.05, spread=0.8, covers_cell=False
    ),
    "OpenMM single": Case("float32", (6, 6, 6), 4, smoothing=0.05, openmm="single"),
    "OpenMM mixed": Case("float32", OBLIQUE_GRID, 4, "skewed", openmm="mixed"),
    "OpenMM double": Case("float64", (6, 6, 6), 4, openmm="double"),
    "OpenMM nearly empty": Case(
        "float32", (4, 5, 3), 4, smoothing=0.05, spread=0.8, covers_cell=False, openmm="mixed"
    ),
}


class InOpenMM:
    """A program between arrays such as OpenMM's, which hold the particles in another order."""

    def __init__(self, specification: Specification, interface: Interface):
        self.lattice = specification.lattice
        self.run = Run(build(specification, current_device(), interface))

    def evaluate(self, positions, width):
        buffers, n = self.run.buffers, len(positions)
        index = np.random.default_rng(1).permutation(n)
        posq = np.zeros(buffers["posq"].shape)
        posq[:n, :3] = positions[index]
        rounded = posq.astype(buffers["posq"].dtype)
        buffers["posq"].set(rounded)
        buffers["posq_correction"].set((posq - rounded).astype(rounded.dtype))
        buffers["atom_index"].set(np.append(index, np.arange(n, len(posq))).astype(np.int32))
        buffers["force_buffer"].fill(0)
        if "outside" in buffers:
            buffers["outside"].fill(0)
        buffers["parameters"].set(parameter_block(self.lattice, width))
        self.run.queue(SETUP, *STAGES, "export")
        if "outside" in buffers and buffers["outside"].get():
            sys.exit("a particle is said to be outside the boxes")
        forces = np.empty((n, 3))
        forces[index] = buffers["force_buffer"].get()[:, :n].T / 2.0**32
        return forces


def agrees(found, expected, accuracy):
    """Exits if the difference is above ``accuracy``, relative to the whole of ``expected``,
    which is of order 1 or larger."""
    error = np.linalg.norm(found - expected) / (1.0 + np.linalg.norm(expected))
    if not error <= accuracy:
        sys.exit(f"wrong answer: relative error {error:.1e}, not {accuracy:g}")


def run(case: Case) -> None:
    """Evaluations of two shapes of the cell, if it is covered, by the same stages, and the
    charges changed in between."""
    rng = np.random.default_rng(7)
    n, counts = case.particles, counts_matrix(case.grid)
    pairs = np.unique(np.sort(rng.integers(0, n, (n // 2, 2)), 1), axis=0)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    charges = rng.normal(size=n)
    place = (
        rng.uniform(0.0, case.spread, (n, 3))
        + 0.05
        + rng.integers(-1, 2, (n, 3)) * (case.spread == 1.0)
    )
    common = case.order, case.smoothing
    cell = CELLS[case.cell]
    cells = [cell, cell * [[1.0], [1.0], [1.001]]]
    lattices = [BoxLattice.from_cell(cell, counts, case.near_radius) for cell in cells]
    if not case.covers_cell:
        cells, lattices = (
            [counts / 1.0],
            [PaddedLattice(np.diag(counts), case.near_radius, cell=16 * cell)],
        )
    options = pairs, case.minimum_image
    if case.openmm:
        interface = Interface(case.openmm, -(-n // 32) * 32)
        position, width = place @ cells[0], box_width(cells[0], counts)
        specification = Specification(lattices[0], *common, charges, *options, case.dtype)
        stages = InOpenMM(specification, interface)
        expected = evaluate(ReferenceStages(specification), position, width)[1]
        exact = charges[:, None] * expected * (COULOMB_CONSTANT / width**2)
        agrees(stages.evaluate(position, width), exact, 1e-5 if case.openmm == "double" else 1e-3)
        return
    stages = None
    for cell, lattice in zip(cells, lattices, strict=True):
        specification = Specification(lattice, *common, charges, *options, case.dtype)
        if stages is None:
            stages = CudaEvaluator(specification)
        elif not stages.adopt(specification):
            sys.exit("another shape was not adopted")
        stages.set_charges(charges)
        position, width = place @ cell, box_width(cell, counts)
        expected = evaluate(ReferenceStages(specification), position, width)
        for found, exact in zip(stages.evaluate(position, width), expected, strict=True):
            agrees(found, exact, ACCURACY[case.dtype])
        charges = charges[::-1].copy()


def main(names) -> None:
    cupy.cuda.set_allocator(None)
    for name in names or CASES:
        run(CASES[name])
        print(f"{name}: done", flush=True)
    cupy.cuda.Device().synchronize()


if __name__ == "__main__":
    main(sys.argv[1:])
