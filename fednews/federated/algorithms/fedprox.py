"""FedProx (Li et al. 2020, MLSys): a proximal term keeps local models near the global one."""

from collections.abc import Iterator
from functools import partial

from fednews.aggregation.updates import ClientUpdates
from fednews.data.cohort import Cohort
from fednews.errors import UsageError
from fednews.federated.algorithms.fedavg import FedAvg
from fednews.federated.clients import local_training
from fednews.federated.local import Reduction, proximal
from fednews.federated.round import Round
from fednews.models.base import NewsModel
from fednews.types import Size


class FedProx(FedAvg):
    r"""FedAvg whose clients descend :math:`F_u(w) + \frac{\mu}{2} \|w - w^t\|^2` (eq. 2).

    Clients stop after ``local_steps``, the same number for all (Algorithm 2 lets each solve inexactly), and are
    weighted by :math:`|B_u|` as in FedAvg. With one local step the term has no gradient: the round is FedSGD.

    Args:
        clients_per_round: how many clients are drawn each round; below 1 it is the fraction r of all clients.
        local_steps: steps of gradient descent, each over all samples of the client.
        local_lr: the clients' learning rate.
        mu: weight of the proximal term; 0 is FedAvg.
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
        mu: float = 0.01,
        loss: Reduction = "mean",
        client_dropout: float = 0.0,
        clients_at_once: Size | None = None,
    ) -> None:
        super().__init__(clients_per_round, local_steps, local_lr, loss, client_dropout, clients_at_once)
        if mu < 0 or local_lr * mu > 2:
            raise UsageError(f"algorithm.mu lies between 0 and 2 / local_lr, not at {mu}: local steps diverge")
        self.mu = mu

    def client_updates(self, model: NewsModel, cohort: Cohort, work: Round) -> Iterator[ClientUpdates]:
        if self.local_steps == 1:
            yield from super().client_updates(model, cohort, work)
            return
        yield from local_training(
            model,
            cohort,
            self.loss,
            self.local_steps,
            self.local_lr,
            self.clients_at_once,
            direction=partial(proximal, self.mu),
        )
