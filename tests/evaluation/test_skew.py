import numpy as np
import pytest

from fednews.evaluation.skew import skew_levels


def test_it_is_the_share_of_ranks_whose_candidate_changed():
    clean = np.array([4.0, 3.0, 2.0, 1.0, 9.0, 8.0])
    noisy = np.array([4.0, 2.0, 3.0, 1.0, 9.0, 8.0])
    assert skew_levels(clean, noisy, np.array([0, 4, 6])).tolist() == [0.5, 0.0]


def test_a_reversed_ranking_keeps_only_its_middle():
    scores = np.arange(5.0)
    assert skew_levels(scores, -scores, np.array([0, 5])).tolist() == pytest.approx([0.8])


def test_order_counts_and_not_scores():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=30)
    assert skew_levels(scores, 3 * scores - 7, np.array([0, 11, 30])).tolist() == [0.0, 0.0]


def test_equal_scores_keep_the_candidates_order_in_both():
    assert skew_levels(np.zeros(4), np.ones(4), np.array([0, 4])).tolist() == [0.0]


def test_an_impression_without_candidates_has_none():
    found = skew_levels(np.array([1.0]), np.array([1.0]), np.array([0, 0, 1]))
    assert np.isnan(found[0])
    assert found[1] == 0.0


def test_a_random_order_keeps_one_candidate_in_place_on_average():
    """The number of fixed points of a random permutation has mean 1 and variance 1: 4 standard errors, seed fixed."""
    rng = np.random.default_rng(1)
    impressions, size = 2000, 10
    offsets = np.arange(impressions + 1) * size
    found = skew_levels(rng.random(impressions * size), rng.random(impressions * size), offsets)
    assert found.mean() == pytest.approx(1 - 1 / size, abs=4 / size / np.sqrt(impressions))
