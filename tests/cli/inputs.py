"""Arguments and files that several tests of the command line use."""

import openmm

from tests.convert.small_water import FORCE_FIELD, small_water

WATER = ("water.pdb", "--forcefield", FORCE_FIELD)


def state_of_water(positions=True, velocities=True, system=None):
    """A State of the water, its velocities those of 300 K."""
    _, original, found = small_water()
    context = openmm.Context(
        system or original,
        openmm.VerletIntegrator(0.001),
        openmm.Platform.getPlatformByName("Reference"),
    )
    context.setPositions(found)
    context.setVelocitiesToTemperature(300.0, 1)
    return context.getState(positions=positions, velocities=velocities, parameters=True)


def pdb_with(cell, folder, name):
    """The water with this line in place of its cell."""
    lines = (folder / "water.pdb").read_text().splitlines(keepends=True)
    (folder / name).write_text(
        cell + "".join(line for line in lines if not line.startswith("CRYST1"))
    )
    return name
