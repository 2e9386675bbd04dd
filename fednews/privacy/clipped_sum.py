"""User-level privacy of a sum: clients clip their whole updates, and the sum is noisy (McMahan et al. 2018).

The noise is the clients' own: each of n adds a share of variance 1/n, so that nobody is trusted with it; the server
must see the sum alone, whose noise a simulation may therefore draw at once. The loss that a round reports is part of
the clipped and noised vector, and no sample count is sent.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fednews.aggregation.updates import Aggregate, ClientUpdates
from fednews.errors import FednewsError, UsageError
from fednews.privacy.entry import LedgerEntry

REPLACE_CLIENT = "replace all data of one client by any other data, among a known number of clients"

# Of the squared norm, what the loss may take; its noise is then 4 times the update's, relative to the bound.
_LOSS_SHARE = 1 / 16


class ClippedSum:
    """Clips updates and adds each client's share of the noise.

    Args:
        clip_norm: C, the largest L2 norm of what a client uploads.
        noise_multiplier: z; the noise on the sum has standard deviation z C on every coordinate.

    Raises:
        UsageError: a setting out of range.
    """

    def __init__(self, clip_norm: float, noise_multiplier: float) -> None:
        if not 0 < clip_norm < math.inf:
            raise UsageError(f"algorithm.clip_norm must be above 0, not {clip_norm}")
        if not 0 <= noise_multiplier < math.inf:
            raise UsageError(f"algorithm.noise_multiplier must be 0 or more, not {noise_multiplier}")
        self.clip_norm = clip_norm
        self.noise_multiplier = noise_multiplier

    def __call__(
        self, part: ClientUpdates, generators: Sequence[torch.Generator], clients: int, bound: float
    ) -> ClientUpdates:
        """What the clients upload: every client weighs the same, and counts as one sample with its noisy mean loss.

        Args:
            part: single clients' updates.
            generators: one per client of the part; none where :meth:`add_noise` adds to the sum instead.
            clients: n, all clients of the round.
            bound: that a mean loss is cut to.

        Raises:
            FednewsError: an update is not finite; it has no norm.
        """
        norms = torch.stack([value.double().flatten(1).norm(dim=1) for value in part.updates.values()]).norm(dim=0)
        if not bool(norms.isfinite().all()):
            raise FednewsError("a client's update is not finite: training has diverged; lower the learning rate")
        factor = (self.clip_norm * math.sqrt(1 - _LOSS_SHARE) / norms).clamp(max=1.0)
        mean = (part.loss.double() / part.samples.clamp(min=1)).clamp(0, bound)
        updates = {
            name: (factor.view(-1, *[1] * (value.dim() - 1)) * value.double()).to(value.dtype)
            for name, value in part.updates.items()
        }
        for row, generator in enumerate(generators):
            own = {name: value[row] for name, value in updates.items()}
            self._add(own, mean[row], bound, generator, 1 / math.sqrt(clients))
        ones = torch.ones_like(part.weights)
        return ClientUpdates(part.clients, updates, ones, mean.to(part.loss.dtype), torch.ones_like(part.samples))

    def add_noise(self, sums: Aggregate, bound: float, generator: torch.Generator) -> None:
        """Add to a round's sums of clipped updates, in place, what the clients' shares of the noise sum up to."""
        self._add(sums.total, sums.loss, bound, generator)

    def entry(self, coordinates: int, drawn: int = 0, population: int = 0) -> LedgerEntry:
        """Declare one round's sum; ``drawn`` of ``population`` clients take part, in secret, where they are given."""
        scale = self.clip_norm * self.noise_multiplier
        secret = "which clients took part is known to the server, and must stay hidden from those the figure is for"
        return LedgerEntry(
            mechanism="L2 clip of each client's whole update and Gaussian noise on the sum (McMahan et al. 2018)",
            release="sum of the clients' updates and mean losses",
            adjacency=REPLACE_CLIENT,
            view="central",
            coordinates=coordinates + 1,
            sensitivity=2 * self.clip_norm,
            sensitivity_norm="l2",
            noise="gaussian" if scale else "none",
            noise_scale=scale,
            published_epsilon=0.0,
            published_source="Liu et al. 2022 do not know this upload; it adds nothing to their figure",
            server_sees=("the noisy sum over the round's clients", *([secret] if drawn else [])),
            no_guarantee_reason=None if scale else "no noise is added: the sum is released as it is",
            drawn=drawn,
            population=population,
        )

    def _add(
        self, values: dict[str, Tensor], loss: Tensor, bound: float, generator: torch.Generator, share: float = 1.0
    ) -> None:
        deviation = share * self.clip_norm * self.noise_multiplier
        for name in sorted(values):
            noise = _normal(values[name].shape, generator).mul_(deviation)
            values[name].copy_(noise.add_(values[name]))  # added in float64
        unit = self.clip_norm * math.sqrt(_LOSS_SHARE) / bound
        loss += _normal((), generator).to(loss.device) * deviation / unit


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, device=generator.device, generator=generator)
