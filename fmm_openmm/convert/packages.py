"""Conversion of the systems of other packages by way of an ``openmm.System``.

A package is imported only when its converter is called. Each function returns the keyword
arguments of :class:`fmm_openmm.ChargeSystem`, where its arguments are documented.
"""

import importlib
import os

import numpy as np
import openmm
from openmm import app, unit

from fmm_openmm.boundary import Boundary
from fmm_openmm.checks import check_charges, check_integer
from fmm_openmm.convert.cells import is_no_cell, reduced, standard_orientation
from fmm_openmm.convert.openmm_system import (
    charges_of_bonds,
    charges_of_system,
    charges_of_topology,
)
from fmm_openmm.convert.orientation import free_directions

NM_PER_ANGSTROM = 0.1


def require(module: str, extra: str):
    """The imported optional package.

    Raises:
        ImportError: naming the extra to install.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{module} is needed here: pip install 'fmm_openmm[{extra}]' ({error})"
        ) from error


def _check_type(name: str, value, *classes) -> None:
    if not isinstance(value, classes):
        wanted = " or ".join(f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in classes)
        raise TypeError(f"`{name}` must be {wanted}, got {type(value).__name__}")


def from_mdtraj(trajectory, charges_or_forcefield, frame: int = 0, bonds=None) -> dict:
    """See :meth:`fmm_openmm.ChargeSystem.from_mdtraj`."""
    mdtraj = require("mdtraj", "mdtraj")
    _check_type("trajectory", trajectory, mdtraj.Trajectory)
    frame = check_integer(frame, "frame", -trajectory.n_frames, trajectory.n_frames - 1)
    cells = trajectory.unitcell_vectors
    positions, box = _turned(
        trajectory.xyz[frame].astype(np.float64),
        None if cells is None else cells[frame],
        "trajectory.unitcell_vectors",
    )
    if _is_forcefield(charges_or_forcefield):
        if bonds is not None:
            raise ValueError(
                "`bonds` go with charges: a force field has its own rule for exclusions"
            )
        topology = trajectory.topology.to_openmm()
        topology.setPeriodicBoxVectors(None if box is None else reduced(box) * unit.nanometer)
        found = charges_of_topology(topology, charges_or_forcefield, positions)
        return found if found["box_vectors"] is None else found | {"box_vectors": box}
    charges = _charges(charges_or_forcefield, trajectory.n_atoms)
    return charges_of_bonds(
        charges, _bonds(trajectory.topology) if bonds is None else bonds, positions, box
    )


def _turned(
    positions: np.ndarray, cell: np.ndarray | None, name: str
) -> tuple[np.ndarray, np.ndarray | None]:
    """Positions, shape (n, 3), nm, and cell in OpenMM's orientation; None if there is none."""
    if is_no_cell(cell):
        return positions, None
    box, rotation = standard_orientation(cell, name)  # type: ignore[arg-type]
    return positions @ rotation, box


def _bonds(topology) -> list[tuple[int, int]]:
    """Bonds of an ``mdtraj.Topology``, which has them only for residues that MDTraj knows."""
    bonds = [(bond.atom1.index, bond.atom2.index) for bond in topology.bonds]
    bonded = set().union(*bonds)
    for atom in topology.atoms:
        # alone in its residue it has nothing to exclude
        if atom.index not in bonded and atom.residue.n_atoms > 1:
            raise ValueError(
                f"`trajectory` has no bond of {atom}, atom {atom.index}, to exclude pairs by: give "
                "a force field in place of charges, or pass `bonds`, [] where there are none"
            )
    return bonds


def _is_forcefield(value) -> bool:
    if isinstance(value, (list, tuple)) and len(value):
        return isinstance(value[0], (str, os.PathLike))
    return isinstance(value, (str, os.PathLike)) or hasattr(value, "createSystem")


def _charges(values, n: int) -> np.ndarray:
    charges = check_charges(values, "charges_or_forcefield")
    if charges.shape != (n,):
        raise ValueError(
            f"`charges_or_forcefield` must have shape (n,) with n = {n}, got {charges.shape}"
        )
    return charges


def from_parmed(structure) -> dict:
    """See :meth:`fmm_openmm.ChargeSystem.from_parmed`."""
    parmed = require("parmed", "parmed")
    _check_type("structure", structure, parmed.Structure)
    if any(atom.atom_type is parmed.UnassignedAtomType for atom in structure.atoms):
        raise ValueError(
            "`structure` has no parameters: load it with its topology, as "
            "parmed.load_file(top, xyz=...), or call load_parameters(...) of a CharmmPsfFile"
        )
    _check_gromacs_exclusions(structure)
    system = openmm.System()
    for atom in structure.atoms:
        if isinstance(atom, parmed.topologyobjects.DrudeAtom):
            raise ValueError(
                f"`structure` holds the Drude particle {atom.name} of {atom.residue.name} "
                f"{atom.residue.idx}, atom {atom.idx}, whose exclusions ParmEd does not know: make "
                "its System by openmm.app.CharmmPsfFile and give that to ChargeSystem.from_openmm"
            )
        if isinstance(atom, parmed.ExtraPoint) and atom.parent is None:
            raise ValueError(
                f"`structure` has no bond of the extra point {atom.name} of {atom.residue.name} "
                f"{atom.residue.idx}, atom {atom.idx}, to exclude pairs by: give its System to "
                "ChargeSystem.from_openmm, or add the bond"
            )
        system.addParticle(atom.mass)
    box = None if structure.box is None else structure.box_vectors.value_in_unit(unit.nanometer)
    if is_no_cell(box):
        forces = structure.omm_nonbonded_force(nonbondedMethod=app.NoCutoff)
    else:
        box, _ = standard_orientation(box, "structure.box")  # type: ignore[arg-type]
        system.setDefaultPeriodicBoxVectors(*reduced(box))
        forces = structure.omm_nonbonded_force(nonbondedMethod=app.PME)
    # the others hold Lennard-Jones by other rules
    system.addForce(forces[0] if isinstance(forces, tuple) else forces)
    found = charges_of_system(system, structure.positions)
    if found["box_vectors"] is not None:
        found["box_vectors"] = box
    pairs = found["exclusions"]
    # ParmEd pairs extra points with themselves, too
    return {**found, "exclusions": pairs[pairs[:, 0] != pairs[:, 1]]}


def _check_gromacs_exclusions(structure) -> None:
    """Refuse a GROMACS topology whose exclusions are not the pairs within three bonds: ParmEd reads
    the section ``exclusions`` and ``nrexcl``, but leaves them out where it assembles the
    molecules."""
    present = {residue.name for residue in structure.residues}
    for name, (molecule, nrexcl) in getattr(structure, "molecules", {}).items():
        if present.isdisjoint(residue.name for residue in molecule.residues):
            continue
        for atom in molecule.atoms:
            bonded = _within_bonds(atom, 3)
            wanted = _within_bonds(atom, nrexcl) | set(atom._exclusion_partners)
            for other in wanted - bonded:
                raise ValueError(
                    f"`structure` lacks exclusions of {name}, such as that of {atom.name} and "
                    f"{other.name}, which ParmEd does not keep: read the topology by "
                    "openmm.app.GromacsTopFile, and give its System to ChargeSystem.from_openmm"
                )
            for other in bonded - wanted:
                raise ValueError(
                    f"`structure` excludes pairs of {name}, such as {atom.name} and {other.name}, "
                    f"that interact by `nrexcl` {nrexcl}, which ParmEd does not keep: make a "
                    "ChargeSystem of charges, positions, box vectors and the right exclusions"
                )


def _within_bonds(atom, number: int) -> set:
    """An atom of ParmEd and those at most a number of bonds away."""
    found = {atom}
    for _ in range(number):
        found |= {partner for each in found for partner in each.bond_partners}
    return found


def from_mdanalysis(universe, bonds=None) -> dict:
    """See :meth:`fmm_openmm.ChargeSystem.from_mdanalysis`."""
    mdanalysis = require("MDAnalysis", "mdanalysis")
    _check_type("universe", universe, mdanalysis.Universe, mdanalysis.AtomGroup)
    check_lengths(universe.universe.trajectory)
    atoms = universe.atoms
    try:
        charges = atoms.charges
    except AttributeError as error:
        raise ValueError(
            "`universe` has no charges: load a topology that has them, or add them"
        ) from error
    others = 0
    if bonds is None:
        try:
            pairs = _bonds_around(atoms)
        except AttributeError as error:
            raise ValueError(
                "`universe` has no bonds: pass `bonds`, [] where there are none"
            ) from error
        _check_bonds(atoms, charges, pairs)
        outside = np.setdiff1d(pairs, atoms.indices)
        others = len(outside)
        places = np.full(universe.universe.atoms.n_atoms, -1)
        places[atoms.indices] = np.arange(atoms.n_atoms)
        places[outside] = atoms.n_atoms + np.arange(others)
        bonds = places[pairs]
    cell = cell_of_timestep(universe.universe.trajectory.ts, "universe.dimensions")
    positions = atoms.positions.astype(np.float64) * NM_PER_ANGSTROM
    positions, box = _turned(positions, cell, "universe.dimensions")
    return charges_of_bonds(charges, bonds, positions, box, others)


def _bonds_around(atoms) -> np.ndarray:
    """The bonds of an ``MDAnalysis.AtomGroup`` over which three bonds lead from one of its atoms to
    another, also through atoms outside the group, shape (m, 2)."""
    around = np.union1d(atoms.indices, atoms.bonds.indices)
    return atoms.universe.atoms[around].bonds.indices


def check_lengths(reader) -> None:
    """Refuse a reader of MDAnalysis, or a slice of one, that has not converted lengths to Angstrom;
    accept whatever else.

    Raises:
        ValueError: its file has another unit.
    """
    reader = getattr(reader, "trajectory", reader)
    if getattr(reader, "convert_units", True):
        return
    length = reader.units.get("length")
    if length not in (None, "A", "Angstrom"):
        raise ValueError(
            f"MDAnalysis must convert lengths from {length} to Angstrom: leave out "
            "`convert_units=False`"
        )


def cell_of_timestep(step, name: str) -> np.ndarray | None:
    """The cell of a timestep of MDAnalysis, shape (3, 3), nm; None if it has none.

    Raises:
        ValueError: no cell has its lengths and angles, for which MDAnalysis gives zeros.
    """
    if step.dimensions is None:
        return None
    cell = NM_PER_ANGSTROM * np.asarray(step.triclinic_dimensions, np.float64)
    if not cell.any():
        raise ValueError(f"`{name}` must span a positive volume, got {step.dimensions.tolist()}")
    return cell


def _check_bonds(atoms, charges, pairs) -> None:
    """Refuse charges of an ``MDAnalysis.AtomGroup`` that have no bond and are not alone in their
    residue: topologies often lack bonds of virtual sites, and PDB files have only a few. Refuse
    Drude particles, too, which CHARMM excludes as their parents and not by bonds."""
    types = atoms.types.tolist() if hasattr(atoms, "types") else []
    if "DRUD" in types:
        place = types.index("DRUD")
        raise ValueError(
            f"`universe` holds the Drude particle {getattr(atoms[place], 'name', '')}, atom "
            f"{place}, whose exclusions do not follow from bonds: make its System by "
            "openmm.app.CharmmPsfFile and give that to ChargeSystem.from_openmm"
        )
    _, residue, sizes = np.unique(atoms.resindices, return_inverse=True, return_counts=True)
    unknown = (charges != 0) & (sizes[residue] > 1) & ~np.isin(atoms.indices, pairs)
    if unknown.any():
        place = int(np.argmax(unknown))
        atom = atoms[place]
        raise ValueError(
            f"`universe` has no bond of {getattr(atom, 'name', 'the atom')} of "
            f"{getattr(atom, 'resname', 'residue')} {atom.resid}, atom {place}, to exclude pairs "
            "by: pass `bonds`, [] where there are none, or `bonds.indices` of `universe` if none "
            "are missing"
        )


def from_ase(atoms, bonds=()) -> dict:
    """See :meth:`fmm_openmm.ChargeSystem.from_ase`."""
    ase = require("ase", "ase")
    _check_type("atoms", atoms, ase.Atoms)
    if not atoms.has("initial_charges"):
        raise ValueError("`atoms` has no charges: set them with atoms.set_initial_charges(...)")
    charges, positions = atoms.get_initial_charges(), atoms.get_positions() * NM_PER_ANGSTROM
    if not atoms.pbc.any():
        return charges_of_bonds(charges, bonds, positions, None)
    cell = atoms.cell.array * NM_PER_ANGSTROM
    if not atoms.pbc.all():
        cell[~atoms.pbc] = _free_vectors(cell, atoms.pbc)
    box, rotation = standard_orientation(cell, "atoms.cell")
    found = charges_of_bonds(charges, bonds, positions @ rotation, box)
    return {**found, "boundary": Boundary(tuple(atoms.pbc.tolist())).name}


def _free_vectors(cell: np.ndarray, periodic: np.ndarray) -> np.ndarray:
    """Vectors perpendicular to the periodic ones of a cell, in place of the others, shape (k, 3).
    They are as long as the others, or as the longest periodic one in place of zero vectors."""
    lengths = np.linalg.norm(cell, axis=1)
    extents = np.where(lengths > 0, lengths, lengths[periodic].max())[~periodic]
    return free_directions(cell, periodic) * extents[:, None]
