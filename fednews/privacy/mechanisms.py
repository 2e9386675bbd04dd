"""What a client does to its update before it leaves the device.

A mechanism transforms, declares its sensitivity and noise in a `LedgerEntry`, and never computes a budget.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from fednews.errors import FednewsError, UsageError
from fednews.privacy.entry import LedgerEntry

NoiseGenerator = torch.Generator | np.random.Generator
REPLACE_CLIENT_DATA = "replace one client's data by any other data with the same number of samples"

_SIGNS = 1.0 - 2.0 * np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)  # eight for each byte
_BLOCK = 2**15  # numbers that stay in a CPU's cache, and that torch does not share out among threads of its own
_TERMS_WORTH_GAMMA = 3  # a Gamma draw takes the time of about four exponential ones

_LOCAL_VIEW = (
    "every client's noisy update by itself, with the client's identity",
    "which clients take part in which round",
    "the number of samples |B_u| of each client, in the clear (the weight of eq. 6)",
)


def clip_elementwise(values: Tensor, bound: float | None) -> Tensor:
    """``clip(x, bound)`` of FedNewsRec eq. 4: every element into [-bound, bound]; None leaves all as it is.

    The bound is rounded towards zero in the tensor's type, so that no element exceeds it, in bfloat16 either.
    """
    if bound is None or math.isinf(bound):
        return values
    limit = _rounded_down(bound, values.dtype)
    return torch.clamp(values, -limit, limit)


@functools.cache
def _rounded_down(bound: float, dtype: torch.dtype) -> float:
    limit = torch.tensor(bound, dtype=torch.float64).to(dtype)
    return float(torch.nextafter(limit, torch.zeros_like(limit)) if limit.double() > bound else limit)


def laplace_noise(count: int, scale: float, generator: torch.Generator | np.random.Generator) -> Tensor:
    """Independent Laplace(0, scale) draws, float64 ``[count]`` on the generator's device.

    Drawn in float64 whatever the update's type: a float32 uniform has 24 bits, which would cut the tails at 16.6
    scales, inside what 50 clients with a million parameters draw in one round. On a CPU it is NumPy's exponential with
    a random sign, which is faster than a logarithm.
    """
    if isinstance(generator, np.random.Generator):
        noise = generator.standard_exponential(count)
        signs = np.frombuffer(generator.bytes(-(-count // 8)), np.uint8)
        # From a table: branches on random signs would take as long as the draws.
        noise *= np.take(scale * _SIGNS, signs, axis=0).reshape(-1)[:count]
        return torch.from_numpy(noise)
    uniform = torch.empty(count, dtype=torch.float64, device=generator.device).uniform_(generator=generator)
    return _laplace_of_uniform(uniform).mul_(scale)


def summed_laplace_noise(count: int, terms: Mapping[float, int], generator: np.random.Generator) -> Tensor:
    """Sums of independent Laplace(0, scale) draws, float64 ``[count]``, at a cost that hardly grows with their number.

    A Laplace variable is a normal one of variance 2 scale^2 E with E exponential, so a sum of them is a normal one of
    the sum of these variances; of m with one scale the E add up to a Gamma(m) variable. That is the distribution of the
    difference of two Gamma(m) ones, in less time.

    Args:
        count: how many sums.
        terms: how many draws of each scale a sum has.
        generator: draws.
    """
    variance = np.zeros(count)
    for scale, number in terms.items():
        if number <= _TERMS_WORTH_GAMMA:
            share = sum(generator.standard_exponential(count) for _ in range(number))
        else:
            share = generator.standard_gamma(number, count)
        share *= 2 * scale**2
        variance += share
    noise = np.sqrt(variance, out=variance)
    noise *= generator.standard_normal(count)
    return torch.from_numpy(noise)


def _laplace_of_uniform(uniform: Tensor) -> Tensor:
    """Inverse distribution function of Laplace(0, 1) at float64 ``uniform`` in [0, 1], finite at both ends."""
    # 0 and 1 would give log(0); they stand for the outermost half cells of the 53-bit grid.
    centred = uniform.clamp(2.0**-54, 1 - 2.0**-53).sub_(0.5)
    return torch.log1p(centred.abs().mul_(-2)).neg_().copysign_(centred)


def _block_of(values: Tensor) -> int:
    """How many of ``values [n]`` to go through at a time."""
    return _BLOCK if values.device.type == "cpu" else max(len(values), 1)


def _apart(generator: NoiseGenerator, tensors: int) -> Sequence[NoiseGenerator]:
    """A client's generator for each of its tensors: NumPy's are independent, so that threads can draw."""
    return generator.spawn(tensors) if isinstance(generator, np.random.Generator) else [generator] * tensors


@contextlib.contextmanager
def _threads(generators: Sequence[NoiseGenerator]) -> Iterator[Callable]:
    """``map``, in as many threads as torch has where generators can draw in threads."""
    threads = torch.get_num_threads()
    if threads == 1 or not all(isinstance(generator, np.random.Generator) for generator in generators):
        yield map
        return
    with ThreadPoolExecutor(threads) as pool:
        yield pool.map


class ClippedLaplace:
    """Element-wise clipping and Laplace noise on each client's update: FedNewsRec eq. 4-5 (Qi et al. 2020).

    Args:
        clip: delta of eq. 4, above 0; None (or infinity) does not clip, and then no epsilon holds.
        scale: lambda of eq. 5, 0 or more; 0 adds no noise, and then no epsilon holds.

    Raises:
        UsageError: a setting is out of range.
    """

    def __init__(self, clip: float | None = 0.005, scale: float = 0.015) -> None:
        if clip is not None and not clip > 0:
            raise UsageError(f"clip must be above 0, or null for no clipping, not {clip}")
        if not 0 <= scale < math.inf:
            raise UsageError(f"the scale of the Laplace noise must be 0 or more, not {scale}")
        self.clip = None if clip is None or math.isinf(clip) else float(clip)
        self.scale = float(scale)

    def __call__(self, updates: dict[str, Tensor], generators: Sequence[NoiseGenerator]) -> dict[str, Tensor]:
        """Clip and noise stacked updates; the input is left as it is.

        Args:
            updates: floating tensors ``[clients, ...]``, stacked in the same order of clients.
            generators: one per client, from `Streams` with the round and the client as counters: a client's noise is
                then the same whichever process computes it and whoever else is in the cohort.

        Returns:
            Tensors with the input's names, shapes, types and devices (the input itself where nothing is to be done).

        Raises:
            FednewsError: a clipped update holds NaN (it has no sensitivity), or there is not one generator per client.
        """
        if self.scale == 0:
            return self.clipped(updates)
        for name, values in updates.items():
            if len(values) != len(generators):
                raise FednewsError(f"{name} has {len(values)} clients and there are {len(generators)} noise generators")
        contiguous = torch.contiguous_format
        released = {name: torch.empty_like(values, memory_format=contiguous) for name, values in updates.items()}
        tasks = [
            (name, updates[name][client].flatten(), released[name][client].view(-1), own)
            for client, generator in enumerate(generators)
            for name, own in zip(sorted(updates), _apart(generator, len(updates)), strict=True)
        ]
        with _threads(generators) as each:
            for _ in each(lambda task: self._release(*task), tasks):
                pass
        return released

    def clipped(self, updates: dict[str, Tensor]) -> dict[str, Tensor]:
        """What `__call__` gives, without the noise."""
        return {name: self._clipped(name, values) for name, values in updates.items()}

    def add_summed_noise(self, total: dict[str, Tensor], weights: Tensor, generator: np.random.Generator) -> None:
        """Add to a weighted sum of clipped updates, in place, what the clients' noises sum up to.

        The distribution is that of noising every client's update by itself; clients of one weight are drawn at once.

        Args:
            total: the sums by name, on any device.
            weights: ``[clients]``, what their updates were multiplied by.
            generator: draws for all clients together.
        """
        counts = zip(*(part.tolist() for part in weights.unique(return_counts=True)), strict=True)
        terms = {weight * self.scale: clients for weight, clients in counts}
        for name in sorted(total):
            values = total[name].view(-1)
            for part in values.split(_block_of(values)):
                noise = summed_laplace_noise(len(part), terms, generator).to(part.device)
                part.copy_(noise.add_(part))

    def entry(self, coordinates: int) -> LedgerEntry:
        """Declare what is released, for the ledger: ``coordinates`` numbers, all uploaded parameters together."""
        return LedgerEntry(
            mechanism="element-wise clip and Laplace noise (FedNewsRec eq. 4-5)",
            release="update of the model",
            adjacency=REPLACE_CLIENT_DATA,
            view="local",
            coordinates=coordinates,
            sensitivity=math.inf if self.clip is None else 2 * self.clip,
            sensitivity_norm="linf",
            noise="laplace" if self.scale else "none",
            noise_scale=self.scale,
            published_epsilon=2 * self.clip / self.scale if self.clip and self.scale else math.inf,
            published_source=(
                "Qi et al. 2020, section 3.3: 2 * delta / lambda; the budget of one coordinate in one round, "
                "composed neither over coordinates nor over rounds"
            ),
            server_sees=_LOCAL_VIEW,
            no_guarantee_reason=self._no_guarantee_reason(),
        )

    def _clipped(self, name: str, values: Tensor) -> Tensor:
        clipped = clip_elementwise(values, self.clip)
        # The sum first: to look at each number takes twenty times as long. A sum can overflow and be NaN without one.
        if self.clip is not None and bool(clipped.sum().isnan()) and bool(clipped.isnan().any()):
            raise FednewsError(f"a client's update of {name} holds NaN: training has diverged; lower the learning rate")
        return clipped

    def _release(self, name: str, values: Tensor, out: Tensor, generator: NoiseGenerator) -> None:
        """Write clipped and noised ``values [n]`` to ``out [n]``."""
        block = _block_of(values)
        for part, noised in zip(values.split(block), out.split(block), strict=True):
            noise = laplace_noise(len(part), self.scale, generator).to(part.device)
            noised.copy_(noise.add_(self._clipped(name, part)))  # in float64 and rounded once

    def _no_guarantee_reason(self) -> str | None:
        if self.scale == 0:
            return "no noise is added: the update is released as it is"
        if self.clip is None:
            return "updates are not clipped: their sensitivity is unbounded, so no noise hides a client's data"
        return None
