"""Ditto (Li et al. 2021, ICML): personal models that are held near the global one."""

from fednews.aggregation.updates import Aggregate
from fednews.data.cohort import Cohort
from fednews.errors import UsageError
from fednews.federated.algorithms.fedavg import FedAvg
from fednews.federated.clients import trainable
from fednews.federated.local import Reduction, local_clients, proximal
from fednews.federated.personal import PersonalModels
from fednews.federated.round import Round
from fednews.models.base import NewsModel
from fednews.types import Size


class Ditto(PersonalModels, FedAvg):
    r"""FedAvg trains the global model; beside it each drawn client trains a personal one of its own.

    Algorithm 1: :math:`v_u \leftarrow v_u - \eta (\nabla F_u(v_u) + \lambda (v_u - w^t))` with the global model that
    the client received. Personal models are never uploaded. The first time that a client takes part, its personal
    model starts at the global one (the paper's clients all start with the initial one and all take part). A user
    without a personal model is evaluated with the global one. The global model is averaged with weights abs(B_u).

    Args:
        clients_per_round: how many clients are drawn each round; below 1 it is the fraction r of all clients.
        local_steps: steps of gradient descent on the global model, each over all samples of the client.
        local_lr: the clients' learning rate, for both models.
        personal_steps: s, steps of gradient descent on the personal model.
        lam: lambda; 0 is local training, and the larger the nearer to the global model.
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
        personal_steps: int = 5,
        lam: float = 1.0,
        loss: Reduction = "mean",
        client_dropout: float = 0.0,
        clients_at_once: Size | None = None,
    ) -> None:
        super().__init__(clients_per_round, local_steps, local_lr, loss, client_dropout, clients_at_once)
        if personal_steps < 1:
            raise UsageError(f"algorithm.personal_steps must be at least 1, not {personal_steps}")
        if lam < 0 or local_lr * lam > 2:
            raise UsageError(f"algorithm.lam lies between 0 and 2 / local_lr, not at {lam}: personal steps diverge")
        self.personal_steps = personal_steps
        self.lam = lam

    def aggregate(self, model: NewsModel, cohort: Cohort | None, work: Round) -> Aggregate:
        sums = super().aggregate(model, cohort, work)
        if cohort is not None:
            self._personalise(model, cohort)
        return sums

    def _personalise(self, model: NewsModel, cohort: Cohort) -> None:
        received = {name: parameter.detach() for name, parameter in trainable(model).items()}
        for group in local_clients(model, cohort, self.loss, self.clients_at_once):
            own = self.personal.read(group.clients, received)
            own, _ = group.descend(own, self.personal_steps, self.local_lr, proximal(self.lam, received))
            self.personal.write(group.clients, own)
