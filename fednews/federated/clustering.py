"""Clusters all training clients by their user vectors, at the server or without it seeing one (FINDING section 4.2)."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fednews.aggregation import encrypted_kmeans as lloyd
from fednews.aggregation.base import Aggregation
from fednews.data.cohort import CohortSource
from fednews.federated.clients import trainable
from fednews.federated.user_vectors import reader_vectors, user_vectors
from fednews.models.base import NewsModel
from fednews.privacy.entry import LedgerEntry
from fednews.privacy.user_vectors import UserVectorRelease

_STARTS = 10
_IMAGINED_READERS = 1000


class UserClustering:
    """k-means on the user vectors that the global model gives of every training client's latest history.

    Args:
        groups: number of clusters.
        release: what happens to a vector before it leaves its device.
        aggregation: carries k-means, so that vectors stay on their devices; None uploads the vectors.
        steps: steps of k-means with ``aggregation``.
    """

    def __init__(self, groups: int, release: UserVectorRelease, aggregation: Aggregation | None, steps: int) -> None:
        self.groups = groups
        self.release = release
        self.aggregation = aggregation
        self.steps = steps
        self._released: list[tuple[LedgerEntry, np.ndarray]] = []
        self._metrics: dict[str, float] = {}

    def __call__(self, model: NewsModel, source: CohortSource, done: int) -> tuple[np.ndarray, Tensor]:
        """Labels int64 ``[clients]`` and centroids ``[groups, d]`` after ``done`` rounds."""
        streams = source.streams
        parts = enumerate(user_vectors(model, source))
        vectors = torch.cat([self.release(part, streams.torch("user_vector", done, block)) for block, part in parts])
        self._released.append((self._entry(vectors.shape[1]), np.arange(len(vectors))))
        model_bytes = sum(parameter.nbytes for parameter in trainable(model).values())
        self._metrics["clustering_bytes_down"] = len(vectors) * model_bytes
        if self.aggregation is None:
            self._metrics["clustering_bytes_up"] = vectors.nbytes
            return kmeans(vectors, self.groups, streams.integer("kmeans", done))
        start = self._start(model, source, done)
        labels, centroids = lloyd.encrypted_kmeans(vectors, start, self.steps, self.aggregation, streams, done)
        self._metrics |= {f"clustering_{name}": value for name, value in self.aggregation.metrics().items()}
        return labels.numpy(), centroids

    def released(self) -> list[tuple[LedgerEntry, np.ndarray]]:
        """What which clients gave away since the last call."""
        released, self._released = self._released, []
        return released

    def metrics(self) -> dict[str, float]:
        """What clustering cost since the last call: bytes from and to all clients, and what its aggregation counts."""
        metrics, self._metrics = self._metrics, {}
        return metrics

    def _start(self, model: NewsModel, source: CohortSource, done: int) -> Tensor:
        """First centroids that need no client: clusters of imagined readers of one article each."""
        rng = source.streams.numpy("imagined_readers", done)
        articles = len(next(iter(source.features.values())))
        chosen = np.sort(rng.choice(articles, min(_IMAGINED_READERS, articles), replace=False))
        readers = self.release.clipped(reader_vectors(model, source, chosen)).float()
        return kmeans(readers, self.groups, source.streams.integer("kmeans", done))[1]

    def _entry(self, coordinates: int) -> LedgerEntry:
        entry = self.release.entry(coordinates)
        if self.aggregation is None:
            return entry
        covered = self.aggregation.covers(entry)
        return replace(covered, server_sees=(*covered.server_sees, *lloyd.SERVER_SEES))


def kmeans(vectors: Tensor, groups: int, seed: int) -> tuple[np.ndarray, Tensor]:
    """Labels int64 ``[n]`` and centroids ``[groups, d]`` of vectors ``[n, d]`` (Lloyd 1982), the best of ten starts.

    One thread: the order of sums, and so the last digits, must not depend on the machine.
    """
    from sklearn.cluster import KMeans  # 1 s to import
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        found = KMeans(groups, n_init=_STARTS, random_state=seed % 2**32).fit(vectors.numpy())
    return found.labels_.astype(np.int64), torch.from_numpy(found.cluster_centers_).to(vectors.dtype)
