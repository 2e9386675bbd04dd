"""Named random streams: every draw is a function of (seed, purpose, counter).

Counter-based streams make a checkpoint complete with one integer, the round: a run resumed at round
t draws exactly what the uninterrupted run drew, on any number of processes.
"""

import contextlib
import zlib
from collections.abc import Iterator

import numpy as np
import torch


class Streams:
    """The random streams of one experiment.

    Args:
        seed: the experiment's seed; two seeds give unrelated streams.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def _sequence(self, purpose: str, *counters: int) -> np.random.SeedSequence:
        return np.random.SeedSequence([self.seed, zlib.crc32(purpose.encode()), *counters])

    def numpy(self, purpose: str, *counters: int) -> np.random.Generator:
        """A NumPy generator for ``purpose`` at ``counters`` (a round, a client, …).

        SFC64, the fastest of NumPy's: most of what a private round draws is noise.
        """
        return np.random.Generator(np.random.SFC64(self._sequence(purpose, *counters)))

    def integer(self, purpose: str, *counters: int) -> int:
        """A 63-bit seed for ``purpose`` at ``counters``."""
        return int(self._sequence(purpose, *counters).generate_state(1, np.uint64)[0] >> 1)

    def torch(self, purpose: str, *counters: int, device: torch.device | str = "cpu") -> torch.Generator:
        """A torch generator on ``device`` for ``purpose`` at ``counters``."""
        return torch.Generator(device).manual_seed(self.integer(purpose, *counters))

    @contextlib.contextmanager
    def torch_global(self, purpose: str, *counters: int) -> Iterator[None]:
        """Seed torch's global generators inside the block (dropout draws from them) and restore them after."""
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(self.integer(purpose, *counters))
            yield
