"""Clients that train for themselves, many at once: the steps that all methods with local training are made of."""

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.func import grad, vmap

from fednews.aggregation.updates import ClientUpdates
from fednews.data.cohort import ClientBatch, Cohort, client_batches
from fednews.data.features import TOKEN_INPUTS, trim_tokens
from fednews.models.base import NewsModel, click_losses, few_words, word_rows, words_of
from fednews.models.functional import call_at
from fednews.models.layers import Words
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
        rows: by name, the rows of a table that the clients work on: int64 ``[r]``. All others stay as they are, and
            are left out of every stacked table.
    """

    clients: Tensor
    positions: Tensor
    counts: Tensor
    rows: Parameters
    _gradient: Callable[[Parameters, tuple], tuple[Parameters, Tensor]]
    _inputs: tuple

    def stacked(self, parameters: Parameters) -> Parameters:
        """The same parameters for each of the clients, without copies but of the rows that are worked on."""
        few = at_rows(parameters, self.rows)
        return {name: value.expand(len(self.clients), *value.shape) for name, value in few.items()}

    def whole(self, stacked: Parameters, rest: Parameters) -> Parameters:
        """Stacked parameters with all rows; those that were left out are ``rest``'s."""
        tables = {
            name: rest[name].detach().expand(len(self.clients), *rest[name].shape).index_copy(1, rows, stacked[name])
            for name, rows in self.rows.items()
        }
        return stacked | tables

    def gradients(self, parameters: Parameters) -> tuple[Parameters, Tensor]:
        """Each client's gradients over all its samples, and the sum of its sample losses ``[c]``.

        Args:
            parameters: each client's own, stacked; those that are left out are the model's and stay as they are.
        """
        with section("backward"):
            return self._gradient(parameters, self._inputs)

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
            local = stepped(local, step, lr)
        return local, first

    def updates(self, updates: Parameters, losses: Tensor) -> ClientUpdates:
        """What the clients upload, weighted by their samples."""
        weights, rows = self.counts.to(losses.dtype), {name: self.rows[name] for name in updates if name in self.rows}
        return ClientUpdates(self.positions, updates, weights, losses.detach(), self.counts, rows)


def local_clients(
    model: NewsModel, cohort: Cohort, reduction: Reduction, clients_at_once: int, at_rest: Container[str] = ()
) -> Iterator[LocalClients]:
    """The cohort's clients, ``clients_at_once`` together, those with similarly much to read in one group.

    Args:
        model: the recommender.
        cohort: the clients' data.
        reduction: what a client's loss is over its samples.
        clients_at_once: how many together.
        at_rest: names of parameters that gradients alone move: rows of tables without a gradient are left out.
    """
    for batch in client_batches(cohort, clients_at_once):
        words = words_of(model, batch.news)
        rows = word_rows(model, words, at_rest)
        gradient = vmap(gradient_function(model, reduction, words, rows), in_dims=(0, 0), randomness="different")
        counts = cohort.counts[batch.clients]
        yield LocalClients(cohort.clients[batch.clients], batch.clients, counts, rows, gradient, batch_inputs(batch))


def at_rows(parameters: Parameters, rows: Parameters) -> Parameters:
    """Parameters, of which the tables named in ``rows`` have these rows alone."""
    values = ((name, value.detach()) for name, value in parameters.items())
    return {name: value.index_select(0, rows[name]) if name in rows else value for name, value in values}


def stepped(parameters: Parameters, direction: Parameters, lr: float) -> Parameters:
    """One step of size ``lr`` against ``direction``; the memory is gone through once."""
    return {name: torch.sub(value, direction[name], alpha=lr) for name, value in parameters.items()}


def proximal(strength: float, anchor: Parameters) -> Direction:
    """Descend the loss plus ``strength / 2`` times the squared distance from ``anchor`` (stacked or not)."""
    return lambda gradients, local: {
        name: torch.add(gradient, local[name] - anchor[name], alpha=strength) for name, gradient in gradients.items()
    }


def gradient_function(
    model: NewsModel, reduction: Reduction, words: Words | None, gathered: Container[str]
) -> Callable[[Parameters, tuple], tuple[Parameters, Tensor]]:
    """One client's gradients and sum of sample losses, as a function for ``vmap`` of parameters and inputs.

    Args:
        model: the recommender.
        reduction: what a client's loss is over its samples.
        words: of all clients together (:func:`~fednews.models.base.words_of`).
        gathered: names of the parameters that are given at the rows of ``words`` alone.
    """
    call = _Pieces(model, words, gathered)

    def loss(parameters: Parameters, inputs: tuple) -> tuple[Tensor, Tensor]:
        *inputs, real = inputs
        scores = call_at(call, parameters, *inputs)
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


def _like(order: Tensor, column: Tensor) -> Tensor:
    return order.view(*order.shape, *[1] * (column.dim() - 2))


def _trimmed(news: dict[str, Tensor]) -> dict[str, Tensor]:
    """``trim_tokens`` for columns ``[c, n, …]``: the width is that of the longest text of any client."""
    clients = len(next(iter(news.values())))
    flat = trim_tokens({name: column.flatten(0, 1) for name, column in news.items()})
    return {name: column.unflatten(0, (clients, -1)) for name, column in flat.items()}
