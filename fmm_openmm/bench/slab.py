"""A layer of water. In simulations it lies between vacuum and walls. Single evaluations,
each to the requested tolerance, take it as a slab, as a dense periodic cube, and by PME in a box
with vacuum."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import openmm
from openmm import unit

from fmm_openmm.bench import timing
from fmm_openmm.bench.open import describe
from fmm_openmm.bench.solver import Evaluation, relative_error
from fmm_openmm.bench.systems import (
    CUTOFF,
    Sample,
    fastest_platform,
    in_cell,
    nonbonded,
    tiled,
    water,
)
from fmm_openmm.convert import ChargeSystem
from fmm_openmm.convert.openmm_system import default_box, system_of_charges
from fmm_openmm.dipole_term import DipoleTerm
from fmm_openmm.integration.slab_pme import vacuum_cell

HEIGHT = 3.0
"""Height of the box of a simulation over that of the water in it, which PME needs: its images along
the third vector act on each other (I.-C. Yeh and M. L. Berkowitz, J. Chem. Phys. 111, 3155
(1999))."""

WALL = 1.5
"""Distance of walls from a slab, nm."""

REFERENCE = 1e-2
"""Tolerance of the slab that errors refer to, over the tolerance that is measured."""

SMALLEST_TOLERANCE = 1e-7
"""Tolerance of PME below which it is given up."""


def between_vacuum(sample: Sample) -> Sample:
    """Water as a slab: whole molecules in a new System whose third box vector is :data:`HEIGHT`
    times as long, without long-range corrections, and with walls at a distance :data:`WALL` from
    the slab, which molecules that evaporate do not pass."""
    copy = tiled(sample, (1, 1, 1))
    box, oxygens = default_box(sample.system), np.repeat(np.arange(0, len(sample.positions), 3), 3)
    images = np.floor(sample.positions[oxygens] @ np.linalg.inv(box))
    nonbonded(copy.system).setUseDispersionCorrection(False)
    copy.system.setDefaultPeriodicBoxVectors(*(box * [[1.0], [1.0], [HEIGHT]]))
    distance = "periodicdistance(x, y, z, x, y, middle)"
    walls = openmm.CustomExternalForce(f"1000*max(0, {distance} - farthest)^2")
    walls.addGlobalParameter("middle", box[2, 2] / 2)
    walls.addGlobalParameter("farthest", box[2, 2] / 2 + WALL)
    for particle in oxygens[::3]:
        walls.addParticle(int(particle))
    copy.system.addForce(walls)
    return replace(copy, positions=sample.positions - images @ box)


def measure(edge: float, tolerance: float, backend: str = "auto") -> Iterator[dict]:
    """Rows of a periodic cube of water of the given edge, nm, of the same water as a slab, and of
    the slab by PME: system, atoms, seconds of an evaluation, force error and parameters."""
    base = water(edge)
    charges = base.charges
    slab = ChargeSystem(
        charges.charges,
        charges.positions,
        charges.box_vectors,
        charges.exclusions,
        boundary="slab",
    )
    options = {"backend": backend, "positions": charges.positions}
    exact = Evaluation(slab, tolerance=REFERENCE * tolerance, **options).forces
    for name, system, forces in (("periodic cube", charges, base.exact), ("slab", slab, exact)):
        evaluation = Evaluation(system, tolerance=tolerance, **options)
        yield {
            "system": name,
            "atoms": len(system),
            "seconds": evaluation.seconds(),
            "force_error": relative_error(evaluation.forces, forces),
            "parameters": describe(evaluation.solver.parameters),
        }
    yield pme_with_vacuum(slab, exact, tolerance)


def pme_with_vacuum(slab: ChargeSystem, exact: np.ndarray, tolerance: float) -> dict:
    """The row of PME on the fastest platform of OpenMM, in a box with vacuum and with the
    correction of Yeh and Berkowitz, at the largest of its tolerances that is accurate enough."""
    positions, box_vectors = in_cell(slab)
    cell = vacuum_cell(positions, box_vectors)
    term = DipoleTerm(slab_correction=True).at(positions, cell)
    correction = slab.charges[:, None] * term.evaluate(slab.charges)[2]
    asked = 10 * tolerance
    while True:
        system, force = system_of_charges(slab.charges, slab.exclusions, False, cell)
        force.setCutoffDistance(CUTOFF)
        force.setEwaldErrorTolerance(asked)
        context = openmm.Context(system, openmm.VerletIntegrator(0.001), fastest_platform())
        context.setPositions(positions)

        def evaluate(context=context):
            state = context.getState(forces=True, energy=True)
            return state.getForces(asNumpy=True).value_in_unit(
                unit.kilojoules_per_mole / unit.nanometer
            )

        error = relative_error(evaluate() + correction, exact)
        if error <= tolerance or asked < SMALLEST_TOLERANCE:
            break
        asked /= np.sqrt(10)
    grid = force.getPMEParametersInContext(context)[1:]
    return {
        "system": f"PME, {cell[2, 2]:.1f} nm high",
        "atoms": len(slab),
        "seconds": timing.median_seconds(evaluate),
        "force_error": error,
        "parameters": f"tolerance {asked:.1g}, cutoff {CUTOFF:g} nm, {list(grid)}",
    }
