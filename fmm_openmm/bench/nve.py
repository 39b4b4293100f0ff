"""Energy conservation: drift and residual of the total energy of rigid water in NVE, FMM beside PME.

``python -m fmm_openmm.bench.nve`` prints a Markdown table. Drift is the slope of a straight line through the total energy
after the first fifth of the run, in kT per nanosecond and degree of freedom; the residual is the standard deviation
around that line.
"""

import argparse
import copy
import json
from dataclasses import asdict, dataclass

import numpy as np
import openmm
from openmm import unit

from fmm_openmm.bench.systems import Sample, fastest_platform, water_box
from fmm_openmm.integration import use_fmm

TOLERANCES = (5e-4, 1e-4, 1e-5)


@dataclass(frozen=True)
class Conservation:
    """Result of one run: drift in kT/ns/dof, residual in kJ/mol."""

    method: str
    tolerance: float
    drift: float
    residual: float


def total_energies(sample: Sample, system: openmm.System, picoseconds: float, every: int = 5) -> np.ndarray:
    """Total energy in kJ/mol every so many steps of 1 fs, from the sample's positions and velocities."""
    integrator = openmm.VerletIntegrator(0.001)
    integrator.setConstraintTolerance(1e-8)
    context = openmm.Context(system, integrator, fastest_platform())
    context.setPositions(sample.positions)
    context.setVelocities(sample.velocities)
    context.applyConstraints(1e-8)
    context.applyVelocityConstraints(1e-8)
    energies = []
    for _ in range(round(picoseconds * 1000 / every)):
        integrator.step(every)
        state = context.getState(energy=True)
        total = state.getKineticEnergy() + state.getPotentialEnergy()
        energies.append(total.value_in_unit(unit.kilojoule_per_mole))
    return np.array(energies)


def conservation(energies: np.ndarray, system: openmm.System, spacing: float) -> tuple[float, float]:
    """Drift in kT/ns/dof at 300 K and residual in kJ/mol of energies taken every ``spacing`` ps."""
    energies = energies[len(energies) // 5 :]
    time = np.arange(len(energies)) * spacing
    slope, offset = np.polyfit(time, energies, 1)
    massive = sum(system.getParticleMass(i)._value > 0 for i in range(system.getNumParticles()))
    freedom = 3 * massive - system.getNumConstraints() - 3
    thermal = unit.MOLAR_GAS_CONSTANT_R.value_in_unit(unit.kilojoule_per_mole / unit.kelvin) * 300.0
    return slope * 1000.0 / thermal / freedom, float(np.std(energies - slope * time - offset))


def measure(sample: Sample, picoseconds: float, tolerances=TOLERANCES):
    """One :class:`Conservation` for PME and for FMM with and without smoothing, at every tolerance."""
    every = 5
    for tolerance in tolerances:
        for method, options in (("PME", None), ("FMM, no smoothing", {"smoothing": 0.0}), ("FMM", {})):
            system = copy.deepcopy(sample.system)
            nonbonded = next(f for f in system.getForces() if isinstance(f, openmm.NonbondedForce))
            nonbonded.setEwaldErrorTolerance(tolerance)
            if options is not None:
                use_fmm(system, tolerance=tolerance, **options)
            energies = total_energies(sample, system, picoseconds, every)
            yield Conservation(method, tolerance, *conservation(energies, system, every / 1000.0))


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(prog="python -m fmm_openmm.bench.nve", description=__doc__.splitlines()[0])
    parser.add_argument("--edge", type=float, default=3.0, help="box length, nm (default 3)")
    parser.add_argument("--time", type=float, default=5.0, help="length of each run, ps (default 5)")
    parser.add_argument("--json", metavar="FILE", help="write the results here as well")
    options = parser.parse_args(arguments)
    sample = water_box(options.edge, picoseconds=10.0)
    print(f"{len(sample.positions)} atoms, {options.time:g} ps, platform {fastest_platform().getName()}\n")
    print("| tolerance | method | drift, kT/ns/dof | residual, kJ/mol |\n|---|---|---|---|")
    results = []
    for result in measure(sample, options.time):
        results.append(asdict(result))
        print(f"| {result.tolerance:g} | {result.method} | {result.drift:+.4f} | {result.residual:.3f} |", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
