"""PrivateRec: private attention and permuted labels on the clients (Liu et al. 2022, Algorithm 3).

A drawn client pads its history at random, decomposes its user vector into noisy weights of the basis vectors, rebuilds
it, names one of each impression's candidates as clicked at random, and uploads the gradient of its loss; the server
steps the mean with FedAdam, which is ``torch.optim.Adam(betas=(0.9, 0.99))`` on it. Line 23 scores with u, which would
use neither noise nor basis; as in section 3.3 the rebuilt vector is meant.

What the text promises does not hold as published, so each promise has a repaired variant beside it:

- ``sensitivity``, ``calibration``: see :class:`fednews.privacy.private_attention.PrivateAttention`.
- ``label_mechanism``: see :mod:`fednews.privacy.label_permutation`. With ``keep_labels`` a click's label is drawn once
  and stays; Algorithm 3 draws it in every round, and the mean over rounds tells the click.
- ``upload``: ``published`` sends the whole gradient, whose backward pass goes through the raw history.
  ``stop_gradient`` takes the noisy weights as constants, so that the upload is made of them, the named candidates and
  the public model alone; the user encoder then is not trained. ``clipped_noised`` promises user-level privacy instead:
  see :mod:`fednews.privacy.clipped_sum`.

The budget of clicks in histories and that of labels are composed, since one click may be in both; the paper takes the
larger ("parallel composition"), and so does the published reading.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch.optim import Optimizer

from fednews.aggregation.base import Aggregation
from fednews.aggregation.updates import Aggregate, ClientUpdates
from fednews.data.cohort import Cohort, CohortSource
from fednews.errors import UsageError
from fednews.federated.algorithms.base import ClientSampling, Selection
from fednews.federated.clients import Reduction, client_gradients, gradients, trainable
from fednews.federated.private_draws import (
    bound_of_loss,
    candidate_counts,
    hidden_labels,
    history_uses,
    permuted_labels,
    private_cohort,
    sensitive_news,
    shares,
    with_sensitive,
)
from fednews.federated.round import Round
from fednews.models.base import NewsModel
from fednews.models.private import PrivateRecModel, PrivateUsers
from fednews.privacy.clipped_sum import ClippedSum
from fednews.privacy.entry import LedgerEntry
from fednews.privacy.label_permutation import LABELS, LabelMechanism, LabelPermutation
from fednews.privacy.private_attention import Activation, Calibration, Noise, PrivateAttention, Sensitivity
from fednews.timing import section
from fednews.types import Size

Upload = Literal["published", "stop_gradient", "clipped_noised"]

RAW_GRADIENT = (
    "the gradient is made of the raw history: its rows of trained words, and the user encoder's part, tell the clicked "
    "articles, whatever noise the forward pass has"
)
_THEOREM = "Liu et al. 2022, Theorem 2: the larger of the budgets of attention and labels, in one round"
_IN_THEOREM = "Liu et al. 2022, Theorem 2: within the budget of the upload"
_SEES = (
    "every client's upload by itself, with the client's identity",
    "which clients take part in which round",
    "the number of samples of each client, in the clear",
)


class PrivateRec(ClientSampling):
    """Private training of a :class:`fednews.models.private.PrivateRecModel`.

    Args:
        clients_per_round: how many clients are drawn each round; below 1 it is the fraction r of all clients.
        epsilon: budget of one noisy attention vector by the paper's formula; ``.inf`` for no noise.
        delta: of that budget, for Gaussian noise.
        theta: largest norm of the clean attention; 1 never clips (the paper does not state it).
        padding: p, probability with which a click of the history is replaced by the anonymous news.
        noise: ``laplace`` (the paper's in training) or ``gaussian``.
        scale: of the noise in place of epsilon and delta: Laplace scale, or standard deviation.
        activation: what makes noisy attention positive.
        noise_per: a client draws noise once a round for each different ``history``, or for each ``sample``.
        sensitivity: of the attention, that the noise is made for.
        calibration: of Gaussian noise.
        label_mechanism: order of drawing label and negatives.
        label_epsilon: budget of one label; as ``epsilon`` when null; ``.inf`` for true labels.
        keep_labels: draw a click's label once, not anew in every round.
        upload: what clients send.
        clip_norm: of ``clipped_noised``: largest norm of a client's whole update.
        noise_multiplier: of ``clipped_noised``: standard deviation of the noise on the sum over ``clip_norm``.
        secret_sampling: of ``clipped_noised``: state the budget for those who see the models but not who was drawn, of
            whom sampling hides all clients a little; else for the server, which knows who was drawn.
        sensitive_categories: hide clicks on news of these categories alone, and spend nothing on others (an idea of the
            paper's second version); on all when null.
        loss: a client's loss is the sum or the mean over its samples.
        client_dropout: probability that a drawn client never answers.
        clients_at_once: clients whose own gradients are computed together, padded alike; null: on an accelerator 5,
            on a CPU none is padded.

    Raises:
        UsageError: a setting out of range, or settings that do not go together.
    """

    def __init__(
        self,
        clients_per_round: float = 0.01,
        epsilon: float = 10.0,
        delta: float = 0.001,
        theta: float = 1.0,
        padding: float = 0.2,
        noise: Noise = "laplace",
        scale: float | None = None,
        activation: Activation = "relu",
        noise_per: Literal["history", "sample"] = "history",
        sensitivity: Sensitivity = "published",
        calibration: Calibration = "classical",
        label_mechanism: LabelMechanism = "published",
        label_epsilon: float | None = None,
        keep_labels: bool = True,
        upload: Upload = "published",
        clip_norm: float = 1.0,
        noise_multiplier: float = 1.0,
        secret_sampling: bool = True,
        sensitive_categories: list[str] | None = None,
        loss: Reduction = "mean",
        client_dropout: float = 0.0,
        clients_at_once: Size | None = None,
    ) -> None:
        super().__init__(clients_per_round, client_dropout)
        self.attention = PrivateAttention(
            epsilon, delta, theta, padding, noise, activation, sensitivity, calibration, scale=scale
        )
        self.labels = LabelPermutation(epsilon if label_epsilon is None else label_epsilon, label_mechanism)
        self.keep_labels = keep_labels
        self.per_sample = noise_per == "sample"
        self.upload = upload
        self.clipped_sum = ClippedSum(clip_norm, noise_multiplier) if upload == "clipped_noised" else None
        self.secret_sampling = secret_sampling
        self.sensitive_categories = sensitive_categories
        self.loss = loss
        self.clients_at_once = clients_at_once
        if self.clipped_sum and sensitive_categories is not None:
            raise UsageError(
                "algorithm.sensitive_categories does not go with upload clipped_noised, which hides all data"
            )
        self._pending: list[tuple[LedgerEntry, np.ndarray]] = []

    def check_parts(self, model: NewsModel, aggregation: Aggregation) -> None:
        if not isinstance(model, PrivateRecModel):
            raise UsageError(
                f"algorithm PrivateRec trains a PrivateRecModel, not {type(model).__name__}: "
                f"set model to PrivateRecModel with base {type(model).__name__} (experiments/model/private_nrms.yaml)"
            )
        if self.clipped_sum and not aggregation.separate:
            raise UsageError(
                "algorithm.upload clipped_noised needs an aggregation that shows the server sums alone: "
                "set aggregation to SecureAggregation (simulate: true skips the cryptography)"
            )

    def setup(self, model: PrivateRecModel, source: CohortSource, make_optimizer: Callable[[list], Optimizer]) -> None:
        self.attention = replace(self.attention, basis=len(model.basis))
        self.population, self.negatives = source.samples.clients, source.negatives
        self.history_length = source.history_length
        self._streams = source.streams
        self._coordinates = sum(part.numel() for part in self.communicated(model).values())
        self._candidates = candidate_counts(source, self.labels.mechanism)
        self._told = np.zeros(self.population, bool)  # clients whose labels have been named before
        self._sensitive = None
        if self.sensitive_categories is not None:
            self._sensitive = sensitive_news(source, self._known_categories(source), self.sensitive_categories)
            with_sensitive(source, self._sensitive)

    def select(self, source: CohortSource, round_: int) -> Selection:
        selection = super().select(source, round_)
        kept = self._streams if self.keep_labels else None
        draw = permuted_labels(self.labels, source, selection.draw, round_, kept, self._sensitive)
        return replace(selection, draw=draw)

    def begin_round(self, source: CohortSource, selection: Selection) -> None:
        self._pending = list(self._releases(source, selection))

    def aggregate(self, model: PrivateRecModel, cohort: Cohort | None, work: Round) -> Aggregate:
        sums = super().aggregate(model, cohort, work)
        if self.clipped_sum and work.sums_only and cohort is not None:
            with section("privacy"):
                self.clipped_sum.add_noise(sums, bound_of_loss(self.negatives), self._noise(work, cohort))
        return sums

    def client_updates(self, model: PrivateRecModel, cohort: Cohort, work: Round) -> Iterator[ClientUpdates]:
        stop = self.upload == "stop_gradient"
        cohort, users = private_cohort(cohort, work, self.attention, self.history_length, self.per_sample, stop)
        if not self.clipped_sum:
            parts = gradients(model, cohort, self.loss, self.clients_at_once, work.separate)
            yield from _privately(model, users, parts)
            return
        for part in _privately(model, users, client_gradients(model, cohort, self.loss, self.clients_at_once)):
            with section("privacy"):
                clients = () if work.sums_only else cohort.clients[part.clients].tolist()
                noise = [self._noise(work, cohort, client) for client in clients]
                part = part.whole(trainable(model))
                part = self.clipped_sum(part, noise, len(cohort), bound_of_loss(self.negatives))
            yield part

    @staticmethod
    def _noise(work: Round, cohort: Cohort, *client: int) -> torch.Generator:
        return work.streams.torch("update_noise", work.number, *client, device=cohort.clients.device)

    def release(self, coordinates: int) -> LedgerEntry:
        """The upload; what it is made of is in :meth:`releases`."""
        if self.clipped_sum and not self.secret_sampling:
            return self.clipped_sum.entry(coordinates)
        published = self.upload == "published"
        made_of = {
            "published": "gradient of the whole model",
            "stop_gradient": "gradient made of noisy attention, named candidates and the public model alone",
            "clipped_noised": "share of the noisy sum, which is accounted by itself",
        }
        return LedgerEntry(
            mechanism=f"upload, {self.upload} (Liu et al. 2022, Algorithm 3, line 24)",
            release=made_of[self.upload],
            adjacency="replace one click of a client by any other",
            view="local",
            coordinates=coordinates,
            sensitivity=math.inf if published else 0.0,
            sensitivity_norm="l2",
            noise="none",
            noise_scale=0.0,
            published_epsilon=max(self.attention.published_epsilon(), self.labels.epsilon),
            published_source=_THEOREM,
            server_sees=_SEES,
            no_guarantee_reason=RAW_GRADIENT if published else None,
        )

    def releases(self) -> Iterable[tuple[LedgerEntry, np.ndarray]]:
        pending, self._pending = self._pending, []
        for entry, clients in pending:
            if entry.release == LABELS:
                self._told[clients] = True
            yield entry, clients

    def state_dict(self) -> dict:
        return {"told": self._told.tolist()}

    def load_state_dict(self, state: dict) -> None:
        self._told = np.array(state["told"], bool)

    def _releases(self, source: CohortSource, selection: Selection) -> Iterator[tuple[LedgerEntry, np.ndarray]]:
        """What the round's uploads are made of, or the round's sum, which touches clients who were not drawn too."""
        clients = selection.participants
        if self.clipped_sum:
            if self.secret_sampling and len(clients):
                size = self._cohort_size(self.population)
                yield self.clipped_sum.entry(self._coordinates, size, self.population), np.arange(self.population)
            return
        uses = history_uses(source, selection.draw, self.per_sample, self._sensitive)
        if not self.attention.padding:
            uses[:, 1] = np.minimum(uses[:, 1], 1)
        for times, multiplicity, places in shares(uses):
            entry = self.attention.entry(multiplicity, times, hidden_mask=self.upload == "stop_gradient")
            yield self._within(entry), clients[places]
        named = hidden_labels(source, clients, self._sensitive)
        if self.keep_labels:
            named = named[~self._told[named]]
        if len(named):
            yield self._within(self.labels.entry(self._candidates, self.negatives)), named

    @staticmethod
    def _within(entry: LedgerEntry) -> LedgerEntry:
        return replace(entry, published_epsilon=0.0, published_source=_IN_THEOREM)

    def _known_categories(self, source: CohortSource) -> np.ndarray:
        known = np.array(list(source.categories))
        if unknown := [name for name in self.sensitive_categories if name not in known[1:]]:
            raise UsageError(
                f"algorithm.sensitive_categories: the data has no category '{unknown[0]}', but {', '.join(known[1:])}"
            )
        return known


def _privately(model: PrivateRecModel, users: PrivateUsers, parts: Iterator[ClientUpdates]) -> Iterator[ClientUpdates]:
    """Parts computed with private users; between them the model is as it was."""
    while True:
        with model.privately(users):
            part = next(parts, None)
        if part is None:
            return
        yield part
