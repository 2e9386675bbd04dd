"""What client work hands to aggregation, and what comes out."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ClientUpdates:
    """Updates of some clients, stacked; ``c = 1`` where they are summed already.

    Attributes:
        clients: int64 ``[c]``, positions in the cohort; empty where the clients are summed already.
        updates: per trainable parameter, ``[c, *shape]``; the direction that the server optimiser descends.
        weights: float ``[c]``, each client's weight in the aggregate.
        loss: float ``[c]``, the sum of the losses of the samples behind each update.
        samples: int64 ``[c]``, how many samples those are.
    """

    clients: Tensor
    updates: dict[str, Tensor]
    weights: Tensor
    loss: Tensor
    samples: Tensor


@dataclass
class Aggregate:
    """Sums over clients: weighted updates per parameter; float64 scalars for weights, losses and samples."""

    total: dict[str, Tensor]
    weight: Tensor
    loss: Tensor
    samples: Tensor

    @classmethod
    def zeros(cls, like: dict[str, Tensor]) -> "Aggregate":
        """Sums over nobody, shaped as ``like``."""
        device = next(iter(like.values())).device
        scalars = (torch.zeros((), dtype=torch.float64, device=device) for _ in range(3))
        return cls({name: torch.zeros_like(parameter) for name, parameter in like.items()}, *scalars)

    def tensors(self) -> list[Tensor]:
        return [*self.total.values(), self.weight, self.loss, self.samples]

    def mean(self) -> dict[str, Tensor]:
        """The weighted mean update, what the server optimiser descends."""
        return {name: total / self.weight for name, total in self.total.items()}

    def __add__(self, other: "Aggregate") -> "Aggregate":
        total = {name: value + other.total[name] for name, value in self.total.items()}
        return Aggregate(total, self.weight + other.weight, self.loss + other.loss, self.samples + other.samples)
