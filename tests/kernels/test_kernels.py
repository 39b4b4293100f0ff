"""Every CUDA kernel compiles for every supported architecture, without warnings, within the spill
budget. Needs no GPU.

Of CUDA 12, which alone knows sm_70, and of CUDA 13: ``pip install 'fmm_openmm[kernels]'`` brings
both compilers.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pytest

from fmm_openmm.backends.cuda import shares
from fmm_openmm.backends.cuda.pairs import lennard_jones
from fmm_openmm.backends.cuda.pairs.lennard_jones import Sites
from fmm_openmm.backends.cuda.pipeline.description import build
from fmm_openmm.backends.cuda.pipeline.groups import build_groups
from fmm_openmm.backends.cuda.pipeline.m2l import ROTATION_SHAPES, rotation_shape
from fmm_openmm.backends.cuda.pipeline.points import build_points
from fmm_openmm.backends.cuda.pipeline.ranks import LatticeShare, RankSizes, build_rank
from fmm_openmm.backends.cuda.pipeline.sets import build_sets
from fmm_openmm.backends.cuda.pipeline.term import Term
from fmm_openmm.backends.cuda.pipeline.virial import azimuth_program
from fmm_openmm.backends.cuda.program import WAITING, Device, Interface, Program, Share
from fmm_openmm.backends.cuda.source import OPTIONS, kernel_files, real_type, source_of
from fmm_openmm.boundary import Boundary
from fmm_openmm.box import BoxLattice, PaddedLattice, counts_matrix
from fmm_openmm.dipole_term import DipoleTerm
from fmm_openmm.implementations import M2L, names
from fmm_openmm.literature import layouts
from fmm_openmm.literature.layouts import Neighbourhood
from fmm_openmm.literature.operators import level
from fmm_openmm.neutralization import Cylinders, Sheets
from fmm_openmm.specification import Specification
from tests import nvrtc
from tests.lennard_jones import force_switch

SPILL_BUDGET = 16  # bytes; outside inner loops on one architecture
ROTATION_SPILL_BUDGET = 512  # of m2l by rotation, whose registers hold as much as they can
STAGES = sorted(kernel_files())
WHOLE = 227 * 1024
CELL = np.array([[2, 0, 0], [0.3, 1.5, 0], [-0.5, 0.6, 1.7]])
SKEWED = BoxLattice.from_cell(CELL, counts_matrix([[8, 0, 0], [1, 6, 0], [-2, 2, 7]]), 2.5)
PADDED = [(PaddedLattice(np.array((6, 8, 10)), 2.5, levels=levels), levels) for levels in (0, 1)]
SLAB = PaddedLattice(
    np.array((6, 8, 10)), 2.5, cell=np.diag([6.0, 8.0, np.inf]), padded=(False, False, True)
)
CUBOID = BoxLattice(np.diag((4, 6, 8)), np.eye(3), 2.5)
PLANES, ALONE, SUMS = (40, 169, 16), (15, 13, 16), (19, 17, 16)
"""Grids that are transformed in planes, by a block each, and by sums."""

NO_PROGRAM = {
    "direct": {"TILE": 128},
    "treecode": {"TILE": 128, "THETA": 0.6, "WALK_THREADS": 64},
    "exchange": {"GIVEN_POSITION": "float", "GIVEN_CHARGE": "double"},
    "examine": {},
}
RANK = RankSizes(
    1,
    2,
    3000,
    first=1000,
    given=900,
    patterns=3,
    partners=6,
    sent=500,
    copies=1500,
    returned=100,
)
WATER = Sites(10_000, 1, 0, 0.9, None, 6.7 * np.eye(3), 1.0, False, 0, 0, 64)
PROTEIN = replace(WATER, number=30_000, types=20, partners=2, switching=0.8)


@dataclass(frozen=True)
class Variant:
    """What programs are made for; these ``lattices``, with their levels, and ``m2l`` come before
    others, ``shared`` is bytes of shared memory for a large grid, and ``sets`` the number of sets
    of charges and what is wanted of them."""

    order: int
    smoothing: float = 0.0
    dtype: type = np.float32
    minimum_image: bool = False
    lattices: Sequence[tuple[BoxLattice, int]] = ()
    m2l: str = "rotation"
    precision: str = "mixed"
    sites: Sites = WATER
    shared: int = WHOLE
    sets: tuple[int, str] = (8, "fields")
    term: Term = field(default_factory=lambda: DipoleTerm(slab_correction=True))

    def specification(self, lattice, levels=0, m2l="rotation"):
        charges, pairs = np.ones(5 * lattice.span.prod()), np.array([[0, 1]])
        return Specification(
            lattice, self.order, self.smoothing, charges, pairs, self.minimum_image, self.dtype,
            levels, m2l
        )  # fmt: skip

    def build(self, lattice, levels=0, m2l="rotation", shared=WHOLE, term=None):
        wanted = self.specification(lattice, levels, m2l)
        interface = Interface(self.precision, len(wanted.charges))
        return build(wanted, Device(32, shared), interface, term=term)

    def rank(self, device):
        wanted = self.specification(SKEWED)
        share = LatticeShare(slice(0, 2), [slice(0, 1), slice(1, 2)], False)
        return build_rank(wanted, device, RANK, Share(100, 200, 100), share, virial=True)

    @cached_property
    def programs(self) -> dict[str, Program]:
        """A program that has it, for every kernel file."""
        device, near = Device(132, WHOLE), Neighbourhood.from_lattice(CUBOID, np.arange(193))
        made = [self.build(lattice, levels) for lattice, levels in self.lattices]
        made += [
            self.build(BoxLattice(np.diag(grid), np.eye(3), 2.5), shared=shared)
            for grid, shared in ((PLANES, self.shared), (ALONE, WHOLE), (SUMS, WHOLE))
        ]
        made += [self.build(CUBOID, 1, m2l) for m2l in (self.m2l, *names(M2L, "cuda"))]
        made += [
            self.build(SKEWED if isinstance(self.term, DipoleTerm) else SLAB, term=self.term),
            self.build(SKEWED),
            self.build(SLAB),
            build_sets(self.specification(SKEWED), device, *self.sets),
            build_sets(self.specification(SKEWED), device, self.sets[0], "matrix"),
            build_groups(self.specification(SKEWED), device, 100),
            build_points(self.specification(SKEWED), device, 1000),
            build(self.specification(SKEWED), device, with_virial=True),
            azimuth_program(self.order, (8, 6, 4), self.dtype),
            self.rank(device),
            lennard_jones.build(self.sites, device, Interface(self.precision, 100_000)),
            shares.build(Interface(self.precision, 100_000), 64),
            level.program("rotation", level.Level(self.order, 4, 1, self.dtype), device),
            *(layouts.program(name, near, self.dtype) for name in layouts.LAYOUTS),
        ]
        return {
            kernel.file: program for program in made[::-1] for kernel in program.kernels.values()
        }


VARIANTS = {
    "float 5": Variant(
        5, m2l="p4", shared=20_000, sets=(8, "potentials"), term=Sheets(np.array([0.0, 9.0]))
    ),
    "float 9 smoothed": Variant(9, 0.05, lattices=[(SKEWED, 0)], sites=PROTEIN),
    "float 7 open": Variant(
        7, 0.05, lattices=PADDED, precision="single", sets=(3, "fields"),
        term=Cylinders(np.array([[0.0, 9.0, 1.0]]), np.zeros(1), Boundary.from_name("wire")),
        sites=replace(WATER, types=50, partners=2, cutoff=None, box_vectors=None),
    ),
    "double 12 smoothed": Variant(
        12, 0.05, np.float64, minimum_image=True, precision="double",
        sites=replace(PROTEIN, deterministic=True),
    ),
}  # fmt: skip
SOME = ("float 9 smoothed", "double 12 smoothed")  # what takes most registers
OTHERS = ("float 5", "float 7 open")
# by version of CUDA and architecture: every variant with both versions; on what is measured on all
# variants, on other architectures what takes most registers, both on the oldest and the newest
CASES = {
    12: {70: SOME, 90: OTHERS},
    13: {
        75: SOME[1:], 80: SOME[:1], 86: SOME[1:], 89: SOME[:1], 90: VARIANTS, 100: SOME[1:],
        120: SOME,
    },
}  # fmt: skip
CASES = [
    (cuda, sm, variant)
    for cuda, all_of_it in CASES.items()
    for sm, variants in all_of_it.items()
    for variant in variants
]


def macros_of(variant, stage):
    """All macros of a kernel file in a variant, those of a program that has it."""
    variant = VARIANTS[variant]
    if stage in NO_PROGRAM:
        return {"REAL": real_type(variant.dtype), "ORDER": variant.order} | NO_PROGRAM[stage]
    macros = variant.programs["gather_sets" if stage == "set_sums" else stage].macros
    # with two blocks a multiprocessor, as they are launched, they spill up to 420 bytes on sm_90
    return macros | ({"BLOCKS": 1} if stage in ("m2l_p4_symmetric", "m2l_p4_parity") else {})


def check(cuda, architecture, stage, macros, budget, folder, monkeypatch):
    """A kernel file compiles without warnings, and none of its functions spills more than the
    budget, bytes."""
    if nvrtc.library(cuda) is None:
        pytest.skip(f"needs {nvrtc.PACKAGES[cuda]}: pip install 'fmm_openmm[kernels]'")
    # what comes from NVRTC's cache, on computers with a GPU, has no log
    monkeypatch.setenv("CUDA_CACHE_DISABLE", "1")
    options = [*OPTIONS, f"-arch=sm_{architecture}", "--ptxas-options=-v"]
    done, log = nvrtc.compiled_once(folder, cuda, source_of(stage, macros), f"{stage}.cu", options)
    assert done, log
    assert "warning" not in log, log
    spilled = [int(n) for n in re.findall(r"(\d+) bytes spill stores", log)]
    assert spilled, log
    assert max(spilled) <= budget, log


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("cuda", "architecture", "variant"), CASES)
def test_compiles(cuda, architecture, variant, stage, folder, monkeypatch):
    budget = ROTATION_SPILL_BUDGET if stage == "m2l_rotation" else SPILL_BUDGET
    check(cuda, architecture, stage, macros_of(variant, stage), budget, folder, monkeypatch)


def test_kernels_wait_before_they_access_memory():
    """Those whose launch may overlap the end of the previous kernel, and no others."""
    entry = r'extern "C" __global__.*?\b(\w+)\((?:[^()]|\([^()]*\))*\) \{\n(.*?)\n\}'
    declared = r"(?:\s*(?:extern )?__shared__ [^;]*;)*\s*wait_for_previous_kernel\(\);"
    waiting = set()
    for path in kernel_files().values():
        code = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
        for name, body in re.findall(entry, code, re.DOTALL):
            if "wait_for_previous_kernel" in body:
                assert re.match(declared, body), name
                waiting.add(name)
    assert waiting == WAITING


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["p2p", "gather"])
@pytest.mark.parametrize("variant", SOME)
@pytest.mark.parametrize(("cuda", "architecture"), [(12, 70), (13, 90), (13, 120)])
def test_stages_with_virial(cuda, architecture, variant, stage, folder, monkeypatch):
    macros = macros_of(variant, stage) | {"VIRIAL": 1}
    check(cuda, architecture, stage, macros, SPILL_BUDGET, folder, monkeypatch)


@pytest.mark.parametrize("stage", ["l2p", "p2p", "gather"])
@pytest.mark.parametrize("variant", SOME)
@pytest.mark.parametrize(("cuda", "architecture"), [(12, 70), (13, 90), (13, 120)])
def test_results_of_a_share_of_the_boxes(cuda, architecture, variant, stage, folder, monkeypatch):
    macros = macros_of(variant, stage) | {"HAS_SHARE": 1}
    check(cuda, architecture, stage, macros, SPILL_BUDGET, folder, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_lennard_jones_of_other_functions(variant, folder, monkeypatch):
    macros = macros_of(variant, "lennard_jones_pairs") | {
        "PAIR_FUNCTIONS": force_switch(1.0, 1.2).source
    }
    check(13, 90, "lennard_jones_pairs", macros, SPILL_BUDGET, folder, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_lennard_jones_without_a_search(variant, folder, monkeypatch):
    """The kernel of the pairs of so many sites that another kernel finds their neighbours."""
    macros = macros_of(variant, "lennard_jones_pairs") | {"SEARCHED": 1}
    check(13, 90, "lennard_jones_pairs", macros, SPILL_BUDGET, folder, monkeypatch)


ROTATION_LAUNCHES = [
    pytest.param(itemsize, order, id=f"{itemsize}-{order}")
    for itemsize, rows in ROTATION_SHAPES.items()
    for order, *_ in rows
]


@pytest.mark.parametrize(("itemsize", "order"), ROTATION_LAUNCHES)
def test_rotation_as_it_is_launched(itemsize, order, folder, monkeypatch):
    """On sm_90, with as many blocks a multiprocessor as are fastest there. Where shared memory has
    room for fewer, no thread has fewer registers."""
    shape, _ = rotation_shape(order, itemsize, WHOLE)
    macros = (
        macros_of("float 5", "m2l_rotation")
        | {"REAL": {4: "float", 8: "double"}[itemsize], "ORDER": order}
        | shape
    )
    check(13, 90, "m2l_rotation", macros, ROTATION_SPILL_BUDGET, folder, monkeypatch)


def test_rotation_needs_shared_memory():
    with pytest.raises(
        MemoryError, match="needs 76096 bytes of shared memory a block, the device has 65536"
    ):
        rotation_shape(20, 8, 64 * 1024)
