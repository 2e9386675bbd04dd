"""The next round's cohort, made while the present round computes."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from fednews.data.cohort import Cohort
from fednews.federated.algorithms.base import Selection


@dataclass(frozen=True)
class Prepared:
    """A round's work: who does it, and the part of their data that falls to this process.

    Attributes:
        selection: all who work.
        cohort: on the CPU, in pinned memory where a GPU is to read it; None where nobody's work falls to this process.
    """

    selection: Selection
    cohort: Cohort | None


class Ahead:
    """Prepares rounds in a thread of its own, one round ahead of whoever takes them.

    Args:
        prepare: makes a round's work from its number, and reads nothing that rounds change.
    """

    def __init__(self, prepare: Callable[[int], Prepared]) -> None:
        self._prepare = prepare
        self._pool = _one_thread("fednews-ahead")
        self._next: tuple[int, Future[Prepared]] | None = None

    def start(self, number: int) -> None:
        """Begin with round ``number``."""
        self._next = number, self._pool.submit(self._prepare, number)

    def take(self, number: int) -> Prepared:
        """The work of round ``number``, begun before or made now.

        Raises:
            Exception: whatever preparing it raised.
        """
        begun, self._next = self._next, None
        if begun is not None and begun[0] == number:
            return begun[1].result()
        if begun is not None:
            begun[1].cancel()
        return self._pool.submit(self._prepare, number).result()

    def close(self) -> None:
        """End the thread; what was begun and nobody took is lost."""
        self._pool.shutdown(cancel_futures=True)


def _one_thread(name: str) -> ThreadPoolExecutor:
    """A thread whose torch functions run in it alone.

    OpenMP threads of its own would be more than the machine has cores for: those of the training thread would then
    sleep, and have to be woken, between any two calls (libgomp), which doubles the time of small ones.
    """
    pool, threads = ThreadPoolExecutor(1, name), torch.get_num_threads()
    pool.submit(torch.set_num_threads, 1).result()
    pool.submit(torch.get_num_threads).result()  # a thread takes over the process's number when it first asks for it
    torch.set_num_threads(threads)
    return pool
