"""How fast impressions are ranked."""

from collections.abc import Callable

import numpy as np
import torch

from fednews.data.module import NewsDataModule
from fednews.evaluation.metrics import RankingSums
from fednews.federated.loop import FederatedLoop


def time_evaluation(loop: FederatedLoop, data: NewsDataModule, clock: Callable[[], float]) -> dict[str, float]:
    """Encode the news of the evaluation split once, score its impressions, compute the metrics; seconds of each."""
    training = loop.model.training
    loop.model.eval()
    impressions = data.impressions(data.eval_split)
    started = clock()
    with torch.no_grad():
        scorer = loop.scorer(data.catalogue(data.eval_split, loop.device))
    encoded = clock()
    scores, labels, sizes = [], [], []
    for batch in impressions:
        scores.append(scorer.score(batch.to(loop.device)).float().cpu().numpy())
        labels.append(batch.labels.numpy())
        sizes.append(batch.offsets.diff().numpy())
    scored = clock()
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(sizes))])
    RankingSums.of(np.concatenate(scores), np.concatenate(labels), offsets)
    ranked = clock()
    loop.model.train(training)
    count = len(impressions.rows)
    return {
        "eval_impressions": count,
        "eval_rows": int(offsets[-1]),
        "eval_news_seconds": encoded - started,
        "eval_score_seconds": scored - encoded,
        "eval_metrics_seconds": ranked - scored,
        "eval_impressions_per_second": count / (ranked - encoded),
    }
