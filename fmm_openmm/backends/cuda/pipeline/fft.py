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
"""Columns that a block transforms if they fit into shared memory."""

BUTTERFLY = 6
"""Approximate number of values that a thread holds at a time."""

THREADS = 128
"""Threads of a block that transforms columns or sums, and the fewest of any other block."""

MOST_THREADS = 8192
"""Maximum threads of a block times the bytes of a complex value, a limit set by registers."""

OTHER = {"spectrum": "local_spectrum", "local_spectrum": "spectrum"}
"""The two buffers between which transforms and the convolution alternate."""


@dataclass(frozen=True)
class Fourier:
    """The division of the Fourier transform of a program's grids into kernels. A block transforms a
    whole grid if it fits into shared memory. Otherwise planes of the last two axes are transformed,
    then columns of the first; or each axis separately, if planes do not fit; or by plain sums, if a
    line does not.

    Attributes:
        terms: number of grids.
        shape: shape of a grid.
        itemsize: bytes of a complex value.
        shared: bytes of shared memory a block may have.
        planes: planes of each grid that are transformed along the last axes.
        waves: wave vectors along the last axis of the columns that are transformed along the first
            axes.
        divided: whether ranks share the grids, see ``kernels/common/spectra.cuh``: then no block
            transforms a whole one.
    """

    terms: int
    shape: tuple[int, int, int]
    itemsize: int
    shared: int
    planes: int
    waves: int
    divided: bool

    @classmethod
    def from_builder(cls, b: Builder, planes: int | None = None) -> "Fourier":
        """The transform of a builder's grids, or of so many of their planes and the builder's share
        of the columns, after adding its macros, its kernels and the table of roots of unity, powers
        of e^(2 pi i / D) for each axis, to the program."""
        shape, waves = b.root.fft_shape, b.waves.stop - b.waves.start
        facts = b.complex.itemsize, b.device.shared
        divided = planes is not None
        self = cls(
            b.terms * b.sets, shape, *facts, shape[0] if planes is None else planes, waves, divided
        )
        b.table(
            "roots",
            np.concatenate([np.exp(2j * np.pi * np.arange(d) / d) for d in self.shape]),
            b.complex,
        )
        b.macros(**{f"D{axis}": length for axis, length in enumerate(self.shape)})
        b.macros(**{f"DFT_COLUMNS{axis}": self.columns(axis) for axis in (0, 1)})
        b.macros(
            GRIDS=self.terms,
            PLANES0=self.planes,
            FIRST2=b.waves.start,
            WAVES2=self.waves,
            DIVIDED=int(divided),
            DFT_ROWS=self.rows,
            DFT_PITCH=self.pitch,
            DFT_PAIRS=self.pairs,
            DFT_THREADS=self.threads,
        )
        if self.whole:
            b.stage("lattice", "dft", forward=self.whole_bytes, inverse=self.whole_bytes)
            return self
        if self.rows and self.planes:
            planes = self.pairs * self.row_bytes * self.rows
            b.stage("lattice", "dft_planes", forward_planes=planes, inverse_planes=planes)
        for axis in filter(self.columns, self.apart if self.waves else ()):
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
        fits = all(map(composed, self.shape)) and self.whole_bytes <= min(self.shared, WHOLE_BYTES)
        return fits and not self.divided

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
        here = OTHER["spectrum"] if len(self.sums) == 1 else "spectrum"
        self.forward_planes(b, moments, here)
        self.forward_columns(b, here)

    def forward_planes(self, b: Builder, moments: str | At, *result: str | At) -> None:
        """Queue the transform of ``moments`` along the last axis, or the last two, to ``result``:
        one of the buffers of :meth:`forward` or, if ranks share the grids, the members of
        ``Spectra`` in ``kernels/common/spectra.cuh``."""
        self._last_axes(b, "forward", self.half[2], moments, *result)

    def forward_columns(self, b: Builder, here: str) -> str:
        """Queue the transform of a spectrum ``here`` along the other axes. Returns the buffer of
        the result."""
        for axis in reversed(self.apart):
            here = self._columns(b, "forward", axis, here)
        return here

    def inverse(self, b: Builder, local: str | At = "local") -> None:
        """Queue the inverse transform of "local_spectrum" to ``local``, with "spectrum" for
        intermediate results."""
        if self.whole:
            b.launch("inverse", self.terms, self.threads, "roots", "local_spectrum", local)
            return
        self.inverse_planes(b, self.inverse_columns(b, "local_spectrum"), local)

    def inverse_columns(self, b: Builder, here: str) -> str:
        """Queue the inverse of :meth:`forward_columns`."""
        for axis in self.apart:
            here = self._columns(b, "inverse", axis, here)
        return here

    def inverse_planes(self, b: Builder, *arguments: str | At) -> None:
        """Queue the inverse of :meth:`forward_planes`, from its ``result`` to its ``moments``."""
        self._last_axes(b, "inverse", self.shape[2], *arguments)

    def _last_axes(self, b: Builder, direction: str, length: int, *arguments: str | At) -> None:
        """Queue the real transform along the last axes, to rows of ``length`` values."""
        lines = self.planes * self.shape[1]
        if self.rows:
            pairs = (lines // self.rows + 1) // 2 * self.terms
            b.launch(
                f"{direction}_planes",
                -(-pairs // self.pairs),
                self.threads,
                "roots",
                *arguments,
            )
        else:
            blocks = -(-self.terms * lines * length // THREADS)
            b.launch(
                f"sums_{direction}",
                blocks,
                THREADS,
                At("roots", sum(self.shape[:2])),
                *arguments,
            )

    def _columns(self, b: Builder, direction: str, axis: int, here: str) -> str:
        """Queue the complex transform of the spectrum ``here`` along one of the first axes. Returns
        the buffer of the result."""
        length, inner = self.shape[axis], (self.shape[1] * self.waves, self.waves)[axis]
        outer = (self.terms, self.terms * self.shape[0])[axis]
        if self.divided and axis == 0:
            outer, inner = 1, self.terms * inner
        values = outer * length * inner
        if columns := self.columns(axis):
            b.launch(f"{direction}{axis}", -(-values // (length * columns)), THREADS, "roots", here)
            return here
        there = OTHER[here]
        sizes = (
            np.int32(outer),
            np.int32(length),
            np.int32(inner),
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
