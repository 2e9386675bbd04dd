"""Columns on disk: appended one value at a time, read back as memory maps."""

import hashlib
from array import array
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from fednews.data.ragged import Ragged, Strings

_FLUSH = 1 << 20


class Column:
    """An append-only typed column that is written to ``path`` in blocks, so that memory stays bounded."""

    def __init__(self, folder: Path, name: str, dtype: type) -> None:
        self._dtype = np.dtype(dtype)
        self._file = (folder / f"{name}.{self._dtype.name}").open("wb")
        self._buffer = array(self._dtype.char if self._dtype.char != "l" else "q")

    def append(self, value: int) -> None:
        self._buffer.append(value)
        self._flush_full()

    def extend(self, values: Iterable[int]) -> None:
        self._buffer.extend(values)
        self._flush_full()

    def _flush_full(self) -> None:
        if len(self._buffer) >= _FLUSH:
            self._flush()

    def _flush(self) -> None:
        self._buffer.tofile(self._file)
        del self._buffer[:]

    def close(self) -> None:
        self._flush()
        self._file.close()


class RaggedColumn:
    """An append-only column of rows: a column of offsets and a column of values."""

    def __init__(self, folder: Path, name: str, dtype: type) -> None:
        self._offsets = Column(folder, f"{name}.offsets", np.int64)
        self._values = Column(folder, f"{name}.values", dtype)
        self._end = 0
        self._offsets.append(0)

    def append(self, row: Iterable[int]) -> None:
        row = row if isinstance(row, (list, bytes, np.ndarray)) else list(row)
        self._end += len(row)
        self._values.extend(row)
        self._offsets.append(self._end)

    def close(self) -> None:
        self._offsets.close()
        self._values.close()


def write_array(folder: Path, name: str, values: np.ndarray) -> None:
    """Write a whole column at once."""
    np.ascontiguousarray(values).tofile(folder / f"{name}.{values.dtype.name}")


def write_strings(folder: Path, name: str, texts: Iterable[str]) -> None:
    """Write a whole column of texts at once."""
    strings = Strings.from_texts(texts)
    write_array(folder, f"{name}.offsets", strings.data.offsets)
    write_array(folder, f"{name}.values", strings.data.values)


def read_array(folder: Path, name: str, dtype: type) -> np.ndarray:
    """The column as a read-only memory map (an empty array where it is empty)."""
    path = folder / f"{name}.{np.dtype(dtype).name}"
    return np.memmap(path, dtype, "r") if path.stat().st_size else np.empty(0, dtype)


def read_ragged(folder: Path, name: str, dtype: type) -> Ragged:
    """A ragged column as memory maps."""
    return Ragged(read_array(folder, f"{name}.offsets", np.int64), read_array(folder, f"{name}.values", dtype))


def read_strings(folder: Path, name: str) -> Strings:
    """A column of texts as memory maps."""
    return Strings(read_ragged(folder, name, np.uint8))


def hash_columns(folder: Path, header: str) -> str:
    """SHA-256 over ``header`` and every column of ``folder``: names, sizes and contents."""
    digest = hashlib.sha256(header.encode())
    for path in sorted(p for p in folder.iterdir() if p.suffix != ".json"):
        digest.update(f"{path.name}:{path.stat().st_size};".encode())
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
