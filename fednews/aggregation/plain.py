"""Plain summation: the server sees every update. Every other aggregation must give the same sum."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from fednews.aggregation.updates import ClientUpdates


@dataclass
class Aggregate:
    """Sums over clients: weighted updates per parameter, weights, losses, samples."""

    total: dict[str, Tensor]
    weight: Tensor
    loss: Tensor
    samples: Tensor

    def tensors(self) -> list[Tensor]:
        return [*self.total.values(), self.weight, self.loss, self.samples]

    def mean(self) -> dict[str, Tensor]:
        """The weighted mean update, what the server optimiser descends."""
        return {name: total / self.weight for name, total in self.total.items()}


def plain_sum(parts: Iterable[ClientUpdates], like: dict[str, Tensor]) -> Aggregate:
    """Sum weighted client updates as they come; with no part the sums are zeros shaped as ``like``."""
    anchor = next(iter(like.values()))
    total = {name: torch.zeros_like(parameter) for name, parameter in like.items()}
    weight, loss, samples = (torch.zeros((), dtype=torch.float64, device=anchor.device) for _ in range(3))
    for part in parts:
        for name, update in part.updates.items():
            total[name] += torch.tensordot(part.weights.to(update.dtype), update, dims=1)
        weight += part.weights.sum()
        loss += part.loss
        samples += part.samples
    return Aggregate(total, weight, loss, samples)
