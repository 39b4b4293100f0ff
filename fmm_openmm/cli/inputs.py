"""Molecular systems from files, whatever ``openmm.app`` reads."""

import re
from pathlib import Path

import numpy as np
import openmm

from fmm_openmm.boundary import Boundary
from fmm_openmm.cli.parser import number
from fmm_openmm.cli.readers import (
    ALONE,
    CONSTRAINTS,
    IMPLICIT_SOLVENT,
    LONGEST_CUTOFF,
    MISSING,
    PARSERS,
    READERS,
    USED_BY,
    Molecules,
    listed,
    parsed,
)
from fmm_openmm.integration.conversion.system import IMPLICIT_SOLVENTS

FILES = """\
FILE is one of
  structure.pdb or .cif, also .gz      with --forcefield XML ...
  system.xml + structure.pdb or .cif   an openmm.System, with PME or converted
                                       by use_fmm; positions and box are those
                                       of the structure
  system.xml + state.xml               as above; positions, box, velocities and
                                       global parameters are those of the
                                       openmm.State
  topology.prmtop + .inpcrd or .rst7   AMBER, also .ncrst
  topology.top + coordinates.gro       GROMACS; --include DIR for the files of
                                       its force field
  structure.psf + .pdb or .crd         CHARMM; --parameters FILE ...
  charges.npz                          written by "fmm-openmm convert"; it holds
                                       charges alone: nothing to simulate"""

TRAJECTORY_FILES = """\
One more FILE is the trajectory: .dcd, .xtc or .nc, which the package mdtraj
reads. It gives the positions and, unless --box is given, the boxes; a
coordinate file is not needed then."""

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
    ".ncrst": "inpcrd",
    ".top": "gromacs",
    ".gro": "gro",
    ".psf": "charmm",
    ".crd": "crd",
    ".cor": "crd",
    ".npz": "charges",
    ".dcd": "trajectory",
    ".xtc": "trajectory",
    ".nc": "trajectory",
    ".ncdf": "trajectory",
}


def add_arguments(parser, option: str | None = None, forcefield: list[str] | None = None) -> None:
    """Add FILE and the options for reading it.

    Args:
        option: name of an option that takes the files, in place of required positional arguments.
        forcefield: default of ``--forcefield``.
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
    group.add_argument("--include", metavar="DIR", help="folder of GROMACS force field files")
    group.add_argument(
        "--box",
        nargs="+",
        type=_length,
        metavar="LENGTH",
        help="periodic box, which replaces that of the files: three lengths in nm, optionally "
        "followed by three angles in degrees",
    )
    group.add_argument(
        "--cutoff",
        type=float,
        help="cutoff of the Lennard-Jones interaction and of PME, nm (default: 0.9, or less in a "
        "small box)",
    )
    group.add_argument(
        "--switch",
        type=float,
        help="switching distance of the Lennard-Jones interaction, nm",
    )
    group.add_argument(
        "--constraints",
        choices=CONSTRAINTS,
        help="bonds and angles of fixed length (default: hbonds, with rigid water)",
    )


def _length(text: str) -> float | str:
    """Parse a length; a FILE after the lengths is returned as text, for :func:`gather_files`."""
    return text if _ending(text) else number(text)


def gather_files(args, rest: list[str]) -> None:
    """Collect every FILE of the command line in ``args.files``: those between options, and those
    after the values of an option with several values.

    Args:
        rest: words that the parser has not recognised.

    Raises:
        ValueError: the command takes no FILE, or its FILE is missing.
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
    """Return whether a value of an option is a FILE. Force fields are XML, and CHARMM topologies
    may end in .top."""
    return option == "box" or KINDS.get(_ending(value) or "") not in (None, "system", "gromacs")


def load(args) -> Molecules:
    """Read the system that the parsed command line names.

    Hydrogens outside rigid water get the mass ``args.hydrogen_mass``, amu, taken from the heavy
    atom, unless it is None.

    Raises:
        FileNotFoundError, ValueError: a file is missing, of unknown kind, unreadable, or
            inconsistent with the others; or the command cannot simulate the system.
    """
    found = files_by_kind(args.files)
    if "trajectory" in found and args.command not in ("analyse", "potential"):
        raise ValueError(
            f"{found['trajectory']} is a trajectory: it is for fmm-openmm analyse and potential"
        )
    if "charges" in found and args.command in ("run", "bench"):
        raise ValueError(
            f"{found['charges']} holds charges alone, without masses and other forces: give the "
            "files that it was made from"
        )
    kinds = frozenset(found)
    reader = READERS.get(kinds - {"trajectory"}) or READERS.get(kinds)
    if reader is None and len(found) == 1:
        ((kind, path),) = found.items()
        if kind in PARSERS:
            parsed(kind, path)
        raise ValueError(f"{path} needs {MISSING[kind]} with it")
    if reader is None:
        raise ValueError(
            f"cannot make a system of {listed(args.files)}: see --help for the combinations"
        )
    for name, readers in USED_BY.items():
        if getattr(args, name) is not None and reader not in readers:
            raise ValueError(f"--{name} does not apply to {listed(args.files)}: leave it out")
    if args.cutoff is not None and not 0 < args.cutoff < np.inf:
        raise ValueError(f"--cutoff must be finite and above 0 (nm), got {args.cutoff}")
    cutoff = LONGEST_CUTOFF if args.cutoff is None else args.cutoff
    if args.switch is not None and not 0 < args.switch < cutoff:
        raise ValueError(
            f"--switch must lie between 0 and the cutoff, {cutoff:g} nm, got {args.switch}"
        )
    molecules = reader(found, args)
    forces = molecules.system.getForces()
    if args.command in ("run", "bench") and any(isinstance(f, openmm.DrudeForce) for f in forces):
        raise ValueError(
            "Drude particles need an integrator of their own, which this command does not have: "
            "run openmm.DrudeLangevinIntegrator in a script, after fmm.use_fmm(system)"
        )
    implicit = any(type(force).__name__ in IMPLICIT_SOLVENTS for force in forces)
    periodic = molecules.system.usesPeriodicBoundaryConditions()
    if args.command == "run" and reader in ALONE and periodic and implicit:
        raise ValueError(IMPLICIT_SOLVENT)
    named = getattr(args, "boundary", None)
    if reader in USED_BY["cutoff"] and named not in (None, "open") and not periodic:
        raise ValueError(f"--boundary {named} needs a periodic box: give one with --box")
    if reader in ALONE and named and Boundary.from_name(named).is_partial:
        _disable_long_range_corrections(molecules.system)
    if len(molecules.positions) != molecules.system.getNumParticles():
        raise ValueError(
            f"{listed(args.files)} do not fit: {len(molecules.positions)} positions for "
            f"{molecules.system.getNumParticles()} particles"
        )
    return molecules


def _disable_long_range_corrections(system: openmm.System) -> None:
    """Disable the corrections of a cutoff for particles that fill the box."""
    for force in system.getForces():
        if isinstance(force, openmm.NonbondedForce):
            force.setUseDispersionCorrection(False)
        elif isinstance(force, openmm.CustomNonbondedForce):
            force.setUseLongRangeCorrection(False)


def files_by_kind(names: list[str]) -> dict[str, Path]:
    """Return the files by their kind, one of each.

    Raises:
        FileNotFoundError, ValueError: as :func:`load`.
    """
    found: dict[str, Path] = {}
    for path in map(Path, names):
        if not path.is_file():
            raise FileNotFoundError(2, "no such file", str(path))
        if not path.stat().st_size:
            raise ValueError(f"{path} is empty")
        kind = kind_of(path)
        if kind in found:
            raise ValueError(f"{found[kind]} and {path} are of the same kind: give one of them")
        found[kind] = path
    return found


def kind_of(path: Path) -> str:
    """Return the kind of a file: a value of :data:`KINDS`, or "state".

    Raises:
        ValueError: the kind is unknown.
    """
    kind = KINDS.get(_ending(path.name) or "")
    if kind is None:
        raise ValueError(
            f"{path}: unknown kind of file {path.suffix!r}, expected one of {', '.join(KINDS)}"
        )
    if kind == "gromacs" and path.read_bytes().lstrip()[:1] == b"%":  # AMBER uses .top too
        return "amber"
    if kind == "system" and path.is_file():
        with open(path, "rb") as file:
            root = re.search(rb"<(\w+)", file.read(4096))
        if root and root[1] == b"ForceField":
            raise ValueError(f"{path} is a force field: give it with --forcefield")
        if root and root[1] == b"State":
            return "state"
    return kind


def _ending(name: str) -> str | None:
    """Return the key of :data:`KINDS` with which a name ends."""
    return next((ending for ending in KINDS if name.lower().endswith(ending)), None)
