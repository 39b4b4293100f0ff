"""Boxes: box vectors, the counts of boxes in a cell, and the lattices of boxes."""

from fmm_openmm.box.frame import Frame
from fmm_openmm.box.grid import box_width, choose_counts, counts_matrix, deformation
from fmm_openmm.box.group import row_cycle
from fmm_openmm.box.lattice import DISTANT, ORIGIN, BoxLattice
from fmm_openmm.box.padded import PaddedLattice
from fmm_openmm.box.stencil import index_grid, near_stencil, within
from fmm_openmm.box.unwrap import unwrap
from fmm_openmm.box.vectors import (
    MAX_STRAIN,
    SAME_SHAPE,
    check_box_vectors,
    check_cell_vectors,
    check_reduced,
    strain,
)

__all__ = [
    "DISTANT",
    "MAX_STRAIN",
    "ORIGIN",
    "SAME_SHAPE",
    "BoxLattice",
    "Frame",
    "PaddedLattice",
    "box_width",
    "check_box_vectors",
    "check_cell_vectors",
    "check_reduced",
    "choose_counts",
    "counts_matrix",
    "deformation",
    "index_grid",
    "near_stencil",
    "row_cycle",
    "strain",
    "unwrap",
    "within",
]
