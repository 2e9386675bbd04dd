"""Ranking metrics against slow reference formulas."""

import itertools
import time

import numpy as np
import pytest
from sklearn.metrics import ndcg_score, roc_auc_score

from fednews.data.ragged import offsets_of
from fednews.errors import FednewsError
from fednews.evaluation.metrics import METRICS, RankingSums, evaluate_rankings, ranking_metrics


def one(scores: list[float], labels: list[int]) -> dict[str, float]:
    values = ranking_metrics(np.array(scores, float), np.array(labels), np.array([0, len(scores)]))
    return {name: value[0] for name, value in values.items()}


def in_order(labels: np.ndarray) -> dict[str, float]:
    """The textbook formulas for labels listed from the first rank to the last."""
    ranks = np.arange(1, len(labels) + 1)
    below = [np.sum(labels[i + 1 :] == 0) for i in np.flatnonzero(labels)]
    values = {"auc": np.sum(below) / (labels.sum() * (1 - labels).sum()), "mrr": np.sum(labels / ranks) / labels.sum()}
    for k in (5, 10):
        gain, ideal = 2.0**labels - 1, 2.0 ** np.sort(labels)[::-1] - 1
        discount = 1 / np.log2(ranks[:k] + 1)
        values[f"ndcg_{k}"] = np.sum(gain[:k] * discount) / np.sum(ideal[:k] * discount)
    return values


def over_all_tie_orders(scores: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    orders = [p for p in itertools.permutations(range(len(scores))) if np.all(np.diff(scores[list(p)]) <= 0)]
    values = [in_order(labels[list(p)]) for p in orders]
    return {name: np.mean([v[name] for v in values]) for name in METRICS}


def ragged_case(rng: np.random.Generator, impressions: int, levels: int | None) -> tuple[np.ndarray, ...]:
    """Impressions of 0 to 40 rows of all kinds; ``levels`` makes ties."""
    lengths = rng.integers(0, 41, impressions)
    rows = int(lengths.sum())
    scores = rng.normal(size=rows) if levels is None else rng.integers(0, levels, rows).astype(float)
    labels = (rng.random(rows) < np.repeat(rng.choice([0.0, 0.1, 0.5, 1.0], impressions), lengths)).astype(int)
    return scores, labels, offsets_of(lengths)


@pytest.mark.parametrize("levels", [None, 1, 3, 20])
def test_auc_equals_scikit_learn_and_is_nan_exactly_for_one_class(levels):
    scores, labels, offsets = ragged_case(np.random.default_rng(1), 400, levels)
    auc = ranking_metrics(scores, labels, offsets)["auc"]
    undefined = 0
    for i, value in enumerate(auc):
        rows = slice(offsets[i], offsets[i + 1])
        if len(set(labels[rows])) < 2:
            undefined += 1
            assert np.isnan(value)
        else:
            assert value == pytest.approx(roc_auc_score(labels[rows], scores[rows]), abs=1e-12)
    assert 0 < undefined < 400


@pytest.mark.parametrize("levels", [None, 1, 3, 20])
@pytest.mark.parametrize("k", [5, 10])
def test_ndcg_equals_scikit_learn_with_its_tie_averaging(levels, k):
    scores, labels, offsets = ragged_case(np.random.default_rng(2), 400, levels)
    values = ranking_metrics(scores, labels, offsets)[f"ndcg_{k}"]
    for i, value in enumerate(values):
        rows = slice(offsets[i], offsets[i + 1])
        if labels[rows].sum() == 0:
            assert np.isnan(value)
        elif offsets[i + 1] - offsets[i] > 1:  # scikit-learn refuses a single document
            assert value == pytest.approx(ndcg_score([labels[rows]], [scores[rows]], k=k), abs=1e-12)


def test_without_ties_every_metric_is_the_textbook_formula():
    rng = np.random.default_rng(3)
    for _ in range(50):
        scores, labels = rng.permutation(30).astype(float), np.zeros(30, int)
        labels[rng.choice(30, rng.integers(1, 12), replace=False)] = 1
        assert one(scores, labels) == pytest.approx(in_order(labels[np.argsort(-scores)]))


def test_with_ties_every_metric_is_its_mean_over_all_orders_of_the_tied_rows():
    rng = np.random.default_rng(4)
    for size in (2, 5, 7):
        for _ in range(8):
            scores, labels = (
                rng.integers(0, 3, size).astype(float),
                rng.permutation(np.arange(size) % 3 == 0).astype(int),
            )
            assert one(scores, labels) == pytest.approx(over_all_tie_orders(scores, labels))


def test_a_constant_scorer_has_auc_one_half_and_the_same_metrics_in_any_row_order():
    first, last = one([0.3] * 9, [1] + [0] * 8), one([0.3] * 9, [0] * 8 + [1])
    assert first == last
    assert first["auc"] == 0.5
    assert first["mrr"] == pytest.approx(np.mean(1 / np.arange(1, 10)))


def test_negative_zero_ties_with_zero_and_infinite_scores_rank_first_and_last():
    assert one([-0.0, 0.0], [1, 0])["auc"] == 0.5
    assert one([np.inf, 1.0, -np.inf], [1, 0, 0]) == pytest.approx(dict.fromkeys(METRICS, 1.0))
    assert one([np.inf, np.inf], [1, 0])["auc"] == 0.5


def test_metrics_never_depend_on_the_order_of_rows_or_of_impressions():
    rng = np.random.default_rng(5)
    scores, labels, offsets = ragged_case(rng, 100, 4)
    shuffled = np.concatenate([rng.permutation(np.arange(a, b)) for a, b in itertools.pairwise(offsets)])
    before, after = (
        ranking_metrics(scores, labels, offsets),
        ranking_metrics(scores[shuffled], labels[shuffled], offsets),
    )
    for name in METRICS:
        np.testing.assert_allclose(after[name], before[name], rtol=0, atol=1e-12)


def test_reciprocal_ranks_of_all_clicks_count_not_only_the_first():
    assert one([3.0, 2.0, 1.0], [1, 0, 1])["mrr"] == pytest.approx((1 + 1 / 3) / 2)


def test_one_clicked_candidate_alone_counts_in_mrr_and_ndcg_but_not_in_auc():
    values = one([0.7], [1])
    assert np.isnan(values.pop("auc"))
    assert values == pytest.approx({"mrr": 1.0, "ndcg_5": 1.0, "ndcg_10": 1.0})


def test_impressions_without_a_click_and_empty_impressions_are_nan_everywhere():
    values = ranking_metrics(np.array([1.0, 2.0]), np.array([0, 0]), np.array([0, 2, 2]))
    assert all(np.isnan(v).all() and v.shape == (2,) for v in values.values())


def test_no_impressions_at_all_give_empty_metrics():
    values = ranking_metrics(np.zeros(0), np.zeros(0, int), np.array([0]))
    assert all(v.shape == (0,) for v in values.values())


def test_means_leave_undefined_impressions_out_and_count_them():
    scores, labels, offsets = ragged_case(np.random.default_rng(6), 200, 5)
    values, means = ranking_metrics(scores, labels, offsets), evaluate_rankings(scores, labels, offsets)
    for name in METRICS:
        assert means[name] == pytest.approx(np.nanmean(values[name]))
    assert means["impressions"] == 200
    assert means["left_out_auc"] == np.isnan(values["auc"]).sum() > 0
    assert means["left_out_mrr_ndcg"] == np.isnan(values["mrr"]).sum() < means["left_out_auc"]


def test_shares_of_the_impressions_add_up_to_all_of_them():
    scores, labels, offsets = ragged_case(np.random.default_rng(7), 120, None)
    cuts = [0, 0, 31, 90, 120]  # the first share is empty
    shares = RankingSums()
    for a, b in itertools.pairwise(cuts):
        rows = slice(offsets[a], offsets[b])
        shares += RankingSums.of(scores[rows], labels[rows], offsets[a : b + 1] - offsets[a])
    whole = RankingSums.of(scores, labels, offsets)
    assert shares.means() == pytest.approx(whole.means())
    assert RankingSums.from_array(whole.array()) == whole


def test_means_without_any_two_class_impression_are_an_error():
    with pytest.raises(FednewsError, match="none of the 1 impressions"):
        evaluate_rankings(np.array([1.0]), np.array([1]), np.array([0, 1]))


@pytest.mark.parametrize(
    ("scores", "labels", "offsets", "message"),
    [
        ([np.nan, 1.0], [1, 0], [0, 2], "1 of 2 scores are NaN"),
        ([1.0, 2.0], [1, -1], [0, 2], "labels must be 0"),
        ([1.0, 2.0], [1, 0], [0, 1], "offsets must rise"),
        ([1.0, 2.0], [1, 0], [0, 2, 1, 2], "offsets must rise"),
        ([1.0, 2.0], [1], [0, 2], "equally long"),
    ],
)
def test_bad_input_is_one_clear_error(scores, labels, offsets, message):
    with pytest.raises(FednewsError, match=message):
        ranking_metrics(np.array(scores), np.array(labels), np.array(offsets))


def test_integer_scores_and_float32_scores_rank_like_float64():
    labels = [0, 1, 0, 1]
    expected = one([1.0, 2.0, 2.0, 0.0], labels)
    for dtype in (np.int64, np.uint8, np.float32):
        values = ranking_metrics(np.array([1, 2, 2, 0], dtype), np.array(labels), np.array([0, 4]))
        assert {name: value[0] for name, value in values.items()} == expected


def test_a_full_mind_small_dev_split_is_ranked_in_seconds():
    rng = np.random.default_rng(8)
    lengths = rng.integers(2, 73, 73_000)
    rows = int(lengths.sum())
    scores, labels = rng.normal(size=rows).astype(np.float32), (rng.random(rows) < 0.04).astype(np.int8)
    start = time.process_time()
    values = ranking_metrics(scores, labels, offsets_of(lengths))
    assert time.process_time() - start < 10  # about 1 s alone; the bound leaves room for a busy machine
    assert np.nanmean(values["auc"]) == pytest.approx(0.5, abs=0.01)
