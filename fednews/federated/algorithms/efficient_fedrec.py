"""Efficient-FedRec: the news model stays on the server, clients train vectors and the user model (Yi et al. 2021).

A round, section 3.3:

1. The union N of the news that the drawn clients touched (their histories and drawn candidates) is computed by the
   run's aggregation (section 3.4). The server encodes N and sends the vectors with the user model.
2. Every client computes the gradients of its loss with respect to the user model and the vectors.
3. ``[|B_u| g_news, |B_u| g_user, |B_u|]`` is summed by the run's aggregation.
4. The server carries the mean gradient of the vectors back through the news model, and steps both models.

By the chain rule this is FedSGD on the whole model, at the same parameters, whatever the server optimiser (section
4.2): without dropout in the news model, a test holds both equal to rounding.

The paper steps the user model by FedAdam and the news model by Adam. Both act on every number by itself, so one
optimiser with two groups of parameters is the same as two; schedules, clipping and checkpoints stay Lightning's.
Step 4's "updated news representations" are computed when they are needed: those of a round's union at its start, all of
them before an evaluation.

What the text leaves open: the union holds the drawn candidates, not all of an impression's (the authors' code has
both). What a row's sum hides depends on how many clients hold it: of news that one client touched it is that client's
own gradient, whose sign tells clicked from shown. ``min_multiplicity`` keeps such rows from being uploaded. Dummy news
would not help, as their rows sum to exactly zero.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from fednews.aggregation.base import Aggregation
from fednews.aggregation.updates import Aggregate, ClientUpdates
from fednews.data.cohort import Cohort, CohortSource
from fednews.errors import UsageError
from fednews.federated.algorithms.base import COUNT_BYTES, ClientSampling, Selection
from fednews.federated.clients import Reduction, gradients
from fednews.federated.costs import Messages
from fednews.federated.round import NewsUnion, Round
from fednews.federated.split import VECTORS, ClientHalf, ServerHalf, news_parameters, user_parameters
from fednews.models.base import NewsModel
from fednews.privacy.entry import LedgerEntry
from fednews.privacy.unprotected import unprotected
from fednews.types import Size

_ROW_BYTES = 4  # a news as a number
_WORD_NEWS_AT_ONCE, _PIECE_NEWS_AT_ONCE = 2048, 256


class EfficientFedRec(ClientSampling):
    """Clients hold the user model and the vectors of the news that their group touched.

    Pair it with ``torch.optim.Adam(lr=5e-5)`` and PLMNR for the published runs, and with SecureAggregation: summed in
    the clear, the server sees what each client touched and its gradients.

    Args:
        clients_per_round: how many clients are drawn each round; below 1 it is the fraction r of all clients.
        news_lr: learning rate of the news model; null for the optimiser's own.
        loss: a client's loss is the sum or the mean over its samples.
        min_multiplicity: gradients of news that fewer of the round's clients touched are not uploaded.
        client_dropout: probability that a drawn client never answers.
        clients_at_once: clients whose own gradients are computed together, padded alike; null: on an accelerator 5,
            on a CPU none is padded.
        news_at_once: news that the server encodes at a time, and keeps the activations of; of a round's union that has
            more they are computed twice. null: 256 where titles go through a language model, else 2,048.

    Raises:
        UsageError: a setting out of range.
    """

    def __init__(
        self,
        clients_per_round: float = 50,
        news_lr: float | None = None,
        loss: Reduction = "mean",
        min_multiplicity: int = 1,
        client_dropout: float = 0.0,
        clients_at_once: Size | None = None,
        news_at_once: Size | None = None,
    ) -> None:
        super().__init__(clients_per_round, client_dropout)
        for name, value in (("min_multiplicity", min_multiplicity), ("news_at_once", news_at_once)):
            if value is not None and value < 1:
                raise UsageError(f"algorithm.{name} must be at least 1, not {value}")
        if news_lr is not None and news_lr <= 0:
            raise UsageError(f"algorithm.news_lr must be above 0, not {news_lr}")
        self.news_lr = news_lr
        self.loss = loss
        self.min_multiplicity = min_multiplicity
        self.clients_at_once = clients_at_once
        self.news_at_once = news_at_once
        self._vectors: Tensor | None = None  # of the round's union, those that are uploaded first
        self._uploaded = 0
        self._participants = np.zeros(0, np.int64)
        self._released: list[tuple[LedgerEntry, np.ndarray]] = []
        self._metrics: dict[str, float] = {}

    def check_parts(self, model: NewsModel, aggregation: Aggregation) -> None:
        if self.min_multiplicity > 1 and not aggregation.reveals_counts:
            raise UsageError("algorithm.min_multiplicity needs counts: set aggregation.reveal_counts to true")

    def parameter_groups(self, model: NewsModel) -> list:
        if self.news_lr is None:
            return super().parameter_groups(model)
        user, news = user_parameters(model), news_parameters(model)
        return [{"params": list(user.values())}, {"params": list(news.values()), "lr": self.news_lr}]

    def setup(self, model: NewsModel, source: CohortSource, make_optimizer: Callable[[list], Optimizer]) -> None:
        self._coordinates = sum(part.numel() for part in user_parameters(model).values())
        self._catalogue = len(next(iter(source.features.values())))
        at_once = self.news_at_once or (_WORD_NEWS_AT_ONCE if model.tokenizer is None else _PIECE_NEWS_AT_ONCE)
        self._server = ServerHalf(source.features, at_once, source.streams)

    def begin_round(self, source: CohortSource, selection: Selection) -> None:
        self._participants = selection.participants

    def aggregate(self, model: NewsModel, cohort: Cohort | None, work: Round) -> Aggregate:
        self._vectors, self._uploaded = None, 0
        union = work.union([] if cohort is None else touched_articles(cohort), self._catalogue)
        self._note(union, work)
        with work.on_server():
            self._encode(model, union.seen, work.number)
        sums = work.sum(() if cohort is None else self.client_updates(model, cohort, work))
        if self._uploaded:
            with work.on_server():
                rows, gradient = self._rows[: self._uploaded], sums.total.pop(VECTORS)
                sums.total |= self._server.gradients(model, rows, gradient, work.number, 0)
        return sums

    def _encode(self, model: NewsModel, seen: np.ndarray, number: int) -> None:
        """Encode the union, first the news whose gradients will be uploaded."""
        often = np.flatnonzero(seen >= self.min_multiplicity)
        rarely = np.flatnonzero((seen > 0) & (seen < self.min_multiplicity))
        rows = [torch.from_numpy(part) for part in (often, rarely)]
        parts = [
            self._server.encode(model, part, number, place, keep=place == 0)
            for place, part in enumerate(rows)
            if len(part)
        ]
        self._rows, self._uploaded = torch.cat(rows), len(often)
        self._vectors = torch.cat(parts) if parts else None

    def _note(self, union: NewsUnion, work: Round) -> None:
        """What the union revealed, and what it cost where the aggregation does not count that itself."""
        size = int((union.seen > 0).sum())
        self._metrics = {"union_size": size, "union_singleton_rate": union.singleton_rate}
        self._released.append((union_release(self._catalogue, union, work), self._participants))
        if not work.separate:
            work.costs.carry("union", _ROW_BYTES * int(union.holders.sum()), 0)

    def client_updates(self, model: NewsModel, cohort: Cohort, work: Round) -> Iterator[ClientUpdates]:
        half = ClientHalf(model, self._vectors)
        order = self._rows.argsort()
        position = order[torch.searchsorted(self._rows[order], cohort.articles.cpu())]
        cohort = replace(cohort, news={"row": position.to(self._vectors.device)})
        parameters = {f"model.{name}": value for name, value in user_parameters(model).items()}
        parameters[VECTORS] = half.vectors
        for part in gradients(half, cohort, self.loss, self.clients_at_once, work.separate, parameters):
            vectors = part.updates.pop(VECTORS)[:, : self._uploaded]
            user = {name.removeprefix("model."): update for name, update in part.updates.items()}
            yield replace(part, updates=user | ({VECTORS: vectors} if self._uploaded else {}))

    def communicated(self, model: NewsModel) -> dict[str, Tensor]:
        """The user model, and the vectors of the round's union whose gradients are uploaded."""
        uploaded = {VECTORS: self._vectors[: self._uploaded]} if self._uploaded else {}
        return user_parameters(model) | uploaded

    def messages(self, model: NewsModel, selection: Selection) -> Messages:
        """The union's own protocol, where the aggregation has one, is counted apart."""
        answered = len(selection.participants)
        if self._vectors is None:  # nobody answered, or the union was aborted: nothing was sent
            return Messages(answered, answered, {}, {})
        user = sum(part.nbytes for part in user_parameters(model).values())
        size, row = len(self._vectors), self._vectors[0].nbytes
        down = {"user_model": user, "vectors": size * row, "indices": size * _ROW_BYTES}
        up = {"user_update": user + COUNT_BYTES, "vector_gradients": self._uploaded * row}
        return Messages(answered, answered, down, up)

    def release(self, coordinates: int) -> LedgerEntry:
        """One kind for all rounds: of the coordinates it names the user model's, which do not change with the union."""
        sees = (
            "every client's gradients by themselves, with the client's identity",
            "sample counts |B_u| in the clear",
        )
        what, reason = "gradients of user model and news vectors", "gradients are uploaded without any noise"
        return unprotected(what, self._coordinates, reason, sees)

    def releases(self) -> Iterable[tuple[LedgerEntry, np.ndarray]]:
        released, self._released = self._released, []
        return released

    def metrics(self) -> dict[str, float]:
        metrics, self._metrics = self._metrics, {}
        return metrics


def union_release(catalogue: int, union: NewsUnion, work: Round) -> LedgerEntry:
    """What a client gives away by the union of news, and by the sums over its rows that follow."""
    alone = "the gradient of the vector of a news that one client touched, exactly; its sign tells clicked from shown"
    if not work.separate:
        sees = ("every client's touched news, with the client's identity",)
    elif union.revealed:
        sees = ("which news the round's clients touched, and how many of them touched each", alone)
    else:
        sees = ("which news the round's clients touched", alone)
    again = f", attempt {work.attempt + 1} at a round" if work.attempt else ""
    reason = "touched news are revealed without any noise: news that one client touched are in the union too"
    entry = unprotected(f"touched news{again}", catalogue, reason, sees)
    return replace(entry, view="central") if work.separate else entry


def touched_articles(cohort: Cohort) -> list[np.ndarray]:
    """The store's news in each client's histories and drawn candidates, ascending, int64 ``[...]``."""
    mask = cohort.history_mask
    owner = torch.cat([
        cohort.history_client.unsqueeze(1).expand_as(mask)[mask],
        cohort.client.unsqueeze(1).expand_as(cohort.candidates).flatten(),
    ])  # fmt: skip
    news = cohort.articles[torch.cat([cohort.history[mask], cohort.candidates.flatten()])]
    owner, news = torch.stack([owner, news], dim=1).unique(dim=0).cpu().unbind(1)
    return [part.numpy() for part in news.split(owner.bincount(minlength=len(cohort)).tolist())]
