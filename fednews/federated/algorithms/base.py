"""The seam of methods: who works in a round, what they compute, and what they promise."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor
from torch.optim import Optimizer

from fednews.aggregation.base import Aggregation
from fednews.aggregation.updates import Aggregate, ClientUpdates
from fednews.data.cohort import Cohort, CohortSource, Draw
from fednews.errors import UsageError
from fednews.evaluation.scorers import Catalogue, Scorer, SharedModel
from fednews.federated.clients import trainable
from fednews.federated.costs import Messages
from fednews.federated.round import Round
from fednews.models.base import NewsModel
from fednews.privacy.entry import LedgerEntry

COUNT_BYTES = 8  # |B_u|, which weights an update


@dataclass(frozen=True)
class Selection:
    """Who works in a round.

    Attributes:
        draw: the samples of the clients that will answer.
        participants: int64, different clients (rows of the store's samples) whose data leaves them this round.
        invited: clients that were sent the model, those that then dropped out included.
    """

    draw: Draw
    participants: np.ndarray
    invited: int


class Algorithm(ABC):
    """A federated method. Its whole state is in ``state_dict``."""

    federated = True
    one_process = False
    """Whether the method keeps state of single clients, which processes of a distributed run do not share."""

    repeatable = True
    """Whether an aborted round leaves no state behind, so that it can be done again with other clients."""

    ahead = True
    """Whether :meth:`select` reads nothing that a round changes, so that it may run, in a thread, a round ahead."""

    def check(self, clients: int) -> None:
        """Raise UsageError where the settings do not suit a population of ``clients``."""

    def check_parts(self, model: NewsModel, aggregation: Aggregation) -> None:
        """Raise UsageError where the method cannot train ``model``, or not with updates that travel this way."""

    def parameter_groups(self, model: NewsModel) -> list:
        """The trained parameters for the server optimiser, in groups where some have settings of their own."""
        return list(trainable(model).values())

    @abstractmethod
    def select(self, source: CohortSource, round_: int) -> Selection:
        """Who works in round ``round_``: a function of the streams' seed, the round and the state alone."""

    def begin_round(self, source: CohortSource, selection: Selection) -> None:
        """Note who works in the attempt at a round that is computed next."""

    def share(self, draw: Draw, rank: int, processes: int) -> Draw:
        """The part of a round's work that falls to one process."""
        return draw.of_clients(np.arange(len(draw.clients))[rank::processes])

    def setup(self, model: NewsModel, source: CohortSource, make_optimizer: Callable[[list], Optimizer]) -> None:
        """Build what the method keeps beside the global model, before training and before a checkpoint is loaded.

        Args:
            model: the global model as it starts.
            source: where clients come from.
            make_optimizer: makes a server optimiser, as configured, for a list of parameters.
        """

    def aggregate(self, model: NewsModel, cohort: Cohort | None, work: Round) -> Aggregate:
        """The sums of a round; ``cohort`` is None where no client answered or none fell to this process.

        A method with several sets of parameters calls ``work.sum`` once for each, in the same order in all processes.
        """
        return work.sum(() if cohort is None else self.client_updates(model, cohort, work))

    @abstractmethod
    def client_updates(self, model: NewsModel, cohort: Cohort, work: Round) -> Iterator[ClientUpdates]:
        """What the cohort's clients upload, in parts, so that memory is bounded."""

    def finish_round(self, model: NewsModel, optimizer: Optimizer, work: Round) -> None:
        """What the server does after its optimiser has stepped the global model."""

    def communicated(self, model: NewsModel) -> dict[str, Tensor]:
        """What clients receive and send updates of, by name: the trained parameters, less personal ones, plus others.

        Updates of names that are not the model's parameters are summed too; the server optimiser does not see them.
        """
        return trainable(model)

    def messages(self, model: NewsModel, selection: Selection) -> Messages:
        """What travelled in the round just computed, as if updates were summed in the clear."""
        if not self.federated:
            return Messages(0, 0, {}, {})
        size = sum(part.nbytes for part in self.communicated(model).values())
        down, up = {"model": size}, {"update": size + COUNT_BYTES}
        return Messages(selection.invited, len(selection.participants), down, up)

    @abstractmethod
    def release(self, coordinates: int) -> LedgerEntry:
        """What one client gives away by one upload of ``coordinates`` numbers."""

    def releases(self) -> Iterable[tuple[LedgerEntry, np.ndarray]]:
        """What was released since the last call beside the participants' uploads, and by which clients."""
        return ()

    def metrics(self) -> dict[str, float]:
        """Further metrics of the round just done."""
        return {}

    def scorer(self, model: NewsModel, catalogue: Catalogue) -> Scorer:
        """Says which parameters each user is evaluated with; here the global model's for everybody."""
        return SharedModel(model, catalogue)

    def artifacts(self) -> dict[str, str | bytes]:
        """Files for the run, by name: text, or the bytes of a figure."""
        return {}

    def state_dict(self) -> dict:
        return {}

    def load_state_dict(self, state: dict) -> None:
        """Restore what :meth:`state_dict` gave."""


class ClientSampling(Algorithm):
    """Methods in which a few clients, drawn anew each round, work on all their samples.

    Args:
        clients_per_round: how many clients are drawn each round; below 1 it is the fraction r of all clients.
        client_dropout: probability that a drawn client never answers.

    Raises:
        UsageError: a setting out of range.
    """

    def __init__(self, clients_per_round: float, client_dropout: float) -> None:
        if not (0 < clients_per_round < 1 or (clients_per_round >= 1 and float(clients_per_round).is_integer())):
            raise UsageError(
                "algorithm.clients_per_round is a whole number of clients, or a fraction above 0 and below 1, "
                f"not {clients_per_round:g}"
            )
        if not 0 <= client_dropout < 1:
            raise UsageError(f"algorithm.client_dropout is a probability below 1, not {client_dropout}")
        self.clients_per_round = clients_per_round
        self.client_dropout = client_dropout

    def check(self, clients: int) -> None:
        self._cohort_size(clients)

    def select(self, source: CohortSource, round_: int) -> Selection:
        clients = source.draw_clients(self._cohort_size(source.samples.clients), round_)
        answers = (
            source.streams.numpy("client_dropout", round_, *source.attempts).random(len(clients)) >= self.client_dropout
        )
        draw = source.of_clients(clients, round_).of_clients(np.flatnonzero(answers))
        return Selection(draw, draw.clients, len(clients))

    def _cohort_size(self, population: int) -> int:
        if self.clients_per_round < 1:
            return max(1, round(self.clients_per_round * population))
        if self.clients_per_round > population:
            raise UsageError(
                f"algorithm.clients_per_round is {self.clients_per_round:.0f}, but the data has {population} clients"
            )
        return int(self.clients_per_round)
