"""Text files of a raw data set: in a folder, in folders below it, or in .zip files; plain or .gz."""

import contextlib
import gzip
import itertools
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fednews.errors import DataError, UsageError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
UNREADABLE = (gzip.BadGzipFile, zipfile.BadZipFile, zlib.error, EOFError)


@dataclass(frozen=True, order=True)
class Member:
    """One text file, on disk or inside a zip; ``str()`` is its printable name.

    Attributes:
        folder: where it stands below the root, ``""`` for the root itself; a zip below the root counts as a folder.
        name: its name without ``.gz``.
        path: the file on disk, or the zip that holds it.
        inside: its full name in the zip, ``""`` for a file on disk.
    """

    folder: str
    name: str
    path: Path
    inside: str = ""

    def __str__(self) -> str:
        return str(self.path / self.inside)

    def lines(self) -> Iterator[tuple[int, str]]:
        """Stream ``(line number from 1, text)``, without the line end (LF or CRLF) and the byte-order mark.

        Raises:
            DataError: the file is not UTF-8, or its compression is damaged; names file and line.
            UsageError: the file cannot be opened.
        """
        number = 0
        try:
            with self._open() as stream:
                for number, raw in enumerate(stream, 1):
                    yield number, self._text(raw, number)
        except UNREADABLE as error:
            raise DataError(f"{self}:{number + 1}: damaged file ({error}); fetch it again") from error
        except OSError as error:
            raise UsageError(f"{self} cannot be read: {error.strerror or error}") from error

    def _text(self, raw: bytes, number: int) -> str:
        if number == 1:
            raw = raw.removeprefix(BYTE_ORDER_MARK)
        try:
            return raw.removesuffix(b"\n").removesuffix(b"\r").decode()
        except UnicodeDecodeError as error:
            raise DataError(f"{self}:{number}: not UTF-8 text ({error.reason}); convert the file to UTF-8") from error

    @contextlib.contextmanager
    def _open(self) -> Iterator[IO[bytes]]:
        with contextlib.ExitStack() as stack:
            if self.inside:
                archive = stack.enter_context(zipfile.ZipFile(self.path))
                stream = stack.enter_context(archive.open(self.inside))
            else:
                stream = stack.enter_context(self.path.open("rb"))
            yield stack.enter_context(gzip.GzipFile(fileobj=stream)) if str(self).endswith(".gz") else stream


def find(root: Path, wanted: Callable[[str], bool], what: str) -> list[Member]:
    """List the files at and below ``root`` whose name (without ``.gz``) is wanted, by folder and name.

    Args:
        root: a folder, a .zip file, or one text file.
        wanted: says whether a name is looked for.
        what: describes the names in error messages.

    Raises:
        UsageError: nothing is there, nothing is wanted, or a file stands there twice (plain and .gz).
        DataError: a .zip file is damaged.
    """
    root = Path(root)
    if not root.exists():
        raise UsageError(f"{root} does not exist: looked there for {what}; give the folder or .zip that holds the data")
    members = sorted(member for member in _walk(root) if wanted(member.name))
    if not members:
        raise UsageError(f"no {what} at {root}: looked for them there, in all folders below and in .zip files")
    for first, second in itertools.pairwise(members):
        if (first.folder, first.name) == (second.folder, second.name):
            raise UsageError(f"{first} and {second} are the same file twice; remove one of them")
    return members


def _walk(root: Path) -> Iterator[Member]:
    if root.is_file():
        yield from _zipped(root, "") if _is_zip(root) else [Member("", _plain(root.name), root)]
        return
    visited = set()
    for here, folders, names in os.walk(root, followlinks=True):
        if os.path.realpath(here) in visited:
            folders.clear()
            continue
        visited.add(os.path.realpath(here))
        below = _posix(Path(here).relative_to(root))
        for path in (Path(here, name) for name in names):
            if _is_zip(path):
                yield from _zipped(path, f"{below}/{path.stem}".lstrip("/"))
            else:
                yield Member(below, _plain(path.name), path)


def _zipped(path: Path, folder: str) -> Iterator[Member]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = [info.filename for info in archive.infolist() if not info.is_dir()]
    except zipfile.BadZipFile as error:
        raise DataError(f"{path}: damaged zip file ({error}); fetch it again") from error
    for name in names:
        inner, _, base = name.rpartition("/")
        yield Member(f"{folder}/{inner}".strip("/"), _plain(base), path, name)


def _is_zip(path: Path) -> bool:
    return path.suffix.lower() == ".zip"


def _plain(name: str) -> str:
    return name.removesuffix(".gz")


def _posix(folder: Path) -> str:
    return "" if folder == Path(".") else folder.as_posix()
