"""Ranking metrics of a trained model over impressions."""

import torch

from fednews.data.impressions import ImpressionBatch, Impressions
from fednews.evaluation.metrics import RankingSums
from fednews.evaluation.scorers import Scorer


def rank_batch(scorer: Scorer, batch: ImpressionBatch) -> RankingSums:
    """Ranking metrics of one labelled batch, whatever device it is on."""
    scores = scorer.score(batch)
    return RankingSums.of(scores.float().cpu().numpy(), batch.labels.cpu().numpy(), batch.offsets.cpu().numpy())


def evaluate(scorer: Scorer, impressions: Impressions, device: torch.device) -> RankingSums:
    """Ranking metrics over labelled impressions; the scorer's model is in eval mode."""
    sums = RankingSums()
    for batch in impressions:
        sums += rank_batch(scorer, batch.to(device))
    return sums
