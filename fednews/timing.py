"""Where time goes: named sections, which cost next to nothing unless somebody measures."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch


class Sections:
    """Seconds by section, each without the sections inside it.

    Args:
        clock: gives seconds.

    Attributes:
        seconds: by name.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._clock = clock
        self._open: list[str] = []
        self._since = 0.0

    def __enter__(self) -> "Sections":
        self._token = _ACTIVE.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        _ACTIVE.reset(self._token)

    def enter(self, name: str) -> None:
        """Time counts for ``name`` from now on."""
        self._count()
        self._open.append(name)

    def leave(self) -> None:
        """Time counts for the section around this one again, where there is one."""
        self._count()
        self._open.pop()

    def _count(self) -> None:
        if torch.cuda.is_initialized():  # kernels run behind the host
            torch.cuda.synchronize()
        now = self._clock()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now


_ACTIVE: ContextVar[Sections | None] = ContextVar("sections", default=None)


@contextmanager
def section(name: str) -> Iterator[None]:
    """Count the time of the block as ``name``, if a :class:`Sections` is active."""
    active = _ACTIVE.get()
    if active is None:
        yield
        return
    active.enter(name)
    try:
        yield
    finally:
        active.leave()


@contextmanager
def unmeasured() -> Iterator[None]:
    """Count nothing inside the block."""
    token = _ACTIVE.set(None)
    try:
        yield
    finally:
        _ACTIVE.reset(token)
