"""Every CUDA kernel compiles for every supported architecture, without warnings, within the spill budget. Needs no GPU."""

import re

import pytest

nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="needs CuPy: pip install 'fmm_openmm[cuda13]'")

from fmm_openmm.backends.cuda.source import OPTIONS, kernel_folder, source_of  # noqa: E402

try:
    nvrtc.getVersion()
except RuntimeError as error:
    pytest.skip(f"needs the NVRTC library: {error}", allow_module_level=True)

SPILL_BUDGET = 16  # bytes; outside inner loops on one architecture
STAGES = sorted(path.stem for path in kernel_folder().glob("*.cu"))
FIXED = {"POSITION": "double", "SMOOTHING": 0.05, "ORIGIN": 0.1} | {f"N{k}": 16 for k in range(3)}
FIXED |= {"POSQ": "float", "CORRECTED": 1, "C10": 0, "C20": 1, "C21": 2} | {f"REACH{k}": 3 for k in range(3)}
FIXED |= {"P2M_LANES": 4, "P2P_WARPS": 2, "CONVOLVE_WARPS": 16, "DFT_THREADS": 512, "D0": 14, "D1": 15, "D2": 16}
FIXED |= {"ALPHA": 1.15, "CUT": 13.0, "OPERATOR_WAVES": 64, "OFFSET_TILE": 32}
CHOSEN = ("REAL", "ORDER", "SMOOTHED", "WINDOW", "STAGED", "MINIMUM_IMAGE", "NEAR")
VARIANTS = {
    "float 5": ("float", 5, 0, 448, 1, 0, 81),
    "float 9 smoothed": ("float", 9, 1, 448, 1, 0, 93),
    "double 12 smoothed": ("double", 12, 1, 224, 0, 1, 179),
}
ARCHITECTURES = sorted(set(nvrtc.getSupportedArchs()) & {75, 80, 86, 89, 90, 100, 120})


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_compiles(stage, variant, architecture):
    macros = FIXED | dict(zip(CHOSEN, VARIANTS[variant], strict=True))
    program = nvrtc.createProgram(source_of(stage, macros), f"{stage}.cu", [], [])
    options = [*OPTIONS, f"-arch=sm_{architecture}", "--ptxas-options=-v"]
    try:
        nvrtc.compileProgram(program, options)
    finally:
        log = nvrtc.getProgramLog(program)
    assert "warning" not in log and "error" not in log, log
    spilled = [int(n) for n in re.findall(r"(\d+) bytes spill stores", log)]
    assert spilled, log
    assert max(spilled) <= SPILL_BUDGET, log
