"""Label permutation: marginals against the formulas, and the black-box check that one order passes and one fails."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from fednews.data.ragged import Ragged
from fednews.errors import UsageError
from fednews.privacy.accounting import epsilon_of
from fednews.privacy.label_permutation import LabelPermutation
from fednews.streams import Streams

DRAWS = 40_000


def candidates(mechanism, shown, click, k, draws=DRAWS, clicks=(), eligible=None, seed=5):
    """What ``draws`` samples of one impression name and draw, int64 ``[draws, k + 1]``."""
    streams = Streams(seed)
    offsets = np.arange(draws + 1) * len(shown)
    rows = Ragged(offsets, np.tile(shown, draws))
    clicked = Ragged(offsets, np.tile([int(i == click or i in clicks) for i in range(len(shown))], draws))
    chosen = None if eligible is None else Ragged(offsets, np.tile(eligible, draws))
    position = np.full(draws, click)
    return mechanism(rows, clicked, position, k, streams.numpy("a", click), streams.numpy("b", click), chosen)


def is_plausible(count, probability, draws=DRAWS):
    """Two-sided binomial test at 1e-4."""
    return stats.binomtest(int(count), draws, probability).pvalue > 1e-4


@pytest.mark.parametrize("epsilon", [0.3, 2.0, 5.0])
@pytest.mark.parametrize("size", [3, 5, 12])
def test_the_published_label_has_the_papers_marginal_clamp_included(epsilon, size):
    k, shown = 4, list(range(100, 100 + size))
    drawn = candidates(LabelPermutation(epsilon), shown, 1, k)
    beta = max(0, math.log(k * math.exp(epsilon) / (size - 1)))
    truth = math.exp(beta) / (k + math.exp(beta))
    assert is_plausible((drawn[:, 0] == 101).sum(), truth)
    for other in (100, 102):
        assert is_plausible((drawn[:, 0] == other).sum(), (1 - truth) / (size - 1))


@pytest.mark.parametrize("epsilon", [0.3, 2.0, 5.0])
@pytest.mark.parametrize("size", [2, 5, 12])
def test_the_joint_label_is_randomised_response_over_all_candidates(epsilon, size):
    shown = list(range(100, 100 + size))
    drawn = candidates(LabelPermutation(epsilon, "joint"), shown, 1, 4)
    total = math.exp(epsilon) + size - 1
    assert is_plausible((drawn[:, 0] == 101).sum(), math.exp(epsilon) / total)
    for other in shown[:1] + shown[2:4]:
        assert is_plausible((drawn[:, 0] == other).sum(), 1 / total)


def test_without_clamp_both_orders_give_the_label_the_same_marginal():
    for size, k, epsilon in ((9, 4, 1.0), (37, 4, 3.0), (5, 4, 0.2)):
        orders = [
            LabelPermutation(epsilon, order).probability_of_truth(np.array([size]), k)
            for order in ("published", "joint")
        ]
        assert k * math.exp(epsilon) >= size - 1
        np.testing.assert_allclose(*orders)


def test_negatives_are_no_labels_and_come_from_the_rest_without_repetition():
    shown = [7, 9, 11, 13, 15]
    for mechanism in (LabelPermutation(1.0), LabelPermutation(1.0, "joint")):
        drawn = candidates(mechanism, shown, 2, 3, draws=3000)
        assert np.isin(drawn, shown).all()
        assert all(len(set(row)) == 4 for row in drawn.tolist())
    joint = candidates(LabelPermutation(1.0, "joint"), shown, 2, 3)
    kept = joint[joint[:, 0] == 11][:, 1:]
    for other in (7, 9, 13, 15):
        assert is_plausible((kept == other).sum(), 3 / 4, len(kept))


def test_fewer_candidates_than_negatives_are_drawn_again():
    for mechanism in (LabelPermutation(1.0), LabelPermutation(1.0, "joint")):
        assert np.isin(candidates(mechanism, [3, 8], 0, 4, draws=100), [3, 8]).all()


def test_the_joint_order_may_name_what_was_clicked_in_the_same_impression_and_the_published_one_never_does():
    joint = candidates(LabelPermutation(0.1, "joint"), [1, 2, 3, 4, 5, 6], 0, 2, clicks=(3,))
    published = candidates(LabelPermutation(0.1), [1, 2, 3, 4, 5, 6], 0, 2, clicks=(3,))
    assert (joint == 4).any()
    assert not (published == 4).any()


def test_infinite_epsilon_names_the_true_click():
    for order in ("published", "joint"):
        assert (candidates(LabelPermutation(math.inf, order), [5, 6, 7], 1, 2, draws=500)[:, 0] == 6).all()


def test_only_eligible_clicks_are_hidden_and_only_among_eligible_candidates():
    eligible = [True, False, True, True, False]
    joint = LabelPermutation(0.5, "joint")
    hidden = candidates(joint, [1, 2, 3, 4, 5], 0, 2, eligible=eligible)
    total = math.exp(0.5) + 2
    assert set(hidden[:, 0].tolist()) == {1, 3, 4}
    assert is_plausible((hidden[:, 0] == 1).sum(), math.exp(0.5) / total)
    for order in ("published", "joint"):
        public = candidates(LabelPermutation(0.5, order), [1, 2, 3, 4, 5], 1, 2, draws=500, eligible=eligible)
        assert (public[:, 0] == 2).all()


def outcomes(mechanism, size, click, k):
    """Counts of (label, set of negatives)."""
    drawn = candidates(mechanism, list(range(size)), click, k)
    drawn[:, 1:].sort(axis=1)
    return Counter(map(tuple, drawn.tolist()))


def least_ratio(one, other):
    """A lower bound of an outcome's largest log ratio of probabilities, one-sided at 1e-6 each (Clopper-Pearson)."""
    found = -math.inf
    for outcome, count in one.items():
        low = stats.beta.ppf(1e-6, count, DRAWS - count + 1)
        high = stats.beta.ppf(1 - 1e-6, other[outcome] + 1, DRAWS - other[outcome])
        found = max(found, math.log(low / high))
    return found


@pytest.mark.parametrize(("size", "k", "epsilon"), [(4, 2, 0.5), (6, 4, 1.0), (5, 1, 2.0)])
def test_label_and_negatives_of_neighbouring_clicks_stay_within_the_budget_jointly_and_leave_it_as_published(
    size, k, epsilon
):
    joint = LabelPermutation(epsilon, "joint")
    ratios = [
        least_ratio(outcomes(joint, size, a, k), outcomes(joint, size, b, k)) for a, b in itertools.permutations((0, 2))
    ]
    assert max(ratios) <= epsilon
    assert max(ratios) > epsilon - 0.3, "the check would notice a budget that is overspent"
    published = LabelPermutation(epsilon)
    one, other = outcomes(published, size, 0, k), outcomes(published, size, 2, k)
    assert least_ratio(one, other) > epsilon + 1
    impossible = [outcome for outcome in one if 2 not in outcome]
    assert impossible
    assert all(other[outcome] == 0 for outcome in impossible)


def test_the_published_order_keeps_its_promise_where_all_candidates_are_drawn():
    published = LabelPermutation(1.0)
    assert least_ratio(outcomes(published, 4, 0, 3), outcomes(published, 4, 2, 3)) <= 1
    assert published.epsilon_accounted(4, 3) == 1


def test_the_clamp_raises_the_labels_own_budget():
    """The specification's figure: 2.2 for C = 37, k = 4 even at epsilon 1."""
    assert LabelPermutation(1.0).label_epsilon(37, 4) == pytest.approx(2.197, abs=0.001)
    assert LabelPermutation(3.0).label_epsilon(37, 4) == 3
    assert LabelPermutation(1.0, "joint").label_epsilon(37, 4) == 1
    shown = list(range(37))
    drawn = [candidates(LabelPermutation(1.0), shown, click, 4)[:, 0] for click in (0, 1)]
    ratio = math.log((drawn[0] == 0).sum() / (drawn[1] == 0).sum())
    assert ratio == pytest.approx(math.log(36 / 4), abs=0.2)


def test_the_entry_is_a_pure_epsilon_that_composes_or_infinite_with_a_reason():
    joint = LabelPermutation(1.5, "joint").entry(np.array([2, 37]), 4)
    assert epsilon_of(((joint, 1),), 0).epsilon == pytest.approx(1.5)
    assert epsilon_of(((joint, 4),), 0).epsilon == pytest.approx(6)
    fine = LabelPermutation(1.5).entry(np.array([5]), 4)
    assert epsilon_of(((fine, 1),), 0).epsilon == pytest.approx(1.5)
    published = epsilon_of(((LabelPermutation(1.0).entry(np.array([5, 37]), 4), 1),))
    assert math.isinf(published.epsilon)
    assert "always hold the true click" in published.reason
    assert "2.197" in published.reason
    assert "not permuted" in epsilon_of(((LabelPermutation(math.inf, "joint").entry(np.array([5]), 4), 1),)).reason


@pytest.mark.parametrize("settings", [(0.0, "joint"), (-1.0, "published"), (math.nan, "joint"), (1.0, "other")])
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(UsageError):
        LabelPermutation(*settings)
