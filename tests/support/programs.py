"""Programs of the CUDA backend for the tests, and how they are read back."""

import struct
from dataclasses import replace

import numpy as np

from fmm_openmm.backends.cuda import program as p
from fmm_openmm.backends.cuda.abi import MAGIC
from fmm_openmm.backends.cuda.pairs import lennard_jones
from fmm_openmm.backends.cuda.pipeline.description import build
from fmm_openmm.backends.cuda.pipeline.groups import build_groups
from fmm_openmm.backends.cuda.pipeline.ranks import LatticeShare, RankSizes, build_rank
from fmm_openmm.boundary import Boundary
from fmm_openmm.box import BoxLattice, PaddedLattice, counts_matrix
from fmm_openmm.dipole_term import DipoleTerm
from fmm_openmm.distributed.sharing import even_ranges
from fmm_openmm.neutralization import Cylinders, Sheets
from fmm_openmm.specification import Specification

CELL = np.array([[2, 0, 0], [0.3, 1.5, 0], [-0.5, 0.6, 1.7]])


COUNTS = counts_matrix([[8, 0, 0], [1, 6, 0], [-2, 2, 7]])


ROOT = counts_matrix([[3, 0, 0], [0, 2, 0], [-1, 1, 3]])


WHOLE = 227 * 1024


def program(
    order=4, smoothing=0.05, dtype=np.float32, interface=None, span=None, grid=None, shared=WHOLE,
    levels=0, m2l="rotation", virial=False, slab=None, term=None
):  # fmt: skip
    rng = np.random.default_rng(3)
    charges, pairs = rng.normal(size=50), np.array([[0, 1], [4, 7]])
    if grid is not None:
        lattice = BoxLattice(np.diag(grid), np.eye(3), 2.0)
    elif slab:
        cell = np.diag([*map(float, slab[:2]), np.inf])
        lattice = PaddedLattice(np.array(slab), 2.0, cell=cell, padded=(False, False, True))
    elif levels:
        lattice = (
            PaddedLattice(np.array(span), 2.0, levels=levels)
            if span
            else BoxLattice.from_cell(CELL, ROOT << levels, 2.0)
        )
    else:
        lattice = (
            BoxLattice.from_cell(CELL, COUNTS, 2.0)
            if span is None
            else PaddedLattice(np.array(span), 2.0)
        )
    wanted = Specification(lattice, order, smoothing, charges, pairs, False, dtype, levels, m2l)
    return build(wanted, p.Device(132, shared), interface, virial, term=term)


CASES = {
    "float": (4, 0.05, np.float32),
    "double": (9, 0.0, np.float64),
    "open": (4, 0.05, np.float32, None, (7, 6, 9)),
    "mixed in OpenMM": (4, 0.05, np.float32, p.Interface("mixed", 64)),
    "double in OpenMM": (9, 0.0, np.float64, p.Interface("double", 64)),
    "open in OpenMM": (4, 0.05, np.float32, p.Interface("mixed", 64), (7, 6, 9)),
    "slab in OpenMM": (
        4, 0.05, np.float32, p.Interface("mixed", 64), None, None, WHOLE, 0, "rotation", False,
        (7, 6, 9), Sheets(np.array([0.0, 9.0])),
    ),
    "wire in OpenMM": (
        4, 0.05, np.float32, p.Interface("mixed", 64, turned=True), None, None, WHOLE, 0,
        "rotation", False, (7, 6, 9),
        Cylinders(np.array([[0.0, 9.0, 1.0]]), np.zeros(1), Boundary.from_name("wire")),
    ),
    "dipole term in OpenMM": (
        4, 0.05, np.float64, p.Interface("double", 64), None, None, WHOLE, 0, "rotation", False,
        None, DipoleTerm(slab_correction=True),
    ),
    "planes": (4, 0.0, np.float64, None, None, (36, 30, 40)),
    "axes apart": (4, 0.0, np.float32, None, None, (36, 30, 40), 8000),
    "sums along one axis": (4, 0.0, np.float32, None, None, (36, 30, 17)),
    "sums along two": (4, 0.0, np.float32, None, None, (36, 19, 17)),
    "sums along all": (4, 0.0, np.float32, None, None, (23, 19, 17)),
    "lines too long": (1, 0.0, np.float32, None, None, (96, 1, 90), 650),
    "levels": (4, 0.05, np.float32, None, None, None, WHOLE, 2),
    "levels in OpenMM": (20, 0.0, np.float64, p.Interface("double", 64), None, None, WHOLE, 1),
    "levels, open": (4, 0.05, np.float64, None, (4, 8, 12), None, WHOLE, 2, "p4"),
    "levels, dynamic": (4, 0.05, np.float32, None, None, None, WHOLE, 1, "p4_dynamic"),
    "levels, symmetric": (4, 0.0, np.float32, None, None, (4, 6, 8), WHOLE, 1, "p4_symmetric"),
    "levels, parity": (4, 0.0, np.float64, None, None, (4, 6, 8), WHOLE, 1, "p4_parity"),
}  # fmt: skip


SITES = lennard_jones.Sites(300, 2, 4, 0.9, None, 3 * np.eye(3), 1.0, False, 0, 0, 64)


def of_sites(precision="mixed", **changes):
    interface = p.Interface(precision, 320)
    return lennard_jones.build(replace(SITES, **changes), p.Device(132, WHOLE), interface)


def of_rank(rank, span=None, virial=False):
    lattice = PaddedLattice(np.array(span), 2.0) if span else BoxLattice(COUNTS, np.eye(3), 2.0)
    sizes = RankSizes(
        rank, 3, 90, 30, given=40, patterns=3, partners=6, sent=30, copies=70, returned=20
    )
    wanted = Specification(lattice, 4, 0.05, np.empty(0), np.empty((0, 2), int), False, np.float32)
    waves = even_ranges(lattice.fft_shape[2] // 2 + 1, 3)
    share = LatticeShare(slice(1, 1 + rank), waves, span is None)
    return build_rank(wanted, p.Device(132, WHOLE), sizes, p.Share(16, 48, 32), share, virial)


def of_groups(span=None, order=4, dtype=np.float32, shared=WHOLE):
    lattice = PaddedLattice(np.array(span), 2.0) if span else BoxLattice(COUNTS, np.eye(3), 2.0)
    charges, pairs = np.ones(50), np.array([[0, 1], [4, 7]])
    wanted = Specification(lattice, order, 0.05, charges, pairs, False, dtype)
    return build_groups(wanted, p.Device(132, shared), 20)


class Reader:
    """Reads what ``serialise`` writes, by its docstring alone."""

    def __init__(self, data):
        self.data, self.at = data, len(MAGIC)

    def integers(self, count):
        values = struct.unpack_from(f"<{count}q", self.data, self.at)
        self.at += 8 * count
        return values

    def integer(self):
        return self.integers(1)[0]

    def block(self):
        size = self.integer()
        self.at += size
        return self.data[self.at - size : self.at]

    def name(self):
        return self.block().decode()
