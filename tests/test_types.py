"""What mypy finds in a user's script: wrong keywords, wrong types, attributes that do not exist."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fmm_openmm

SCRIPT = """\
import numpy as np
import openmm
from openmm import app

import fmm_openmm as fmm

pdb = app.PDBFile("protein.pdb")
forcefield = app.ForceField("amber14-all.xml", "amber14/tip3p.xml")
system = forcefield.createSystem(pdb.topology, nonbondedMethod=app.PME)

force = fmm.use_fmm(system, tolerance=1e-4, precision="double", order=8)
fmm.use_fmm(system, tolerence=1e-4)  # call-arg
fmm.use_fmm(system, tolerance="tight")  # arg-type
fmm.FMMForce(order="high")  # arg-type
particles: int = force.getNumParticles()
name: str = force.getNumParticles()  # assignment
force.setForceGroup(3)
force.getNumCharges()  # attr-defined

charges = fmm.ChargeSystem.from_openmm(system, pdb.positions)
solver = charges.solver(tolerance=1e-5, backend="cpu", order=8)
charges.solver(tolerence=1e-5)  # call-arg
charges.solver(order="high")  # arg-type
result = solver.compute(np.zeros((3, 3)), box_vectors=2 * np.eye(3))
solver.compute(None)  # call-overload
pair = fmm.ChargeSystem([1.0, -1.0], positions=[[0.0, 0, 0], [0.3, 0, 0]])
energy: float = result.energy
print(result.forces.shape, result.force)  # attr-defined
print(solver.parameters.order, solver.paramters)  # attr-defined
fmm.CoulombSolver([1.0, -1.0], 2 * np.eye(3), tolerance=1e-3)
fmm.CoulombSolver([1.0, -1.0], 2 * np.eye(3), toleranze=1e-3)  # call-arg

report = fmm.validate(system, pdb.positions, reference="ewald", tolerance=1e-5)
fmm.validate(system, pdb.positions, referenz="ewald")  # call-arg
print(report.summary(), report.passed, report.fmm.force_errors.max())
report.plott()  # attr-defined
fmm.FMMReporter("fmm.csv", 100, particles=[0, 1], parameters=True)
fmm.FMMReporter("fmm.csv", 100, atoms=[0, 1])  # call-arg
for each in fmm.find_fmm(system):
    print(each.getParticleParameters(0), each.getPotentialsInContext(openmm.Context(system)))
fmm.restore_pme(system)
fmm.restore(system)  # attr-defined
"""
"""Behind each line that is wrong the code of mypy's error."""


@pytest.mark.slow
def test_a_users_script(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\nfollow_imports = silent\n[mypy-openmm.*]\nignore_missing_imports = True\n"
        "[mypy-matplotlib.*,numba.*,rich.*]\nfollow_imports = skip\n"  # half of the time
    )
    package = Path(fmm_openmm.__file__).parent
    assert (package / "py.typed").exists()
    # mypy finds an installed package by itself, and refuses a path to it
    path = {} if package.parent.name == "site-packages" else {"MYPYPATH": str(package.parent)}
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-incremental", "script.py"],
        cwd=tmp_path,
        env=os.environ | path,
        capture_output=True,
        text=True,
    )
    found = re.findall(r"script.py:(\d+): error: .*  \[([a-z-]+)\]", done.stdout)
    expected = [
        (str(number), line.rpartition("# ")[2])
        for number, line in enumerate(SCRIPT.splitlines(), 1)
        if "  # " in line
    ]
    assert len(expected) == 15
    assert found == expected, done.stdout + done.stderr
