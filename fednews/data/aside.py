"""Folders that are whole or not there: written aside, then renamed."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from fednews.errors import UsageError


def check_target(out: Path, what: str, proof: str, overwrite: bool) -> None:
    """Refuse to write over what must not be lost.

    Args:
        out: folder to make.
        what: what it will be, for the message.
        proof: a file that only such a folder holds; without it an existing folder is never replaced.
        overwrite: whether such a folder may be replaced.

    Raises:
        UsageError: ``out`` exists and may not be replaced.
    """
    if not out.exists():
        return
    if not overwrite:
        raise UsageError(f"{out} exists already: give another --out, or --overwrite")
    if not out.is_dir() or (any(out.iterdir()) and not (out / proof).is_file()):
        raise UsageError(f"{out} is not {what}: it will not be overwritten")


@contextlib.contextmanager
def written_aside(out: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``out`` that takes its place when the block ends well, and vanishes otherwise."""
    aside, old = (out.with_name(f".{out.name}.{state}-{os.getpid()}") for state in ("partial", "replaced"))
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        yield aside
        if out.exists():
            out.rename(old)
        aside.rename(out)
    finally:
        for leftover in (aside, old):
            shutil.rmtree(leftover, ignore_errors=True)
