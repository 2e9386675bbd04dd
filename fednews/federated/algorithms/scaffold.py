"""SCAFFOLD (Karimireddy et al. 2020, ICML): control variates correct the drift of local steps."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.optim import Optimizer

from fednews.aggregation.updates import Aggregate, ClientUpdates
from fednews.data.cohort import Cohort, CohortSource
from fednews.federated.algorithms.fedavg import FedAvg
from fednews.federated.client_store import ClientStore
from fednews.federated.clients import trainable
from fednews.federated.local import Direction, Reduction, local_clients
from fednews.federated.round import Round
from fednews.models.base import NewsModel
from fednews.privacy.entry import LedgerEntry
from fednews.privacy.unprotected import unprotected
from fednews.types import Size

_CONTROL = "control/"


class SCAFFOLD(FedAvg):
    r"""Local steps descend :math:`g_u(y) - c_u + c` (Algorithm 1, option II).

    Afterwards :math:`c_u^+ = c_u - c + (x - y) / (K \eta_l)`; the clients upload both differences, so that a round
    sends twice a model's size each way. All control variates start at zero.

    The paper weights clients equally. Here they are weighted by :math:`|B_u|` as in FedAvg, the server's variate too:
    :math:`c \leftarrow c + \sum_{u \in S} |B_u| (c_u^+ - c_u) / \sum_u |B_u|`, so that it stays the weighted mean of
    all clients' variates; with equally many samples it is the paper's. The global step size :math:`\eta_g` is the
    learning rate of the server's SGD.

    Args:
        clients_per_round: how many clients are drawn each round; below 1 it is the fraction r of all clients.
        local_steps: K, steps of gradient descent, each over all samples of the client.
        local_lr: the clients' learning rate.
        loss: a client's loss is the sum or the mean over its samples.
        client_dropout: probability that a drawn client never answers.
        clients_at_once: clients whose own gradients are computed together, padded alike; null: on an accelerator 5,
            on a CPU none is padded.

    Raises:
        UsageError: a setting out of range.
    """

    one_process = True
    repeatable = False

    def __init__(
        self,
        clients_per_round: float = 50,
        local_steps: int = 5,
        local_lr: float = 0.1,
        loss: Reduction = "mean",
        client_dropout: float = 0.0,
        clients_at_once: Size | None = None,
    ) -> None:
        super().__init__(clients_per_round, local_steps, local_lr, loss, client_dropout, clients_at_once)

    def setup(self, model: NewsModel, source: CohortSource, make_optimizer: Callable[[list], Optimizer]) -> None:
        self.control = {name: torch.zeros_like(parameter) for name, parameter in trainable(model).items()}
        self.controls = ClientStore(self.control)
        self._all_samples = len(source.samples.click)

    def communicated(self, model: NewsModel) -> dict[str, Tensor]:
        return trainable(model) | _named(self._control_on(model))

    def client_updates(self, model: NewsModel, cohort: Cohort, work: Round) -> Iterator[ClientUpdates]:
        start, control = trainable(model), self._control_on(model)
        for group in local_clients(model, cohort, self.loss, self.clients_at_once):
            own, first = self.controls.read(group.clients), group.stacked(start)
            # c_u - c; the round's c_u^+ is this plus the mean slope
            drift = {name: value.sub_(control[name]) for name, value in own.items()}
            end, losses = group.descend(first, self.local_steps, self.local_lr, _corrected(drift))
            update = {name: torch.sub(first[name], value, out=value) for name, value in end.items()}
            rate = 1 / (self.local_steps * self.local_lr)
            change = {name: torch.add(-control[name], value, alpha=rate) for name, value in update.items()}
            self.controls.write(group.clients, {n: value.add_(update[n], alpha=rate) for n, value in drift.items()})
            yield group.updates(update | _named(change), losses)

    def aggregate(self, model: NewsModel, cohort: Cohort | None, work: Round) -> Aggregate:
        sums = super().aggregate(model, cohort, work)
        changes = {name: sums.total[_CONTROL + name] / self._all_samples for name in self.control}
        self.control = {name: value + changes[name] for name, value in self._control_on(model).items()}
        return sums

    def release(self, coordinates: int) -> LedgerEntry:
        sees = ("every client's update and control variate, with the client's identity", "sample counts |B_u|")
        return unprotected("model update and control variate", coordinates, "uploaded without any noise", sees)

    def state_dict(self) -> dict:
        return {"control": self.control, "controls": self.controls.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        self.control = state["control"]
        self.controls.load_state_dict(state["controls"])

    def _control_on(self, model: NewsModel) -> dict[str, Tensor]:
        return {name: self.control[name].to(parameter.device) for name, parameter in trainable(model).items()}


def _named(control: dict[str, Tensor]) -> dict[str, Tensor]:
    return {_CONTROL + name: value for name, value in control.items()}


def _corrected(drift: dict[str, Tensor]) -> Direction:
    return lambda gradients, local: {name: gradient.sub_(drift[name]) for name, gradient in gradients.items()}
