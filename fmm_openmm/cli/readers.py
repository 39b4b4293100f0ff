"""Readers of molecular systems, one for each kind of topology or System."""

import gzip
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from xml.parsers import expat

import numpy as np
import openmm
from openmm import app, unit

from fmm_openmm import ChargeSystem, find_fmm, use_fmm
from fmm_openmm.boundary import OPEN, Boundary
from fmm_openmm.box import check_box_vectors
from fmm_openmm.convert.cells import cell_from_lengths, is_no_cell, reduced
from fmm_openmm.convert.frames import read_frames
from fmm_openmm.convert.openmm_system import default_box, system_of_charges

CONSTRAINTS = {"none": None, "hbonds": app.HBonds, "allbonds": app.AllBonds, "hangles": app.HAngles}

LONGEST_CUTOFF = 0.9
"""Default cutoff, nm; a small box has a shorter one."""

IMPLICIT_SOLVENT = (
    "an implicit solvent is for free space: give --boundary open in place of the box, or leave out "
    "its force field file"
)
"""Message that refuses an implicit solvent in a box."""


@dataclass
class Molecules:
    """A molecular system read from files.

    Attributes:
        system: the System; its default box belongs to the positions.
        positions: shape (n, 3) float64, nm.
        topology: the topology.
        velocities: shape (n, 3), nm/ps; None if no file contains them.
    """

    system: openmm.System
    positions: np.ndarray
    topology: app.Topology
    velocities: np.ndarray | None = None


def listed(paths) -> str:
    """Return the names of files as text: "a, b and c"."""
    *others, last = map(str, paths)
    return f"{', '.join(others)} and {last}" if others else last


@contextmanager
def reading(*paths):
    """Turn any exception of a parser within a ``with`` block into a ``ValueError`` that names the
    files."""
    try:
        yield
    except Exception as error:
        names = listed(paths)
        if isinstance(error, UnicodeDecodeError):
            raise ValueError(f"cannot read {names}: not a text file") from error
        if isinstance(error, expat.ExpatError):
            raise ValueError(f"cannot read {names}: not an XML file ({error})") from error
        if isinstance(error, (IndexError, AttributeError)):  # of parsers that expect another line
            raise ValueError(f"cannot read {names}: no atoms, or cut short") from error
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise ValueError(f"cannot read {names}: {kind}{error}") from error


def _box(args, own, boundary: Boundary | None = None, trajectory: Path | None = None):
    """Return the box vectors, nm, reduced: those of ``--box``, else those of the file (``own``),
    else those of the first frame of a trajectory, else None, as with ``--boundary open``.

    Args:
        boundary: boundary of the System, where ``--boundary`` does not give another.
    """
    if named := getattr(args, "boundary", None):
        boundary = Boundary.from_name(named)
    if named == "open":
        if args.box is not None:
            raise ValueError("--box has no meaning with --boundary open: leave one of them out")
        own = trajectory = None
    if args.box is None:
        box = None if own is None else np.array(own.value_in_unit(unit.nanometer))
        if is_no_cell(box) and trajectory:
            frame = next(read_frames(trajectory), None)
            box = None if frame is None else frame.box_vectors
        if box is not None and not is_no_cell(box):
            return _reduced(box, boundary)
        for name in ("cutoff", "switch"):
            if getattr(args, name) is not None:
                raise ValueError(
                    f"--{name} has no meaning in free space: leave it out, or give a box with --box"
                )
        return None
    if len(args.box) not in (3, 6) or min(args.box) <= 0:
        raise ValueError(
            f"--box takes three positive lengths in nm, or these and three angles, got {args.box}"
        )
    angles = np.radians(args.box[3:]) if len(args.box) == 6 else [np.pi / 2] * 3
    try:
        box = check_box_vectors(cell_from_lengths(args.box[:3], angles), Boundary(OPEN))
    except ValueError as error:
        raise ValueError(
            f"--box {' '.join(f'{value:g}' for value in args.box)} is no cell: {error}"
        ) from error
    return _reduced(box, boundary)


def _reduced(box: np.ndarray, boundary: Boundary | None) -> np.ndarray:
    """Return box vectors, nm, in the reduced form that OpenMM requires.

    Raises:
        ValueError: the images of a slab or wire would be others.
    """
    found = reduced(box)
    if boundary and not np.allclose(
        boundary.vectors(found), boundary.vectors(reduced(box, periodic=boundary.periodic))
    ):
        raise ValueError(
            f"box vectors {box.round(4).tolist()} cannot be reduced, as OpenMM requires, with "
            f"boundary {boundary.name!r}: a vector of the images would change by one without: make "
            "the latter perpendicular to the former (--box)"
        )
    return found


def usual_cutoff(box: np.ndarray) -> float:
    """Return the default cutoff, nm, in a box with vectors of shape (3, 3), nm."""
    return min(LONGEST_CUTOFF, 0.49 * float(np.diag(box).min()))


def _cutoff(args, box) -> float:
    """Return the cutoff, nm, in a box with vectors of shape (3, 3), nm: by default the usual one.

    Raises:
        ValueError: ``--cutoff`` is longer than OpenMM allows.
    """
    if args.cutoff is None:
        return usual_cutoff(box)
    narrowest = np.diag(box).min()
    if args.cutoff > 0.5 * narrowest:
        raise ValueError(
            "--cutoff is in nm and must be at most half of the smallest box width, "
            f"{narrowest:.4g} nm, got {args.cutoff:g}"
        )
    return args.cutoff


def _method(args, box) -> dict:
    """Return the arguments of ``createSystem`` that all kinds of input share."""
    mass = None if args.hydrogen_mass is None else args.hydrogen_mass * unit.amu
    common = {"constraints": CONSTRAINTS[args.constraints or "hbonds"], "hydrogenMass": mass}
    if box is None:
        return common | {"nonbondedMethod": app.NoCutoff}
    if args.switch is not None:
        common["switchDistance"] = args.switch * unit.nanometer
    cutoff = _cutoff(args, np.array(box)) * unit.nanometer
    return common | {"nonbondedMethod": app.PME, "nonbondedCutoff": cutoff}


def _molecules(system, positions, topology, box) -> Molecules:
    """Return the molecules in their box; positions are a Quantity or numbers in nm."""
    if box is not None:
        system.setDefaultPeriodicBoxVectors(*box)
        topology.setPeriodicBoxVectors(box * unit.nanometer)
    if unit.is_quantity(positions):
        positions = positions.value_in_unit(unit.nanometer)
    return Molecules(system, np.array(positions, dtype=np.float64), topology)


def _structure_file(path: Path):
    name = path.name.lower()
    reader = app.PDBFile if name.removesuffix(".gz").endswith((".pdb", ".ent")) else app.PDBxFile
    with reading(path), gzip.open(path, "rt") if name.endswith(".gz") else open(path) as file:
        structure = reader(file)
    if not len(structure.positions):
        raise ValueError(f"cannot read {path}: no atoms, or cut short")
    return structure


def _coordinates(found, topology):
    """Return positions and box vectors (or None) of the file that contains them.

    Args:
        topology: the atoms, for reading a trajectory.
    """
    if path := found.get("structure"):
        structure = _structure_file(path)
        return structure.positions, structure.topology.getPeriodicBoxVectors()
    if path := found.get("inpcrd"):
        coordinates = parsed("inpcrd", path)
        return coordinates.positions, coordinates.boxVectors
    if path := found.get("crd"):
        with reading(path):
            return app.CharmmCrdFile(str(path)).positions, None
    if path := found.get("gro"):
        coordinates = parsed("gro", path)
        return coordinates.positions, coordinates.getPeriodicBoxVectors()
    path = found["trajectory"]
    frame = next(read_frames(path, topology.getNumAtoms()), None)
    if frame is None:
        raise ValueError(f"{path} has no frames")
    box = None if frame.box_vectors is None else frame.box_vectors * unit.nanometer
    return frame.positions, box


def _read_structure(found, args):
    names = args.forcefield or args.usual_forcefield
    if not names:
        raise ValueError(
            f"{found['structure']} needs --forcefield, "
            "for example amber14-all.xml amber14/tip3p.xml"
        )
    structure = _structure_file(found["structure"])
    own, trajectory = structure.topology.getPeriodicBoxVectors(), found.get("trajectory")
    box = _box(args, own, trajectory=trajectory)
    structure.topology.setPeriodicBoxVectors(None if box is None else box * unit.nanometer)
    with reading(*names):
        forcefield = app.ForceField(*names)
    modeller = app.Modeller(structure.topology, structure.positions)
    method = _method(args, box)
    with refusing_implicit_solvent(box), reading(found["structure"], *names):
        try:
            system = forcefield.createSystem(modeller.topology, **method)
        except ValueError:  # virtual sites or Drude particles may be missing
            modeller.addExtraParticles(forcefield)
            system = forcefield.createSystem(modeller.topology, **method)
    return _molecules(system, modeller.positions, modeller.topology, box)


@contextmanager
def refusing_implicit_solvent(box):
    """Name the options in an error of OpenMM that an implicit solvent does not take PME."""
    try:
        yield
    except ValueError as error:
        if box is None or "implicit solvent" not in str(error):
            raise
        raise ValueError(IMPLICIT_SOLVENT) from error


def _deserialized(path: Path, kind: type):
    made = openmm.XmlSerializer.deserialize(path.read_text())
    if not isinstance(made, kind):
        raise ValueError(f"it holds a {type(made).__name__}, not a {kind.__name__}")
    return made


PARSERS: dict[str, Callable[[Path], Any]] = {
    "system": partial(_deserialized, kind=openmm.System),
    "state": partial(_deserialized, kind=openmm.State),
    "amber": lambda path: app.AmberPrmtopFile(str(path)),
    "inpcrd": lambda path: app.AmberInpcrdFile(str(path)),
    "gro": lambda path: app.GromacsGroFile(str(path)),
    "charmm": lambda path: app.CharmmPsfFile(str(path)),
}
"""Kind of file: its parser, where the file and its ending are sufficient."""


def parsed(kind: str, path: Path):
    """Return what :data:`PARSERS` makes of a file.

    Raises:
        ValueError: the file is not of this kind, or damaged.
    """
    with reading(path):
        return PARSERS[kind](path)


def _read_system(found, args):
    system = parsed("system", found["system"])
    with reading(found["system"]):
        for force in find_fmm(system):
            force.getNumParticles()  # what defines it is read now
    if args.box is not None and not system.usesPeriodicBoundaryConditions():
        raise ValueError(f"--box needs a periodic System, {found['system']} holds one that is not")
    velocities = None
    if "structure" in found:
        topology = _structure_file(found["structure"]).topology
    else:
        topology = _topology_of(system)
    if "state" in found:
        positions, own, velocities = _read_state(found["state"], system)
    else:
        positions, own = _coordinates(found, topology)
    boundaries = [force._definition.boundary for force in find_fmm(system)]
    box = _box(args, own, *boundaries[:1])
    if box is None and system.usesPeriodicBoundaryConditions():
        box = default_box(system)
    molecules = _molecules(system, positions, topology, box)
    molecules.velocities = velocities
    return molecules


def _read_state(path: Path, system: openmm.System):
    """Positions, box vectors and velocities of a State, whose global parameters become the defaults
    of the System."""
    state = parsed("state", path)
    values = dict(state.getParameters()) if state.getDataTypes() & openmm.State.Parameters else {}
    settable = set()
    for force in system.getForces():
        if hasattr(force, "setGlobalParameterDefaultValue"):
            for index in range(force.getNumGlobalParameters()):
                name = force.getGlobalParameterName(index)
                settable.add(name)
                if name in values:
                    force.setGlobalParameterDefaultValue(index, values[name])
    for force in find_fmm(system):
        for index in range(force.getNumGlobalParameters()):
            name, default = (
                force.getGlobalParameterName(index),
                force.getGlobalParameterDefaultValue(index),
            )
            if name not in settable and values.get(name, default) != default:
                raise ValueError(
                    f"{path} has {name} = {values[name]:g}, which an FMMForce of the System has at "
                    f"{default:g}, for good: make the System with the value of the State"
                )
    try:
        positions = state.getPositions(asNumpy=True)
    except openmm.OpenMMException as error:
        raise ValueError(f"{path} holds no positions: save it with positions=True") from error
    try:
        velocities = state.getVelocities(asNumpy=True)._value
    except openmm.OpenMMException:
        velocities = None
    return positions, state.getPeriodicBoxVectors(), velocities


def _topology_of(system: openmm.System) -> app.Topology:
    """A Topology of the particles, each in a residue of its own, since files hold two atoms of the
    same name in a residue to be one."""
    topology = app.Topology()
    chain = topology.addChain()
    for index in range(system.getNumParticles()):
        mass = system.getParticleMass(index)
        element = app.Element.getByMass(mass) if mass._value > 0 else None
        residue = topology.addResidue("SYS", chain)
        topology.addAtom(element.symbol if element else "X", element, residue)
    return topology


def _read_amber(found, args):
    topology = parsed("amber", found["amber"])
    if "crd" in found:  # AMBER's, not CHARMM's
        found = {**found, "inpcrd": found["crd"]}
    positions, box_vectors = _coordinates(found, topology.topology)
    own = topology.topology.getPeriodicBoxVectors()
    own = own if box_vectors is None else box_vectors
    box = _box(args, own, trajectory=found.get("trajectory"))
    method = _method(args, box)
    with reading(found["amber"]):
        topology.topology.setPeriodicBoxVectors(None if box is None else box * unit.nanometer)
        system = topology.createSystem(**method)
    return _molecules(system, positions, topology.topology, box)


def _read_gromacs(found, args):
    def read(box):
        vectors = None if box is None else box * unit.nanometer
        try:
            return app.GromacsTopFile(
                str(found["gromacs"]), periodicBoxVectors=vectors, includeDir=args.include
            )
        except ValueError as error:
            if "#include" not in str(error):
                raise
            raise ValueError(f"{error}: --include DIR names the folder that holds it") from error

    topology = None
    if "gro" not in found:
        with reading(found["gromacs"]):
            topology = read(None).topology
    positions, own = _coordinates(found, topology)
    box = _box(args, own, trajectory=found.get("trajectory"))
    method = _method(args, box)
    with reading(found["gromacs"]):
        topology = read(box)
        system = topology.createSystem(**method)
    return _molecules(system, positions, topology.topology, box)


def _read_charmm(found, args):
    if not args.parameters:
        raise ValueError(
            f"{found['charmm']} needs --parameters, CHARMM's .prm, .rtf and .str files"
        )
    topology = parsed("charmm", found["charmm"])
    positions, own = _coordinates(found, topology.topology)
    box = _box(args, own, trajectory=found.get("trajectory"))
    with reading(*args.parameters):
        parameters = app.CharmmParameterSet(*args.parameters)
    method = _method(args, box)
    with reading(found["charmm"]):
        topology.boxVectors = None if box is None else box * unit.nanometer
        topology.topology.setPeriodicBoxVectors(topology.boxVectors)
        system = topology.createSystem(parameters, **method)
    return _molecules(system, positions, topology.topology, box)


def _read_charges(found, args):
    """Read charges into a System without other interactions and without masses."""
    path = found["charges"]
    charges = ChargeSystem.load(path)
    if charges.positions is None:
        raise ValueError(f"{path} holds no positions")
    own = None if charges.box_vectors is None else charges.box_vectors * unit.nanometer
    box = _box(args, own, Boundary.from_name(charges.boundary))
    system, force = system_of_charges(
        charges.charges, charges.exclusions, charges.exclusions_periodic, box, mass=0.0
    )
    if box is not None:
        force.setCutoffDistance(_cutoff(args, box))
    if box is not None and Boundary.from_name(charges.boundary).is_partial:
        use_fmm(system, boundary=charges.boundary)
    return _molecules(system, charges.positions, _topology_of(system), box)


READERS = {
    frozenset({"structure"}): _read_structure,
    frozenset({"system", "structure"}): _read_system,
    frozenset({"system", "state"}): _read_system,
    frozenset({"system", "state", "structure"}): _read_system,
    frozenset({"system", "trajectory"}): _read_system,
    frozenset({"amber", "inpcrd"}): _read_amber,
    frozenset({"amber", "crd"}): _read_amber,
    frozenset({"amber", "trajectory"}): _read_amber,
    frozenset({"gromacs", "gro"}): _read_gromacs,
    frozenset({"gromacs", "trajectory"}): _read_gromacs,
    frozenset({"charmm", "structure"}): _read_charmm,
    frozenset({"charmm", "crd"}): _read_charmm,
    frozenset({"charmm", "trajectory"}): _read_charmm,
    frozenset({"charges"}): _read_charges,
}

MISSING = {
    "system": "positions: a structure (.pdb, .cif), or an openmm.State (.xml)",
    "state": "the openmm.System (.xml) that it belongs to",
    "amber": "coordinates: .inpcrd, .rst7 or .ncrst",
    "inpcrd": "a topology: AMBER's .prmtop or .parm7",
    "gromacs": "coordinates: .gro",
    "gro": "a topology: GROMACS' .top",
    "charmm": "coordinates: .pdb, .cif or .crd",
    "crd": "a topology: CHARMM's .psf or AMBER's .prmtop",
    "trajectory": "a topology: .prmtop, .psf, .top, or the structure or System that was simulated",
}
"""Kind of file: what must be given with it."""

ALONE = (_read_structure, _read_amber, _read_gromacs, _read_charmm)

USED_BY = {
    "forcefield": (_read_structure,),
    "parameters": (_read_charmm,),
    "include": (_read_gromacs,),
    "cutoff": (*ALONE, _read_charges),
    "switch": ALONE,
    "constraints": ALONE,
}
"""Option: the readers that use it. A System has its own settings."""
