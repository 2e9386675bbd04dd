"""Ranking metrics over ragged impressions: AUC, MRR, nDCG@5 and nDCG@10, vectorised.

Impression ``i`` holds rows ``offsets[i]:offsets[i + 1]`` of ``scores`` and ``labels``; labels are 0 or 1.

Definitions (the published comparison standard, per impression, averaged over impressions):

- AUC: probability that a clicked candidate outscores a non-clicked one, a tie counting one half.
- MRR: ``sum(y / rank) / sum(y)`` over **all** clicked candidates.
- nDCG@k: ``DCG@k / ideal DCG@k`` with gain ``2^y - 1`` and discount ``1 / log2(rank + 1)``.

Ties: every metric is its expected value when equal scores are put in random order, so no metric depends on the order
of rows. For AUC this is the average-rank convention; for MRR and nDCG each candidate of a tie group gets the mean
discount of the ranks that the group occupies (McSherry and Najork 2008; scikit-learn's ``ndcg_score`` does the same).

Undefined values are NaN and are left out of that metric's mean: AUC where all candidates are of one class, MRR and
nDCG where nothing was clicked. An impression whose candidates were all clicked therefore counts in MRR and nDCG only.
"""

from dataclasses import astuple, dataclass

import numpy as np

from fednews.errors import FednewsError

METRICS = ("auc", "mrr", "ndcg_5", "ndcg_10")


@dataclass(frozen=True)
class RankingSums:
    """Sums over impressions that can be added: processes rank a share each, means come from the total.

    Attributes:
        auc, mrr, ndcg_5, ndcg_10: sums over the impressions where the metric is defined.
        impressions: all impressions, the undefined ones included.
        two_class: impressions with both classes (AUC is defined).
        clicked: impressions with a clicked candidate (MRR and nDCG are defined).
    """

    auc: float = 0.0
    mrr: float = 0.0
    ndcg_5: float = 0.0
    ndcg_10: float = 0.0
    impressions: int = 0
    two_class: int = 0
    clicked: int = 0

    @classmethod
    def of(cls, scores: np.ndarray, labels: np.ndarray, offsets: np.ndarray) -> "RankingSums":
        """Rank the impressions and sum; arguments and errors as in `ranking_metrics`."""
        values = ranking_metrics(scores, labels, offsets)
        sums = {name: float(np.nansum(values[name])) for name in METRICS}
        defined = {name: int(np.count_nonzero(~np.isnan(values[name]))) for name in METRICS}
        return cls(**sums, impressions=len(offsets) - 1, two_class=defined["auc"], clicked=defined["mrr"])

    @classmethod
    def from_array(cls, array: np.ndarray) -> "RankingSums":
        """Rebuild from `array`, after a reduction over processes."""
        values = [float(v) for v in array]
        return cls(*values[:4], *(round(v) for v in values[4:]))

    def array(self) -> np.ndarray:
        """All fields in order as float64 ``[7]``, for a sum over processes."""
        return np.array(astuple(self), np.float64)

    def __add__(self, other: "RankingSums") -> "RankingSums":
        return RankingSums.from_array(self.array() + other.array())

    def means(self) -> dict[str, float]:
        """Mean of each metric where it is defined, and how many impressions were left out.

        Returns:
            ``auc``, ``mrr``, ``ndcg_5``, ``ndcg_10``, ``impressions``, ``left_out_auc`` (one class only) and
            ``left_out_mrr_ndcg`` (nothing clicked).

        Raises:
            FednewsError: when no impression has both classes.
        """
        if not self.two_class:
            raise FednewsError(
                f"none of the {self.impressions} impressions has both a clicked and a non-clicked candidate: "
                "choose a split with labels"
            )
        return {
            "auc": self.auc / self.two_class,
            "mrr": self.mrr / self.clicked,
            "ndcg_5": self.ndcg_5 / self.clicked,
            "ndcg_10": self.ndcg_10 / self.clicked,
            "impressions": self.impressions,
            "left_out_auc": self.impressions - self.two_class,
            "left_out_mrr_ndcg": self.impressions - self.clicked,
        }


def evaluate_rankings(scores: np.ndarray, labels: np.ndarray, offsets: np.ndarray) -> dict[str, float]:
    """Means over impressions and counts of those left out: `RankingSums.means` of one process."""
    return RankingSums.of(scores, labels, offsets).means()


def ranking_metrics(scores: np.ndarray, labels: np.ndarray, offsets: np.ndarray) -> dict[str, np.ndarray]:
    """Metrics of every impression.

    Args:
        scores: float ``[rows]``, higher is better.
        labels: 0 or 1 (or bool), ``[rows]``.
        offsets: int ``[impressions + 1]`` from 0 to ``rows``.

    Returns:
        ``auc``, ``mrr``, ``ndcg_5``, ``ndcg_10``: float64 ``[impressions]``, NaN where undefined.

    Raises:
        FednewsError: scores contain NaN, labels are not 0 or 1, or shapes disagree.
    """
    scores, labels, offsets = _checked(scores, labels, offsets)
    lengths = np.diff(offsets)
    impression = np.repeat(np.arange(len(lengths)), lengths)
    order = np.lexsort((-scores, impression))
    rank = np.arange(1, len(scores) + 1) - np.repeat(offsets[:-1], lengths)
    ties = _TieGroups(scores[order], labels[order], impression, len(lengths))

    positives = np.bincount(impression, labels, len(lengths))
    negatives = lengths - positives
    with np.errstate(invalid="ignore"):  # 0 / 0 is the undefined value, NaN
        # Mann-Whitney: pairs won = sum of positives' ranks counted from the bottom, less those among themselves.
        won = positives * (lengths + 1) - ties.expected_sum(rank) - positives * (positives + 1) / 2
        metrics = {"auc": won / (positives * negatives), "mrr": ties.expected_sum(1 / rank) / positives}
        for k in (5, 10):
            discount = np.where(rank <= k, 1 / np.log2(rank + 1), 0.0)
            metrics[f"ndcg_{k}"] = ties.expected_sum(discount) / _ideal_dcg(positives, k)
    return metrics


class _TieGroups:
    """Runs of equal score within one impression, of rows already sorted by impression and falling score."""

    def __init__(self, scores: np.ndarray, labels: np.ndarray, impression: np.ndarray, impressions: int) -> None:
        changes = (scores[1:] != scores[:-1]) | (impression[1:] != impression[:-1])
        self.starts = np.flatnonzero(np.concatenate([[len(scores) > 0], changes]))
        self.impression = impression[self.starts]
        self.impressions = impressions
        sizes = np.diff(np.append(self.starts, len(scores)))
        self.positive_share = self._sum(labels) / sizes

    def _sum(self, values: np.ndarray) -> np.ndarray:
        return np.add.reduceat(values, self.starts, dtype=np.float64) if len(self.starts) else np.zeros(0)

    def expected_sum(self, weight: np.ndarray) -> np.ndarray:
        """Sum ``weight`` over the clicked rows of each impression: the expectation with tied rows in random order."""
        return np.bincount(self.impression, self.positive_share * self._sum(weight), self.impressions)


def _ideal_dcg(positives: np.ndarray, k: int) -> np.ndarray:
    gains = np.concatenate([[0.0], np.cumsum(1 / np.log2(np.arange(2, k + 2)))])
    return gains[np.minimum(positives, k).astype(np.int64)]


def _checked(scores: np.ndarray, labels: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    scores, labels, offsets = np.asarray(scores), np.asarray(labels), np.asarray(offsets, np.int64)
    if scores.ndim != 1 or scores.shape != labels.shape:
        raise FednewsError(f"scores {scores.shape} and labels {labels.shape} must be flat and equally long")
    if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != len(scores) or np.any(np.diff(offsets) < 0):
        raise FednewsError(f"offsets must rise from 0 to the number of scores, {len(scores)}")
    if not np.issubdtype(scores.dtype, np.floating):
        scores = scores.astype(np.float64)
    bad = int(np.count_nonzero(np.isnan(scores)))
    if bad:
        raise FednewsError(f"{bad} of {len(scores)} scores are NaN: the model has diverged; lower the learning rate")
    if not np.all((labels == 0) | (labels == 1)):
        raise FednewsError("labels must be 0 (not clicked) or 1 (clicked); unlabelled impressions cannot be evaluated")
    return scores, labels.astype(np.float64), offsets
