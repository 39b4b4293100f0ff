"""Frames of DCD files, as OpenMM, CHARMM, NAMD and MDTraj write them on little-endian machines.

A file consists of records, each between two integers that tell its length in bytes: "CORD" and 20
integers; a title; the number of particles; and for each frame the cell, unless there is none, and
the coordinates x, y and z of all particles, float32, Angstrom. MDTraj, which rearranges the
coordinates, takes more than twice the time. Variants of the format are left to it.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from pathlib import Path

import numpy as np

from fmm_openmm.convert.packages import NM_PER_ANGSTROM

HEAD = struct.Struct("<i4s20i2i")
"""The first record, and the length of the title."""

PARTICLES = struct.Struct("<2i")
"""Length and contents of the third record, which another length ends."""

FIXED, CELL, FOURTH, VERSION = 8, 10, 11, 19
"""Where the integers of the first record tell the number of fixed particles, whether there are
cells and a fourth coordinate, and the version of CHARMM, which is 0 in files of X-PLOR."""

CELL_BYTES = 48

ENDS = 2
"""Number of words, of four bytes, that tell the length of a record."""


@dataclass(frozen=True)
class DCDLayout:
    """Where a file has its frames.

    Attributes:
        particles: number of particles, n.
        has_cells: whether each frame has a cell.
        start: bytes before the first frame.
    """

    particles: int
    has_cells: bool
    start: int

    @classmethod
    def from_file(cls, path: Path) -> "DCDLayout | None":
        """The layout; None for a variant of the format, or if there is no frame."""
        with open(path, "rb") as file:
            head = file.read(HEAD.size)
            if len(head) < HEAD.size or head[4:8] != b"CORD":
                return None
            length, _, *numbers, _, title = HEAD.unpack(head)
            is_plain = length == 84 and numbers[VERSION] and title >= 0
            if not is_plain or numbers[FIXED] or numbers[FOURTH]:
                return None
            file.seek(title + 4, 1)
            third = file.read(PARTICLES.size)
            if len(third) < PARTICLES.size:
                return None
            made = cls(PARTICLES.unpack(third)[1], bool(numbers[CELL]), file.tell() + 4)
        return made if path.stat().st_size >= made.start + 4 * made.words else None

    @property
    def words(self) -> int:
        """Number of words, of four bytes, of a frame."""
        return self._cell_words + 3 * (self.particles + ENDS)

    @property
    def _cell_words(self) -> int:
        return self.has_cells * (CELL_BYTES // 4 + ENDS)

    def read(self, path: Path, stride: int = 1) -> Iterator[tuple[np.ndarray, bytes]]:
        """Positions of every ``stride``-th frame, shape (n, 3), nm, float32, one component after
        the other in memory, and the record of its cell, empty if there is none.

        Raises:
            ValueError: a frame is damaged. One that is cut off is the end of the file.
        """
        first, n = self._cell_words, self.particles
        ends = [0, first - 1] if first else []
        ends += [first + axis * (n + ENDS) + end for axis in range(3) for end in (0, n + 1)]
        lengths = [CELL_BYTES] * (len(ends) - 6) + [4 * n] * 6
        with open(path, "rb") as file:
            file.seek(self.start)
            for number in count(0, stride):
                frame = np.empty(self.words, np.float32)
                if file.readinto(frame) < frame.nbytes:  # type: ignore[arg-type]
                    return
                if frame.view(np.int32)[ends].tolist() != lengths:
                    raise ValueError(f"cannot read {path}: frame {number} is damaged")
                coordinates = frame[first:].reshape(3, n + ENDS)[:, 1:-1]
                coordinates *= NM_PER_ANGSTROM
                yield coordinates.T, frame[1 : first - 1].tobytes() if first else b""
                if stride > 1:
                    file.seek((stride - 1) * frame.nbytes, 1)


@lru_cache(maxsize=4)
def lengths_and_angles(record: bytes) -> list[float]:
    """Lengths a, b, c, nm, and angles alpha, beta, gamma, degrees, of the record of a cell, to the
    float32 that MDTraj rounds them to; zeros if there is none."""
    if not record:
        return [0.0] * 6
    a, gamma, b, beta, alpha, c = np.frombuffer(record).astype(np.float32).tolist()
    angles = [alpha, beta, gamma]
    if all(abs(cosine) <= 1.0 for cosine in angles):
        angles = [90.0 - math.asin(cosine) * 90.0 / (math.pi / 2) for cosine in angles]
    found = np.array([a, b, c, *angles], np.float32)
    found[:3] *= NM_PER_ANGSTROM
    return found.tolist()
