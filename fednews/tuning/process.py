"""Which process works on a trial, and whether it still lives."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import psutil

from fednews.errors import FednewsError
from fednews.tracking.reaper import CLOCK_SECONDS

BEAT_SECONDS = 30.0
SILENT_SECONDS = 300.0


def owner() -> dict[str, Any]:
    """The present process, as another one can find it."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "started": psutil.Process().create_time()}


def is_dead(owner: Mapping[str, Any] | None, beat: float | None) -> bool:
    """Whether the owner of a running trial is gone.

    Args:
        owner: as :func:`owner` says; None if it died before it could say so.
        beat: when it last showed a sign of life (seconds since 1970), which decides for processes of other hosts.
    """
    if owner is None:
        return True
    if owner["host"] != socket.gethostname():
        return beat is None or time.time() - beat > SILENT_SECONDS
    try:
        process = psutil.Process(owner["pid"])
        return process.status() == psutil.STATUS_ZOMBIE or (
            abs(process.create_time() - owner["started"]) >= CLOCK_SECONDS
        )
    except psutil.NoSuchProcess:
        return True


class Heartbeat:
    """Calls ``beat`` now and every ``BEAT_SECONDS`` while its block runs, from a thread."""

    def __init__(self, beat: Callable[[], None]) -> None:
        self._beat = beat
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with contextlib.suppress(FednewsError):  # a storage that is away for a moment; the next beat may reach it
                self._beat()
            if self._end.wait(BEAT_SECONDS):
                return
