"""Molecular systems from files, whatever ``openmm.app`` reads."""

import argparse
import gzip
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import openmm
from openmm import app, unit
from openmm.app.internal.unitcell import computePeriodicBoxVectors

from fmm_openmm import find_fmm
from fmm_openmm.box import check_box_vectors
from fmm_openmm.convert.cells import is_no_cell

FILES = """\
FILE is one of
  structure.pdb or .cif, also .gz      with --forcefield XML ...
  system.xml + structure.pdb or .cif   an openmm.System, with PME or converted
                                       by use_fmm; positions and box are those
                                       of the structure
  topology.prmtop + .inpcrd or .rst7   AMBER
  topology.top + coordinates.gro       GROMACS; --include DIR for the files of
                                       its force field
  structure.psf + .pdb or .crd         CHARMM; --parameters FILE ..."""

KINDS = {
    ".pdb": "structure",
    ".ent": "structure",
    ".cif": "structure",
    ".pdbx": "structure",
    ".mmcif": "structure",
    ".pdb.gz": "structure",
    ".cif.gz": "structure",
    ".xml": "system",
    ".prmtop": "amber",
    ".parm7": "amber",
    ".inpcrd": "inpcrd",
    ".rst7": "inpcrd",
    ".top": "gromacs",
    ".gro": "gro",
    ".psf": "charmm",
    ".crd": "crd",
    ".cor": "crd",
}

CONSTRAINTS = {"none": None, "hbonds": app.HBonds, "allbonds": app.AllBonds, "hangles": app.HAngles}

LONGEST_CUTOFF = 0.9
"""nm; shorter in a box too small for it."""


@dataclass
class Molecules:
    """What was read.

    Attributes:
        system: its default box is that of the positions.
        positions: shape (n, 3) float64, nm.
        topology: for trajectories.
    """

    system: openmm.System
    positions: np.ndarray
    topology: app.Topology


def add_arguments(parser, option: str | None = None, forcefield: list[str] | None = None) -> None:
    """FILE and everything that says how to read it.

    Args:
        option: of this name in place of positional arguments, and not required.
        forcefield: what a structure is read with where ``--forcefield`` is not given.
    """
    parser.epilog = FILES
    parser.set_defaults(hydrogen_mass=None, usual_forcefield=forcefield)
    group = parser.add_argument_group("input")
    named = {"dest": "files"} if option else {}
    usual = f" (default: {' '.join(forcefield)})" if forcefield else ""
    group.add_argument(
        option or "files", nargs="+" if option else "*", metavar="FILE", help="see below", **named
    )
    group.add_argument(
        "--forcefield",
        nargs="+",
        action="extend",
        metavar="XML",
        help=f"OpenMM force field files{usual}",
    )
    group.add_argument(
        "--parameters", nargs="+", action="extend", metavar="FILE", help="CHARMM parameter files"
    )
    group.add_argument("--include", metavar="DIR", help="where GROMACS force field files are")
    group.add_argument(
        "--box",
        nargs="+",
        type=_length,
        metavar="LENGTH",
        help="periodic box in place of the files' own: three lengths in nm, or these and "
        "three angles in degrees",
    )
    group.add_argument("--cutoff", type=float, help="nm (default: 0.9, or less in a small box)")
    group.add_argument(
        "--switch",
        type=float,
        help="nm, where the Lennard-Jones interaction begins to be switched off",
    )
    group.add_argument(
        "--constraints", choices=CONSTRAINTS, help="default: hbonds, with rigid water"
    )


def _length(text: str) -> float | str:
    """A length; or a FILE that stands behind the lengths, for :func:`gather_files`."""
    if _ending(text):
        return text
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid float value: {text!r}") from None


def gather_files(args, rest: list[str]) -> None:
    """Put into ``args.files`` every FILE of the command line: those among options, and those that
    stand behind the values of an option that takes several.

    Args:
        rest: words that the parser left over.

    Raises:
        ValueError: the command takes no FILE, or needs one and has none.
    """
    if not hasattr(args, "files"):
        if rest:
            raise ValueError(f"{args.command} takes no FILE, got {' '.join(rest)}")
        return
    args.files = [*args.files, *rest]
    for option in ("forcefield", "parameters", "box"):
        values = getattr(args, option, None) or []
        files = [value for value in values if isinstance(value, str) and _is_file(option, value)]
        args.files += files
        if files:
            setattr(args, option, [value for value in values if value not in files] or None)
    if not args.files and args.command != "info":
        raise ValueError(
            f"the following arguments are required: FILE (see fmm-openmm {args.command} --help)"
        )


def _is_file(option: str, value: str) -> bool:
    """Whether a value of the option is a FILE; force fields are XML, and CHARMM's topologies may be
    called .top."""
    return option == "box" or KINDS.get(_ending(value)) not in (None, "system", "gromacs")


def load(args) -> Molecules:
    """The system that the parsed command line names.

    Hydrogens outside rigid water get a mass of ``args.hydrogen_mass``, amu, taken from the heavy
    atom, unless that is None.

    Raises:
        FileNotFoundError, ValueError: a file that is missing, of unknown kind, unreadable, or one
            that does not fit the others.
    """
    found = {}
    for path in map(Path, args.files):
        if not path.is_file():
            raise FileNotFoundError(2, "no such file", str(path))
        if not path.stat().st_size:
            raise ValueError(f"{path} is empty")
        kind = kind_of(path)
        if kind in found:
            raise ValueError(f"{found[kind]} and {path} are of the same kind: give one of them")
        found[kind] = path
    reader = READERS.get(frozenset(found))
    if reader is None:
        raise ValueError(
            f"cannot make a system of {' and '.join(args.files)}: see --help for the combinations"
        )
    for name, readers in USED_BY.items():
        if getattr(args, name) is not None and reader not in readers:
            raise ValueError(
                f"--{name} says nothing about {' and '.join(args.files)}: leave it out"
            )
    if args.cutoff is not None and not 0 < args.cutoff < np.inf:
        raise ValueError(f"--cutoff must be finite and above 0 (nm), got {args.cutoff}")
    cutoff = LONGEST_CUTOFF if args.cutoff is None else args.cutoff
    if args.switch is not None and not 0 < args.switch < cutoff:
        raise ValueError(
            f"--switch must lie between 0 and the cutoff, {cutoff:g} nm, got {args.switch}"
        )
    molecules = reader(found, args)
    if len(molecules.positions) != molecules.system.getNumParticles():
        raise ValueError(
            f"{' and '.join(args.files)} do not fit: {len(molecules.positions)} positions for "
            f"{molecules.system.getNumParticles()} particles"
        )
    return molecules


def kind_of(path: Path) -> str:
    """One of the values of :data:`KINDS`."""
    kind = KINDS.get(_ending(path.name))
    if kind is None:
        raise ValueError(
            f"{path}: unknown kind of file {path.suffix!r}, expected one of {', '.join(KINDS)}"
        )
    if kind == "gromacs" and path.read_bytes().lstrip()[:1] == b"%":  # AMBER uses .top too
        return "amber"
    return kind


def _ending(name: str) -> str | None:
    """The key of :data:`KINDS` that a name ends in."""
    return next((ending for ending in KINDS if name.lower().endswith(ending)), None)


@contextmanager
def reading(*paths):
    """Turns whatever a parser raises on a bad file into one error that names the file."""
    try:
        yield
    except Exception as error:
        names = " and ".join(map(str, paths))
        if isinstance(error, IndexError):  # of parsers that do not ask whether there is a line
            raise ValueError(f"cannot read {names}: no atoms, or cut short") from error
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise ValueError(f"cannot read {names}: {kind}{error}") from error


def _box(args, own):
    """The box to use, as vectors in nm: ``--box``, else the file's ``own``, else None."""
    if args.box is None:
        box = None if own is None else np.array(own.value_in_unit(unit.nanometer))
        if not is_no_cell(box):
            return box
        for name in ("cutoff", "switch"):
            if getattr(args, name) is not None:
                raise ValueError(
                    f"--{name} says nothing in empty space: leave it out, or give a box with --box"
                )
        return None
    if len(args.box) not in (3, 6) or min(args.box) <= 0:
        raise ValueError(
            f"--box takes three positive lengths in nm, or these and three angles, got {args.box}"
        )
    angles = np.radians(args.box[3:]) if len(args.box) == 6 else [np.pi / 2] * 3
    try:
        return check_box_vectors(
            computePeriodicBoxVectors(*args.box[:3], *angles).value_in_unit(unit.nanometer)
        )
    except (ArithmeticError, ValueError) as error:
        raise ValueError(
            f"--box {' '.join(f'{value:g}' for value in args.box)} is no cell: {error}"
        ) from error


def usual_cutoff(box: np.ndarray) -> float:
    """The cutoff, nm, where ``--cutoff`` is not given, in box vectors of shape (3, 3), nm."""
    return min(LONGEST_CUTOFF, 0.49 * float(np.diag(box).min()))


def _method(args, box) -> dict:
    """The arguments of every ``createSystem``."""
    mass = None if args.hydrogen_mass is None else args.hydrogen_mass * unit.amu
    common = {"constraints": CONSTRAINTS[args.constraints or "hbonds"], "hydrogenMass": mass}
    if box is None:
        return common | {"nonbondedMethod": app.NoCutoff}
    cutoff = args.cutoff if args.cutoff is not None else usual_cutoff(np.array(box))
    if args.switch is not None:
        common["switchDistance"] = args.switch * unit.nanometer
    return common | {"nonbondedMethod": app.PME, "nonbondedCutoff": cutoff * unit.nanometer}


def _molecules(system, positions, topology, box) -> Molecules:
    if box is not None:
        system.setDefaultPeriodicBoxVectors(*box)
        topology.setPeriodicBoxVectors(box * unit.nanometer)
    return Molecules(system, np.array(positions.value_in_unit(unit.nanometer)), topology)


def _structure_file(path: Path):
    name = path.name.lower()
    reader = app.PDBFile if name.removesuffix(".gz").endswith((".pdb", ".ent")) else app.PDBxFile
    with reading(path), gzip.open(path, "rt") if name.endswith(".gz") else open(path) as file:
        return reader(file)


def _read_structure(found, args):
    names = args.forcefield or args.usual_forcefield
    if not names:
        raise ValueError(
            f"{found['structure']} needs --forcefield, "
            "for example amber14-all.xml amber14/tip3p.xml"
        )
    structure = _structure_file(found["structure"])
    box = _box(args, structure.topology.getPeriodicBoxVectors())
    if box is not None:
        structure.topology.setPeriodicBoxVectors(box * unit.nanometer)
    with reading(*names):
        forcefield = app.ForceField(*names)
    with reading(found["structure"], *names):
        system = forcefield.createSystem(structure.topology, **_method(args, box))
    return _molecules(system, structure.positions, structure.topology, box)


def _read_system(found, args):
    with reading(found["system"]):
        system = openmm.XmlSerializer.deserialize(found["system"].read_text())
    if not isinstance(system, openmm.System):
        raise ValueError(f"{found['system']} holds a {type(system).__name__}, not a System")
    with reading(found["system"]):
        for force in find_fmm(system):
            force.getNumParticles()  # what defines it is read now
    structure = _structure_file(found["structure"])
    if args.box is not None and not system.usesPeriodicBoundaryConditions():
        raise ValueError(f"--box needs a periodic System, {found['system']} holds one that is not")
    box = _box(args, structure.topology.getPeriodicBoxVectors())
    if box is None and system.usesPeriodicBoundaryConditions():
        box = np.array([vector._value for vector in system.getDefaultPeriodicBoxVectors()])
    return _molecules(system, structure.positions, structure.topology, box)


def _read_amber(found, args):
    path = found.get("inpcrd") or found["crd"]
    with reading(path):
        coordinates = app.AmberInpcrdFile(str(path))
    with reading(found["amber"]):
        topology = app.AmberPrmtopFile(str(found["amber"]))
    own = topology.topology.getPeriodicBoxVectors()
    box = _box(args, own if coordinates.boxVectors is None else coordinates.boxVectors)
    with reading(found["amber"]):
        topology.topology.setPeriodicBoxVectors(None if box is None else box * unit.nanometer)
        system = topology.createSystem(**_method(args, box))
    return _molecules(system, coordinates.positions, topology.topology, box)


def _read_gromacs(found, args):
    with reading(found["gro"]):
        coordinates = app.GromacsGroFile(str(found["gro"]))
    box = _box(args, coordinates.getPeriodicBoxVectors())
    with reading(found["gromacs"]):
        vectors = None if box is None else box * unit.nanometer
        topology = app.GromacsTopFile(
            str(found["gromacs"]), periodicBoxVectors=vectors, includeDir=args.include
        )
        system = topology.createSystem(**_method(args, box))
    return _molecules(system, coordinates.positions, topology.topology, box)


def _read_charmm(found, args):
    if not args.parameters:
        raise ValueError(
            f"{found['charmm']} needs --parameters, CHARMM's .prm, .rtf and .str files"
        )
    if "structure" in found:
        structure = _structure_file(found["structure"])
        positions, own = structure.positions, structure.topology.getPeriodicBoxVectors()
    else:
        with reading(found["crd"]):
            positions, own = app.CharmmCrdFile(str(found["crd"])).positions, None
    box = _box(args, own)
    with reading(*args.parameters):
        parameters = app.CharmmParameterSet(*args.parameters)
    with reading(found["charmm"]):
        vectors = None if box is None else box * unit.nanometer
        topology = app.CharmmPsfFile(str(found["charmm"]), periodicBoxVectors=vectors)
        system = topology.createSystem(parameters, **_method(args, box))
    return _molecules(system, positions, topology.topology, box)


READERS = {
    frozenset({"structure"}): _read_structure,
    frozenset({"system", "structure"}): _read_system,
    frozenset({"amber", "inpcrd"}): _read_amber,
    frozenset({"amber", "crd"}): _read_amber,
    frozenset({"gromacs", "gro"}): _read_gromacs,
    frozenset({"charmm", "structure"}): _read_charmm,
    frozenset({"charmm", "crd"}): _read_charmm,
}

ALONE = (_read_structure, _read_amber, _read_gromacs, _read_charmm)

USED_BY = {
    "forcefield": (_read_structure,),
    "parameters": (_read_charmm,),
    "include": (_read_gromacs,),
    "cutoff": ALONE,
    "switch": ALONE,
    "constraints": ALONE,
}
"""Options by the readers that they are for: a System comes with its own."""
