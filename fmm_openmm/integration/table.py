"""``Table``: a growing array that is stored in compressed blocks."""

import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator

import numpy as np

BLOCK = 1024
"""Rows in a block. After a change only the blocks concerned are compressed again."""


class Table:
    """A growing array of shape (rows, width).

    Charges and exclusions of a solvent are repetitive and compress well. This keeps the XML of a
    System small, and every pickle that OpenMM's ``PythonForce`` copies and never frees.

    Args:
        dtype: element type; stored little-endian.
        width: columns.
        rows: initial content, shape (rows, width).
    """

    def __init__(self, dtype, width: int, rows=None):
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._rows = np.zeros((16, width), self._dtype)
        self._count = 0
        self._packed: list[str | None] = []
        if rows is not None:
            self._rows = np.array(rows, self._dtype).reshape(-1, width)
            self._count = len(self._rows)
            self._packed = [None] * -(-self._count // BLOCK)

    @classmethod
    def unpack(cls, dtype, width: int, text: str | list[str]) -> "Table":
        """The inverse of :meth:`pack`; earlier versions stored the words as a list."""
        table = cls(dtype, width)
        parts = list(unpacked(dtype, width, text))
        if parts:
            table._rows = np.concatenate(parts)
            table._count = len(table._rows)
            table._packed = [*_words(text)]
        return table

    def pack(self) -> str:
        """Words separated by spaces, one for each block: base64 of its zlib-compressed bytes;
        integers are stored as differences between rows."""
        words = []
        for block, packed in enumerate(self._packed):
            if packed is None:
                rows = self.rows[block * BLOCK : (block + 1) * BLOCK]
                if self._dtype.kind == "i":
                    rows = np.diff(rows, axis=0, prepend=np.zeros_like(rows[:1]))
                packed = b64encode(zlib.compress(rows.tobytes(), 1)).decode()
                self._packed[block] = packed
            words.append(packed)
        return " ".join(words)

    def append(self, row) -> int:
        """Add a row and return its index."""
        row = np.array(row, self._dtype)  # raises errors before anything has changed
        if self._count == len(self._rows):
            self._rows = np.concatenate(
                [self._rows, np.zeros((max(16, self._count), *self._rows.shape[1:]), self._dtype)]
            )
        index, self._count = self._count, self._count + 1
        if index % BLOCK == 0:
            self._packed.append(None)
        self[index] = row
        return index

    @property
    def rows(self) -> np.ndarray:
        """The content, shape (rows, width); a view."""
        return self._rows[: self._count]

    def __len__(self):
        return self._count

    def __getitem__(self, index):
        return self.rows[index]

    def __setitem__(self, index: int, row):
        self._rows[index] = np.asarray(row, self._dtype)
        self._packed[index // BLOCK] = None


def unpacked(dtype, width: int, text: str | list[str]) -> Iterator[np.ndarray]:
    """Blocks of a packed table, each of shape (at most ``BLOCK``, width).

    Raises:
        ValueError, zlib.error: a block is damaged or has more rows; it is not expanded further.
    """
    dtype = np.dtype(dtype).newbyteorder("<")
    most = BLOCK * width * dtype.itemsize
    for word in _words(text):
        stream = zlib.decompressobj()
        data = stream.decompress(b64decode(word), most + 1)
        if len(data) > most or not stream.eof:
            raise ValueError(f"a block of a table is cut short or has more than {BLOCK} rows")
        rows = np.frombuffer(data, dtype).reshape(-1, width)
        yield np.cumsum(rows, axis=0, dtype=dtype) if dtype.kind == "i" else rows


def _words(text: str | list[str]) -> list[str]:
    return text.split() if isinstance(text, str) else list(text)
