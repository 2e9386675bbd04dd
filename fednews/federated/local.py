"""Clients that train for themselves, many at once: the steps that all methods with local training are made of."""

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from fednews.aggregation.updates import ClientUpdates
from fednews.data.cohort import Cohort, client_batches
from fednews.federated.one_client import OneClient
from fednews.federated.parts import each_client
from fednews.federated.ragged_clients import RaggedClients, ragged_batches
from fednews.federated.vmapped import VmappedClients
from fednews.models.base import NewsModel, word_rows, words_of
from fednews.timing import section

Reduction = Literal["sum", "mean"]
Parameters = dict[str, Tensor]
"""Tensors by parameter name, ``[*shape]``, or ``[c, *shape]`` where they are stacked over clients."""

Direction = Callable[[Parameters, Parameters], Parameters]
"""(gradients, parameters), stacked -> what a step descends instead of the gradients, which it may overwrite."""

_AT_ONCE_ON_ACCELERATORS = 5


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
    _gradient: Callable[[Parameters, bool], tuple[Parameters, Tensor]]

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

    def gradients(self, parameters: Parameters, stacked: bool = True) -> tuple[Parameters, Tensor]:
        """Each client's gradients over all its samples, and the sum of its sample losses ``[c]``.

        Args:
            parameters: each client's own; those that are left out are the model's and stay as they are.
            stacked: whether they are, ``[c, *shape]``, and not the same for all clients, ``[*shape]``.
        """
        with section("backward"):
            return self._gradient(parameters, stacked)

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
            local = {name: torch.sub(value, step[name], alpha=lr, out=step[name]) for name, value in local.items()}
        return local, first

    def updates(self, updates: Parameters, losses: Tensor) -> ClientUpdates:
        """What the clients upload, weighted by their samples."""
        weights, rows = self.counts.to(losses.dtype), {name: self.rows[name] for name in updates if name in self.rows}
        return ClientUpdates(self.positions, updates, weights, losses.detach(), self.counts, rows)


def local_clients(
    model: NewsModel,
    cohort: Cohort,
    reduction: Reduction,
    clients_at_once: int | None = None,
    at_rest: Container[str] = (),
) -> Iterator[LocalClients]:
    """The cohort's clients, ``clients_at_once`` together, those with similarly much to read in one group.

    Args:
        model: the recommender.
        cohort: the clients' data.
        reduction: what a client's loss is over its samples.
        clients_at_once: how many together, padded alike; None: 5 on an accelerator, and on a CPU nothing is padded:
            as many as stay in the cache where the model can do that (``ragged``), else one after the other.
        at_rest: names of parameters that gradients alone move: rows of tables without a gradient are left out.
    """
    for chosen, news, make in _batches(model, cohort, clients_at_once):
        words = words_of(model, news)
        rows = word_rows(model, words, at_rest)
        gradient = make(model, reduction == "mean", words, rows)
        yield LocalClients(cohort.clients[chosen], chosen, cohort.counts[chosen], rows, gradient)


def _batches(model: NewsModel, cohort: Cohort, at_once: int | None) -> Iterator[tuple[Tensor, dict, Callable]]:
    """Clients' positions in the cohort, their news, and what makes their gradients but for the model."""
    if at_once or cohort.clients.device.type != "cpu":
        for batch in client_batches(cohort, at_once or _AT_ONCE_ON_ACCELERATORS):
            yield batch.clients, batch.news, partial(VmappedClients, batch=batch)
    elif model.ragged and not torch.is_autocast_enabled("cpu"):
        first = 0
        for parts in ragged_batches(each_client(cohort), model.ragged):
            news = {model.ragged: torch.cat([part.news[model.ragged].flatten() for part in parts])}
            yield torch.arange(first, first + len(parts)), news, partial(RaggedClients, parts=parts)
            first += len(parts)
    else:
        for client, part in enumerate(each_client(cohort)):
            yield torch.tensor([client]), part.news, partial(OneClient, cohort=part)


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
        name: gradient.add_(local[name] - anchor[name], alpha=strength) for name, gradient in gradients.items()
    }
