"""History padding: clicks replaced by an anonymous news at random (Liu et al. 2022, Algorithm 2, lines 2-5)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fednews.errors import UsageError


@dataclass(frozen=True)
class HistoryPadding:
    """Replaces each click by the anonymous news with probability p, independently.

    Attributes:
        p: the probability, below 1; 0 replaces nothing.

    Raises:
        UsageError: p out of range.
    """

    p: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.p < 1:
            raise UsageError(f"padding is a probability below 1, not {self.p}")

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Which items are replaced: bool of ``shape`` on the generator's device.

        Drawn in float64, so that p is met to 53 bits.
        """
        return torch.rand(shape, dtype=torch.float64, device=generator.device, generator=generator) < self.p

    def __call__(self, history: Tensor, mask: Tensor, anonymous: Tensor, generator: torch.Generator) -> Tensor:
        """Histories ``[R, H, d]`` with some real clicks replaced by ``anonymous [d]``.

        Args:
            history: news vectors.
            mask: bool ``[R, H]``, true where a click is real.
            anonymous: r_0, the vector of the anonymous news.
            generator: draws which.
        """
        return pad_history(history, mask, anonymous, self.draw(tuple(mask.shape), generator).to(mask.device))


def pad_history(history: Tensor, mask: Tensor, anonymous: Tensor, replaced: Tensor) -> Tensor:
    """Histories ``[R, H, d]`` with ``anonymous [d]`` where ``replaced`` and ``mask``, bool ``[R, H]``, are true."""
    return torch.where((replaced & mask).unsqueeze(-1), anonymous.to(history.dtype), history)
