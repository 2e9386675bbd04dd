from itertools import combinations

import pytest
import torch

from fednews.aggregation.updates import ClientUpdates
from fednews.errors import UsageError
from fednews.federated.bipartition import StoppingRule, bipartition, gram, lengths, mean_direction


def parts_of(updates, sizes):
    """Updates ``[c, 6]`` as parts of clients with two parameters."""
    ones = torch.ones(len(updates))
    columns = (torch.arange(len(updates)), updates[:, :2], updates[:, 2:].reshape(-1, 2, 2), ones)
    cut = [column.split(sizes) for column in columns]
    return [ClientUpdates(c, {"a": a, "b": b}, w, w, w.long()) for c, a, b, w in zip(*cut, strict=True)]


def cosines(updates):
    unit = updates / updates.norm(dim=1, keepdim=True)
    return (unit @ unit.T).double()


@pytest.fixture
def opposite():
    """Nine clients whose updates nearly cancel: four point one way, five the other."""
    generator = torch.Generator().manual_seed(0)
    way = torch.tensor([1.0, -1, 1, -1, 1, -1, 1, -1, -1])
    direction = torch.randn(6, generator=generator)
    noise = torch.randn(9, 6, generator=generator)
    return way[:, None] * direction + 0.2 * noise, way < 0


def test_inner_products_are_those_of_whole_updates(opposite):
    updates, _ = opposite
    expected = (updates @ updates.T).double()
    torch.testing.assert_close(gram(parts_of(updates, [4, 3, 2])), expected, rtol=1e-5, atol=1e-5)


def test_lengths_are_those_of_whole_updates(opposite):
    updates, _ = opposite
    torch.testing.assert_close(lengths(parts_of(updates, [4, 3, 2])), updates.double().norm(dim=1))


@pytest.mark.parametrize("linkage", ["single", "complete"])
def test_two_groups_that_pull_in_opposite_directions_are_cut_apart(opposite, linkage):
    updates, minority = opposite
    side = StoppingRule(10, 0.1, 0.5, linkage).side((updates @ updates.T).double())
    assert side.tolist() == (~minority).tolist()  # four of nine leave


def test_a_cluster_is_cut_where_its_mean_rests_while_clients_move():
    rule = StoppingRule(eps1=0.4, eps2=1.6, gamma=0.0, linkage="single")
    assert rule.holds(0.39, 1.7)
    assert not rule.holds(0.41, 1.7)  # still moving
    assert not rule.holds(0.39, 1.5)  # nobody disagrees


def test_gamma_compares_with_the_largest_similarity_across(opposite):
    updates, minority = opposite
    cross = float(cosines(updates)[minority][:, ~minority].max())
    border = ((1 - cross) / 2) ** 0.5
    for gamma, cut in ((border - 1e-3, True), (border + 1e-3, False)):
        rule = StoppingRule(10, 0.1, gamma, "single")
        assert (rule.side((updates @ updates.T).double()) is not None) == cut


def test_two_clients_are_never_cut_apart():
    products = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
    assert StoppingRule(10, 0.1, 0.0, "single").side(products) is None


@pytest.mark.parametrize("seed", range(4))
def test_single_linkage_is_the_bipartition_of_least_similarity_across(seed):
    similarity = cosines(torch.randn(7, 5, generator=torch.Generator().manual_seed(seed)))
    side = bipartition(similarity, "single")
    found = float(similarity[side][:, ~side].max())
    best = 1.0
    for size in range(1, 4):
        for chosen in combinations(range(7), size):
            other = [i for i in range(7) if i not in chosen]
            best = min(best, float(similarity[list(chosen)][:, other].max()))
    assert found == pytest.approx(best, abs=1e-12)


def test_clients_without_an_update_stay_and_have_no_direction(opposite):
    updates, minority = opposite
    updates, minority = torch.cat([updates, torch.zeros(2, 6)]), torch.cat([minority, torch.ones(2, dtype=torch.bool)])
    side = StoppingRule(10, 0.1, 0.0, "complete").side((updates @ updates.T).double())
    assert side.tolist() == (~minority).tolist()
    with_zeros = mean_direction(parts_of(updates, [11]), minority)
    without = mean_direction(parts_of(updates[:9], [9]), minority[:9])
    assert all(torch.equal(with_zeros[name], without[name]) for name in without)


def test_the_mean_direction_is_that_of_unit_updates(opposite):
    updates, minority = opposite
    found = mean_direction(parts_of(updates, [2, 7]), minority)
    expected = (updates / updates.norm(dim=1, keepdim=True))[minority].sum(0)
    flat = torch.cat([value.flatten() for value in found.values()])
    torch.testing.assert_close(flat, expected / expected.norm())


@pytest.mark.parametrize("settings", [(0, 1, 0, "single"), (1, -1, 0, "single"), (1, 1, 1.5, "single")])
def test_settings_out_of_range_are_usage_errors(settings):
    with pytest.raises(UsageError, match=r"eps|gamma"):
        StoppingRule(*settings)
