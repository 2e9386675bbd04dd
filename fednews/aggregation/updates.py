"""What client work hands to aggregation."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class ClientUpdates:
    """Updates of some clients, stacked; ``c = 1`` where they are summed already.

    Attributes:
        clients: int64 ``[c]``, positions in the cohort; empty where the clients are summed already.
        updates: per trainable parameter, ``[c, *shape]``; the direction that the server optimiser descends.
        weights: float ``[c]``, each client's weight in the aggregate.
        loss: the sum of the losses of all samples behind these updates, a scalar.
        samples: how many samples those are.
    """

    clients: Tensor
    updates: dict[str, Tensor]
    weights: Tensor
    loss: Tensor
    samples: int
