"""Notes on valid but unusual input, such as an improbable density, printed before the work
begins."""

from pathlib import Path

import numpy as np

from fmm_openmm import ChargeSystem, FMMForce, UnsupportedError, find_fmm
from fmm_openmm.boundary import Boundary
from fmm_openmm.cli import inputs, readers
from fmm_openmm.convert.openmm_system import default_box, nonbonded_force
from fmm_openmm.integration.conversion.original import REACTION_FIELD

DENSITIES = (1.0, 300.0)
"""Bounds of the density, atoms per nm^3, outside which a note questions the unit of the box.
Liquids and solids have 20 to 200, water 100, diamond 176."""


def look(args, molecules: readers.Molecules, terminal) -> dict:
    """Print the notes on a system; return ``boundary`` and ``notes`` for the results.

    Args:
        args: the parsed command line.
        molecules: the system that was read, converted to FMM or not.

    Raises:
        UnsupportedError: the System has no FMMForce and not one NonbondedForce with charges.
    """
    system = molecules.system
    forces = find_fmm(system) or [nonbonded_force(system)]
    boundary = boundary_of(args, forces[0])
    if boundary.is_open:
        notes = [] if getattr(args, "boundary", None) else [_no_box(args)]
    else:
        notes = _box_notes(args, system, boundary)
    if not isinstance(forces[0], FMMForce) and forces[0].getNonbondedMethod() in REACTION_FIELD:
        notes.append(
            f"{_system_files(args)[0]} has a reaction field beyond a cutoff: the interaction here "
            "is the full one, without it"
        )
    if _is_uncharged(system):
        notes.append("all charges are zero: there is no Coulomb interaction")
    for note in notes:
        terminal.say(note)
    if notes:
        terminal.say()
    return {"boundary": "free space" if boundary.is_open else boundary.name, "notes": notes}


def boundary_of(args, force) -> Boundary:
    """Return the boundary of the command line, else that of an FMMForce or NonbondedForce."""
    if name := getattr(args, "boundary", None):
        return Boundary.from_name(name)
    if isinstance(force, FMMForce):
        return force._definition.boundary
    return Boundary((force.usesPeriodicBoundaryConditions(),) * 3)


def _is_uncharged(system) -> bool:
    """Return whether all charges are zero at the defaults of the global parameters."""
    try:
        return not ChargeSystem.from_openmm(system).charges.any()
    except UnsupportedError:  # charges of several forces, which do not add up
        return False


def _system_files(args) -> list[str]:
    return [name for name in args.files if inputs.kind_of(Path(name)) == "system"]


def _no_box(args) -> str:
    if named := _system_files(args):
        return f"no periodic boundary in {named[0]}: free space"
    return f"no periodic box in {readers.listed(args.files)}: free space; set a box with --box"


def _box_notes(args, system, boundary: Boundary) -> list[str]:
    """Return notes on the size of a periodic box."""
    box = default_box(system)
    narrowest, volume = np.diag(box).min(), np.prod(np.diag(box))
    atoms = sum(not system.isVirtualSite(i) for i in range(system.getNumParticles()))
    density, notes = atoms / volume, []
    if boundary.fills_space and not DENSITIES[0] <= density <= DENSITIES[1]:
        notes.append(
            f"{atoms:,} atom{'' if atoms == 1 else 's'} in {volume:.4g} nm^3: {density:.3g} atoms "
            "per nm^3, where liquids and solids have 20 to 200: is the box in nm?"
        )
    cutoff = readers.usual_cutoff(box)
    if args.cutoff is None and not _system_files(args) and cutoff < readers.LONGEST_CUTOFF:
        notes.append(
            f"cutoff shortened to {cutoff:.3g} nm, from {readers.LONGEST_CUTOFF:g} nm: it must be "
            f"less than half of the smallest box width, {narrowest:.4g} nm"
        )
    return notes
