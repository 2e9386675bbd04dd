"""What private serving costs: ranking metrics and skew level under a serving budget (Liu et al. 2022, Table 2)."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fednews.data.impressions import ImpressionBatch, Impressions
from fednews.evaluation.metrics import RankingSums
from fednews.evaluation.scorers import Scorer, score_users
from fednews.evaluation.skew import skew_levels
from fednews.models.base import NewsModel
from fednews.privacy.private_attention import PrivateAttention
from fednews.privacy.user_embedding import PrivateEmbedding
from fednews.serving.device import DeviceModel
from fednews.streams import Streams

_STREAM = "serving"


class PrivateServing(Scorer):
    """Scores candidates with the user vectors that a server gets under a serving mechanism.

    Each (user, history) of a batch sends one query, with noise of its own; its impressions share it. Draws follow from
    the streams' seed and the order of batches.

    Args:
        model: scores.
        vectors: representations of the store's news.
        streams: the run's.
    """

    def __init__(self, model: NewsModel, vectors: Tensor, streams: Streams) -> None:
        self.model = model
        self.vectors = vectors
        self.generator = streams.torch(_STREAM, device=vectors.device)

    def score(self, batch: ImpressionBatch) -> Tensor:
        return score_users(self.model, self.users(batch), self.vectors, batch)

    def clean_score(self, batch: ImpressionBatch) -> Tensor:
        """The same without noise and padding."""
        return score_users(self.model, self.clean_users(batch), self.vectors, batch)

    @abstractmethod
    def users(self, batch: ImpressionBatch) -> Tensor:
        """User vectors ``[R, d]`` as the server has them."""

    @abstractmethod
    def clean_users(self, batch: ImpressionBatch) -> Tensor:
        """The same without noise and padding."""

    @abstractmethod
    def epsilons(self, multiplicity: int) -> tuple[float, float]:
        """Published and accounted epsilon of one query, of histories in which an article is at most so often."""


class AttentionServing(PrivateServing):
    """PrivateRec: the device sends weights of the basis vectors.

    Args:
        model, vectors, streams: as for the base class.
        device: the model's part on devices.
        mechanism: makes the weights private.
    """

    name = "privaterec"

    def __init__(
        self, model: NewsModel, vectors: Tensor, streams: Streams, device: DeviceModel, mechanism: PrivateAttention
    ) -> None:
        super().__init__(model, vectors, streams)
        self.device = device
        self.mechanism = mechanism

    def attention(self, batch: ImpressionBatch) -> Tensor:
        """What the devices send, ``[R, B]``."""
        return self.device.private_weights(*self._shown(batch), self.mechanism, self.generator)

    def users(self, batch: ImpressionBatch) -> Tensor:
        return self.mechanism.rebuild(self.attention(batch), self.device.basis)

    def clean_users(self, batch: ImpressionBatch) -> Tensor:
        weights = self.device.clean_weights(*self._shown(batch), self.mechanism)
        return self.mechanism.rebuild(weights, self.device.basis)

    def epsilons(self, multiplicity: int) -> tuple[float, float]:
        return self.mechanism.published_epsilon(), self.mechanism.epsilon_accounted(multiplicity).epsilon

    def _shown(self, batch: ImpressionBatch) -> tuple[Tensor, Tensor, Tensor]:
        return self.vectors[batch.history], batch.history_mask, batch.user


class EmbeddingServing(PrivateServing):
    """The vanilla baseline: the device sends the user vector that the model scores with, clipped and noised.

    Args:
        model, vectors, streams: as for the base class.
        mechanism: clips and noises.
    """

    name = "vanilla"

    def __init__(self, model: NewsModel, vectors: Tensor, streams: Streams, mechanism: PrivateEmbedding) -> None:
        super().__init__(model, vectors, streams)
        self.mechanism = mechanism

    def users(self, batch: ImpressionBatch) -> Tensor:
        return self.mechanism(self._encoded(batch), self.generator)

    def clean_users(self, batch: ImpressionBatch) -> Tensor:
        return self._encoded(batch)

    def epsilons(self, multiplicity: int) -> tuple[float, float]:
        return self.mechanism.published_epsilon(), self.mechanism.epsilon_accounted().epsilon

    @torch.no_grad()
    def _encoded(self, batch: ImpressionBatch) -> Tensor:
        return self.model.encode_user(self.vectors[batch.history], batch.history_mask, batch.user)


@dataclass
class ServingSums:
    """Sums over impressions.

    Attributes:
        ranking: of AUC, MRR and nDCG.
        skew: of skew levels.
        impressions: that have candidates.
    """

    ranking: RankingSums = field(default_factory=RankingSums)
    skew: float = 0.0
    impressions: int = 0

    def add(self, clean: np.ndarray, noisy: np.ndarray, labels: np.ndarray, offsets: np.ndarray) -> None:
        """Add one batch."""
        self.ranking += RankingSums.of(noisy, labels, offsets)
        levels = skew_levels(clean, noisy, offsets)
        self.skew += float(np.nansum(levels))
        self.impressions += int(np.count_nonzero(~np.isnan(levels)))

    def means(self) -> dict[str, float]:
        """``auc``, ``mrr``, ``ndcg_5``, ``ndcg_10`` and ``skew``."""
        means = self.ranking.means()
        return {name: means[name] for name in ("auc", "mrr", "ndcg_5", "ndcg_10")} | {
            "skew": self.skew / self.impressions
        }


def evaluate_serving(scorers: Sequence[PrivateServing], impressions: Impressions) -> list[dict[str, float]]:
    """Metrics, ``epsilon_published`` and ``epsilon_accounted`` of one query under each of ``scorers``.

    The accounted figure is that of the history in which one article is most often, as padding hides it least.
    """
    sums = [ServingSums() for _ in scorers]
    multiplicity = 1
    for batch in impressions:
        multiplicity = max(multiplicity, largest_multiplicity(batch.history, batch.history_mask))
        labels, offsets = batch.labels.numpy(), batch.offsets.numpy()
        for scorer, sum_ in zip(scorers, sums, strict=True):
            sum_.add(_array(scorer.clean_score(batch)), _array(scorer.score(batch)), labels, offsets)
    rows = []
    for scorer, sum_ in zip(scorers, sums, strict=True):
        published, accounted = scorer.epsilons(multiplicity)
        rows.append({**sum_.means(), "epsilon_published": published, "epsilon_accounted": accounted})
    return rows


def largest_multiplicity(history: Tensor, mask: Tensor) -> int:
    """How often the most repeated article is in its history, over histories ``[R, H]``; 1 where all are empty."""
    same = (history[:, :, None] == history[:, None, :]) & mask[:, :, None] & mask[:, None, :]
    return max(1, int(same.sum(-1).max())) if same.numel() else 1


def _array(scores: Tensor) -> np.ndarray:
    return scores.double().numpy()
