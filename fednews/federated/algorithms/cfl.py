"""Clustered federated learning: clusters that are cut in two where their clients disagree (Sattler et al. 2020).

Training starts as FedAvg with one cluster of all clients. Whenever the published rule holds for a cluster
(:class:`~fednews.federated.bipartition.StoppingRule`), it is cut by the cosine similarity of its clients' updates. The
round is finished together, as the paper computes a cluster's mean before it cuts; both sides go on from the model that
results, each with a copy of the optimiser, and never meet again.

The paper lets all clients work in every round. Here a few are drawn, so the rule sees those of the round only, and the
others are sorted in later, by the paper's own procedure for clients that join late (its parameter tree, Algorithm 3):
with the model that was cut, a client computes its update, and follows the more similar side. The paper compares it with
every update of either side; kept here is one mean direction of each, two models' worth of memory a cut instead of one
for every client. Until it is drawn again, a client counts to the side with more clients of the round, which keeps the
name of the whole; so do users who have no training data. The first cluster's model is the loop's global model.

The server compares single updates, so none may be hidden from it: aggregations other than the plain one are refused.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from fednews.aggregation.updates import Aggregate, ClientUpdates
from fednews.data.cohort import Cohort, CohortSource
from fednews.data.impressions import ImpressionBatch
from fednews.errors import UsageError
from fednews.evaluation.scorers import Catalogue, ModelPerGroup, Scorer
from fednews.federated.algorithms.base import ClientSampling
from fednews.federated.bipartition import Linkage, StoppingRule, gram, length, lengths, mean_direction
from fednews.federated.clients import Reduction, client_gradients, local_training, trainable
from fednews.federated.group_models import GroupModels
from fednews.federated.parts import part_of
from fednews.federated.round import Round
from fednews.models.base import NewsModel
from fednews.privacy.entry import LedgerEntry
from fednews.privacy.unprotected import unprotected
from fednews.types import Size

Parameters = dict[str, Tensor]


@dataclass(frozen=True)
class _Cut:
    """A cut of ``cluster``: those whose update at ``model`` points along ``direction`` belong to cluster ``new``."""

    number: int
    cluster: int
    new: int
    model: Parameters
    direction: Parameters


class CFL(ClientSampling):
    """Recursive bipartition of clients by the similarity of their updates; one model for each cluster.

    Pair it with the server optimiser of the vanilla run that it is compared with; ``torch.optim.SGD(lr=1)`` is the
    paper's. Memory is that of all updates of a round, and five models for each cluster.

    Args:
        clients_per_round: how many clients are drawn each round; below 1 it is a fraction of all clients.
        eps1: a cluster is cut only while the norm of its mean update is below.
        eps2: and only while the largest norm of a client's update is above.
        gamma: and only if this is below ``sqrt((1 - a) / 2)``, a the largest similarity across the cut.
        linkage: how the cut is found; ``single`` is the paper's algorithm, ``complete`` the authors' code.
        warmup: no cut in as many first rounds, when a mean update is small because training has hardly begun; 20 in the
            authors' code.
        max_clusters: no cut after as many clusters.
        local_steps: steps of gradient descent, each over all samples of the client.
        local_lr: the clients' learning rate.
        loss: a client's loss is the sum or the mean over its samples.
        client_dropout: probability that a drawn client never answers.
        clients_at_once: clients whose own gradients are computed together, padded alike; null: on an accelerator 5,
            on a CPU none is padded.

    Raises:
        UsageError: a setting out of range.
    """

    one_process = True
    repeatable = False

    def __init__(
        self,
        clients_per_round: float = 50,
        eps1: float = 0.4,
        eps2: float = 1.6,
        gamma: float = 0.0,
        linkage: Linkage = "single",
        warmup: int = 20,
        max_clusters: int = 8,
        local_steps: int = 1,
        local_lr: float = 1.0,
        loss: Reduction = "mean",
        client_dropout: float = 0.0,
        clients_at_once: Size | None = None,
    ) -> None:
        super().__init__(clients_per_round, client_dropout)
        for name, value, least in (
            ("warmup", warmup, 0),
            ("max_clusters", max_clusters, 1),
            ("local_steps", local_steps, 1),
        ):
            if value < least:
                raise UsageError(f"algorithm.{name} must be at least {least}, not {value}")
        self.rule = StoppingRule(eps1, eps2, gamma, linkage)
        self.warmup = warmup
        self.max_clusters = max_clusters
        self.local_steps = local_steps
        self.local_lr = local_lr
        self.loss = loss
        self.clients_at_once = clients_at_once
        self._cuts: list[_Cut] = []
        self._planned: list[_Cut] = []
        self._sums: dict[int, Aggregate] = {}
        self._metrics: dict[str, float] = {}

    def setup(self, model: NewsModel, source: CohortSource, make_optimizer: Callable[[list], Optimizer]) -> None:
        self._cluster = np.zeros(source.samples.clients, np.int64)  # of every client
        self._seen = np.zeros(source.samples.clients, np.int64)  # how many cuts it is sorted by
        self._models = GroupModels(trainable(model), 0, make_optimizer)  # of clusters 1, 2, …

    def aggregate(self, model: NewsModel, cohort: Cohort | None, work: Round) -> Aggregate:
        if work.separate:
            raise UsageError("CFL compares single updates, which this aggregation hides: use Plain")
        self._sums, self._planned = {}, []
        if cohort is None:
            return work.sum(())
        self._models.follow(trainable(model))
        self._sort_in(model, cohort)
        for cluster in np.unique(self._cluster_of(cohort)).tolist():
            part = self._part(cohort, cluster)
            parts = list(self._updates(model, part, self._parameters(model, cluster)))
            self._sums[cluster] = work.sum(parts)
            self._judge(model, cluster, parts, part.clients, work)
        return _of_the_global_model(self._sums)

    def client_updates(self, model: NewsModel, cohort: Cohort, work: Round) -> Iterator[ClientUpdates]:
        for cluster in np.unique(self._cluster_of(cohort)).tolist():
            yield from self._updates(model, self._part(cohort, cluster), self._parameters(model, cluster))

    def _updates(self, model: NewsModel, cohort: Cohort, parameters: Parameters) -> Iterator[ClientUpdates]:
        if self.local_steps > 1:
            lr, at_once = self.local_lr, self.clients_at_once
            for part in local_training(model, cohort, self.loss, self.local_steps, lr, at_once, parameters):
                yield part.whole(parameters)
            return
        for part in client_gradients(model, cohort, self.loss, self.clients_at_once, parameters):
            part = part.whole(parameters)
            yield replace(part, updates={name: update.mul_(self.local_lr) for name, update in part.updates.items()})

    def _cluster_of(self, cohort: Cohort) -> np.ndarray:
        return self._cluster[cohort.clients.cpu().numpy()]

    def _part(self, cohort: Cohort, cluster: int) -> Cohort:
        return part_of(cohort, torch.from_numpy(self._cluster_of(cohort) == cluster).to(cohort.clients.device))

    def _parameters(self, model: NewsModel, cluster: int) -> Parameters:
        return self._models.parameters[cluster - 1] if cluster else trainable(model)

    def _sort_in(self, model: NewsModel, cohort: Cohort) -> None:
        """Take the round's clients through the cuts that they have not seen."""
        clients = cohort.clients.cpu().numpy()
        for index, cut in enumerate(self._cuts):
            late = (self._seen[clients] <= index) & (self._cluster[clients] == cut.cluster)
            if not late.any():
                continue
            part = part_of(cohort, torch.from_numpy(late).to(cohort.clients.device))
            at, direction = ({n: v.to(part.counts.device) for n, v in p.items()} for p in (cut.model, cut.direction))
            for updates in self._updates(model, part, at):
                along = sum(torch.tensordot(u, direction[n], direction[n].dim()) for n, u in updates.updates.items())
                self._cluster[part.clients[updates.clients[along > 0]].cpu().numpy()] = cut.new
        self._seen[clients] = len(self._cuts)

    def _judge(self, model: NewsModel, cluster: int, parts: list[ClientUpdates], clients: Tensor, work: Round) -> None:
        """Plan the cut of a cluster where the rule says so; ``parts`` name positions in ``clients``."""
        mean, largest = length(self._sums[cluster].mean()), float(lengths(parts).max())
        if cluster == 0:
            self._metrics |= {"update_norm_mean": mean, "update_norm_max": largest}
        new = len(self._models) + 1 + len(self._planned)
        allowed = work.number >= self.warmup and new < self.max_clusters
        side = self.rule.side(gram(parts)) if allowed and self.rule.holds(mean, largest) else None
        if side is None:
            return
        here, there = mean_direction(parts, ~side), mean_direction(parts, side)
        direction = {name: there[name] - here[name] for name in here}
        at = {name: value.detach().clone() for name, value in self._parameters(model, cluster).items()}
        self._planned.append(_Cut(work.number, cluster, new, at, direction))
        judged = clients[torch.cat([part.clients for part in parts])].cpu().numpy()
        self._seen[judged] = len(self._cuts) + len(self._planned)
        self._cluster[judged[side.cpu().numpy()]] = new

    def finish_round(self, model: NewsModel, optimizer: Optimizer, work: Round) -> None:
        for cluster, sums in self._sums.items():
            if cluster:
                self._models.step(cluster - 1, sums.mean(), optimizer)
        for cut in self._planned:
            of_whole = self._models.optimizers[cut.cluster - 1] if cut.cluster else optimizer
            self._models.add(self._parameters(model, cut.cluster), of_whole)
        self._cuts += self._planned
        self._sums, self._planned = {}, []
        self._metrics["clusters"] = len(self._models) + 1

    def release(self, coordinates: int) -> LedgerEntry:
        sees = (
            "every client's update by itself, with the client's identity",
            "sample counts |D_i| in the clear",
            "the cluster of every client that took part, and how similar its updates are to others'",
        )
        return unprotected("model update", coordinates, "updates are uploaded without any noise", sees)

    def metrics(self) -> dict[str, float]:
        metrics, self._metrics = self._metrics, {}
        return metrics

    def scorer(self, model: NewsModel, catalogue: Catalogue) -> Scorer:
        self._models.follow(trainable(model))
        cluster = torch.from_numpy(np.append(0, self._cluster)).to(catalogue.device)  # 0: no training data

        def assign(batch: ImpressionBatch) -> Tensor:
            return cluster[batch.user]

        return ModelPerGroup(model, catalogue, [{}, *self._models.parameters], assign)

    def artifacts(self) -> dict[str, str | bytes]:
        """The cuts, and how many clients are in each cluster, those that were not drawn since a cut included."""
        cuts = [{"round": cut.number, "cluster": cut.cluster, "new": cut.new} for cut in self._cuts]
        sizes = np.bincount(self._cluster, minlength=len(self._models) + 1).tolist()
        return {"clusters/clusters.json": json.dumps({"cuts": cuts, "clients": sizes})}

    def state_dict(self) -> dict:
        return {
            "cluster": torch.from_numpy(self._cluster.copy()),
            "seen": torch.from_numpy(self._seen.copy()),
            "cuts": [vars(cut) for cut in self._cuts],
            "models": self._models.state_dict(),
        }

    def load_state_dict(self, state: dict) -> None:
        self._cluster, self._seen = (state[name].numpy().copy() for name in ("cluster", "seen"))
        self._cuts = [_Cut(**cut) for cut in state["cuts"]]
        self._models.load_state_dict(state["models"])


def _of_the_global_model(sums: dict[int, Aggregate]) -> Aggregate:
    """The first cluster's update with everybody's loss; no update, and so no step, where none of its clients worked."""
    loss, samples = (sum(getattr(each, name) for each in sums.values()) for name in ("loss", "samples"))
    if 0 in sums:
        return replace(sums[0], loss=loss, samples=samples)
    return Aggregate({}, torch.zeros_like(loss), loss, samples)
