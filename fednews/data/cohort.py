"""Cohorts: one round's clients as tensors, drawn at a cost that does not depend on the population."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from fednews.data.features import TOKEN_INPUTS, take_news
from fednews.data.ragged import Ragged
from fednews.data.store import Samples, Store
from fednews.data.tables import TRAIN
from fednews.errors import UsageError
from fednews.streams import Streams


@dataclass(frozen=True)
class Cohort:
    """Everything a training step sees of one round.

    Each article of the round stands once in ``news``, each distinct (client, history) once in ``history``.

    Attributes:
        news: model inputs of the round's unique news, first dimension ``N``.
        history: int64 ``[R, H]``, positions in ``news``, padded on the left, latest click last.
        history_mask: bool ``[R, H]``, true where a click is real.
        history_client: int64 ``[R]``, position of the client that owns the row.
        user: int64 ``[R]``, row in the store's samples, plus one, of the user who owns the row.
        sample_history: int64 ``[S]``, row of ``history`` that a sample uses.
        candidates: int64 ``[S, K + 1]``, positions in ``news``; column 0 is the clicked one.
        client: int64 ``[S]``, position in ``0..C-1`` of the sample's client.
        counts: int64 ``[C]``, samples of each client, abs(B_u) of the papers.
        clients: int64 ``[C]``, the clients' rows in the store's samples.
        articles: int64 ``[N]``, the rows of ``news`` in the store's news, ascending.
    """

    news: dict[str, Tensor]
    history: Tensor
    history_mask: Tensor
    history_client: Tensor
    user: Tensor
    sample_history: Tensor
    candidates: Tensor
    client: Tensor
    counts: Tensor
    clients: Tensor
    articles: Tensor

    def __len__(self) -> int:
        return len(self.clients)

    def to(self, device: torch.device) -> "Cohort":
        """On ``device``; from :meth:`pinned` memory the copy runs while the host goes on."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> "Cohort":
        """In page-locked memory, which a GPU reads by itself."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Cohort":
        changed = {f.name: change(getattr(self, f.name)) for f in fields(self) if f.name != "news"}
        return replace(self, news={name: change(column) for name, column in self.news.items()}, **changed)


@dataclass(frozen=True)
class Draw:
    """The samples of a round before any text is touched, ordered by client.

    Attributes:
        clients: ``[C]`` rows in the store's samples; ``[0]`` for a draw of loose samples.
        client: ``[S]`` position of each sample's client.
        impression: ``[S]`` row of the train behaviours.
        candidates: ``[S, K + 1]`` news indices, the clicked one first.
    """

    clients: np.ndarray
    client: np.ndarray
    impression: np.ndarray
    candidates: np.ndarray

    def of_clients(self, positions: np.ndarray) -> "Draw":
        """The part of the draw that belongs to some of its clients."""
        place = np.full(len(self.clients), -1)
        place[positions] = np.arange(len(positions))
        kept = place[self.client] >= 0
        return Draw(self.clients[positions], place[self.client[kept]], self.impression[kept], self.candidates[kept])


class CohortSource:
    """Draws cohorts from a store.

    Args:
        store: the data; its train split is drawn from.
        features: model inputs of all news (:func:`fednews.data.features.news_features`).
        negatives: K, non-clicked candidates drawn per sample from the same impression.
        history_length: latest clicks kept.
        streams: the experiment's random streams.

    Raises:
        UsageError: the train split has no sample.
    """

    def __init__(
        self, store: Store, features: dict[str, Tensor], negatives: int, history_length: int, streams: Streams
    ) -> None:
        self.samples: Samples = store.samples
        if not self.samples.clients:
            raise UsageError(f"{store.path} has no client with a click to learn from: no cohort can be drawn")
        self.train = store.split(TRAIN)
        self.features = features
        self.category = store.category
        self.categories = store.categories
        self.negatives = negatives
        self.history_length = history_length
        self.streams = streams
        self.attempts: tuple[int, ...] = ()  # counter of the draws of who works, beside the round

    def attempt(self, number: int) -> "CohortSource":
        """The same source, but other clients for each further attempt at a round; what they draw stays theirs."""
        other = copy.copy(self)
        other.attempts = (number,) if number else ()
        return other

    def draw_clients(self, size: int, round_: int) -> np.ndarray:
        """``size`` different clients of round ``round_``, uniformly; int64 rows of the store's samples."""
        return self.streams.numpy("cohort", round_, *self.attempts).choice(self.samples.clients, size, replace=False)

    def of_clients(self, clients: np.ndarray, round_: int) -> Draw:
        """All samples of the given clients, with the negatives of round ``round_``."""
        rows = self.samples.rows.take(clients)
        client = np.repeat(np.arange(len(clients)), rows.lengths())
        return self._with_negatives(np.asarray(clients), client, rows.values, round_)

    def of_samples(self, rows: np.ndarray, round_: int) -> Draw:
        """Loose samples as if they belonged to one client, for central training."""
        return self._with_negatives(np.zeros(1, np.int64), np.zeros(len(rows), np.int64), rows, round_)

    def _with_negatives(self, clients: np.ndarray, client: np.ndarray, rows: np.ndarray, round_: int) -> Draw:
        impression, click = self.samples.impression[rows], self.samples.click[rows]
        rng = self.streams.numpy("negatives", round_)
        negatives = draw_negatives(self.train.candidates, self.train.labels, impression, self.negatives, rng)
        clicked = self.train.candidates.values[click]
        return Draw(clients, client, impression, np.column_stack([clicked, negatives]))

    def cohort(self, draw: Draw) -> Cohort:
        """The draw as tensors, with the text of the news it touches."""
        impressions, sample_impression = np.unique(draw.impression, return_inverse=True)
        history, _ = self.train.history.take(impressions).last(self.history_length).padded(fill=-1, side="left")
        owner = np.zeros(len(impressions), np.int64)
        owner[sample_impression] = draw.client
        user = self.samples.client_of(self.train.user[impressions]) + 1
        keyed, row = np.unique(np.column_stack([owner, user, history]), axis=0, return_inverse=True)
        owner, user, history = keyed[:, 0], keyed[:, 1], keyed[:, 2:]
        news, position = np.unique(np.concatenate([history.ravel(), draw.candidates.ravel()]), return_inverse=True)
        padding = int(len(news) > 0 and news[0] == -1)
        position = np.maximum(position - padding, 0)
        articles = torch.from_numpy(news[padding:].astype(np.int64))
        return Cohort(
            news=take_news(self.features, articles),
            history=torch.from_numpy(position[: history.size].reshape(history.shape)),
            history_mask=torch.from_numpy(history >= 0),
            history_client=torch.from_numpy(owner.copy()),
            user=torch.from_numpy(user.copy()),
            sample_history=torch.from_numpy(row.reshape(-1)[sample_impression]),
            candidates=torch.from_numpy(position[history.size :].reshape(draw.candidates.shape)),
            client=torch.from_numpy(draw.client),
            counts=torch.from_numpy(np.bincount(draw.client, minlength=len(draw.clients))),
            clients=torch.from_numpy(draw.clients.astype(np.int64)),
            articles=articles,
        )


def draw_negatives(
    candidates: Ragged, labels: np.ndarray, impressions: np.ndarray, k: int, rng: np.random.Generator
) -> np.ndarray:
    """``k`` non-clicked candidates of each given impression, int64 ``[len(impressions), k]``.

    Drawn without replacement where an impression has at least ``k`` non-clicks, with replacement where it has
    fewer. Every impression must have one.
    """
    shown = candidates.take(impressions)
    clicked = Ragged(candidates.offsets, labels).take(impressions)
    news, real = shown.padded()
    return choose(news, real & (clicked.padded(fill=1)[0] == 0), k, rng)


def choose(news: np.ndarray, free: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """``k`` of the ``free`` articles of each row ``[n, width]``, int64 ``[n, k]``; every row must have a free one.

    Drawn without replacement where a row has at least ``k`` free ones, with replacement where it has fewer.
    """
    key = np.where(free, rng.random(news.shape), np.inf)
    width = max(k, news.shape[1])
    key = np.pad(key, ((0, 0), (0, width - news.shape[1])), constant_values=np.inf)
    order = np.argsort(key, axis=1)
    available = free.sum(1)
    again = np.floor(rng.random((len(news), k)) * available[:, None]).astype(np.int64)
    rank = np.where((available >= k)[:, None], np.arange(k), again)
    return np.take_along_axis(news, np.take_along_axis(order, rank, 1), 1).astype(np.int64)


@dataclass(frozen=True)
class ClientBatch:
    """Some clients of a cohort, each padded to the same shape, for ``torch.func.vmap`` over dimension 0.

    Attributes:
        clients: int64 ``[c]``, positions in the cohort.
        news: model inputs ``[c, n, …]``.
        history, history_mask: ``[c, r, H]``.
        user: int64 ``[c, r]``.
        sample_history: ``[c, s]``.
        candidates: ``[c, s, K + 1]``.
        sample_mask: bool ``[c, s]``, true where a sample is real.
    """

    clients: Tensor
    news: dict[str, Tensor]
    history: Tensor
    history_mask: Tensor
    user: Tensor
    sample_history: Tensor
    candidates: Tensor
    sample_mask: Tensor


def client_batches(cohort: Cohort, size: int) -> Iterator[ClientBatch]:
    """Split a cohort into batches of ``size`` clients of similar amount of news, so that little is padded."""
    parts = [_client_part(cohort, client) for client in range(len(cohort))]
    order = sorted(range(len(cohort)), key=lambda client: len(parts[client][0]))
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        yield _stack(cohort, chosen, [parts[client] for client in chosen])


def _without(name: str, column: Tensor, missing: Tensor) -> Tensor:
    """Texts of articles that only fill up a client's rows are empty, and so cost little."""
    return column.masked_fill(missing.unsqueeze(-1), 0) if name in TOKEN_INPUTS else column


def _client_part(cohort: Cohort, client: int) -> tuple[Tensor, ...]:
    rows = (cohort.history_client == client).nonzero().flatten()
    samples = (cohort.client == client).nonzero().flatten()
    history, mask, candidates = cohort.history[rows], cohort.history_mask[rows], cohort.candidates[samples]
    news, position = torch.cat([history[mask], candidates.flatten()]).unique(return_inverse=True)
    local_history = torch.zeros_like(history)
    local_history[mask] = position[: int(mask.sum())]
    local_candidates = position[int(mask.sum()) :].view_as(candidates)
    sample_history = torch.searchsorted(rows, cohort.sample_history[samples])
    return news, local_history, mask, cohort.user[rows], sample_history, local_candidates


def _stack(cohort: Cohort, chosen: list[int], parts: list[tuple[Tensor, ...]]) -> ClientBatch:
    def pad(index: int, rows: int) -> Tensor:
        shape = (len(parts), rows, *parts[0][index].shape[1:])
        out = parts[0][index].new_zeros(shape)
        for place, part in enumerate(parts):
            out[place, : len(part[index])] = part[index]
        return out

    news_rows, history_rows, sample_rows = (max(len(part[i]) for part in parts) for i in (0, 1, 4))
    news_index = pad(0, news_rows)
    sizes = torch.tensor([len(part[0]) for part in parts], device=news_index.device)
    missing = torch.arange(news_rows, device=sizes.device) >= sizes[:, None]
    counts = cohort.counts[chosen]
    return ClientBatch(
        clients=torch.tensor(chosen, device=counts.device),
        news={name: _without(name, column[news_index], missing) for name, column in cohort.news.items()},
        history=pad(1, history_rows),
        history_mask=pad(2, history_rows),
        user=pad(3, history_rows),
        sample_history=pad(4, sample_rows),
        candidates=pad(5, sample_rows),
        sample_mask=torch.arange(sample_rows, device=counts.device) < counts[:, None],
    )
