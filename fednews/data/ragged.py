"""Rows of different length in two flat arrays: ``offsets`` and ``values``."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Ragged:
    """Row ``i`` is ``values[offsets[i]:offsets[i + 1]]``; both arrays may be memory-mapped.

    Attributes:
        offsets: int64, shape ``[rows + 1]``, starting at 0.
        values: any dtype, shape ``[offsets[-1]]``.
    """

    offsets: np.ndarray
    values: np.ndarray

    @classmethod
    def from_rows(cls, rows: Iterable[Iterable], dtype: np.dtype | type) -> "Ragged":
        arrays = [np.asarray(list(row), dtype=dtype) for row in rows]
        values = np.concatenate(arrays) if arrays else np.empty(0, dtype)
        return cls(offsets_of([len(a) for a in arrays]), values.astype(dtype, copy=False))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[row] for row in range(len(self)))

    def lengths(self, rows: np.ndarray | None = None) -> np.ndarray:
        """Row lengths, int64, of all rows or of ``rows``."""
        if rows is None:
            return np.diff(self.offsets)
        return self.offsets[np.asarray(rows) + 1] - self.offsets[rows]

    def take(self, rows: np.ndarray) -> "Ragged":
        """The given rows, copied into a new ``Ragged``; cost is that of the rows taken."""
        lengths = self.lengths(rows)
        offsets = offsets_of(lengths)
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        return Ragged(offsets, self.values[np.repeat(self.offsets[rows], lengths) + within])

    def first(self, limit: int) -> "Ragged":
        """Every row cut to its first ``limit`` values."""
        return self._cut(np.minimum(self.lengths(), limit), last=False)

    def last(self, limit: int) -> "Ragged":
        """Every row cut to its last ``limit`` values."""
        return self._cut(np.minimum(self.lengths(), limit), last=True)

    def _cut(self, lengths: np.ndarray, last: bool) -> "Ragged":
        starts = self.offsets[1:] - lengths if last else self.offsets[:-1]
        offsets = offsets_of(lengths)
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        return Ragged(offsets, self.values[np.repeat(starts, lengths) + within])

    def padded(self, fill: int = 0, side: str = "right", width: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Dense ``[rows, width]`` values and a boolean mask of the real ones.

        Args:
            fill: value of padding.
            side: where padding stands, ``"right"`` or ``"left"``.
            width: columns; the longest row (at least 1) when not given. Rows must not be longer.
        """
        lengths = self.lengths()
        width = max(int(lengths.max(initial=1)), 1) if width is None else width
        column = np.arange(width)
        limit = lengths[:, None]
        mask = column < limit if side == "right" else column >= width - limit
        dense = np.full(mask.shape, fill, self.values.dtype)
        dense[mask] = self.values[self.offsets[0] : self.offsets[-1]]
        return dense, mask


class Strings:
    """An immutable list of texts, stored as UTF-8 bytes in a ``Ragged`` of uint8."""

    def __init__(self, data: Ragged) -> None:
        self.data = data

    @classmethod
    def from_texts(cls, texts: Iterable[str]) -> "Strings":
        encoded = [text.encode() for text in texts]
        values = np.frombuffer(b"".join(encoded), np.uint8)
        return cls(Ragged(offsets_of([len(e) for e in encoded]), values))

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, row: int) -> str:
        return self.data[row].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        return (self[row] for row in range(len(self)))


def offsets_of(lengths: Iterable[int]) -> np.ndarray:
    """int64 offsets ``[n + 1]`` of rows with the given lengths."""
    return np.concatenate([[0], np.cumsum(np.asarray(lengths, np.int64))]).astype(np.int64)
