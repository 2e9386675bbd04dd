from itertools import permutations

import numpy as np
import pytest
import torch

from fednews.data.impressions import Impressions
from fednews.evaluation.scorers import Catalogue
from fednews.federated.groups import (
    Grouping,
    NearestGroup,
    matching,
    mixing,
    proportional_draw,
    transition_matrix,
)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_with_one_group_the_draw_is_that_of_plain_sampling(cohorts):
    labels = np.zeros(cohorts.samples.clients, np.int64)
    for round_ in range(4):
        found = proportional_draw(labels, 13, cohorts.streams.numpy("cohort", round_), offset=round_)
        assert found.tolist() == cohorts.draw_clients(13, round_).tolist()


def test_draws_are_proportional_to_groups_and_every_client_has_the_same_chance(rng):
    labels = rng.choice(4, size=37, p=[0.7, 0.2, 0.08, 0.02])
    counts = np.zeros(4, np.int64)
    for offset in range(37):
        drawn = proportional_draw(labels, 10, rng, offset)
        assert len(set(drawn.tolist())) == 10
        quota = np.bincount(labels[drawn], minlength=4)
        assert np.all(abs(quota - 10 * np.bincount(labels, minlength=4) / 37) < 1)
        counts += quota
    assert counts.tolist() == (10 * np.bincount(labels, minlength=4)).tolist()


def test_all_clients_can_be_drawn_and_groups_without_members_are_no_obstacle(rng):
    labels = np.array([4, 1, 1, 4, 4])
    assert sorted(proportional_draw(labels, 5, rng, 3).tolist()) == [0, 1, 2, 3, 4]


def test_the_transition_matrix_counts_moves(rng):
    old, new = rng.integers(3, size=50), rng.integers(3, size=50)
    found = transition_matrix(old, new, 3)
    for i in range(3):
        for j in range(3):
            assert found[i, j] == sum(a == i and b == j for a, b in zip(old, new, strict=True))


def test_mixing_is_the_example_of_eq_9():
    """Of new group 0, 80 % come from group 0, 10 % from group 1 and 10 % from group 2."""
    shares = mixing(np.array([[8, 1, 0], [1, 7, 3], [1, 2, 9]]))
    assert shares[:, 0].tolist() == [0.8, 0.1, 0.1]
    assert shares[:, 2].tolist() == [0, 0.25, 0.75]


def test_mixing_keeps_a_group_that_lost_all_its_members():
    assert mixing(np.array([[3, 0, 2], [1, 0, 4], [0, 0, 0]]))[:, 1].tolist() == [0, 1, 0]


def test_matching_keeps_as_many_clients_as_any_naming_can(rng):
    transition = rng.integers(20, size=(4, 4))
    names = matching(transition)
    kept = sum(transition[names[j], j] for j in range(4))
    assert sorted(names) == [0, 1, 2, 3]
    assert kept == max(sum(transition[order[j], j] for j in range(4)) for order in permutations(range(4)))


def test_renamed_clusters_of_the_same_clients_change_nothing(rng):
    labels, other = rng.integers(3, size=40), np.array([2, 0, 1])
    centroids = torch.arange(6.0).view(3, 2)
    grouping = Grouping(3)
    assert grouping.append(0, labels, centroids) is None
    renamed = torch.empty_like(centroids)
    renamed[other] = centroids
    shares = grouping.append(5, other[labels], renamed)
    assert shares.tolist() == np.eye(3).tolist()
    assert grouping.labels.tolist() == labels.tolist()
    assert torch.equal(grouping.centroids, centroids)
    assert grouping.moved() == 0


def test_group_models_do_not_depend_on_the_names_of_new_groups(rng):
    """Eq. 8 under any names: each client ends with the same mixture of old models."""
    old, new, other = rng.integers(3, size=60), rng.integers(3, size=60), np.array([1, 2, 0])
    mixtures = []
    for labels in (new, other[new]):
        grouping = Grouping(3)
        grouping.append(0, old, None)
        shares = grouping.append(1, labels, None)
        mixtures.append(shares[:, grouping.labels])
    assert np.array_equal(*mixtures)


def test_known_users_keep_their_group_and_new_ones_get_the_nearest(synthetic_store, cohorts, nrms, rng):
    nrms.eval()
    dev = synthetic_store.labelled_split("dev")
    impressions = Impressions(dev, synthetic_store.samples, 20, 64)
    catalogue = Catalogue(cohorts.features, torch.from_numpy(impressions.news()), torch.device("cpu"))
    grouping = Grouping(3)
    grouping.append(0, rng.integers(3, size=cohorts.samples.clients), torch.randn(3, 10))
    assign = NearestGroup(nrms, catalogue, grouping, lambda vectors: vectors)
    vectors = catalogue.encode(nrms)
    seen = {True: 0, False: 0}
    for batch in impressions:
        for row, group in enumerate(assign(batch).tolist()):
            known = bool(batch.user[row])
            seen[known] += 1
            if known:
                assert group == grouping.labels[int(batch.user[row]) - 1]
                continue
            user = nrms.encode_user(vectors[batch.history[row : row + 1]], batch.history_mask[row : row + 1], None)
            assert group == int((grouping.centroids - user).square().sum(1).argmin())
    assert seen[True] > 5
    assert seen[False] > 5
