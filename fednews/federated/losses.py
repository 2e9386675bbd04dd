"""Losses of a cohort's samples, with each article and each history encoded once."""

from collections.abc import Container

import torch
from torch import Tensor

from fednews.data.cohort import Cohort
from fednews.data.features import take_news
from fednews.models.base import NewsModel, click_losses, encode_by_length, encode_users_by_length, few_words, words_of
from fednews.models.layers import Words


def cohort_losses(
    model: NewsModel, cohort: Cohort, words: Words | None = None, gathered: Container[str] = ()
) -> Tensor:
    """Loss of every sample ``[S]``.

    Args:
        model: the recommender.
        cohort: the samples.
        words: of the cohort's news, where they are known (:func:`~fednews.models.base.words_of`).
        gathered: names of parameters that hold the rows of ``words`` alone.
    """
    # Words for users too: PrivateRec encodes its anonymous news there.
    with few_words(model, words_of(model, cohort.news) if words is None else words, gathered):
        vectors = _news(model, cohort)
        users = encode_users_by_length(model, vectors, cohort.history, cohort.history_mask, cohort.user)
        return click_losses(model.score(users[cohort.sample_history], vectors[cohort.candidates]))


def _news(model: NewsModel, cohort: Cohort) -> Tensor:
    """The news' representations ``[N, …]``, of those in histories alone without a graph where users are constant."""
    if not model.constant_users:
        return encode_by_length(model, cohort.news)
    shown = torch.zeros_like(cohort.articles, dtype=torch.bool)
    shown[cohort.candidates.flatten()] = True
    parts, rows = [], [part.nonzero().flatten() for part in (shown, ~shown)]
    # With a graph first: what autocast casts without one it keeps, and a later graph would end there.
    for part, trained in zip(rows, (torch.is_grad_enabled(), False), strict=True):
        if len(part):
            with torch.set_grad_enabled(trained):
                parts.append(encode_by_length(model, take_news(cohort.news, part)))
    return torch.cat(parts)[torch.cat(rows).argsort()]


def gradients_of(loss: Tensor, at: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients of ``loss`` at the tensors ``at``, by name; zero where it does not depend on them."""
    found = zip(at.items(), torch.autograd.grad(loss, list(at.values()), allow_unused=True), strict=True)
    return {name: torch.zeros_like(value) if gradient is None else gradient for (name, value), gradient in found}


class CohortLosses(torch.nn.Module):
    """:func:`cohort_losses` for :func:`~fednews.models.functional.call_at`."""

    def __init__(self, model: NewsModel, words: Words | None = None, gathered: Container[str] = ()) -> None:
        super().__init__()
        self.model, self.words, self.gathered = model, words, gathered

    def forward(self, cohort: Cohort) -> Tensor:
        return cohort_losses(self.model, cohort, self.words, self.gathered)
