"""Who is scored by which parameters: one model for all, one for each group of users, or one for each user."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fednews.data.features import take_news
from fednews.data.impressions import ImpressionBatch
from fednews.models.base import NewsModel, encode_by_length, encode_users_by_length
from fednews.models.functional import call_at

Parameters = dict[str, Tensor]
_NEWS_AT_ONCE = 4096
_SCORES_AT_ONCE = 4096


@dataclass(frozen=True)
class Catalogue:
    """The news that an evaluation touches.

    Attributes:
        features: model inputs of all the store's news.
        rows: int64, the articles to encode.
        device: where to compute.
    """

    features: dict[str, Tensor]
    rows: Tensor
    device: torch.device

    @torch.no_grad()
    def encode(self, model: NewsModel, parameters: Parameters | None = None, rows: Tensor | None = None) -> Tensor:
        """Representations ``[news, …]`` of all the store's news on ``device``; those that are not asked for stay zero.

        Args:
            model: encodes.
            parameters: used in place of the model's own, by name; the rest is the model's.
            rows: encode these instead of the catalogue's.
        """
        out = None
        for chunk in (self.rows if rows is None else rows).split(_NEWS_AT_ONCE):
            news = {name: column.to(self.device) for name, column in take_news(self.features, chunk).items()}
            encoded = call_at(_ByLength(model), parameters, news)
            if out is None:
                out = encoded.new_zeros(len(next(iter(self.features.values()))), *encoded.shape[1:])
            out[chunk.to(self.device)] = encoded
        return out


class Scorer(ABC):
    """Scores the candidates of impressions."""

    @abstractmethod
    def score(self, batch: ImpressionBatch) -> Tensor:
        """Scores ``[V]`` of all candidates of the batch, flat as in ``batch.candidates``."""


class SharedModel(Scorer):
    """Everybody is scored by the same parameters."""

    def __init__(self, model: NewsModel, catalogue: Catalogue) -> None:
        self.model = model
        self.vectors = catalogue.encode(model)

    def score(self, batch: ImpressionBatch) -> Tensor:
        return score_batch(self.model, self.vectors, batch)


class ModelPerGroup(Scorer):
    """Users who share a model share the encoding.

    Args:
        model: gives what the groups' parameters leave out.
        catalogue: the news.
        parameters: each group's own, by name.
        assign: the batch -> group of each of its users, int64 ``[R]``.
    """

    def __init__(
        self,
        model: NewsModel,
        catalogue: Catalogue,
        parameters: list[Parameters],
        assign: Callable[[ImpressionBatch], Tensor],
    ) -> None:
        self.model = model
        self.parameters = parameters
        self.assign = assign
        self.vectors = [catalogue.encode(model, own) for own in parameters]

    def score(self, batch: ImpressionBatch) -> Tensor:
        group = self.assign(batch)[batch.impression_history]
        owner = group.repeat_interleave(batch.offsets.diff())
        scores = None
        for number in group.unique().tolist():
            part = of_impressions(batch, (group == number).nonzero().flatten())
            found = score_batch(self.model, self.vectors[number], part, self.parameters[number])
            scores = found.new_zeros(len(owner)) if scores is None else scores
            scores[owner == number] = found
        return scores


class ModelPerUser(Scorer):
    """Each user is scored by own parameters; news are encoded anew only where the news encoder is personal.

    Args:
        model: gives what a user's parameters leave out.
        catalogue: the news.
        parameters_of: client (row of the store's samples) -> own parameters by name, empty for a user without any.
    """

    def __init__(self, model: NewsModel, catalogue: Catalogue, parameters_of: Callable[[int], Parameters]) -> None:
        self.model = model
        self.catalogue = catalogue
        self.parameters_of = parameters_of
        self.shared = catalogue.encode(model)
        self.news_parameters = model.news_parameters()
        self._like = dict(model.named_parameters())

    def score(self, batch: ImpressionBatch) -> Tensor:
        user = batch.user[batch.impression_history]
        owner = user.repeat_interleave(batch.offsets.diff())
        scores = None
        for number in user.unique().tolist():
            part = of_impressions(batch, (user == number).nonzero().flatten())
            own = self._own(number - 1) if number else {}
            found = score_batch(self.model, self._vectors(own, part), part, own)
            scores = found.new_zeros(len(owner)) if scores is None else scores
            scores[owner == number] = found
        return scores

    def _own(self, client: int) -> Parameters:
        """In the model's type, whichever one they are kept in."""
        return {name: value.to(self._like[name].dtype) for name, value in self.parameters_of(client).items()}

    def _vectors(self, own: Parameters, part: ImpressionBatch) -> Tensor:
        if self.news_parameters.isdisjoint(own):
            return self.shared
        rows = torch.cat([part.candidates, part.history[part.history_mask]]).unique().cpu()
        return self.catalogue.encode(self.model, own, rows)


@torch.no_grad()
def score_batch(
    model: NewsModel, vectors: Tensor, batch: ImpressionBatch, parameters: Parameters | None = None
) -> Tensor:
    """Scores ``[V]`` of all candidates of the batch, flat as in ``batch.candidates``.

    Args:
        model: encodes users and scores.
        vectors: representations of the store's news.
        batch: the impressions.
        parameters: used in place of the model's own, by name; the rest is the model's.
    """
    shown = (vectors, batch.history, batch.history_mask, batch.user)
    return score_users(model, call_at(_Users(model), parameters, *shown), vectors, batch, parameters)


@torch.no_grad()
def score_users(
    model: NewsModel, users: Tensor, vectors: Tensor, batch: ImpressionBatch, parameters: Parameters | None = None
) -> Tensor:
    """As :func:`score_batch`, with ``users [R, …]`` in place of what the model makes of the batch's histories."""
    sizes = batch.offsets.diff()
    scores = users.new_empty(len(batch.candidates))
    # Impressions of similar size together: one padded product each instead of a copy of the user for every candidate.
    for chosen in _chunks(sizes):
        place = torch.arange(int(sizes[chosen].max()), device=sizes.device)
        real = place < sizes[chosen, None]
        flat = (batch.offsets[:-1][chosen, None] + place)[real]
        shown = batch.candidates.new_zeros(real.shape)
        shown[real] = batch.candidates[flat]
        found = call_at(_Scores(model), parameters, users[batch.impression_history[chosen]], vectors[shown])
        scores[flat] = found[real]
    return scores


def of_impressions(batch: ImpressionBatch, chosen: Tensor) -> ImpressionBatch:
    """The given impressions of the batch, with the histories that they use."""
    sizes = batch.offsets.diff()
    kept = torch.zeros_like(sizes, dtype=torch.bool)
    kept[chosen] = True
    flat = kept.repeat_interleave(sizes)
    rows, impression_history = batch.impression_history[chosen].unique(return_inverse=True)
    return replace(
        batch,
        history=batch.history[rows],
        history_mask=batch.history_mask[rows],
        impression_history=impression_history,
        candidates=batch.candidates[flat],
        offsets=torch.cat([batch.offsets[:1] * 0, sizes[chosen].cumsum(0)]),
        labels=batch.labels[flat] if len(batch.labels) else batch.labels,
        rows=batch.rows[chosen],
        user=batch.user[rows],
    )


def _chunks(sizes: Tensor) -> list[Tensor]:
    """Impressions in order of size, cut so that a padded chunk holds a bounded number of candidates."""
    order = sizes.argsort(stable=True)
    order = order[sizes[order] > 0]
    chunks, start = [], 0
    for end, size in enumerate(sizes[order].tolist(), 1):
        if (end - start) * size > _SCORES_AT_ONCE and end - 1 > start:
            chunks.append(order[start : end - 1])
            start = end - 1
    return [*chunks, order[start:]] if start < len(order) else chunks


class _Call(torch.nn.Module):
    """``call_at`` calls ``forward``; these make it call another function of the model."""

    def __init__(self, model: NewsModel) -> None:
        super().__init__()
        self.model = model
        self.training = model.training


class _ByLength(_Call):
    def forward(self, news: dict[str, Tensor]) -> Tensor:
        return encode_by_length(self.model, news)


class _Users(_Call):
    def forward(self, vectors: Tensor, history: Tensor, mask: Tensor, user: Tensor) -> Tensor:
        return encode_users_by_length(self.model, vectors, history, mask, user)


class _Scores(_Call):
    def forward(self, user: Tensor, candidates: Tensor) -> Tensor:
        return self.model.score(user, candidates)
