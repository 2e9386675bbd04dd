"""Stopping a worker at places where nothing is half written."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class Interrupts:
    """Turns SIGINT and SIGTERM into ``KeyboardInterrupt``, but only once and only while a block allows it.

    Elsewhere (between trials, while the study's storage is written) the wish is kept until the next block.
    """

    def __init__(self) -> None:
        self.wanted = False
        self._allowed = False

    def install(self) -> None:
        """Take the process's signals over."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """Let an interrupt end the block, at once if one is wanted already."""
        self._allowed = True
        try:
            if self.wanted:
                raise KeyboardInterrupt
            yield
        finally:
            self._allowed = False

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        self.wanted = True
        if self._allowed:
            self._allowed = False
            raise KeyboardInterrupt
