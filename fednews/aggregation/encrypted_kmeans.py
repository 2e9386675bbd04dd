"""k-means on user vectors that no server sees (FINDING-HE, Yu et al. 2023, Appendix A).

The paper clusters "following" Wu et al. 2020, where two servers that do not collude compute distances on ciphertexts,
and says nothing further. Here a client knows its own vector and the centroids are sent to it anyway, so it finds its
nearest centroid itself: nothing but sums is left to encrypt, and any additive aggregation carries them. Per step,

1. the server sends the centroids to all clients;
2. each client picks its nearest centroid c, and uploads one_hot(c) ⊗ vector and one_hot(c) through the aggregation
   (under encryption: K · d + K numbers, all of them ciphertext, the zeros too);
3. the sums are opened: members and sum of vectors per cluster, whose quotient is the new centroid.

The result is that of Lloyd's algorithm. The server sees, step by step, the centroids and the size of every cluster. It
also learns every client's group: FINDING samples clients in proportion to their groups and sends each its group's
model, so membership cannot be hidden from it (Algorithm 2 too returns the map from users to groups). A cluster of one
member has that member's vector as its centroid.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from fednews.aggregation.base import Aggregation
from fednews.aggregation.updates import ClientUpdates
from fednews.streams import Streams

SERVER_SEES = (
    "the group of every clustered client",
    "every group's centroid and size at each step of k-means; with one member the centroid is that member's vector",
)

_CLIENTS_AT_ONCE = 256


def encrypted_kmeans(
    vectors: Tensor,
    start: Tensor,
    steps: int,
    aggregation: Aggregation,
    streams: Streams | None = None,
    round_: int = 0,
) -> tuple[Tensor, Tensor]:
    """Lloyd's algorithm from ``start``, with every sum over clients taken by ``aggregation``.

    Stops early when no client changes its cluster. A cluster without members keeps its centroid.

    Args:
        vectors: float ``[n, d]``, one client's vector a row.
        start: float ``[k, d]``, the first centroids.
        steps: largest number of updates of the centroids.
        aggregation: how the clients' contributions travel.
        streams: random streams handed to the aggregation; None will do where it draws nothing (plain, encrypted).
        round_: number of the round handed to the aggregation.

    Returns:
        int64 ``[n]``, each client's nearest final centroid, and the centroids, float ``[k, d]``.
    """
    streams = streams or Streams(0)
    centroids, before = start.double(), None
    for _ in range(steps):
        labels = _nearest(vectors, centroids)
        if before is not None and torch.equal(labels, before):
            break
        before = labels
        like = {"vectors": torch.zeros_like(centroids), "members": torch.zeros_like(centroids[:, 0])}
        sums = aggregation.sum(_contributions(vectors, labels, len(start)), like, streams, round_).total
        members = sums["members"].unsqueeze(1)
        centroids = torch.where(members > 0.5, sums["vectors"] / members.clamp(min=1.0), centroids)
    return _nearest(vectors, centroids), centroids.to(start.dtype)


def _nearest(vectors: Tensor, centroids: Tensor) -> Tensor:
    # Distances by matrix products cancel; a client near a border would change sides.
    exact = "donot_use_mm_for_euclid_dist"
    chunks = vectors.split(_CLIENTS_AT_ONCE)
    return torch.cat([torch.cdist(chunk.double(), centroids, compute_mode=exact).argmin(dim=1) for chunk in chunks])


def _contributions(vectors: Tensor, labels: Tensor, k: int) -> Iterator[ClientUpdates]:
    """What every client uploads in one step, some clients at a time."""
    for clients in torch.arange(len(vectors), device=vectors.device).split(_CLIENTS_AT_ONCE):
        member = F.one_hot(labels[clients], k).double()
        updates = {"vectors": member.unsqueeze(2) * vectors[clients].double().unsqueeze(1), "members": member}
        ones = torch.ones_like(member[:, 0])
        yield ClientUpdates(clients, updates, ones, torch.zeros_like(ones), torch.ones_like(clients))
