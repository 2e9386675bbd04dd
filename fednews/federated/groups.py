"""Groups of clients: who is in which, drawing from them, and following them over re-clusterings."""

import functools
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fednews.data.impressions import ImpressionBatch
from fednews.evaluation.scorers import Catalogue
from fednews.federated.user_vectors import encode_users
from fednews.models.base import NewsModel


class Grouping:
    """The groups of all clients after each clustering.

    Attributes:
        groups: how many groups.
        rounds: rounds done at each clustering.
        history: int64 ``[clients]``, group of every client after each clustering.
        centroids: ``[groups, d]`` of the last clustering; None where nothing was clustered.
    """

    def __init__(self, groups: int) -> None:
        self.groups = groups
        self.rounds: list[int] = []
        self.history: list[np.ndarray] = []
        self.centroids: Tensor | None = None

    @property
    def labels(self) -> np.ndarray:
        """Group of every client, int64 ``[clients]``."""
        return self.history[-1]

    def sizes(self) -> np.ndarray:
        """Clients of every group."""
        return np.bincount(self.labels, minlength=self.groups)

    def append(self, done: int, labels: np.ndarray, centroids: Tensor | None) -> np.ndarray | None:
        """Take over a clustering; new groups get the names of the old ones that most of their clients come from.

        Returns:
            How new groups mix old ones, as of :func:`mixing`; None for the first clustering.
        """
        shares = None
        if self.history:
            names = matching(transition_matrix(self.labels, labels, self.groups))
            labels = names[labels]
            centroids = None if centroids is None else centroids[torch.from_numpy(np.argsort(names))]
            shares = mixing(transition_matrix(self.labels, labels, self.groups))
        self.rounds.append(done)
        self.history.append(labels)
        self.centroids = centroids
        return shares

    def moved(self) -> float:
        """Fraction of clients that the last clustering put elsewhere."""
        return float((self.history[-2] != self.history[-1]).mean())

    def state_dict(self) -> dict:
        history = [torch.from_numpy(labels.astype(np.int32)) for labels in self.history]
        return {"rounds": list(self.rounds), "history": history, "centroids": self.centroids}

    def load_state_dict(self, state: dict) -> None:
        """Restore what :meth:`state_dict` gave."""
        self.rounds = list(state["rounds"])
        self.history = [labels.numpy().astype(np.int64) for labels in state["history"]]
        self.centroids = state["centroids"]


def proportional_draw(labels: np.ndarray, size: int, rng: np.random.Generator, offset: int) -> np.ndarray:
    """``size`` different clients, from each group in proportion to its members; int64, group after group.

    Every client is drawn with the same probability: the fractions of clients that proportions leave are rounded by
    systematic sampling, so that small groups get their turn. With one group the draw is that of
    :meth:`~fednews.data.cohort.CohortSource.draw_clients` by the same generator.

    Args:
        labels: group of every client.
        size: clients to draw, at most all.
        rng: draws the clients.
        offset: uniform among 0 … clients - 1, decides which fractions are rounded up.
    """
    order = np.argsort(labels, kind="stable")
    ends = np.cumsum(np.bincount(labels))
    quotas = np.diff((size * ends + offset) // len(labels), prepend=0)
    drawn = [
        rng.choice(members, quota, replace=False)
        for members, quota in zip(np.split(order, ends[:-1]), quotas, strict=True)
        if quota
    ]
    return np.concatenate(drawn)


def transition_matrix(old: np.ndarray, new: np.ndarray, groups: int) -> np.ndarray:
    """Clients that moved from group i to group j: int64 ``[groups, groups]`` (FINDING section 4.2)."""
    return np.bincount(old * groups + new, minlength=groups**2).reshape(groups, groups)


def matching(transition: np.ndarray) -> np.ndarray:
    """The name for each new group with which most clients stay where they were, by optimal assignment."""
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(transition, maximize=True)
    names = np.empty(len(transition), np.int64)
    names[columns] = rows
    return names


def mixing(transition: np.ndarray) -> np.ndarray:
    """The transition matrix with columns that sum to 1 (FINDING eq. 8); a group without members stays what it was.

    Printed, eq. 8 sums a column from i = 1 on; its example, eq. 9, needs i = 0 as well.
    """
    members = transition.sum(0)
    return np.where(members > 0, transition / np.maximum(members, 1), np.eye(len(transition)))


class NearestGroup:
    """Group of each user of a batch, int64 ``[R]``: a training client's own, else that of the nearest centroid.

    Args:
        model: the global model, which gives user vectors.
        catalogue: the news.
        grouping: the groups.
        prepared: what was done to the vectors that were clustered, beside noise.
    """

    def __init__(
        self, model: NewsModel, catalogue: Catalogue, grouping: Grouping, prepared: Callable[[Tensor], Tensor]
    ) -> None:
        self.model = model
        self.catalogue = catalogue
        self.labels = torch.from_numpy(grouping.labels).to(catalogue.device)
        self.centroids = None if grouping.centroids is None else grouping.centroids.to(catalogue.device)
        self.prepared = prepared

    @functools.cached_property
    def _news(self) -> Tensor:
        return self.catalogue.encode(self.model)

    @torch.no_grad()
    def __call__(self, batch: ImpressionBatch) -> Tensor:
        group = self.labels[(batch.user - 1).clamp(min=0)]
        new = batch.user == 0
        if self.centroids is None or not bool(new.any()):
            return group
        users = encode_users(self.model, self._news, batch.history[new], batch.history_mask[new], batch.user[new])
        # Distances by matrix products would depend on who else is in the batch.
        exact = "donot_use_mm_for_euclid_dist"
        group[new] = torch.cdist(self.prepared(users).to(self.centroids), self.centroids, compute_mode=exact).argmin(1)
        return group
