"""Checkpoints, and outputs that a restarted run goes on with: what was written after the checkpoint
is removed, so that they become those of one run."""

import csv
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from openmm import app

from fmm_openmm.cli.readers import parsed, reading
from fmm_openmm.convert.frames import DCD, DCD_COUNTS, DCD_TIMESTEP
from fmm_openmm.units import AKMA_TIME

DCD_COMMENTS = 92
"""Offset in a DCD file of the length of the comments, behind which are the number of atoms and the
frames."""

DCD_LONG = 2**30
"""Number of steps from which on OpenMM may replace the interval in the header by 1."""

SAME_TIMESTEP = 1e-4
"""Largest relative difference of equal time steps."""

XTC_MAGIC = 1995
XTC_ATOMS, XTC_LENGTH = 52, 88
"""Offsets in a frame of an XTC file of what follows the box, and of the length of the coordinates
if they are compressed, which they are for more than nine atoms."""


def keep_rows(path: str, last: int, interval: int, names: list[str]) -> bool:
    """Remove the rows of a log that lie after the step of a checkpoint, from which the run
    continues, and the row of this step if it lies between two samples. Returns whether there is a
    log.

    Args:
        path: path of the log.
        last: step of the checkpoint.
        interval: number of steps between samples.
        names: names of the columns.

    Raises:
        ValueError: the file is not a log with these columns.
    """
    if not Path(path).exists():
        return False
    last -= last % interval > 0
    with open(path, newline="", encoding="utf-8") as file, reading(path):
        rows = list(csv.reader(file))
        if not rows:
            return False
        if rows[0] != names:
            raise ValueError("this is not a log of fmm-openmm run")
        kept = [row for row in rows[1:] if len(row) == len(names) and int(row[0]) <= last]
    with replacing(path) as made, open(made, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([names, *kept])
    return True


@dataclass(frozen=True)
class Continuation:
    """The frames that a restarted run appends to a trajectory.

    Attributes:
        last: step of the checkpoint.
        interval: number of steps between frames.
        timestep: ps.
        atoms: number of atoms.
    """

    last: int
    interval: int
    timestep: float
    atoms: int

    def check_atoms(self, atoms: int) -> None:
        """Refuse a trajectory of another number of atoms."""
        if atoms != self.atoms:
            raise ValueError(f"it has {atoms} atoms, and the System {self.atoms}")

    def check_times(self, interval: int, timestep: float) -> None:
        """Refuse a trajectory with other times between frames, of which a DCD file has one."""
        same = interval == self.interval and abs(timestep / self.timestep - 1) < SAME_TIMESTEP
        if not same and self.last < DCD_LONG:
            raise ValueError(
                f"its frames are {interval} steps of {timestep:.6g} ps apart, for which a DCD file "
                f"has a single value: continue with --interval {interval} --timestep "
                f"{timestep:.6g}, or write to another trajectory"
            )


def keep_frames(path: str, run: Continuation) -> bool:
    """Remove the frames of a trajectory after a checkpoint, also one that was cut short. Returns
    whether any is left.

    Raises:
        ValueError: the file is not a DCD or XTC trajectory, or not one that such frames continue;
            it is unchanged.
    """
    if not Path(path).exists():
        return False
    with reading(path), open(path, "r+b") as file:
        cut = _cut_dcd if path.lower().endswith(".dcd") else _cut_xtc
        try:
            return cut(file, run)
        except struct.error as error:
            raise ValueError("the file is damaged") from error


def _cut_dcd(file, run: Continuation) -> bool:
    """The format is that of :class:`openmm.app.DCDFile`: little-endian, frames of one length."""
    if file.read(8) != struct.pack("<i4s", *DCD):
        raise ValueError("this is not a DCD file that OpenMM wrote")
    count, first, interval = _unpack(file, DCD_COUNTS, "<3i")
    timestep, box = _unpack(file, DCD_TIMESTEP, "<fi")
    (comments,) = _unpack(file, DCD_COMMENTS, "<i")
    (atoms,) = _unpack(file, DCD_COMMENTS + 12 + comments, "<i")
    run.check_atoms(atoms)
    run.check_times(interval, timestep * AKMA_TIME)
    begin, size = DCD_COMMENTS + 20 + comments, 56 * bool(box) + 3 * (8 + 4 * atoms)
    whole = (file.seek(0, os.SEEK_END) - begin) // size
    kept = max(0, min(count, whole, (run.last - first) // max(interval, 1) + 1))
    file.seek(DCD_COUNTS)
    file.write(struct.pack("<i", kept))
    file.truncate(begin + kept * size)
    return kept > 0


def _cut_xtc(file, run: Continuation) -> bool:
    """Frames begin with a number that tells the format, number of atoms and step, and are
    big-endian."""
    end, begin = file.seek(0, os.SEEK_END), 0
    while end - begin > XTC_LENGTH + 4:
        magic, atoms, step = _unpack(file, begin, ">3i")
        if magic != XTC_MAGIC:
            raise ValueError("this is not an XTC file")
        run.check_atoms(atoms)
        following = begin + XTC_ATOMS + 4 + 12 * atoms
        if atoms > 9:
            (length,) = _unpack(file, begin + XTC_LENGTH, ">i")
            following = begin + XTC_LENGTH + 4 + length + -length % 4
        if step > run.last or following > end:
            break
        begin = following
    file.truncate(begin)
    return begin > 0


def _unpack(file, offset: int, form: str) -> tuple:
    file.seek(offset)
    return struct.unpack(form, file.read(struct.calcsize(form)))


@contextmanager
def replacing(path: str) -> Iterator[str]:
    """The name of a file for a ``with`` block to write, which then takes the place of another in
    one go, so that there is always a whole one."""
    made = f"{path}.part"
    yield made
    os.replace(made, path)


def save_checkpoint(simulation: app.Simulation, path: str) -> None:
    """Write or replace the file."""
    save = simulation.saveState if path.lower().endswith(".xml") else simulation.saveCheckpoint
    with replacing(path) as made:
        save(made)


def load_checkpoint(simulation: app.Simulation, path: str) -> None:
    """Load a file written by :func:`save_checkpoint` for the same System.

    Raises:
        ValueError: the file is damaged, or belongs to another System.
    """
    is_state = path.lower().endswith(".xml")
    if is_state:
        parsed("state", Path(path))  # refuses what holds another object
    with reading(path):
        (simulation.loadState if is_state else simulation.loadCheckpoint)(path)
