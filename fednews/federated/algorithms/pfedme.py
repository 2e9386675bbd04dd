"""pFedMe (Dinh et al. 2020, NeurIPS): personal models from Moreau envelopes around the global model."""

from collections.abc import Iterator

import torch

from fednews.aggregation.updates import ClientUpdates
from fednews.data.cohort import Cohort
from fednews.errors import UsageError
from fednews.federated.algorithms.fedavg import FedAvg
from fednews.federated.clients import trainable
from fednews.federated.local import Reduction, local_clients, proximal
from fednews.federated.personal import PersonalModels
from fednews.federated.round import Round
from fednews.models.base import NewsModel
from fednews.types import Size


class PFedMe(PersonalModels, FedAvg):
    r"""Each local round solves for a personal model, then moves the client's copy of the global one towards it.

    Algorithm 1: :math:`\tilde\theta \approx \arg\min_\theta F_u(\theta) + \frac{\lambda}{2} \|\theta - w_{u,r}\|^2` by
    K gradient steps, then :math:`w_{u,r+1} = w_{u,r} - \eta \lambda (w_{u,r} - \tilde\theta)`, R times. As in the
    authors' code the inner steps start at the global model and go on from the last personal model after it, and
    clients are weighted by :math:`|B_u|`; the paper weights them equally. The server's :math:`\beta` is the learning
    rate of its SGD.

    The paper has every client train in every round and averages some; here only the drawn ones train. A user is
    evaluated with the personal model of the last round that it took part in, without one with the global model.

    Args:
        clients_per_round: how many clients are drawn each round; below 1 it is the fraction r of all clients.
        local_steps: R, local rounds.
        local_lr: eta, the rate at which the client's copy follows its personal model.
        inner_steps: K, steps of gradient descent for one personal model, each over all samples of the client.
        inner_lr: the learning rate of those steps; they diverge where it exceeds 2 / lam, and above 1 / lam each goes
            past the proximal point, so that what few of them reach may lie up the slope.
        lam: lambda; the smaller, the more personal.
        loss: a client's loss is the sum or the mean over its samples.
        client_dropout: probability that a drawn client never answers.
        clients_at_once: clients whose own gradients are computed together, padded alike; null: on an accelerator 5,
            on a CPU none is padded.

    Raises:
        UsageError: a setting out of range.
    """

    def __init__(
        self,
        clients_per_round: float = 50,
        local_steps: int = 5,
        local_lr: float = 0.005,
        inner_steps: int = 5,
        inner_lr: float = 0.05,
        lam: float = 15.0,
        loss: Reduction = "mean",
        client_dropout: float = 0.0,
        clients_at_once: Size | None = None,
    ) -> None:
        super().__init__(clients_per_round, local_steps, local_lr, loss, client_dropout, clients_at_once)
        if inner_steps < 1:
            raise UsageError(f"algorithm.inner_steps must be at least 1, not {inner_steps}")
        if lam < 0 or inner_lr * lam > 2:
            raise UsageError(f"algorithm.lam lies between 0 and 2 / inner_lr, not at {lam}: the inner steps diverge")
        self.inner_steps = inner_steps
        self.inner_lr = inner_lr
        self.lam = lam

    def client_updates(self, model: NewsModel, cohort: Cohort, work: Round) -> Iterator[ClientUpdates]:
        received = trainable(model)
        for group in local_clients(model, cohort, self.loss, self.clients_at_once, at_rest=received):
            start = group.stacked(received)
            local, personal, first = start, start, None
            for _ in range(self.local_steps):
                envelope = proximal(self.lam, local)
                personal, losses = group.descend(personal, self.inner_steps, self.inner_lr, envelope)
                first = losses if first is None else first
                rate = self.local_lr * self.lam
                local = {name: torch.lerp(value, personal[name], rate) for name, value in local.items()}
            self.personal.write(group.clients, group.whole(personal, received))
            yield group.updates({name: value - local[name] for name, value in start.items()}, first)
