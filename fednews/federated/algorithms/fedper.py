"""FedPer (Arivazhagan et al. 2019): base layers are averaged, the last layers stay with each client."""

from collections.abc import Callable, Iterator

from torch import Tensor
from torch.optim import Optimizer

from fednews.aggregation.updates import ClientUpdates
from fednews.data.cohort import Cohort, CohortSource
from fednews.errors import UsageError
from fednews.federated.algorithms.fedavg import FedAvg
from fednews.federated.clients import trainable
from fednews.federated.local import Reduction, local_clients
from fednews.federated.personal import PersonalModels
from fednews.federated.round import Round
from fednews.models.base import NewsModel
from fednews.types import Size


class FedPer(PersonalModels, FedAvg):
    """Clients train base and personal layers together and upload the base alone (Algorithms 1 and 2).

    Personal layers start at the model's own initial values, the same for all clients. Those values are also what the
    global model keeps: the server never sees a personal layer, so that a user without one is served with them. The
    base is averaged with weights abs(B_u).

    Args:
        clients_per_round: how many clients are drawn each round; below 1 it is the fraction r of all clients.
        local_steps: steps of gradient descent, each over all samples of the client.
        local_lr: the clients' learning rate.
        personal_layers: how many of the model's last layers are personal; null for all of the user encoder
            (Yu et al. 2023, section 5.1.2), 0 is FedAvg.
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
        personal_layers: int | None = None,
        loss: Reduction = "mean",
        client_dropout: float = 0.0,
        clients_at_once: Size | None = None,
    ) -> None:
        super().__init__(clients_per_round, local_steps, local_lr, loss, client_dropout, clients_at_once)
        if personal_layers is not None and personal_layers < 0:
            raise UsageError(f"algorithm.personal_layers must not be negative, but is {personal_layers}")
        self.personal_layers = personal_layers

    def setup(self, model: NewsModel, source: CohortSource, make_optimizer: Callable[[list], Optimizer]) -> None:
        if not self.communicated(model):
            raise UsageError(
                f"algorithm.personal_layers is {self.personal_layers}: no trained layer of "
                f"{type(model).__name__}'s {len(model.layers)} is left to share"
            )
        super().setup(model, source, make_optimizer)

    def communicated(self, model: NewsModel) -> dict[str, Tensor]:
        personal = self.personal_parameters(model)
        return {name: parameter for name, parameter in trainable(model).items() if name not in personal}

    def client_updates(self, model: NewsModel, cohort: Cohort, work: Round) -> Iterator[ClientUpdates]:
        base, initial = self.communicated(model), self.personal_parameters(model)
        for group in local_clients(model, cohort, self.loss, self.clients_at_once, at_rest=base):
            start = group.stacked(base) | self.personal.read(group.clients, initial)
            end, losses = group.descend(start, self.local_steps, self.local_lr)
            self.personal.write(group.clients, end)
            yield group.updates({name: start[name] - end[name] for name in base}, losses)

    def personal_parameters(self, model: NewsModel) -> dict[str, Tensor]:
        count = len(model.user_layers) if self.personal_layers is None else self.personal_layers
        first, layer = len(model.layers) - count, model.layer_of()
        return {name: parameter for name, parameter in trainable(model).items() if layer[name] >= first}
