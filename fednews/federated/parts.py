"""Parts of a cohort, for methods whose clients do not all work on the same model."""

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
    rows, samples = kept[cohort.history_client], kept[cohort.client]
    client, row = kept.cumsum(0) - 1, rows.cumsum(0) - 1
    width = max(int(cohort.history_mask[rows].sum(1).max()), 1)
    mask, candidates = cohort.history_mask[rows][:, -width:], cohort.candidates[samples]
    clicked = cohort.history[rows][:, -width:][mask]
    news, position = torch.cat([clicked, candidates.flatten()]).unique(return_inverse=True)
    history = torch.zeros_like(mask, dtype=torch.int64)
    history[mask] = position[: len(clicked)]
    return Cohort(
        news=take_news(cohort.news, news),
        history=history,
        history_mask=mask,
        history_client=client[cohort.history_client[rows]],
        user=cohort.user[rows],
        sample_history=row[cohort.sample_history[samples]],
        candidates=position[len(clicked) :].view_as(candidates),
        client=client[cohort.client[samples]],
        counts=cohort.counts[kept],
        clients=cohort.clients[kept],
        articles=cohort.articles[news],
    )
