"""Label permutation: which shown article a client names as clicked (Liu et al. 2022, Algorithm 3, lines 19-21).

``published`` is the paper's order: k negatives are drawn from the C - 1 non-clicked candidates, then the positive is
drawn anew among these k + 1, the true one with weight ``e^beta``, ``beta = max(0, log(k e^eps / (C - 1)))``. The label
by itself satisfies eps where the clamp is idle and log((C - 1) / k) where it is not. But the drawn set always holds the
true click, and the upload tells the set: no epsilon holds unless k = C - 1.

``joint`` draws the label first, by randomised response over all C candidates shown (the true one with weight e^eps),
and then the negatives from the rest. The label has the same distribution as in the published order without clamp, and
label and negatives together satisfy eps, since the negatives depend on the label and on what was shown alone. All
candidates shown means those clicked in the same impression too: leaving them out would tell that they are none.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fednews.data.cohort import choose
from fednews.data.ragged import Ragged
from fednews.errors import UsageError
from fednews.privacy.entry import LedgerEntry

LabelMechanism = Literal["published", "joint"]

LABELS = "labels of the client's samples"
REPLACE_LABEL = "replace one click of a client's impressions by a click on another candidate shown"


@dataclass(frozen=True)
class LabelPermutation:
    """Draws the label and the negatives of samples.

    Attributes:
        epsilon: of one label; ``inf`` names the true click.
        mechanism: ``published`` or ``joint``.

    Raises:
        UsageError: a setting out of range.
    """

    epsilon: float = 10.0
    mechanism: LabelMechanism = "published"

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise UsageError(f"label_epsilon must be above 0 (.inf for true labels), not {self.epsilon}")
        if self.mechanism not in ("published", "joint"):
            raise UsageError(f"label_mechanism is published or joint, not {self.mechanism}")

    def __call__(
        self,
        shown: Ragged,
        clicked: Ragged,
        position: np.ndarray,
        k: int,
        labels: np.random.Generator,
        negatives: np.random.Generator,
        eligible: Ragged | None = None,
    ) -> np.ndarray:
        """Candidates of each sample as training sees them: int64 ``[S, k + 1]``, the named one first.

        Args:
            shown: the articles of each sample's impression.
            clicked: likewise, 1 where an article was clicked.
            position: int ``[S]``, place in ``shown`` of the sample's click.
            k: negatives drawn.
            labels: draws labels; in the published order negatives too, as what it names is one of them.
            negatives: draws the negatives of the joint order.
            eligible: likewise, true where a click is worth hiding; others are named as they are, and no hidden click
                is named as one of them. All are when None.
        """
        news, real = shown.padded()
        true = np.arange(news.shape[1]) == position[:, None]
        hidden = real if eligible is None else real & eligible.padded(fill=0)[0].astype(bool)
        if self.mechanism == "joint":
            named = _name_one(true, hidden, self._kept(hidden.sum(1)), labels)
            label = np.arange(news.shape[1]) == named[:, None]
            rest = choose(news, real & ~label, k, negatives)
            return np.column_stack([news[label], rest]).astype(np.int64)
        free = real & (clicked.padded(fill=1)[0] == 0)
        candidates = np.column_stack([news[true], choose(news, free, k, labels)]).astype(np.int64)
        kept = self.probability_of_truth(free.sum(1) + 1, k)
        return _redraw(candidates, np.where(hidden[true], kept, 1.0), labels)

    def probability_of_truth(self, candidates: np.ndarray, k: int) -> np.ndarray:
        """Probability that the true click is named among C ``candidates`` when ``k`` negatives are drawn."""
        if self.mechanism == "joint":
            return self._kept(candidates)
        beta = np.maximum(0.0, math.log(k) + self.epsilon - np.log(np.asarray(candidates) - 1.0))
        return 1 / (1 + k * np.exp(-beta))

    def label_epsilon(self, candidates: int, k: int) -> float:
        """What the label alone, without the set that it is drawn from, satisfies."""
        if self.mechanism == "joint":
            return self.epsilon
        return max(self.epsilon, math.log((candidates - 1) / k))

    def epsilon_accounted(self, candidates: int, k: int) -> float:
        """What label and negatives together satisfy; ``inf`` where the set tells the click."""
        return self.epsilon if self.mechanism == "joint" or k == candidates - 1 else math.inf

    def entry(self, candidates: np.ndarray, k: int, view: str = "local") -> LedgerEntry:
        """Declare one client's labels, of which adjacent data sets differ in one.

        Args:
            candidates: int, the different numbers C of candidates of the population's samples.
            k: negatives drawn.
            view: who sees it, as in `LedgerEntry`.
        """
        epsilon = max(self.epsilon_accounted(int(c), k) for c in candidates)
        reason = None
        if math.isinf(self.epsilon):
            reason = "labels are not permuted"
        elif math.isinf(epsilon):
            alone = max(self.label_epsilon(int(c), k) for c in candidates)
            reason = (
                f"the drawn candidates always hold the true click (k = {k} of up to {max(candidates) - 1} negatives), "
                f"and the upload tells them; the label by itself would spend {alone:.4g}"
            )
        return LedgerEntry(
            mechanism=f"label permutation, {self.mechanism} order (Liu et al. 2022, Algorithm 3)",
            release=LABELS,
            adjacency=REPLACE_LABEL,
            view=view,
            coordinates=1,
            sensitivity=epsilon,
            sensitivity_norm="log",
            noise="none" if math.isinf(self.epsilon) else "randomized_response",
            noise_scale=1.0,
            published_epsilon=self.epsilon,
            published_source="Liu et al. 2022, section 3.3: the exponential mechanism on the labels",
            server_sees=("the candidates that a client drew, with the one that it names as clicked",),
            no_guarantee_reason=reason,
        )

    def _kept(self, candidates: np.ndarray) -> np.ndarray:
        return 1 / (1 + (np.asarray(candidates) - 1.0) * math.exp(-self.epsilon))


def _name_one(true: np.ndarray, hidden: np.ndarray, kept: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Place of the true one with probability ``kept``, else of another hidden one; ``[S]``."""
    honest, which = rng.random((2, len(true)))
    others = hidden & ~true
    alone = ~(hidden & true).any(1) | ~others.any(1)
    rank = np.floor(which * others.sum(1)).astype(np.int64)
    other = np.argmax(others.cumsum(1) == rank[:, None] + 1, axis=1)
    return np.where(alone | (honest < kept), true.argmax(1), other)


def _redraw(candidates: np.ndarray, kept: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The first column stays first with probability ``kept``, else changes places with one of the others."""
    honest, which = rng.random((2, len(candidates)))
    other = 1 + np.floor(which * (candidates.shape[1] - 1)).astype(np.int64)
    chosen = np.where(honest < kept, 0, other)
    rows = np.arange(len(candidates))
    named, first = candidates[rows, chosen], candidates[:, 0].copy()
    candidates[rows, chosen] = first
    candidates[:, 0] = named
    return candidates
