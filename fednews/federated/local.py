"""Clients that train for themselves, many at once: the steps that all methods with local training are made of."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.func import grad, vmap

from fednews.aggregation.updates import ClientUpdates
from fednews.data.cohort import ClientBatch, Cohort, client_batches
from fednews.data.features import TOKEN_INPUTS, trim_tokens
from fednews.models.base import NewsModel, click_losses, few_words, words_of
from fednews.models.functional import call_at
from fednews.timing import section

Reduction = Literal["sum", "mean"]
Parameters = dict[str, Tensor]
"""Tensors by parameter name, ``[*shape]``, or ``[c, *shape]`` where they are stacked over clients."""

Direction = Callable[[Parameters, Parameters], Parameters]
"""(gradients, parameters), stacked -> what a step descends instead of the gradients."""

_LENGTH_GROUPS = 4


@dataclass(frozen=True)
class LocalClients:
    """Some clients of a cohort that compute together.

    Attributes:
        clients: int64 ``[c]``, their rows in the store's samples.
        positions: int64 ``[c]``, their positions in the cohort.
        counts: int64 ``[c]``, their samples, abs(B_u).
    """

    clients: Tensor
    positions: Tensor
    counts: Tensor
    _gradient: Callable[[Parameters, tuple, Tensor | None], tuple[Parameters, Tensor]]
    _inputs: tuple
    _words: Tensor | None

    def stacked(self, parameters: Parameters) -> Parameters:
        """The same parameters for each of the clients, without copies."""
        return {name: value.detach().expand(len(self.clients), *value.shape) for name, value in parameters.items()}

    def gradients(self, parameters: Parameters) -> tuple[Parameters, Tensor]:
        """Each client's gradients over all its samples, and the sum of its sample losses ``[c]``.

        Args:
            parameters: each client's own, stacked; those that are left out are the model's and stay as they are.
        """
        with section("backward"):
            return self._gradient(parameters, self._inputs, self._words)

    def descend(
        self, start: Parameters, steps: int, lr: float, direction: Direction | None = None
    ) -> tuple[Parameters, Tensor]:
        """``steps`` of gradient descent from ``start``; the end, and the sums of sample losses ``[c]`` at the start.

        Args:
            start: stacked.
            steps: steps, each over all samples of the client.
            lr: learning rate.
            direction: descend this instead of the gradient.
        """
        local, first = start, None
        for _ in range(steps):
            gradients, losses = self.gradients(local)
            first = losses if first is None else first
            step = gradients if direction is None else direction(gradients, local)
            local = {name: value - lr * step[name] for name, value in local.items()}
        return local, first

    def updates(self, updates: Parameters, losses: Tensor) -> ClientUpdates:
        """What the clients upload, weighted by their samples."""
        return ClientUpdates(self.positions, updates, self.counts.to(losses.dtype), losses.detach(), self.counts)


def local_clients(
    model: NewsModel, cohort: Cohort, reduction: Reduction, clients_at_once: int
) -> Iterator[LocalClients]:
    """The cohort's clients, ``clients_at_once`` together, those with similarly much to read in one group."""
    gradient = vmap(gradient_function(model, reduction), in_dims=(0, 0, None), randomness="different")
    for batch in client_batches(cohort, clients_at_once):
        yield LocalClients(
            cohort.clients[batch.clients],
            batch.clients,
            cohort.counts[batch.clients],
            gradient,
            batch_inputs(batch),
            words_of(model, batch.news),
        )


def proximal(strength: float, anchor: Parameters) -> Direction:
    """Descend the loss plus ``strength / 2`` times the squared distance from ``anchor`` (stacked or not)."""
    return lambda gradients, local: {
        name: gradient + strength * (local[name] - anchor[name]) for name, gradient in gradients.items()
    }


def gradient_function(
    model: NewsModel, reduction: Reduction
) -> Callable[[Parameters, tuple, Tensor | None], tuple[Parameters, Tensor]]:
    """One client's gradients and sum of sample losses, as a function for ``vmap`` of parameters, inputs and words.

    The words are those of all clients (:func:`~fednews.models.base.words_of`), and so not mapped over.
    """
    call = _Pieces(model)

    def loss(parameters: Parameters, inputs: tuple, words: Tensor | None) -> tuple[Tensor, Tensor]:
        *inputs, real = inputs
        scores = call_at(call, parameters, words, *inputs)
        total = (click_losses(scores) * real).sum()
        return (total / real.sum() if reduction == "mean" else total), total

    return grad(loss, has_aux=True)


def batch_inputs(batch: ClientBatch, pieces: int = _LENGTH_GROUPS) -> tuple:
    """What :func:`gradient_function` reads of a batch, each client's news in ``pieces`` of similar text length.

    So little padding is computed; the gradients do not depend on ``pieces`` but for rounding.
    """
    news, history, candidates = batch.news, batch.history, batch.candidates
    texts = [news[name] for name in TOKEN_INPUTS if name in news]
    if texts and pieces > 1:
        order = sum((text != 0).sum(-1) for text in texts).argsort(dim=1, stable=True)
        news = {name: torch.take_along_dim(column, _like(order, column), 1) for name, column in news.items()}
        place = order.argsort(dim=1)
        history, candidates = (torch.take_along_dim(place, x.flatten(1), 1).view_as(x) for x in (history, candidates))
        parts = zip(*(column.chunk(pieces, 1) for column in news.values()), strict=True)
        groups = tuple(_trimmed(dict(zip(news, part, strict=True))) for part in parts)
    else:
        groups = (news,)
    return groups, history, batch.history_mask, batch.user, batch.sample_history, candidates, batch.sample_mask


class _Pieces(torch.nn.Module):
    """The model's scores from news in several pieces; ``call_at`` calls ``forward``."""

    def __init__(self, model: NewsModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        words: Tensor | None,
        pieces: tuple,
        history: Tensor,
        mask: Tensor,
        user: Tensor,
        rows: Tensor,
        candidates: Tensor,
    ) -> Tensor:
        with section("news_encoder"), few_words(self.model, words):
            vectors = torch.cat([self.model.encode_news(piece) for piece in pieces])
        with section("user_encoder"):
            users = self.model.encode_user(vectors[history], mask, user)
        return self.model.score(users[rows], vectors[candidates])


def _like(order: Tensor, column: Tensor) -> Tensor:
    return order.view(*order.shape, *[1] * (column.dim() - 2))


def _trimmed(news: dict[str, Tensor]) -> dict[str, Tensor]:
    """``trim_tokens`` for columns ``[c, n, …]``: the width is that of the longest text of any client."""
    clients = len(next(iter(news.values())))
    flat = trim_tokens({name: column.flatten(0, 1) for name, column in news.items()})
    return {name: column.unflatten(0, (clients, -1)) for name, column in flat.items()}
