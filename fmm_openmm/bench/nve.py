"""Energy conservation: drift and residual of the total energy of rigid water in NVE, with FMM and
PME.

Runs use steps of 1 fs from one equilibrated state, in mixed precision on a GPU. Drift is the slope
of a straight line fitted to the total energy after the first fifth of the run; the residual is the
standard deviation from that line.
"""

import copy
from collections.abc import Iterator
from itertools import product

import numpy as np
import openmm
from openmm import unit

from fmm_openmm.bench.systems import (
    BOLTZMANN,
    Sample,
    Size,
    degrees_of_freedom,
    equilibrated,
    nonbonded,
    on_gpu,
    tiled,
    water,
    with_smoothing,
)
from fmm_openmm.integration import use_fmm

EVERY = 5
"""Number of steps between successive energies."""

CONSTRAINTS = 1e-7
"""Relative tolerance of constraints. At 1e-8, which float32 does not resolve, both PME and FMM
drifted by 0.026 kT/ns/dof."""

EQUILIBRATION = 10.0
RELAXATION = 1.0
"""Length of the equilibration of the box, and of its copies with new velocities, ps."""


def sample_of(size: Size) -> Sample:
    """Equilibrated water; copies have velocities of their own."""
    sample = water(size.edge, picoseconds=EQUILIBRATION).sample
    if size.copies == (1, 1, 1):
        return sample
    many = tiled(sample, size.copies)
    return equilibrated(many.system, many.positions, RELAXATION)


def methods(smoothings, orders=(None,), near_radius: float | None = None) -> dict[str, dict | None]:
    """Options of FMM for each of ``smoothings`` and ``orders``, by name; None for PME."""
    found: dict[str, dict | None] = {"PME": None}
    for smoothing, order in product(smoothings, orders):
        name = "FMM" if order is None else f"FMM, order {order}"
        found[with_smoothing(name, smoothing)] = {
            "smoothing": smoothing,
            "order": order,
            "near_radius": near_radius,
        }
    return found


def measure(
    sample: Sample,
    picoseconds: float,
    tolerance: float,
    platform: openmm.Platform,
    cases: dict[str, dict | None],
) -> Iterator[dict]:
    """One row for each of the :func:`methods`: drift in kT/ns/dof, residual in kJ/mol."""
    for method, options in cases.items():
        system = copy.deepcopy(sample.system)
        nonbonded(system).setEwaldErrorTolerance(tolerance)
        if options is not None:
            use_fmm(system, tolerance=tolerance, **options)
        energies = total_energies(sample, system, picoseconds, platform)
        drift, residual = conservation(energies, system, EVERY / 1000.0)
        atoms = len(sample.positions)
        yield {
            "atoms": atoms,
            "tolerance": tolerance,
            "method": method,
            "drift": drift,
            "residual": residual,
        }


def total_energies(
    sample: Sample, system: openmm.System, picoseconds: float, platform: openmm.Platform
) -> np.ndarray:
    """Total energy, kJ/mol, at every :data:`EVERY` steps of a run from the sample's state."""
    integrator = openmm.VerletIntegrator(0.001)
    integrator.setConstraintTolerance(CONSTRAINTS)
    properties = {"Precision": "mixed"} if on_gpu(platform) else {}
    context = openmm.Context(system, integrator, platform, properties)
    context.setPositions(sample.positions)
    context.setVelocities(sample.velocities)
    context.applyConstraints(CONSTRAINTS)
    context.applyVelocityConstraints(CONSTRAINTS)
    energies = []
    for _ in range(round(picoseconds * 1000 / EVERY)):
        integrator.step(EVERY)
        state = context.getState(energy=True)
        total = state.getKineticEnergy() + state.getPotentialEnergy()
        energies.append(total.value_in_unit(unit.kilojoule_per_mole))
    return np.array(energies)


def conservation(
    energies: np.ndarray, system: openmm.System, spacing: float
) -> tuple[float, float]:
    """Drift in kT/ns/dof at 300 K and residual in kJ/mol of energies taken every ``spacing`` ps."""
    energies = energies[len(energies) // 5 :]
    time = np.arange(len(energies)) * spacing
    slope, offset = np.polyfit(time, energies, 1)
    freedom = degrees_of_freedom(system) - 3  # momentum is conserved
    return float(slope * 1000.0 / (BOLTZMANN * 300.0) / freedom), float(
        np.std(energies - slope * time - offset)
    )
