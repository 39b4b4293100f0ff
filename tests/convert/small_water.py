"""A small box of TIP3P water, made in a moment."""

import numpy as np
import openmm
from openmm import app, unit

BOX = np.diag([1.9, 2.0, 2.1])
FORCE_FIELD = "amber14/tip3p.xml"


def small_water(force_field=FORCE_FIELD, model="tip3p"):
    """768 atoms of flexible water with PME: topology, System, positions (n, 3) in nm, unrelaxed."""
    field = app.ForceField(force_field)
    modeller = app.Modeller(app.Topology(), [] * unit.nanometer)
    modeller.addSolvent(field, model, boxSize=openmm.Vec3(*BOX.diagonal()) * unit.nanometer)
    # rounded to what a PDB file keeps: the same numbers whatever route they take
    positions = np.round(np.array(modeller.positions.value_in_unit(unit.nanometer)), 4)
    system = field.createSystem(
        modeller.topology,
        nonbondedMethod=app.PME,
        nonbondedCutoff=0.9 * unit.nanometer,
        rigidWater=False,
    )
    return modeller.topology, system, positions
