"""Memory of a process that trains: the same sizes, round after round."""

import contextlib
import ctypes
import gc
import sys
from collections.abc import Iterator

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_KEPT, _LARGEST = 2**31 - 1, 2**25  # bytes; the most that glibc takes of either


@contextlib.contextmanager
def steady_memory() -> Iterator[None]:
    """In the block, leave objects that exist out of garbage collection; from then on, keep freed memory.

    glibc gives large blocks back to the system when they are freed, and every page of the next one is then made anew:
    3 to 8 percent of a round whose clients train for themselves. Blocks above 32 MB still go back. Each collection
    goes through all objects of all imported libraries: about 5 percent more.
    """
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        mallopt(_TRIM_THRESHOLD, _KEPT)
        mallopt(_MMAP_THRESHOLD, _LARGEST)
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
