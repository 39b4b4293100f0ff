"""Without PyTorch."""

import subprocess
import sys

import pytest

WITHOUT = """
import sys
sys.modules["torch"] = None  # which import takes for a package that is not there
try:
    import fmm_openmm.torch
except ImportError as error:
    print(error)
"""


def run(script):
    command = [sys.executable, "-c", script]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


@pytest.mark.slow
def test_one_line_names_the_extra():
    message = run(WITHOUT)
    assert message.startswith("torch is needed here: pip install 'fmm_openmm[torch]'")
    assert len(message.splitlines()) == 1


@pytest.mark.slow
def test_the_package_does_not_import_it():
    script = "import sys, fmm_openmm; fmm_openmm.CoulombSolver; fmm_openmm.use_fmm"
    assert run(f"{script}; print('torch' in sys.modules)") == "False"
