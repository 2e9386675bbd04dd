"""What methods with a personal model for each client have in common."""

from collections.abc import Callable

from torch import Tensor
from torch.optim import Optimizer

from fednews.data.cohort import CohortSource
from fednews.evaluation.scorers import Catalogue, ModelPerUser, Scorer
from fednews.federated.client_store import ClientStore
from fednews.federated.clients import trainable
from fednews.models.base import NewsModel


class PersonalModels:
    """Keeps clients' personal parameters and evaluates each user with its own; to be named before the base method.

    A user without personal parameters is evaluated with the global model.
    """

    one_process = True
    repeatable = False

    def personal_parameters(self, model: NewsModel) -> dict[str, Tensor]:
        """The parameters of which each client has its own, by name."""
        return trainable(model)

    def setup(self, model: NewsModel, source: CohortSource, make_optimizer: Callable[[list], Optimizer]) -> None:
        self.personal = ClientStore(self.personal_parameters(model))

    def scorer(self, model: NewsModel, catalogue: Catalogue) -> Scorer:
        return ModelPerUser(model, catalogue, lambda client: self.personal.read_one(client, catalogue.device))

    def state_dict(self) -> dict:
        return {"personal": self.personal.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        self.personal.load_state_dict(state["personal"])
