"""Parts of a cohort, for methods whose clients do not all work on the same model."""

from collections.abc import Iterator

import torch
from torch import Tensor

from fednews.data.cohort import Cohort
from fednews.data.features import take_news


def part_of(cohort: Cohort, kept: Tensor) -> Cohort:
    """The part of a cohort that belongs to some of its clients, with no more news and padding than they need.

    ``kept`` is bool ``[C]`` and true for at least one client.
    """
    if bool(kept.all()):
        return cohort
    rows, samples = kept[cohort.history_client].nonzero()[:, 0], kept[cohort.client].nonzero()[:, 0]
    width = max(int(cohort.history_mask[rows].sum(1).max()), 1)
    return _part(cohort, kept.nonzero()[:, 0], rows, samples, width)


def each_client(cohort: Cohort) -> Iterator[Cohort]:
    """Every client of a cohort as a cohort of its own, whose histories are as wide as before."""
    counts = (owner.bincount(minlength=len(cohort)).tolist() for owner in (cohort.history_client, cohort.client))
    orders = (owner.argsort(stable=True) for owner in (cohort.history_client, cohort.client))
    rows, samples = (order.split(count) for order, count in zip(orders, counts, strict=True))
    clients = torch.arange(len(cohort), device=cohort.clients.device).split(1)
    for client in range(len(cohort)):
        yield _part(cohort, clients[client], rows[client], samples[client], cohort.history.shape[1])


def _part(cohort: Cohort, clients: Tensor, rows: Tensor, samples: Tensor, width: int) -> Cohort:
    """Some clients' rows and samples, all given by their places in the cohort, ascending."""
    mask, candidates = cohort.history_mask[rows, -width:], cohort.candidates[samples]
    clicked = cohort.history[rows, -width:][mask]
    news, position = torch.cat([clicked, candidates.flatten()]).unique(return_inverse=True)
    history = torch.zeros_like(mask, dtype=torch.int64)
    history[mask] = position[: len(clicked)]
    return Cohort(
        news=take_news(cohort.news, news),
        history=history,
        history_mask=mask,
        history_client=torch.searchsorted(clients, cohort.history_client[rows]),
        user=cohort.user[rows],
        sample_history=torch.searchsorted(rows, cohort.sample_history[samples]),
        candidates=position[len(clicked) :].view_as(candidates),
        client=torch.searchsorted(clients, cohort.client[samples]),
        counts=cohort.counts[clients],
        clients=cohort.clients[clients],
        articles=cohort.articles[news],
    )
