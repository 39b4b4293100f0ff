"""DCD files, as OpenMM, CHARMM and NAMD write them: a header, and for each frame its cell, if it
has one, and its coordinates, in Angstrom. MDTraj, which reads other files, rounds cells to float32:
those of a barostat then differ in shape.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from fmm_openmm.convert.packages import NM_PER_ANGSTROM

SCALE = np.float32(NM_PER_ANGSTROM)

PS_PER_UNIT = 0.04888821
"""The unit of time of CHARMM."""

HEADER = np.dtype(
    [
        ("size", "i4"), ("kind", "S4"), ("frames", "i4"), ("first", "i4"), ("interval", "i4"),
        ("", "i4", 5), ("fixed", "i4"), ("step", "f4"), ("has_cell", "i4"), ("has_fourth", "i4"),
        ("", "i4", 7), ("version", "i4"), ("end", "i4"), ("title", "i4"),
    ]
)  # fmt: skip
"""The first record, and the size of the second one, a title. Records lie between their sizes."""

PARTICLES = np.dtype([("title", "i4"), ("size", "i4"), ("particles", "i4"), ("end", "i4")])
"""The end of the title, and the third record."""


@dataclass(frozen=True)
class DcdFile:
    """A DCD file.

    Attributes:
        path: its place.
        particles: number of particles.
        dtype: a frame.
        begin: bytes before the first frame.
        first, interval: time of the first frame, and between frames, ps.
    """

    path: Path
    particles: int
    dtype: np.dtype
    begin: int
    first: float
    interval: float

    @classmethod
    def open(cls, path: Path) -> "DcdFile | None":
        """The file; None for those that others have to read: with 64-bit sizes, fixed atoms, a
        fourth coordinate or the header of X-PLOR, or those that are no DCD files."""
        with open(path, "rb") as file:
            start = file.read(HEADER.itemsize)
            order: Any = "<" if start[:1] == b"T" else ">"  # 84
            if len(start) < HEADER.itemsize:
                return None
            header = np.frombuffer(start, HEADER.newbyteorder(order))[0]
            if (header["size"], header["kind"], header["end"]) != (84, b"CORD", 84):
                return None
            file.seek(max(0, header["title"]), 1)
            rest = file.read(PARTICLES.itemsize)
            begin = file.tell()
        if header["fixed"] or header["has_fourth"] or not header["version"]:
            return None
        if len(rest) < PARTICLES.itemsize:
            return None
        title, size, particles, end = np.frombuffer(rest, PARTICLES.newbyteorder(order))[0].tolist()
        if (title, size, end) != (header["title"], 4, 4):
            return None
        records = [("cell", "f8", 6)] if header["has_cell"] else []
        records += [(axis, "f4", particles) for axis in "xyz"]
        sized = (
            ((f"{name} begins", "i4"), (name, *of), (f"{name} ends", "i4")) for name, *of in records
        )
        dtype = np.dtype([field for fields in sized for field in fields]).newbyteorder(order)
        step = float(header["step"]) * PS_PER_UNIT
        first, interval = step * int(header["first"]), step * max(1, int(header["interval"]))
        return cls(path, particles, dtype, begin, first, interval)

    def read(self, stride: int) -> Iterator[tuple[np.ndarray, tuple[float, ...] | None, float]]:
        """Every ``stride``-th frame, but for a last one that is not complete: positions, shape
        (n, 3), nm, float32; lengths a, b and c, nm, and angles alpha, beta and gamma, degrees, or
        None; and time, ps.

        Raises:
            ValueError: the file is damaged.
        """
        frame: Any = np.empty(1, self.dtype)
        memory, fields = frame.view(np.uint8), {name: frame[name][0] for name in frame.dtype.names}
        cell, axes = fields.get("cell"), [fields[axis] for axis in "xyz"]
        expected = [field.nbytes for name, field in fields.items() if " " not in name for _ in "be"]
        offsets = [frame.dtype.fields[name][1] // 4 for name in fields if " " in name]
        numbers = frame.view(self.dtype["x begins"])
        with open(self.path, "rb") as file:
            for number in count(0, stride):
                file.seek(self.begin + number * self.dtype.itemsize)
                if file.readinto(memory) < len(memory):
                    return
                if numbers[offsets].tolist() != expected:
                    raise ValueError(f"frame {number} is damaged")
                positions = np.empty((self.particles, 3), np.float32)
                for axis, coordinates in enumerate(axes):
                    np.multiply(coordinates, SCALE, out=positions[:, axis])
                found = None if cell is None else _cell(*cell.tolist())
                yield positions, found, self.first + number * self.interval


def _cell(a: float, gamma: float, b: float, beta: float, alpha: float, c: float) -> tuple:
    """Lengths, nm, and angles, degrees, of a cell with lengths in Angstrom and angles in degrees or
    their cosines."""
    angles: tuple[float, ...] = (alpha, beta, gamma)
    if max(map(abs, angles)) <= 1.0:
        angles = tuple(math.degrees(math.acos(angle)) for angle in angles)
    return *(length * NM_PER_ANGSTROM for length in (a, b, c)), *angles
