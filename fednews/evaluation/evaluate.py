"""Scoring impressions with a trained model: every article encoded once, every history once a batch."""

import torch
from torch import Tensor

from fednews.data.features import take_news
from fednews.data.impressions import ImpressionBatch, Impressions
from fednews.evaluation.metrics import RankingSums
from fednews.models.base import NewsModel, encode_by_length

_NEWS_AT_ONCE = 4096
_LENGTH_GROUPS = 8


@torch.no_grad()
def encode_catalogue(model: NewsModel, features: dict[str, Tensor], rows: Tensor, device: torch.device) -> Tensor:
    """Vectors ``[news, d]`` of all the store's news on ``device``; rows outside ``rows`` stay zero."""
    vectors = None
    for chunk in rows.split(_NEWS_AT_ONCE):
        news = {name: column.to(device) for name, column in take_news(features, chunk).items()}
        encoded = encode_by_length(model, news, _LENGTH_GROUPS)
        if vectors is None:
            vectors = encoded.new_zeros(len(next(iter(features.values()))), encoded.shape[1])
        vectors[chunk.to(device)] = encoded
    return vectors


@torch.no_grad()
def score_batch(model: NewsModel, catalogue: Tensor, batch: ImpressionBatch) -> Tensor:
    """Scores ``[V]`` of all candidates of the batch, flat as in ``batch.candidates``."""
    users = model.encode_user(catalogue[batch.history], batch.history_mask)
    owner = batch.impression_history.repeat_interleave(batch.offsets.diff())
    return model.score(users[owner], catalogue[batch.candidates].unsqueeze(1)).squeeze(1)


def rank_batch(model: NewsModel, catalogue: Tensor, batch: ImpressionBatch) -> RankingSums:
    """Ranking metrics of one labelled batch, whatever device it is on."""
    scores = score_batch(model, catalogue, batch)
    return RankingSums.of(scores.float().cpu().numpy(), batch.labels.cpu().numpy(), batch.offsets.cpu().numpy())


def evaluate(
    model: NewsModel, features: dict[str, Tensor], impressions: Impressions, device: torch.device
) -> RankingSums:
    """Ranking metrics of ``model`` in eval mode over labelled impressions."""
    training = model.training
    model.eval()
    catalogue = encode_catalogue(model, features, torch.from_numpy(impressions.news()), device)
    sums = RankingSums()
    for batch in impressions:
        sums += rank_batch(model, catalogue, batch.to(device))
    model.train(training)
    return sums
