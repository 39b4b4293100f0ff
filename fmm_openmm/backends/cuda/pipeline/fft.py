"""Fourier transforms of the stage lattice: from moments to their spectra, and from local spectra
to local expansions."""

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from fmm_openmm.backends.cuda.pipeline.builder import Builder
from fmm_openmm.backends.cuda.program import At

LARGEST_PRIME = 13
"""Largest prime factor of a length that ``kernels/common/dft_lines.cuh`` transforms; other lengths
are left to sums."""

WHOLE_BYTES = 110_000
"""Largest grid, in shared memory, that a block transforms alone: larger ones are better spread
over the device."""

COLUMNS = 16
"""Columns a block transforms, where they fit."""

BUTTERFLY = 6
"""Values a thread holds at a time, roughly."""

THREADS = 128
"""A block that transforms columns or sums, and the smallest of the others."""

MOST_THREADS = 8192
"""Largest block, times the bytes of a complex value: as its registers allow."""


@dataclass(frozen=True)
class Fourier:
    """The division of the Fourier transform of a program's grids into kernels. A block transforms a
    whole grid if it fits into shared memory. Otherwise planes of the last two axes are transformed,
    then columns of the first; or each axis separately, if planes do not fit; or by plain sums, if a
    line does not.

    Attributes:
        terms: number of grids.
        shape: theirs.
        itemsize: bytes of a complex value.
        shared: bytes of shared memory a block may have.
    """

    terms: int
    shape: tuple[int, int, int]
    itemsize: int
    shared: int

    @classmethod
    def from_builder(cls, b: Builder, grids: int | None = None) -> "Fourier":
        """The transform of a builder's grids, or of so many of them, after adding its macros, its
        kernels and the table of roots of unity, powers of e^(2 pi i / D) for each axis, to the
        program."""
        grids = b.terms * b.sets if grids is None else grids
        self = cls(grids, b.root.fft_shape, b.complex.itemsize, b.device.shared)
        b.table(
            "roots",
            np.concatenate([np.exp(2j * np.pi * np.arange(d) / d) for d in self.shape]),
            b.complex,
        )
        b.macros(**{f"D{axis}": length for axis, length in enumerate(self.shape)})
        b.macros(**{f"DFT_COLUMNS{axis}": self.columns(axis) for axis in (0, 1)})
        b.macros(
            GRIDS=self.terms,
            DFT_ROWS=self.rows,
            DFT_PITCH=self.pitch,
            DFT_PAIRS=self.pairs,
            DFT_THREADS=self.threads,
        )
        if self.whole:
            b.stage("lattice", "dft", forward=self.whole_bytes, inverse=self.whole_bytes)
            return self
        if self.rows:
            planes = self.pairs * self.row_bytes * self.rows
            b.stage("lattice", "dft_planes", forward_planes=planes, inverse_planes=planes)
        for axis in filter(self.columns, self.apart):
            columns = self.columns(axis) * self.shape[axis] * self.itemsize
            b.stage(
                "lattice",
                "dft_columns",
                **{f"forward{axis}": columns, f"inverse{axis}": columns},
            )
        if self.sums or not self.rows:
            b.stage("lattice", "dft_sums", sums=0, sums_forward=0, sums_inverse=0)
        return self

    @property
    def half(self) -> tuple[int, int, int]:
        """Shape of a spectrum."""
        return (*self.shape[:2], self.shape[2] // 2 + 1)

    @property
    def pitch(self) -> int:
        """Values that a row takes in shared memory, see ``kernels/common/dft_plane_pairs.cuh``."""
        length = self.shape[2]
        return (length + length // 16 if length % 32 == 0 else length) | 1

    @property
    def row_bytes(self) -> int:
        return self.pitch * self.itemsize

    @property
    def whole_bytes(self) -> int:
        """Bytes of shared memory for a whole grid, as pairs of planes and as half a spectrum."""
        return (self.shape[0] + 1) // 2 * self.shape[1] * self.row_bytes + prod(
            self.half
        ) * self.itemsize

    @cached_property
    def whole(self) -> bool:
        """Whether a block transforms a whole grid."""
        return all(map(composed, self.shape)) and self.whole_bytes <= min(self.shared, WHOLE_BYTES)

    @cached_property
    def rows(self) -> int:
        """Number of rows of a plane that are transformed together along the last two axes; 1 if
        only the last axis is transformed; 0 if that is done by sums."""
        for rows in (self.shape[1], 1):
            if composed(rows) and composed(self.shape[2]) and rows * self.row_bytes <= self.shared:
                return rows
        return 0

    @property
    def threads(self) -> int:
        """Threads of a block that transforms a whole grid or planes."""
        most = MOST_THREADS // self.itemsize
        if self.whole:
            return most // 2
        wanted = self.rows * self.shape[2] // BUTTERFLY
        return min(max(-(-wanted // 32) * 32, THREADS), most)

    @property
    def pairs(self) -> int:
        """Pairs of planes that a block transforms: enough to keep its threads busy."""
        wanted = BUTTERFLY * self.threads // max(1, self.rows * self.shape[2])
        return max(1, min(wanted, self.shared // max(1, self.rows * self.row_bytes)))

    @property
    def apart(self) -> list[int]:
        """The axes among the first two along which columns are transformed."""
        return [
            axis
            for axis in (0, 1)
            if self.shape[axis] > 1 and (axis == 0 or self.rows < self.shape[1])
        ]

    def columns(self, axis: int) -> int:
        """Columns a block transforms along an axis; 0 if there are none, or by sums."""
        fitting = self.shared // (self.shape[axis] * self.itemsize)
        return min(COLUMNS, fitting) if axis in self.apart and composed(self.shape[axis]) else 0

    @property
    def sums(self) -> list[int]:
        """The axes among the first two along which columns are transformed by sums, from one buffer
        to another."""
        return [axis for axis in self.apart if not self.columns(axis)]

    def forward(self, b: Builder, moments: str | At = "moments") -> None:
        """Queue the transform of ``moments`` to "spectrum", with "local_spectrum" for
        intermediate results."""
        if self.whole:
            b.launch("forward", self.terms, self.threads, "roots", moments, "spectrum")
            return
        here = "local_spectrum" if len(self.sums) % 2 else "spectrum"
        self._last_axes(b, "forward", moments, here, self.half)
        for axis in reversed(self.apart):
            here = self._columns(b, "forward", axis, here)

    def inverse(self, b: Builder, local: str | At = "local") -> None:
        """Queue the inverse transform of "local_spectrum" to ``local``, with "spectrum" for
        intermediate results."""
        if self.whole:
            b.launch("inverse", self.terms, self.threads, "roots", "local_spectrum", local)
            return
        here = "local_spectrum"
        for axis in self.apart:
            here = self._columns(b, "inverse", axis, here)
        self._last_axes(b, "inverse", here, local, self.shape)

    def _last_axes(
        self,
        b: Builder,
        direction: str,
        source: str | At,
        target: str | At,
        result: tuple[int, int, int],
    ) -> None:
        """The real part, along the last axes; ``result``: shape of what comes out."""
        if self.rows:
            pairs = (prod(self.shape[:2]) // self.rows + 1) // 2 * self.terms
            b.launch(
                f"{direction}_planes",
                -(-pairs // self.pairs),
                self.threads,
                "roots",
                source,
                target,
            )
        else:
            blocks = -(-self.terms * prod(result) // THREADS)
            b.launch(
                f"sums_{direction}",
                blocks,
                THREADS,
                At("roots", sum(self.shape[:2])),
                source,
                target,
            )

    def _columns(self, b: Builder, direction: str, axis: int, here: str) -> str:
        """The complex part, along one of the first axes of a spectrum; where the result is."""
        values, length = self.terms * prod(self.half), self.shape[axis]
        if columns := self.columns(axis):
            b.launch(f"{direction}{axis}", -(-values // (length * columns)), THREADS, "roots", here)
            return here
        there = "spectrum" if here == "local_spectrum" else "local_spectrum"
        sizes = (
            np.int32(length),
            np.int32(prod(self.half[axis + 1 :])),
            np.int32(1 if direction == "inverse" else -1),
        )
        roots = At("roots", sum(self.shape[:axis]))
        b.launch("sums", -(-values // THREADS), THREADS, *sizes, roots, here, there)
        return there


def composed(length: int) -> bool:
    """Whether a length has no prime factor above :data:`LARGEST_PRIME`."""
    for factor in range(2, LARGEST_PRIME + 1):
        while length % factor == 0:
            length //= factor
    return length == 1
