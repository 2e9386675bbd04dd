"""What PrivateRec's clients draw in a round: labels, padded clicks and noise, each client from streams of its own."""

import math
from dataclasses import replace

import numpy as np
import torch

from fednews.data.cohort import Cohort, CohortSource, Draw
from fednews.data.ragged import Ragged
from fednews.federated.round import Round
from fednews.models.private import PrivateUsers
from fednews.privacy.history_padding import HistoryPadding
from fednews.privacy.label_permutation import LabelPermutation
from fednews.privacy.private_attention import PrivateAttention
from fednews.streams import Streams

SENSITIVE = "sensitive"
"""Name of the column of the news that says whether a click on it is to be hidden."""


def permuted_labels(
    labels: LabelPermutation,
    source: CohortSource,
    draw: Draw,
    round_: int,
    kept: Streams | None,
    sensitive: np.ndarray | None,
) -> Draw:
    """The draw with candidates as the clients name them.

    Args:
        labels: the mechanism.
        source: where the draw comes from.
        draw: all samples of its clients.
        round_: the round.
        kept: a click's label is drawn once from these streams, whatever the round and the attempt at it, and so are the
            negatives of the published order; drawn anew in every round when None.
        sensitive: bool ``[news]``, clicks that are permuted; all when None.
    """
    if math.isinf(labels.epsilon):
        return draw
    candidates = draw.candidates.copy()
    samples = source.samples.rows.take(draw.clients)
    for place, client in enumerate(draw.clients.tolist()):
        rows = samples[place]
        impression = source.samples.impression[rows]
        shown = source.train.candidates.take(impression)
        clicked = Ragged(source.train.candidates.offsets, source.train.labels).take(impression)
        position = source.samples.click[rows] - source.train.candidates.offsets[impression]
        named = kept.numpy("labels", client) if kept else source.streams.numpy("labels", client, round_)
        candidates[draw.client == place] = labels(
            shown,
            clicked,
            position,
            draw.candidates.shape[1] - 1,
            named,
            source.streams.numpy("label_negatives", client, round_),
            None if sensitive is None else Ragged(shown.offsets, sensitive[shown.values]),
        )
    return replace(draw, candidates=candidates)


def candidate_counts(source: CohortSource, mechanism: str) -> np.ndarray:
    """The different numbers C of candidates that labels of the population's samples are drawn among."""
    impression = np.unique(source.samples.impression)
    shown = source.train.candidates.lengths(impression)
    clicks = Ragged(source.train.candidates.offsets, source.train.labels).take(impression)
    clicked = np.add.reduceat(clicks.values, clicks.offsets[:-1])
    return np.unique(shown if mechanism == "joint" else shown - clicked + 1)


def history_uses(source: CohortSource, draw: Draw, per_sample: bool, sensitive: np.ndarray | None) -> np.ndarray:
    """How often a round's work of each client uses what is to be hidden: int64 ``[C, 2]``.

    The first column counts the noisy vectors made of histories with a sensitive click, the second the largest number of
    times that one sensitive article is in such a history; both are 0 where there is none.
    """
    history, real = source.train.history.take(draw.impression).last(source.history_length).padded(fill=-1, side="left")
    hidden = real if sensitive is None else real & sensitive[history]
    uses = np.zeros((len(draw.clients), 2), np.int64)
    keyed = np.column_stack([draw.client, np.where(hidden, history, -1), history])
    rows = np.arange(len(keyed)) if per_sample else np.unique(keyed, axis=0, return_index=True)[1]
    for row in rows[hidden[rows].any(1)]:
        most = np.unique(history[row][hidden[row]], return_counts=True)[1].max()
        uses[draw.client[row]] += (1, 0)
        uses[draw.client[row], 1] = max(uses[draw.client[row], 1], most)
    return uses


def private_cohort(
    cohort: Cohort, work: Round, attention: PrivateAttention, history_length: int, per_sample: bool, stop_gradient: bool
) -> tuple[Cohort, PrivateUsers]:
    """The cohort with users that name rows of the second part: noise and padded clicks for each of its histories.

    Args:
        cohort: the round's clients, with a column ``sensitive`` where not every click is to be hidden.
        work: the round.
        attention: draws the noise.
        history_length: of the source, so that draws do not depend on who else is in the cohort.
        per_sample: every sample has a noisy vector of its own, else every different history of a client.
        stop_gradient: as in `PrivateUsers`.
    """
    if per_sample:
        cohort = with_history_per_sample(cohort)
    padding, width = HistoryPadding(attention.padding), cohort.history.shape[1]
    noise = torch.zeros(len(cohort.history), attention.basis, dtype=torch.float64)
    replaced = torch.zeros(cohort.history.shape, dtype=torch.bool)
    owner = cohort.history_client.cpu()
    for place, client in enumerate(cohort.clients.tolist()):
        rows = owner == place
        count = int(rows.sum())
        noise[rows] = attention.draw(count, work.streams.torch("private_attention", work.number, client))
        masks = padding.draw((count, history_length), work.streams.torch("history_padding", work.number, client))
        replaced[rows] = masks[:, -width:]
    noise, replaced = (table.to(cohort.history.device) for table in (noise, replaced))
    if SENSITIVE in cohort.news:
        hidden = cohort.news[SENSITIVE][cohort.history] & cohort.history_mask
        replaced, noise = replaced & hidden, noise * hidden.any(1, keepdim=True)
    users = PrivateUsers(attention, noise, replaced, cohort.user, stop_gradient)
    return replace(cohort, user=torch.arange(len(cohort.history), device=cohort.user.device)), users


def with_history_per_sample(cohort: Cohort) -> Cohort:
    """The cohort with a history of its own for each sample."""
    row = cohort.sample_history
    return replace(
        cohort,
        history=cohort.history[row],
        history_mask=cohort.history_mask[row],
        history_client=cohort.client,
        user=cohort.user[row],
        sample_history=torch.arange(len(row), device=row.device),
    )


def sensitive_news(source: CohortSource, categories: np.ndarray, names: list[str]) -> np.ndarray:
    """Bool ``[news]``, true for news of the named categories and for news of an unknown one.

    Args:
        source: of the news.
        categories: names of all categories, the unknown one first.
        names: of the sensitive ones.
    """
    chosen = np.isin(categories, names)
    chosen[0] = True
    return chosen[source.category]


def with_sensitive(source: CohortSource, sensitive: np.ndarray) -> None:
    """Let the source's cohorts carry the column ``sensitive``."""
    source.features = {**source.features, SENSITIVE: torch.from_numpy(sensitive)}


def bound_of_loss(negatives: int) -> float:
    """What mean losses are cut to: twice that of a model that knows nothing."""
    return 2 * float(np.log(negatives + 1))


def shares(uses: np.ndarray) -> list[tuple[int, int, np.ndarray]]:
    """``(releases, multiplicity, places)`` of the clients who have the same, without those who release nothing."""
    kinds = np.unique(uses[uses[:, 0] > 0], axis=0)
    return [(int(times), int(m), np.flatnonzero((uses == (times, m)).all(1))) for times, m in kinds]


def hidden_labels(source: CohortSource, clients: np.ndarray, sensitive: np.ndarray | None) -> np.ndarray:
    """Those of the clients who have a label to hide."""
    if sensitive is None:
        return clients
    clicks = source.train.candidates.values
    rows = source.samples.rows
    return np.array([c for c in clients if sensitive[clicks[source.samples.click[rows[c]]]].any()], np.int64)
