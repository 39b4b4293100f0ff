"""Every CUDA kernel compiles for every supported architecture, without warnings, within the spill
budget. Needs no GPU.

Of CUDA 12, which alone knows sm_70, and of CUDA 13: ``pip install 'fmm_openmm[kernels]'`` brings
both compilers.
"""

import re

import pytest

from fmm_openmm.backends.cuda.pipeline.m2l import (
    ROTATION_SHAPES,
    rotation_shape,
)
from fmm_openmm.backends.cuda.source import OPTIONS, kernel_files, source_of
from fmm_openmm.literature.operators.mirrored import P4Parity, P4Symmetric, mirrored_shape
from tests import nvrtc
from tests.lennard_jones import force_switch

SPILL_BUDGET = 16  # bytes; outside inner loops on one architecture
ROTATION_SPILL_BUDGET = 512  # of m2l by rotation, whose registers hold as much as they can
STAGES = sorted(kernel_files())
FIXED = {"POSITION": "double", "SMOOTHING": 0.05, "ORIGIN": 0.1, "IMAGES": 1} | {
    f"N{k}": 16 for k in range(3)
}
FIXED |= {"POSQ": "float", "CORRECTED": 1, "C10": 0, "C20": 1, "C21": 2} | {
    f"REACH{k}": 3 for k in range(3)
}
FIXED |= {"LISTED": 40, "REGION": 32, "ORDERED": 0, "P2M_LANES": 2, "L2P_WARPS": 4, "L2P_BOXES": 8}
FIXED |= {
    "CONVOLVE_WARPS": 16,
    "MIRRORED_WARPS": 8,
    "D0": 16,
    "D1": 169,
    "D2": 15,
    "DFT_PITCH": 15,
    "DFT_PAIRS": 2,
}
FIXED |= {"DFT_COLUMNS0": 16, "DFT_COLUMNS1": 16}
FIXED |= {"TILE": 128, "THETA": 0.6, "WALK_THREADS": 64}
FIXED |= {"UNIT": 8.0, "M2L_WARPS": 2, "BLOCKS": 4, "PARTS_EVEN": 2, "PARTS_ODD": 1}
FIXED |= {
    "STRIDE": 32,
    "TRANSLATE_BOXES": 16,
    "TRANSLATE_THREADS": 256,
    "M2L_ADD_WARPS": 8,
    "APART": 1,
}
FIXED |= {f"ROOT{k}": 2 for k in range(3)} | {"ROOT10": 1, "ROOT20": 0, "ROOT21": -1}
FIXED |= {"PASS_TARGETS": 4, "PASS_WARPS": 4, "COPY_WARPS": 8, "COPY_BOXES": 16}
FIXED |= {"ALPHA": 1.15, "CUT": 13.0, "OPERATOR_WAVES": 64, "OFFSET_TILE": 32}
CHOSEN = (
    "REAL",
    "ORDER",
    "SMOOTHED",
    "WINDOW",
    "STAGED",
    "MINIMUM_IMAGE",
    "NEAR",
    "PADDED",
    "DFT_ROWS",
    "DFT_THREADS",
)
CHOSEN += ("MIRRORED", "MIRRORED_WAVES", "ROTATED")
VARIANTS = {
    "float 5": ("float", 5, 0, 448, 1, 0, 81, 0, 1, 1024, 1, 8, 0),
    "float 9 smoothed": ("float", 9, 1, 448, 1, 0, 93, 0, 169, 1024, 0, 8, 1),
    "float 7 open": ("float", 7, 1, 448, 1, 0, 57, 1, 169, 1024, 1, 8, 0),
    "double 12 smoothed": ("double", 12, 1, 224, 0, 1, 179, 0, 169, 512, 1, 4, 1),
}
WATER = {
    "LIMITED": 1,
    "PERIODIC": 1,
    "PARTNERS": 0,
    "SWITCHED": 0,
    "TYPES": 1,
    "PAIR_LANES": 16,
    "DETERMINISTIC": 0,
    "LIST_BLOCKS": 4,
    "HALF": 0,
}
WATER |= {"CUTOFF": 0.9, "SWITCHING": 0.8, "ENERGY_TYPE": "double"}
PROTEIN = WATER | {"PARTNERS": 1, "SWITCHED": 1, "TYPES": 20, "PAIR_LANES": 32, "HALF": 1}
LENNARD_JONES = {
    "float 5": WATER,
    "float 9 smoothed": PROTEIN,
    "float 7 open": WATER
    | {
        "LIMITED": 0,
        "PERIODIC": 0,
        "PARTNERS": 1,
        "TYPES": 50,
        "ENERGY_TYPE": "float",
        "LIST_BLOCKS": 3,
    },
    "double 12 smoothed": PROTEIN
    | {"DETERMINISTIC": 1, "HALF": 0, "POSQ": "double", "LIST_BLOCKS": 2},
}
MIRRORED = {
    "m2l_matrices": (1,),
    "m2l_p4_symmetric": P4Symmetric.abreast,
    "m2l_p4_parity": P4Parity.abreast,
}
SOME = ("float 9 smoothed", "double 12 smoothed")  # what takes most registers
# by version of CUDA and architecture; all variants on the oldest,
# the newest and what is measured on
CASES = {
    12: {70: VARIANTS, 90: SOME[:1]},
    13: {75: SOME, 80: SOME, 86: SOME, 89: SOME, 90: VARIANTS, 100: SOME, 120: VARIANTS},
}
CASES = [
    (cuda, sm, variant)
    for cuda, all_of_it in CASES.items()
    for sm, variants in all_of_it.items()
    for variant in variants
]


def macros_of(variant, stage):
    """All macros of a kernel file in a variant."""
    macros = FIXED | dict(zip(CHOSEN, VARIANTS[variant], strict=True))
    padded = macros.pop("PADDED")
    macros |= {f"PADDED{k}": padded for k in range(3)}
    of = macros["ORDER"], {"float": 4, "double": 8}[macros["REAL"]]
    # with two blocks a multiprocessor, as they are launched, they spill up to 420 bytes on sm_90
    if stage in MIRRORED:
        macros |= mirrored_shape(*of, MIRRORED[stage]) | {"BLOCKS": 1}
    if stage == "m2l_rotation":
        macros |= rotation_shape(*of, 227 * 1024)[0]
    return macros | (LENNARD_JONES[variant] if stage.startswith("lennard_jones") else {})


def check(cuda, architecture, stage, macros, budget, monkeypatch):
    """A kernel file compiles without warnings, and none of its functions spills more than the
    budget, bytes."""
    compiler = nvrtc.library(cuda)
    if compiler is None:
        pytest.skip(f"needs {nvrtc.PACKAGES[cuda]}: pip install 'fmm_openmm[kernels]'")
    # what comes from NVRTC's cache, on computers with a GPU, has no log
    monkeypatch.setenv("CUDA_CACHE_DISABLE", "1")
    options = [*OPTIONS, f"-arch=sm_{architecture}", "--ptxas-options=-v"]
    done, log = nvrtc.compiled(compiler, source_of(stage, macros), f"{stage}.cu", options)
    assert done, log
    assert "warning" not in log, log
    spilled = [int(n) for n in re.findall(r"(\d+) bytes spill stores", log)]
    assert spilled, log
    assert max(spilled) <= budget, log


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("cuda", "architecture", "variant"), CASES)
def test_compiles(cuda, architecture, variant, stage, monkeypatch):
    budget = ROTATION_SPILL_BUDGET if stage == "m2l_rotation" else SPILL_BUDGET
    check(cuda, architecture, stage, macros_of(variant, stage), budget, monkeypatch)


@pytest.mark.parametrize("variant", VARIANTS)
def test_lennard_jones_of_other_functions(variant, monkeypatch):
    macros = macros_of(variant, "lennard_jones_pairs") | {
        "PAIR_FUNCTIONS": force_switch(1.0, 1.2).source
    }
    check(13, 90, "lennard_jones_pairs", macros, SPILL_BUDGET, monkeypatch)


@pytest.mark.parametrize(
    ("itemsize", "order"),
    [(size, row[0]) for size, rows in ROTATION_SHAPES.items() for row in rows],
)
@pytest.mark.parametrize(("architecture", "shared"), [(80, 163), (86, 99), (90, 227), (100, 227)])
def test_rotation_as_it_is_launched(itemsize, order, architecture, shared, monkeypatch):
    """With as many blocks a multiprocessor as are fastest on sm_90."""
    shape, _ = rotation_shape(order, itemsize, shared * 1024)
    macros = (
        macros_of("float 5", "m2l_rotation")
        | {"REAL": {4: "float", 8: "double"}[itemsize], "ORDER": order}
        | shape
    )
    check(13, architecture, "m2l_rotation", macros, ROTATION_SPILL_BUDGET, monkeypatch)


def test_rotation_needs_shared_memory():
    with pytest.raises(
        MemoryError, match="needs 76096 bytes of shared memory a block, the device has 65536"
    ):
        rotation_shape(20, 8, 64 * 1024)
