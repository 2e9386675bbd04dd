"""Gradients of several clients together, by ``torch.func.vmap``: for accelerators, where each call costs much."""

from collections.abc import Container

import torch
from torch import Tensor
from torch.func import grad, vmap

from fednews.data.cohort import ClientBatch
from fednews.data.features import TOKEN_INPUTS, trim_tokens
from fednews.models.base import NewsModel, click_losses, few_words
from fednews.models.functional import call_at
from fednews.models.layers import Words
from fednews.timing import section

_LENGTH_GROUPS = 4


class VmappedClients:
    """The clients of a batch.

    Args:
        model: the recommender.
        mean: a client's loss is the mean over its samples, not the sum.
        words: of all clients together (:func:`~fednews.models.base.words_of`).
        gathered: names of the parameters that are given at the rows of ``words`` alone.
        batch: the clients' data.
    """

    def __init__(
        self, model: NewsModel, mean: bool, words: Words | None, gathered: Container[str], batch: ClientBatch
    ) -> None:
        self._scores = _Pieces(model, words, gathered)
        self._mean = mean
        self._read = _inputs(batch)

    def __call__(self, parameters: dict[str, Tensor], stacked: bool) -> tuple[dict[str, Tensor], Tensor]:
        """Each client's gradients at ``parameters``, stacked or shared, and the sums of sample losses ``[c]``."""
        gradient = vmap(grad(self._loss, has_aux=True), in_dims=(0 if stacked else None, 0), randomness="different")
        gradients, losses = gradient(parameters, self._read)
        return gradients, losses.detach()

    def _loss(self, parameters: dict[str, Tensor], inputs: tuple) -> tuple[Tensor, Tensor]:
        *inputs, real = inputs
        scores = call_at(self._scores, parameters, *inputs)
        total = (click_losses(scores) * real).sum()
        return (total / real.sum() if self._mean else total), total


class _Pieces(torch.nn.Module):
    """The model's scores from news in several pieces; ``call_at`` calls ``forward``."""

    def __init__(self, model: NewsModel, words: Words | None, gathered: Container[str]) -> None:
        super().__init__()
        self.model, self.words, self.gathered = model, words, gathered

    def forward(
        self,
        pieces: tuple,
        history: Tensor,
        mask: Tensor,
        user: Tensor,
        rows: Tensor,
        candidates: Tensor,
    ) -> Tensor:
        # Words for users too: PrivateRec encodes its anonymous news there. Eager, because compiled modules under vmap
        # would not be compiled, and would stay so for evaluation.
        with few_words(self.model, self.words, self.gathered), torch.compiler.set_stance("force_eager"):
            with section("news_encoder"):
                vectors = torch.cat([self.model.encode_news(piece) for piece in pieces])
            with section("user_encoder"):
                users = self.model.encode_user(vectors[history], mask, user)
            return self.model.score(users[rows], vectors[candidates])


def _inputs(batch: ClientBatch) -> tuple:
    """What is read of a batch, each client's news in pieces of similar text length, so that little is padded."""
    news, history, candidates = batch.news, batch.history, batch.candidates
    texts = [news[name] for name in TOKEN_INPUTS if name in news]
    if texts:
        order = sum((text != 0).sum(-1) for text in texts).argsort(dim=1, stable=True)
        news = {name: torch.take_along_dim(column, _like(order, column), 1) for name, column in news.items()}
        place = order.argsort(dim=1)
        history, candidates = (torch.take_along_dim(place, x.flatten(1), 1).view_as(x) for x in (history, candidates))
        parts = zip(*(column.chunk(_LENGTH_GROUPS, 1) for column in news.values()), strict=True)
        groups = tuple(_trimmed(dict(zip(news, part, strict=True))) for part in parts)
    else:
        groups = (news,)
    return groups, history, batch.history_mask, batch.user, batch.sample_history, candidates, batch.sample_mask


def _like(order: Tensor, column: Tensor) -> Tensor:
    return order.view(*order.shape, *[1] * (column.dim() - 2))


def _trimmed(news: dict[str, Tensor]) -> dict[str, Tensor]:
    """``trim_tokens`` for columns ``[c, n, …]``: the width is that of the longest text of any client."""
    clients = len(next(iter(news.values())))
    flat = trim_tokens({name: column.flatten(0, 1) for name, column in news.items()})
    return {name: column.unflatten(0, (clients, -1)) for name, column in flat.items()}
