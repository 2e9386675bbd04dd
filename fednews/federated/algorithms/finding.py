"""FINDING: interpolated group models over dynamically clustered users (Yu et al. 2023).

Round t = 1, 2, … of Algorithm 1, as it is read here:

1. Every group's model becomes w'_l = λ(t, i) w_l + (1 − λ(t, i)) w_g, layer by layer (eq. 1a, 7). Line 12 descends
   from w'_l, so w'_l replaces w_l, also in a group without a client in this round.
2. C clients are drawn from the groups in proportion to their members (section 4.2; line 9 only says "randomly").
3. Every client computes the gradient of its loss at its group's w'_l.
4. The global model descends the |d_i|-weighted mean of all gradients (line 10), every group's model that of its own
   clients (line 12), each with its own optimiser: the text writes plain descent and trains with Adam.
5. After every T-th round all training clients are clustered anew by k-means on their user vectors from the global
   model, and group models are mixed by the transition matrix (eq. 8).

The first groups come from the untrained global model (line 4). Only that clustering happens before a round; the others
end one, as in line 15, so that the models evaluated after a T-th round are mixed already.

Beyond the text: new groups take the names of the old ones that most of their clients come from, by an optimal
assignment as in the authors' code; eq. 8 gives the same models under any names, so this matters only to the
optimisers, which stay with the names, and to the figure of the flow. The authors' code interpolates every 10 rounds,
clusters every 100 and treats Adam's moments like weights: ``interpolate_every``, ``recluster_every``, ``mix_moments``.
It draws at least one client of every group, so more than C a round; here fractions are rounded at random and C stays C.

``trainer.gradient_clip_val`` acts on the global model's update, not on those of group models.
"""

import functools
import operator
import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from fednews.aggregation.base import Aggregation
from fednews.aggregation.updates import Aggregate, ClientUpdates
from fednews.data.cohort import Cohort, CohortSource
from fednews.errors import UsageError
from fednews.evaluation.scorers import Catalogue, ModelPerGroup, Scorer, SharedModel
from fednews.federated.algorithms.base import ClientSampling, Selection
from fednews.federated.clients import Reduction, gradients, trainable
from fednews.federated.clustering import UserClustering
from fednews.federated.group_models import GroupModels
from fednews.federated.groups import Grouping, NearestGroup, proportional_draw
from fednews.federated.interpolation import Interpolation
from fednews.federated.parts import part_of
from fednews.federated.round import Round
from fednews.models.base import NewsModel
from fednews.privacy.entry import LedgerEntry
from fednews.privacy.unprotected import unprotected
from fednews.privacy.user_vectors import UserVectorRelease
from fednews.report.flow import group_files
from fednews.types import Size


class Finding(ClientSampling):
    r"""Group models interpolated with a global one by :math:`\lambda(t, i)`, groups found anew every T rounds.

    Pair it with ``torch.optim.Adam(lr=1e-4)`` for the published runs. Known users are evaluated with their group's
    model, unseen ones with that of the nearest centroid. With one group, or with ``max_lambda=0``, nothing is personal:
    no client is clustered, and the run is vanilla FL.

    The ablation of Fig. 5: ``beta=0`` (time only), ``alpha=null`` (layers only), both (fixed at ``max_lambda``).

    Args:
        groups: K.
        clients_per_round: C, drawn from the groups in proportion; below 1 it is a fraction of all clients.
        alpha: how fast lambda grows over rounds, above 1; null for no growth, lambda at its end from the start.
        beta: how much more of the group's model upper layers take; 0 for all alike.
        max_lambda: factor on lambda; 1 in the paper.
        interpolate_every: rounds from one interpolation to the next.
        recluster_every: T, rounds from one clustering to the next, at least 2; null clusters once, before training.
        mix_moments: interpolate and mix the optimisers' moments like the weights.
        loss: a client's loss is the sum or the mean over its samples.
        client_dropout: probability that a drawn client never answers.
        clients_at_once: clients whose own gradients are computed together, padded alike; null: on an accelerator 5,
            on a CPU none is padded.
        min_group_clients: uploads of a group with fewer answers in a round are dropped, as their sum hides little.
        vector_clip: bound on the L2 norm of an uploaded user vector; null for none.
        vector_noise: standard deviation of the Gaussian noise on an uploaded user vector; 0 for none.
        clustering: aggregation that carries k-means (:mod:`fednews.aggregation.encrypted_kmeans`), so that vectors stay
            on their devices; null uploads them and clusters at the server.
        clustering_steps: steps of k-means with ``clustering``.

    Raises:
        UsageError: a setting out of range.
    """

    repeatable = False  # group models are interpolated before clients work
    ahead = False  # clients are drawn from groups that the round before may have changed

    def __init__(
        self,
        groups: int = 8,
        clients_per_round: float = 50,
        alpha: float | None = 1.0003,
        beta: float = 0.5,
        max_lambda: float = 1.0,
        interpolate_every: int = 1,
        recluster_every: int | None = 500,
        mix_moments: bool = False,
        loss: Reduction = "mean",
        client_dropout: float = 0.0,
        clients_at_once: Size | None = None,
        min_group_clients: int = 1,
        vector_clip: float | None = None,
        vector_noise: float = 0.0,
        clustering: Aggregation | None = None,
        clustering_steps: int = 10,
    ) -> None:
        super().__init__(clients_per_round, client_dropout)
        for name, value, least in (
            ("groups", groups, 1),
            ("interpolate_every", interpolate_every, 1),
            ("recluster_every", 2 if recluster_every is None else recluster_every, 2),
            ("min_group_clients", min_group_clients, 1),
            ("clustering_steps", clustering_steps, 1),
        ):
            if value < least:
                raise UsageError(f"algorithm.{name} must be at least {least}, not {value}")
        self.interpolation = Interpolation(alpha, beta, max_lambda)
        self.grouping = Grouping(groups if max_lambda > 0 else 1)
        self.vectors = UserVectorRelease(vector_clip, vector_noise)
        self.clustering = UserClustering(self.grouping.groups, self.vectors, clustering, clustering_steps)
        self.interpolate_every = interpolate_every
        self.recluster_every = recluster_every
        self.mix_moments = mix_moments
        self.loss = loss
        self.clients_at_once = clients_at_once
        self.min_group_clients = min_group_clients
        self._drawn: list[int] = []  # groups that a client of the round belongs to
        self._sums: dict[int, Aggregate] = {}
        self._metrics: dict[str, float] = {}

    def check(self, clients: int) -> None:
        super().check(clients)
        if self.grouping.groups > clients:
            raise UsageError(f"algorithm.groups is {self.grouping.groups}, but the data has {clients} clients")

    def setup(self, model: NewsModel, source: CohortSource, make_optimizer: Callable[[list], Optimizer]) -> None:
        self._model, self._source = model, source
        layers = model.layer_of()
        self._layer_of = {name: layers[name] for name in trainable(model)}
        self._models = GroupModels(trainable(model), self.grouping.groups, make_optimizer)

    def select(self, source: CohortSource, round_: int) -> Selection:
        if not self.grouping.rounds:
            self._regroup(round_)
        streams, labels = source.streams, self.grouping.labels
        offset = int(streams.numpy("group_quota", round_).integers(len(labels)))
        clients = proportional_draw(labels, self._cohort_size(len(labels)), streams.numpy("cohort", round_), offset)
        answers = streams.numpy("client_dropout", round_).random(len(clients)) >= self.client_dropout
        answering = np.bincount(labels[clients[answers]], minlength=self.grouping.groups)
        answers &= answering[labels[clients]] >= self.min_group_clients
        draw = source.of_clients(clients, round_).of_clients(np.flatnonzero(answers))
        return Selection(draw, draw.clients, len(clients))

    def begin_round(self, source: CohortSource, selection: Selection) -> None:
        self._drawn = np.unique(self.grouping.labels[selection.draw.clients]).tolist()

    def aggregate(self, model: NewsModel, cohort: Cohort | None, work: Round) -> Aggregate:
        self._models.follow(trainable(model))
        if work.number % self.interpolate_every == 0:
            self._models.interpolate(trainable(model), self._lambdas(work.number))
        self._sums = {group: work.sum(self._uploads(model, cohort, group, work)) for group in self._drawn}
        return functools.reduce(operator.add, self._sums.values()) if self._sums else work.sum(())

    def client_updates(self, model: NewsModel, cohort: Cohort, work: Round) -> Iterator[ClientUpdates]:
        for group in self._drawn:
            yield from self._uploads(model, cohort, group, work)

    def _uploads(self, model: NewsModel, cohort: Cohort | None, group: int, work: Round) -> Iterator[ClientUpdates]:
        """The gradients of a group's clients at the group's model."""
        if cohort is None:
            return
        mine = torch.from_numpy(self.grouping.labels).to(cohort.clients.device)[cohort.clients] == group
        if bool(mine.any()):
            own = self.group_parameters(group)
            yield from gradients(model, part_of(cohort, mine), self.loss, self.clients_at_once, work.separate, own)

    def group_parameters(self, group: int) -> dict[str, Tensor]:
        """The trained parameters of a group's model, by name."""
        return self._models.parameters[group]

    def _lambdas(self, number: int) -> dict[str, float]:
        """Lambda of each parameter in the round of this number; the paper counts rounds from 1."""
        by_layer = self.interpolation(number + 1, len(self._model.layers))
        return {name: by_layer[layer] for name, layer in self._layer_of.items()}

    def finish_round(self, model: NewsModel, optimizer: Optimizer, work: Round) -> None:
        for group, sums in self._sums.items():
            self._models.step(group, sums.mean(), optimizer)
        self._sums = {}
        lambdas = self.interpolation(work.number + 1, len(model.layers))
        self._metrics |= {"lambda_first": lambdas[0], "lambda_last": lambdas[-1]}
        done = work.number + 1
        if self.recluster_every and done % self.recluster_every == 0:
            self._regroup(done)
        if self.mix_moments and done % self.interpolate_every == 0:
            # Those of the next round already: in it, the global optimiser steps before this method can see it.
            self._models.interpolate_moments(trainable(model), optimizer, self._lambdas(done))

    def _regroup(self, done: int) -> None:
        """Cluster all clients after ``done`` rounds; the models of new groups are mixed from those of the old."""
        clients = self._source.samples.clients
        if self.grouping.groups == 1:
            if not self.grouping.rounds:
                self.grouping.append(done, np.zeros(clients, np.int64), None)
            return
        started = time.perf_counter()
        shares = self.grouping.append(done, *self.clustering(self._model, self._source, done))
        if shares is not None:
            self._models.mix(torch.from_numpy(shares))
            if self.mix_moments:
                self._models.mix_moments(torch.from_numpy(shares))
            self._metrics["clients_moved"] = self.grouping.moved()
        sizes = self.grouping.sizes()
        self._metrics |= {"group_size_min": int(sizes.min()), "group_size_max": int(sizes.max())}
        self._metrics |= {**self.clustering.metrics(), "clustering_seconds": time.perf_counter() - started}

    def release(self, coordinates: int) -> LedgerEntry:
        sees = (
            "every client's gradient by itself, with the client's identity",
            "sample counts |d_i| in the clear",
            "the group of every client",
        )
        return unprotected("gradient", coordinates, "gradients are uploaded without any noise", sees)

    def releases(self) -> Iterable[tuple[LedgerEntry, np.ndarray]]:
        return self.clustering.released()

    def metrics(self) -> dict[str, float]:
        metrics, self._metrics = self._metrics, {}
        return metrics

    def scorer(self, model: NewsModel, catalogue: Catalogue) -> Scorer:
        if not self.grouping.rounds:
            return SharedModel(model, catalogue)
        self._models.follow(trainable(model))
        assign = NearestGroup(model, catalogue, self.grouping, self.vectors.clipped)
        return ModelPerGroup(model, catalogue, self._models.parameters, assign)

    def artifacts(self) -> dict[str, str | bytes]:
        """The group of every client after each clustering, the flow between groups, and its figure."""
        if self.grouping.groups == 1 or not self.grouping.rounds:
            return {}
        return group_files(self.grouping, self._source.streams.numpy("flow_figure"))

    def state_dict(self) -> dict:
        return {"models": self._models.state_dict(), "grouping": self.grouping.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        self._models.load_state_dict(state["models"])
        self.grouping.load_state_dict(state["grouping"])
