"""One vector for every training client, from its latest history."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from fednews.data.cohort import CohortSource
from fednews.errors import UsageError
from fednews.evaluation.scorers import Catalogue
from fednews.models.base import NewsModel, encode_users_by_length

USERS_AT_ONCE = 4096


def latest_impressions(source: CohortSource) -> np.ndarray:
    """The impression of each client's latest training sample: rows of the train behaviours, int64 ``[clients]``.

    Among samples of one time (or of none) it is the one that the data list last.
    """
    rows = source.samples.rows
    client = np.repeat(np.arange(len(rows)), rows.lengths())
    impression = source.samples.impression[rows.values]
    order = np.lexsort((impression, source.train.time[impression], client))
    return impression[order[np.cumsum(rows.lengths()) - 1]].astype(np.int64)


@torch.no_grad()
def user_vectors(model: NewsModel, source: CohortSource) -> Iterator[Tensor]:
    """``[at most USERS_AT_ONCE, d]`` for one client after another, from the model without dropout.

    Every article is encoded once.
    """
    latest = latest_impressions(source)
    histories = source.train.history.take(latest).last(source.history_length)
    device = next(model.parameters()).device
    with _evaluating(model):
        news = np.unique(np.append(histories.values, 0)).astype(np.int64)  # padding points at article 0
        vectors = Catalogue(source.features, torch.from_numpy(news), device).encode(model)
        for clients in torch.arange(len(latest)).split(USERS_AT_ONCE):
            history, real = histories.take(clients.numpy()).padded(side="left")
            inputs = (torch.from_numpy(history.astype(np.int64)), torch.from_numpy(real), clients + 1)
            yield encode_users(model, vectors, *(column.to(device) for column in inputs)).cpu()


@torch.no_grad()
def reader_vectors(model: NewsModel, source: CohortSource, articles: np.ndarray) -> Tensor:
    """``[articles, d]``: an imagined reader of each given article and of no other, so that no client is asked."""
    rows = torch.from_numpy(articles.astype(np.int64))
    device = next(model.parameters()).device
    with _evaluating(model):
        news = Catalogue(source.features, rows, device).encode(model)
        clicked = rows.to(device)[:, None]
        nobody = torch.zeros(len(rows), dtype=torch.int64, device=device)
        return encode_users(model, news, clicked, torch.ones_like(clicked, dtype=torch.bool), nobody).cpu()


def encode_users(model: NewsModel, news: Tensor, history: Tensor, mask: Tensor, user: Tensor) -> Tensor:
    """Vectors ``[R, d]`` of users who clicked ``history`` ``[R, H]``, rows of the encoded ``news``.

    Raises:
        UsageError: a model whose users are no vectors before the candidates are known.
    """
    users = encode_users_by_length(model, news, history, mask, user)
    if users.dim() != 2:
        raise UsageError(
            f"users cannot be clustered with {type(model).__name__}: without candidates it has no user vector"
        )
    return users.float()


@contextmanager
def _evaluating(model: NewsModel) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
