"""Frames of trajectories: files, and the objects of MDTraj, MDAnalysis and OpenMM.

Packages are recognised by what their objects offer, and imported only to read a file.
"""

import gzip
import io
import math
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from openmm import app, unit

from fmm_openmm.convert.cells import (
    MIN_VOLUME,
    NO_CELL,
    cell_from_lengths,
    is_no_cell,
    standard_orientation,
)
from fmm_openmm.convert.packages import (
    NM_PER_ANGSTROM,
    cell_of_timestep,
    check_lengths,
    require,
)
from fmm_openmm.units import AKMA_TIME

CHUNK = 16
"""Number of frames of a file in memory at a time."""

DCD = (84, b"CORD")
"""Beginning of a DCD file."""

DCD_COUNTS, DCD_TIMESTEP, DCD_VERSION = 8, 44, 84
"""Offsets in a DCD file of the number of frames, first step and interval; of the time step and,
from CHARMM, the flag of a box; and of CHARMM's version, which is 0 in files of X-PLOR."""

CACHE_BYTES = 2**20
"""Size of the positions of a DCD file in memory at a time."""

IDENTITY = np.eye(3).tolist()

STRUCTURES = {".pdb": app.PDBFile, ".ent": app.PDBFile, ".cif": app.PDBxFile, ".pdbx": app.PDBxFile}
"""Readers of files whose frames are models, by ending; MDTraj reads the others."""

RESTARTS = (".ncrst", ".rst7", ".inpcrd", ".restrt")
"""Files of AMBER with a single frame, of which MDTraj cannot read chunks."""

CRYST1_COLUMNS = ((6, 15), (15, 24), (24, 33), (33, 40), (40, 47), (47, 54))
"""Columns of the lengths, Angstrom, and angles, degrees, in a CRYST1 record."""


class Frame(NamedTuple):
    """A frame of a trajectory.

    Attributes:
        positions: shape (n, 3), nm; an array or a ``Quantity``.
        box_vectors: shape (3, 3), nm, in reduced form or not, as they are in the source; None if it
            has no cell.
        time: ps; None if the source has none.
    """

    positions: Any
    box_vectors: Any = None
    time: float | None = None

    @classmethod
    def from_cell(
        cls, positions: np.ndarray, cell: np.ndarray | None, time: float | None, name: str
    ) -> "Frame":
        """A frame in OpenMM's orientation.

        Args:
            positions: shape (n, 3), nm, float32 or float64.
            cell: any three vectors, shape (3, 3), nm; None or zeros for no cell.
            name: name of the cell, for errors.
        """
        if cell is None:
            return cls(positions, None, time)
        box, rotation = _turned(np.asarray(cell, np.float64).tobytes(), name)
        return cls(positions if rotation is None else positions @ rotation, box, time)


Turned: TypeAlias = tuple[np.ndarray | None, np.ndarray | None]
"""A cell and a rotation; None for no cell, and for no rotation."""


@lru_cache(maxsize=4)
def _turned(cell: bytes, name: str) -> Turned:
    """See :func:`_turn`; frames with the same cell get the same arrays."""
    return _turn(np.frombuffer(cell).reshape(3, 3), name)


def _turn(cell: np.ndarray, name: str) -> Turned:
    """Cell and rotation by :func:`fmm_openmm.convert.cells.standard_orientation`."""
    if is_no_cell(cell):
        return None, None
    box, rotation = standard_orientation(cell, name)
    box.flags.writeable = False
    return box, None if rotation.tolist() == IDENTITY else rotation


def read_frames(source: Any, particles: int | None = None, stride: int = 1) -> Iterator[Frame]:
    """The frames of a trajectory.

    Args:
        source: the path of a file (DCD, XTC, NetCDF and whatever else MDTraj reads without a
            topology; PDB or mmCIF, a model per frame), an ``mdtraj.Trajectory``, a Universe, an
            AtomGroup or a reader of MDAnalysis, an ``openmm.app.PDBFile`` or ``PDBxFile``; or an
            iterable of frames: positions, pairs of positions and box vectors, :class:`Frame`,
            chunks of ``mdtraj.iterload``, or paths of files.
        particles: number of particles, for files that do not tell.
        stride: read every ``stride``-th frame of a file.

    Raises:
        ImportError: a package is not installed.
        ValueError: a file is damaged, or has another number of particles; a cell has no volume; or
            MDAnalysis has not converted lengths to Angstrom.
    """
    if isinstance(source, (str, os.PathLike)):
        yield from _of_file(Path(source), particles, stride)
    elif isinstance(source, (app.PDBFile, app.PDBxFile)):
        yield from _of_structure(source, 1)
    elif _is_mdtraj(source):
        yield from _of_mdtraj(source, "unitcell_vectors")
    elif hasattr(source, "universe"):  # of MDAnalysis
        check_lengths(source.universe.trajectory)
        atoms = source.atoms
        yield from (frame_of_timestep(step, atoms) for step in source.universe.trajectory)
    else:
        check_lengths(source)
        for entry in source:
            yield from _of_entry(entry, particles, stride)


def count_frames(source: Any) -> int | None:
    """Number of frames of a source of :func:`read_frames`; None where it is not known before they
    are read."""
    if isinstance(source, (app.PDBFile, app.PDBxFile)):
        return source.getNumFrames()
    if hasattr(source, "universe"):
        source = source.universe.trajectory
    if not hasattr(source, "__len__") or isinstance(source, str):
        return None
    if isinstance(source, (list, tuple)) and any(map(_holds_frames, source)):
        return None
    return len(source)


def _holds_frames(entry) -> bool:
    """Whether an element of an iterable stands for several frames."""
    return isinstance(entry, (str, os.PathLike)) or _is_mdtraj(entry)


def _is_mdtraj(source) -> bool:
    return hasattr(source, "xyz") and hasattr(source, "unitcell_lengths")


def _of_entry(entry, particles: int | None, stride: int) -> Iterable[Frame]:
    """The frames that an element of an iterable stands for."""
    if isinstance(entry, (str, os.PathLike)):
        return _of_file(Path(entry), particles, stride)
    if isinstance(entry, Frame):
        return [entry]
    if isinstance(entry, tuple):
        return [Frame(*entry)]
    if _is_mdtraj(entry):
        return _of_mdtraj(entry, "unitcell_vectors")
    if hasattr(entry, "triclinic_dimensions"):  # a timestep of MDAnalysis
        return [frame_of_timestep(entry, entry)]
    return [Frame(entry)]


def frame_of_timestep(step, atoms) -> Frame:
    """The present frame of MDAnalysis, in Angstrom.

    Args:
        atoms: an AtomGroup, or the timestep for all atoms.
    """
    positions = atoms.positions.astype(np.float64) * NM_PER_ANGSTROM
    cell = cell_of_timestep(step, "dimensions")
    return Frame.from_cell(positions, cell, float(step.time), "dimensions")


def _of_mdtraj(trajectory, name: str) -> Iterator[Frame]:
    # the cell vectors that MDTraj makes of these take it half the time of reading
    lengths, angles = trajectory.unitcell_lengths, trajectory.unitcell_angles
    cells = repeat((0.0,) * 6) if lengths is None else np.hstack([lengths, angles]).tolist()
    times = trajectory.time.tolist()
    for positions, time, cell in zip(trajectory.xyz, times, cells, strict=False):
        box, rotation = _turned_from_lengths(name, *cell)
        time = None if math.isnan(time) else time
        yield Frame(positions if rotation is None else positions @ rotation, box, time)


@lru_cache(maxsize=4)
def _turned_from_lengths(name: str, a: float, b: float, c: float, *angles: float) -> Turned:
    """See :func:`_turned` and :func:`fmm_openmm.convert.cells.cell_from_lengths`, with angles in
    degrees."""
    if not (a or b or c):
        return None, None
    cell = cell_from_lengths((a, b, c), [*map(math.radians, angles)])
    volume = a * cell.item(1, 1) * cell.item(2, 2)
    if min(a, b, c) > 2 * NO_CELL[0] and volume > MIN_VOLUME * max(a, b, c) ** 3:
        cell.flags.writeable = False  # _turn, which takes longer, would not change it
        return cell, None
    return _turn(cell, name)


def _of_structure(file, stride: int, cells: Sequence[Any] = ()) -> Iterator[Frame]:
    """The models of a structure, in its cell or in ``cells``, one for each model."""
    cell = file.topology.getPeriodicBoxVectors()
    if cell is not None:
        cell = np.array(cell.value_in_unit(unit.nanometer))
    for k in range(0, file.getNumFrames(), stride):
        positions = file.getPositions(asNumpy=True, frame=k).value_in_unit(unit.nanometer)
        own = cells[k] if cells else cell
        yield Frame.from_cell(np.array(positions), own, None, "box of the structure")


def _of_models(reader, path: Path, stride: int) -> Iterator[Frame]:
    """The models of a file, packed by gzip or not."""
    with (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rt") as opened:
        text = opened.read()
    file = reader(io.StringIO(text))
    cells = _cells_of_models(text, f"box of {path}") if reader is app.PDBFile else []
    if cells and len(cells) != file.getNumFrames():
        raise ValueError(
            f"cannot read {path}: of its {file.getNumFrames()} models, which have different CRYST1 "
            f"records, {len(cells)} end with ENDMDL"
        )
    yield from _of_structure(file, stride, cells)


def _cells_of_models(text: str, name: str) -> list[np.ndarray | None]:
    """The cell of each model of a PDB file, where their CRYST1 records differ, as those do that
    GROMACS writes at constant pressure. OpenMM has the last cell alone."""
    record, records = "", []
    for line in text.splitlines():
        if line.startswith("CRYST1"):
            record = line
        elif line.startswith("ENDMDL"):
            records.append(record)
    if len({line[:54] for line in records}) < 2:
        return []
    numbers = [[float(line[slice(*ends)] or 0.0) for ends in CRYST1_COLUMNS] for line in records]
    return [
        _turned_from_lengths(name, *(NM_PER_ANGSTROM * length for length in row[:3]), *row[3:])[0]
        for row in numbers
    ]


def _of_file(path: Path, particles: int | None, stride: int) -> Iterator[Frame]:
    reader = STRUCTURES.get(Path(path.name.lower().removesuffix(".gz")).suffix)
    if reader:
        yield from _of_models(reader, path, stride)
        return
    if not path.is_file():
        raise FileNotFoundError(2, "no such file", str(path))
    if path.suffix.lower() == ".lammpstrj":
        _refuse_scaled(path)
    mdtraj = require("mdtraj", "mdtraj")
    chunks = None
    while True:
        try:
            if chunks is None:
                particles = particles or _count_particles(mdtraj, path)
                read = _read_dcd if path.suffix.lower() == ".dcd" else _read_chunks
                chunks = read(mdtraj, path, particles, stride)
            chunk = next(chunks, None)
        except Exception as error:  # the type depends on the format and on the fault
            number = "" if particles is None else f", for {particles} atoms"
            fault = _other_number(mdtraj, path, particles) or error or type(error).__name__
            raise ValueError(f"cannot read {path}{number}: {fault}") from error
        if chunk is None:
            return
        yield from _of_mdtraj(chunk, f"box of {path}")


def _refuse_scaled(path: Path) -> None:
    """Refuse a dump of LAMMPS whose coordinates are fractions of the box, which MDTraj takes to be
    lengths."""
    with open(path) as file:
        columns = next((line.split() for line in file if line.startswith("ITEM: ATOMS")), [])
    read = next((name for name in ("x", "xs", "xu", "xsu") if name in columns), "")
    if "s" in read:
        raise ValueError(
            f"cannot read {path}: its coordinates {read} are fractions of the box: write it with "
            "`dump_modify ID scale no`, or read it by MDAnalysis"
        )


def _count_particles(mdtraj, path: Path) -> int:
    with mdtraj.open(str(path)) as file:
        found = file.read() if path.suffix.lower() in RESTARTS else file.read(1)
        return found[0].shape[-2]


def _other_number(mdtraj, path: Path, particles: int | None) -> str:
    """What is wrong with a file whose frames have another number of particles; else empty."""
    with suppress(Exception):  # the file is damaged
        found = _count_particles(mdtraj, path)
        if particles not in (None, found):
            return f"its frames have {found}"
    return ""


def _read_chunks(mdtraj, path: Path, particles: int, stride: int) -> Iterator[Any]:
    """Chunks of every ``stride``-th frame of a file: parts of an ``mdtraj.Trajectory``."""
    atoms = _nameless_atoms(mdtraj, particles)
    if path.suffix.lower() in RESTARTS:
        return iter([mdtraj.load(str(path), top=atoms)])
    return mdtraj.iterload(str(path), chunk=CHUNK, stride=stride, top=atoms)


def _read_dcd(mdtraj, path: Path, particles: int, stride: int) -> Iterator[Any]:
    """As :func:`_read_chunks`, from a DCD file, with fewer frames at a time, which stay in the
    cache of a processor until they are used; what ``iterload`` adds to a chunk takes longer than
    three of its frames."""
    count, number = max(1, min(CHUNK, CACHE_BYTES // (12 * particles))), 0
    first, interval = _times_of_dcd(path)
    with mdtraj.open(str(path)) as file:
        while True:
            positions, lengths, angles = file.read(count * stride, stride)
            if not len(positions):
                return
            if positions.shape[1] != particles:
                raise ValueError(f"its frames have {positions.shape[1]}")
            positions *= NM_PER_ANGSTROM
            yield SimpleNamespace(
                xyz=positions,
                unitcell_lengths=lengths if lengths is None else lengths * NM_PER_ANGSTROM,
                unitcell_angles=angles,
                time=first
                + interval * stride * np.arange(number, number := number + len(positions)),
            )


def _times_of_dcd(path: Path) -> tuple[float, float]:
    """Time of the first frame of a DCD file and between frames, ps; NaN if the header has none, or
    only what VMD and MDTraj write into every one."""
    with open(path, "rb") as file:
        header = file.read(88)
    order = next((order for order in "<>" if header[:8] == struct.pack(f"{order}i4s", *DCD)), "")
    if not order or len(header) < 88:
        return np.nan, np.nan
    _, first, interval = struct.unpack_from(f"{order}3i", header, DCD_COUNTS)
    (version,) = struct.unpack_from(f"{order}i", header, DCD_VERSION)
    (timestep,) = struct.unpack_from(f"{order}{'f' if version else 'd'}", header, DCD_TIMESTEP)
    if (first, interval, timestep) == (0, 1, 1.0) or not (interval > 0 and timestep > 0):
        return np.nan, np.nan
    return first * timestep * AKMA_TIME, interval * timestep * AKMA_TIME


def _nameless_atoms(mdtraj, particles: int):
    """A topology of atoms of which nothing is known but their number, as MDTraj needs it to read
    frames. It would make 21,384 atoms in the time that 500 frames take; all of these are one."""
    topology = mdtraj.Topology()
    residue = topology.add_residue("X", topology.add_chain())
    topology.add_atom("X", mdtraj.element.virtual, residue)
    topology._atoms, topology._numAtoms = topology._atoms * particles, particles
    return topology
