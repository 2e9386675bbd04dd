"""What client work hands to aggregation, and what comes out."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

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
        rows: by name, for tables that are given at some of their rows alone: int64 ``[r]``, which; there ``updates`` is
            ``[c, r, …]``, and zero in all other rows. Few of a table's words stand in the news of some clients.
    """

    clients: Tensor
    updates: dict[str, Tensor]
    weights: Tensor
    loss: Tensor
    samples: Tensor
    rows: Mapping[str, Tensor] = field(default_factory=dict)

    def whole(self, like: Mapping[str, Tensor]) -> "ClientUpdates":
        """The same with all rows, shaped as ``like``."""
        tables = {
            name: _spread(self.updates[name], 1, rows, (len(self.updates[name]), *like[name].shape))
            for name, rows in self.rows.items()
        }
        return replace(self, updates={**self.updates, **tables}, rows={})

    def whole_of(self, row: int, like: Mapping[str, Tensor]) -> Iterator[Tensor]:
        """One client's update with all rows, parameter by parameter in the order of ``like``."""
        for name, parameter in like.items():
            own = self.updates[name][row]
            yield _spread(own, 0, self.rows[name], parameter.shape) if name in self.rows else own


def _spread(few: Tensor, dim: int, rows: Tensor, shape: tuple[int, ...]) -> Tensor:
    return few.new_zeros(shape).index_copy_(dim, rows, few)


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
