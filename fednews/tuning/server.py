"""The process that workers are forked from: everything imported, nothing running.

It imports nothing heavy here, so that the command line can start it before it loads torch itself.
"""

import contextlib
import multiprocessing
import multiprocessing.forkserver
import os
from collections.abc import Iterator
from pathlib import Path

import fednews


def prepare() -> None:
    """Start it, if it is not there yet; it imports while its caller goes on."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(["fednews.tuning.worker"])
    with _importable():
        multiprocessing.forkserver.ensure_running()


@contextlib.contextmanager
def _importable() -> Iterator[None]:
    """The server must import this very package, wherever this process found it."""
    before = os.environ.get("PYTHONPATH")
    root = str(Path(fednews.__file__).parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join([root, *([before] if before else [])])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
