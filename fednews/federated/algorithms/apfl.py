"""APFL (Deng et al. 2020): each client mixes a personal model with the global one."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.optim import Optimizer

from fednews.aggregation.updates import ClientUpdates
from fednews.data.cohort import Cohort, CohortSource
from fednews.errors import UsageError
from fednews.evaluation.scorers import Catalogue, ModelPerUser, Scorer
from fednews.federated.algorithms.fedavg import FedAvg
from fednews.federated.client_store import ClientStore
from fednews.federated.clients import trainable
from fednews.federated.local import LocalClients, Parameters, Reduction, local_clients, stepped
from fednews.federated.personal import PersonalModels
from fednews.federated.round import Round
from fednews.models.base import NewsModel
from fednews.types import Size


class APFL(PersonalModels, FedAvg):
    r"""Clients train the global model as in FedAvg, and with every step a personal one through the mixture.

    Algorithm 1, with :math:`\bar v = \alpha v + (1 - \alpha) w`: :math:`w \leftarrow w - \eta \nabla F_u(w)` and
    :math:`v \leftarrow v - \eta \alpha \nabla F_u(\bar v)`, both gradients at the values before the step. With
    ``adaptive``, :math:`\alpha \leftarrow \alpha - \eta \langle v - w, \nabla F_u(\bar v) \rangle` (eq. 10), cut to
    [0, 1], after the first step of a round, as the authors' code times it.

    Personal models and mixture weights are never uploaded. The first time that a client takes part, its personal
    model starts at the global one. A user is evaluated with the mixture of its personal model and the current global
    one, without a personal model with the global one. The paper averages clients equally; here the global model is
    averaged with weights abs(B_u) as in FedAvg.

    Args:
        clients_per_round: how many clients are drawn each round; below 1 it is the fraction r of all clients.
        local_steps: tau, steps of gradient descent, each over all samples of the client.
        local_lr: the clients' learning rate, for both models and the mixture.
        alpha: weight of the personal model, at first where it adapts; 0 is FedAvg, 1 is local training.
        adaptive: whether each client learns its alpha.
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
        local_lr: float = 0.1,
        alpha: float = 0.5,
        adaptive: bool = True,
        loss: Reduction = "mean",
        client_dropout: float = 0.0,
        clients_at_once: Size | None = None,
    ) -> None:
        super().__init__(clients_per_round, local_steps, local_lr, loss, client_dropout, clients_at_once)
        if not 0 <= alpha <= 1:
            raise UsageError(f"algorithm.alpha lies between 0 and 1, not at {alpha}")
        self.alpha = alpha
        self.adaptive = adaptive

    def setup(self, model: NewsModel, source: CohortSource, make_optimizer: Callable[[list], Optimizer]) -> None:
        super().setup(model, source, make_optimizer)
        self.alphas = ClientStore({"alpha": torch.tensor(self.alpha)})

    def client_updates(self, model: NewsModel, cohort: Cohort, work: Round) -> Iterator[ClientUpdates]:
        received = {name: parameter.detach() for name, parameter in trainable(model).items()}
        for group in local_clients(model, cohort, self.loss, self.clients_at_once):
            own, alpha = self.personal.read(group.clients, received), self.alphas.read(group.clients)["alpha"]
            local, own, alpha, losses = self._train(group, group.stacked(received), own, alpha)
            self.personal.write(group.clients, own)
            self.alphas.write(group.clients, {"alpha": alpha})
            yield group.updates({name: value - local[name] for name, value in received.items()}, losses)

    def _train(
        self, group: LocalClients, local: Parameters, own: Parameters, alpha: Tensor
    ) -> tuple[Parameters, Parameters, Tensor, Tensor]:
        first, before = None, alpha
        for step in range(self.local_steps):
            gradients, losses = group.gradients(local)
            mixed, _ = group.gradients(mixture(before, own, local))
            first = losses if first is None else first
            if self.adaptive and step == 0:
                slope = sum(((own[name] - local[name]) * x).reshape(len(x), -1).sum(1) for name, x in mixed.items())
                alpha = (alpha - self.local_lr * slope).clamp(0, 1)
            for name, gradient in mixed.items():
                own[name].addcmul_(gradient, _over(before, gradient), value=-self.local_lr)
            local, before = stepped(local, gradients, self.local_lr), alpha
        return local, own, alpha, first

    def scorer(self, model: NewsModel, catalogue: Catalogue) -> Scorer:
        return ModelPerUser(model, catalogue, lambda client: self._mixed(model, client, catalogue.device))

    def _mixed(self, model: NewsModel, client: int, device: torch.device) -> Parameters:
        if client not in self.personal:
            return {}
        clients = torch.tensor([client], device=device)
        own, alpha = self.personal.read(clients), self.alphas.read(clients)["alpha"]
        shared = {name: parameter.detach() for name, parameter in trainable(model).items()}
        return {name: value[0] for name, value in mixture(alpha, own, shared).items()}

    def state_dict(self) -> dict:
        return super().state_dict() | {"alphas": self.alphas.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state)
        self.alphas.load_state_dict(state["alphas"])


def mixture(alpha: Tensor, own: Parameters, shared: Parameters) -> Parameters:
    """``alpha [c]`` parts of each client's own parameters ``[c, *shape]``, the rest shared or stacked ones."""
    kinds = ((name, value.to(shared[name].dtype), shared[name]) for name, value in own.items())
    return {name: torch.lerp(other.expand_as(mine), mine, _over(alpha, mine)) for name, mine, other in kinds}


def _over(alpha: Tensor, value: Tensor) -> Tensor:
    return alpha.view(-1, *[1] * (value.dim() - 1)).to(value.dtype)
