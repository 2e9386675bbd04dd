"""When and how a cluster of clients is cut in two (clustered federated learning, Sattler et al. 2020)."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fednews.aggregation.updates import ClientUpdates
from fednews.errors import UsageError

Linkage = Literal["single", "complete"]


def lengths(parts: list[ClientUpdates]) -> Tensor:
    """Euclidean norms of all clients' updates, float64 ``[c]``, in the order of the parts."""
    norms = ([torch.linalg.vector_norm(u.flatten(1), dim=1).double() for u in p.updates.values()] for p in parts)
    return torch.cat([torch.stack(own).norm(dim=0) for own in norms])


def length(update: dict[str, Tensor]) -> float:
    """Euclidean norm of one update."""
    return float(sum(value.square().sum(dtype=torch.float64) for value in update.values()).sqrt())


def gram(parts: list[ClientUpdates]) -> Tensor:
    """Inner products of all clients' updates, float64 ``[c, c]``, in the order of the parts."""
    total = None
    for name in parts[0].updates:
        flat = torch.cat([part.updates[name].flatten(1) for part in parts])
        product = (flat @ flat.T).double()
        total = product if total is None else total + product
    return total


@dataclass(frozen=True)
class StoppingRule:
    r"""The published rule: cut a cluster that is at a stationary point where its clients are not.

    A cluster is cut where :math:`\|\sum_i |D_i| \Delta_i / \sum_i |D_i|\| < \varepsilon_1` and
    :math:`\max_i \|\Delta_i\| > \varepsilon_2`, in the bipartition with the smallest largest similarity across,
    :math:`\alpha_{cross}`, and then only if :math:`\gamma < \sqrt{(1 - \alpha_{cross}) / 2}`.

    Attributes:
        eps1: above 0. The paper's rule of thumb is a tenth of the largest norm of the mean update over rounds.
        eps2: above 0; between ``eps1`` and ten times that.
        gamma: between 0, which accepts every bipartition, and 1, which accepts none.
        linkage: ``"single"`` gives the paper's optimal bipartition (Algorithm 1), which may cut off single clients;
            ``"complete"`` is the authors' code.

    Raises:
        UsageError: a setting out of range.
    """

    eps1: float
    eps2: float
    gamma: float
    linkage: Linkage

    def __post_init__(self) -> None:
        for name, value in (("eps1", self.eps1), ("eps2", self.eps2)):
            if not value > 0:
                raise UsageError(f"algorithm.{name} is a norm above 0, not {value}")
        if not 0 <= self.gamma <= 1:
            raise UsageError(f"algorithm.gamma must lie between 0 and 1, not {self.gamma}")

    def holds(self, mean: float, largest: float) -> bool:
        """Whether norms of the mean update and of the largest update call for a cut."""
        return mean < self.eps1 and largest > self.eps2

    def side(self, products: Tensor) -> Tensor | None:
        """Which clients leave the cluster, bool ``[c]``, at most half of them; None where it stays whole.

        Two clients stay together, as in the authors' code. A client whose update is zero is like nobody, and stays.

        Args:
            products: inner products of updates, ``[c, c]``.
        """
        moving = products.diagonal() > 0
        if int(moving.sum()) < 3:
            return None
        products = products[moving][:, moving]
        length = products.diagonal().sqrt()
        similarity = products / length / length[:, None]
        side = bipartition(similarity, self.linkage)
        cross = float(similarity[side][:, ~side].max())
        if not self.gamma < math.sqrt(max(1 - cross, 0) / 2):
            return None
        leaving = torch.zeros_like(moving)
        leaving[moving] = side if int(side.sum()) * 2 <= len(side) else ~side
        return leaving


def bipartition(similarity: Tensor, linkage: Linkage) -> Tensor:
    """Cut clients in two by similarity ``[c, c]``: bool ``[c]``, true on one side.

    Single linkage merges the most similar first until two clusters are left, which minimises the largest similarity
    across.
    """
    from sklearn.cluster import AgglomerativeClustering  # 1 s to import

    tree = AgglomerativeClustering(2, metric="precomputed", linkage=linkage)
    return torch.from_numpy(tree.fit_predict((1 - similarity).cpu().numpy()) == 1).to(similarity.device)


def mean_direction(parts: list[ClientUpdates], chosen: Tensor) -> dict[str, Tensor]:
    """The unit vector along the sum of the chosen clients' unit updates, by parameter; ``chosen`` is bool ``[c]``.

    Zero updates have no direction and count for nothing.
    """
    norms = lengths(parts)
    scales = torch.where(norms > 0, chosen / norms, 0).split([len(part.weights) for part in parts])
    total: dict[str, Tensor] = {}
    for part, scale in zip(parts, scales, strict=True):
        for name, update in part.updates.items():
            summed = torch.tensordot(scale.to(update.dtype), update, dims=1)
            total[name] = total[name] + summed if name in total else summed
    norm = length(total)
    return {name: value / norm for name, value in total.items()}
