"""FedAvg (McMahan et al. 2017) and, with one local step, FedSGD."""

from collections.abc import Iterator
from dataclasses import replace

from fednews.aggregation.updates import ClientUpdates
from fednews.data.cohort import Cohort
from fednews.errors import UsageError
from fednews.federated.algorithms.base import ClientSampling
from fednews.federated.clients import Reduction, gradients, local_training
from fednews.federated.round import Round
from fednews.models.base import NewsModel
from fednews.privacy.entry import LedgerEntry
from fednews.privacy.unprotected import unprotected
from fednews.types import Size


class FedAvg(ClientSampling):
    """Clients take local steps from the global model; the server descends the mean of (start - end).

    Pair it with ``torch.optim.SGD(lr=1)`` for the published averaging; another server optimiser gives FedOpt. With
    ``local_steps=1`` the round is FedSGD, computed as one fused gradient scaled by ``local_lr``.

    Args:
        clients_per_round: how many clients are drawn each round; below 1 it is the fraction r of all clients.
        local_steps: steps of gradient descent, each over all samples of the client.
        local_lr: the clients' learning rate.
        loss: a client's loss is the sum or the mean over its samples.
        client_dropout: probability that a drawn client never answers.
        clients_at_once: clients whose own gradients are computed together, padded alike; null: on an accelerator 5,
            on a CPU none is padded.
    """

    def __init__(
        self,
        clients_per_round: float = 50,
        local_steps: int = 1,
        local_lr: float = 1.0,
        loss: Reduction = "mean",
        client_dropout: float = 0.0,
        clients_at_once: Size | None = None,
    ) -> None:
        super().__init__(clients_per_round, client_dropout)
        if local_steps < 1:
            raise UsageError(f"algorithm.local_steps must be at least 1, not {local_steps}")
        self.local_steps = local_steps
        self.local_lr = local_lr
        self.loss = loss
        self.clients_at_once = clients_at_once

    def client_updates(self, model: NewsModel, cohort: Cohort, work: Round) -> Iterator[ClientUpdates]:
        if self.local_steps > 1:
            yield from local_training(model, cohort, self.loss, self.local_steps, self.local_lr, self.clients_at_once)
            return
        for part in gradients(model, cohort, self.loss, self.clients_at_once, work.separate):
            yield replace(part, updates={name: self.local_lr * update for name, update in part.updates.items()})

    def release(self, coordinates: int) -> LedgerEntry:
        sees = ("every client's update by itself, with the client's identity", "sample counts |B_u| in the clear")
        return unprotected("model update", coordinates, "updates are uploaded without any noise", sees)
