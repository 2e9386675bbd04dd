"""The plain reference: client by client, every slot encoded, padded to full length.

This is how published code computes a round. It shares nothing with :mod:`fednews.federated.clients` but the model and
the loss, so that tests can hold the fast path equal to it.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from fednews.data.cohort import CohortSource, Draw
from fednews.federated.algorithms.base import Algorithm
from fednews.federated.algorithms.centralized import Centralized
from fednews.federated.algorithms.fedavg import FedAvg
from fednews.federated.algorithms.fednewsrec import FedNewsRec
from fednews.federated.algorithms.finding import Finding
from fednews.federated.local import Reduction
from fednews.models.base import NewsModel, click_losses
from fednews.models.functional import call_at

Parameters = dict[str, Tensor]
_SAMPLES_AT_ONCE = 16


class EverySlot(nn.Module):
    """Scores of samples whose news are given slot by slot; ``call_at`` calls ``forward``."""

    def __init__(self, model: NewsModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, news: dict[str, Tensor], mask: Tensor, user: Tensor) -> Tensor:
        """News ``[S * (H + K + 1), …]``, ``mask [S, H]``, ``user [S]`` -> scores ``[S, K + 1]``."""
        slots = self.model.encode_news(news).unflatten(0, (len(mask), -1))
        users = self.model.encode_user(slots[:, : mask.shape[1]], mask, user)
        return self.model.score(users, slots[:, mask.shape[1] :])


def plain_gradient(
    model: NewsModel, parameters: Parameters, source: CohortSource, draw: Draw, reduction: Reduction
) -> Parameters:
    """The gradient of one client's loss over all samples of ``draw``, taken at ``parameters``."""
    at = {name: value.detach().requires_grad_() for name, value in parameters.items()}
    total = {name: torch.zeros_like(value) for name, value in at.items()}
    samples = len(draw.client)
    for start in range(0, samples, _SAMPLES_AT_ONCE):
        rows = slice(start, start + _SAMPLES_AT_ONCE)
        inputs = _slots(source, draw.impression[rows], draw.candidates[rows])
        losses = click_losses(call_at(EverySlot(model), at, *inputs))
        loss = losses.sum() / samples if reduction == "mean" else losses.sum()
        gradients = torch.autograd.grad(loss, list(at.values()), allow_unused=True)
        for name, gradient in zip(at, gradients, strict=True):
            if gradient is not None:
                total[name] += gradient
    return total


def _slots(source: CohortSource, impressions: np.ndarray, candidates: np.ndarray) -> tuple:
    length = source.history_length
    history, mask = source.train.history.take(impressions).last(length).padded(side="left", width=length)
    slots = torch.from_numpy(np.concatenate([history, candidates], axis=1).astype(np.int64).ravel())
    user = source.samples.client_of(source.train.user[impressions]) + 1
    news = {name: column[slots] for name, column in source.features.items()}
    return news, torch.from_numpy(mask), torch.from_numpy(user)


def plain_round(
    algorithm: Algorithm, model: NewsModel, source: CohortSource, draw: Draw, number: int
) -> Parameters | None:
    """The mean update of the clients of ``draw``, one after the other; None for a method without a reference."""
    work = _WORK.get(type(algorithm))
    if work is None:
        return None
    total, weight = None, 0
    for client, (own, samples) in zip(draw.clients.tolist(), clients_of(draw), strict=True):
        update = work(algorithm, model, source, own, (client, number))
        total = {n: samples * u + (0 if total is None else total[n]) for n, u in update.items()}
        weight += samples
    return {name: value / weight for name, value in total.items()}


def clients_of(draw: Draw) -> Iterator[tuple[Draw, int]]:
    """Each client's own part of the draw, and how many samples it has."""
    for place in range(len(draw.clients)):
        own = draw.of_clients(np.array([place]))
        yield own, len(own.client)


def has_reference(algorithm: Algorithm) -> bool:
    """Whether :func:`plain_round` knows the method."""
    return type(algorithm) in _WORK


def _global(model: NewsModel) -> Parameters:
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def _fedavg(algorithm: FedAvg, model: NewsModel, source: CohortSource, draw: Draw, at: tuple[int, int]) -> Parameters:
    start = local = _global(model)
    for _ in range(algorithm.local_steps):
        slopes = plain_gradient(model, local, source, draw, algorithm.loss)
        local = {name: value - algorithm.local_lr * slopes[name] for name, value in local.items()}
    return {name: value - local[name] for name, value in start.items()}


def _fednewsrec(
    algorithm: FedNewsRec, model: NewsModel, source: CohortSource, draw: Draw, at: tuple[int, int]
) -> Parameters:
    update = plain_gradient(model, _global(model), source, draw, algorithm.loss)
    client, number = at
    noise = algorithm.noise_generator(source.streams, number, client, torch.device("cpu"))
    noisy = algorithm.mechanism({name: value[None] for name, value in update.items()}, [noise])
    return {name: value[0] for name, value in noisy.items()}


def _finding(algorithm: Finding, model: NewsModel, source: CohortSource, draw: Draw, at: tuple[int, int]) -> Parameters:
    own = algorithm.group_parameters(int(algorithm.grouping.labels[at[0]]))
    return plain_gradient(model, own, source, draw, algorithm.loss)


def _centralized(
    algorithm: Centralized, model: NewsModel, source: CohortSource, draw: Draw, at: tuple[int, int]
) -> Parameters:
    return plain_gradient(model, _global(model), source, draw, "mean")


_WORK: dict[type[Algorithm], Callable[..., Parameters]] = {
    FedAvg: _fedavg,
    FedNewsRec: _fednewsrec,
    Finding: _finding,
    Centralized: _centralized,
}
