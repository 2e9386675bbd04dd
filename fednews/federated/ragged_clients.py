"""Gradients of several clients together without padding, for models that encode ragged sequences: on a CPU."""

from collections.abc import Container, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from fednews.data.cohort import Cohort
from fednews.federated.losses import gradients_of
from fednews.models.base import NewsModel, click_losses, few_words
from fednews.models.functional import call_at
from fednews.models.layers import Words
from fednews.models.ragged import Sequences
from fednews.timing import section

_WORDS_AT_ONCE = 3072  # what is computed of so many stays in the cache


def ragged_batches(parts: Iterable[Cohort], text: str) -> Iterator[list[Cohort]]:
    """Clients to compute together: of few words in their news' ``text``, unless a single one has more."""
    batch, words = [], 0
    for part in parts:
        own = int((part.news[text] != 0).sum())
        if batch and words + own > _WORDS_AT_ONCE:
            yield batch
            batch, words = [], 0
        batch.append(part)
        words += own
    if batch:
        yield batch


class RaggedClients:
    """Some clients.

    Args:
        model: the recommender, whose ``ragged`` names a text.
        mean: a client's loss is the mean over its samples, not the sum.
        words: of all clients together (:func:`~fednews.models.base.words_of`).
        gathered: names of the parameters that are given at the rows of ``words`` alone.
        parts: each client's data.
    """

    def __init__(
        self, model: NewsModel, mean: bool, words: Words | None, gathered: Container[str], parts: Sequence[Cohort]
    ) -> None:
        self._losses = _Losses(model, words, gathered)
        self._samples = [len(part.client) for part in parts]
        self._divisors = torch.tensor(self._samples if mean else [1] * len(parts))
        self._inputs = _joined(parts, model.ragged)

    def __call__(self, parameters: dict[str, Tensor], stacked: bool) -> tuple[dict[str, Tensor], Tensor]:
        """Each client's gradients at ``parameters``, stacked or shared, and the sums of sample losses ``[c]``."""
        at = {
            name: (value if stacked else value.expand(len(self._samples), *value.shape)).detach().requires_grad_()
            for name, value in parameters.items()
        }
        losses = call_at(self._losses, at, *self._inputs)
        totals = torch.stack([part.sum() for part in losses.split(self._samples)])
        return gradients_of((totals / self._divisors).sum(), at), totals.detach()


class _Losses(torch.nn.Module):
    """Loss of every sample; ``call_at`` calls ``forward``."""

    def __init__(self, model: NewsModel, words: Words | None, gathered: Container[str]) -> None:
        super().__init__()
        self.model, self.words, self.gathered = model, words, gathered

    def forward(
        self, tokens: Tensor, texts: Sequences, clicked: Tensor, clicks: Sequences, rows: Tensor, candidates: Tensor
    ) -> Tensor:
        with few_words(self.model, self.words, self.gathered):
            with section("news_encoder"):
                vectors = self.model.encode_ragged_news(tokens, texts)
            with section("user_encoder"):
                users = self.model.encode_ragged_user(vectors[clicked], clicks)
            return click_losses(self.model.score(users[rows], vectors[candidates]))


def _joined(parts: Sequence[Cohort], text: str) -> tuple[Tensor, Sequences, Tensor, Sequences, Tensor, Tensor]:
    """The parts one after the other: words and their texts, clicked news and their histories, rows, candidates."""
    tokens = [part.news[text] for part in parts]
    news = _starts([len(part.articles) for part in parts])
    histories = _starts([len(part.history) for part in parts])
    words = [column[column != 0] for column in tokens]
    clicked = [part.history[part.history_mask] + start for part, start in zip(parts, news, strict=True)]
    lengths = torch.cat([(column != 0).sum(1) for column in tokens])
    clicks = torch.cat([part.history_mask.sum(1) for part in parts])
    return (
        torch.cat(words),
        Sequences.of(lengths, [len(own) for own in words]),
        torch.cat(clicked),
        Sequences.of(clicks, [len(own) for own in clicked]),
        torch.cat([part.sample_history + start for part, start in zip(parts, histories, strict=True)]),
        torch.cat([part.candidates + start for part, start in zip(parts, news, strict=True)]),
    )


def _starts(sizes: list[int]) -> list[int]:
    return [sum(sizes[:place]) for place in range(len(sizes))]
