"""The union of news against sets."""

from collections import Counter

import numpy as np
import pytest

from fednews.aggregation.secagg.errors import TooFewClients
from fednews.aggregation.secagg.graph import Sparse
from fednews.aggregation.secagg.protocol import SecureSum
from fednews.aggregation.secagg.union import union_of_news
from tests.aggregation.secagg.cases import uniform

CATALOGUE = 400


def histories(clients: int, seed: int = 0) -> list[np.ndarray]:
    """What each client touched: popular and rare news, some twice, one client nothing."""
    rng = np.random.default_rng(seed)
    touched = [(CATALOGUE * rng.random(rng.integers(1, 60)) ** 3).astype(int) for _ in range(clients)]
    return [*touched[:-1], np.zeros(0, int)]


@pytest.mark.parametrize("simulate", [True, False])
@pytest.mark.parametrize("sparse", [None, Sparse(0.1, 0.1)])
@pytest.mark.parametrize("reveal_counts", [True, False])
@pytest.mark.parametrize("clients", [3, 15])
def test_the_union_is_that_of_the_sets(simulate: bool, sparse: Sparse | None, reveal_counts: bool, clients: int):
    touched = histories(clients)
    counts = Counter(news for client in touched for news in set(client.tolist()))
    union = union_of_news(touched, CATALOGUE, SecureSum(sparse=sparse, simulate=simulate), 0, reveal_counts)
    assert union.news.tolist() == sorted(counts)
    if reveal_counts:
        assert union.counts.tolist() == [counts[news] for news in sorted(counts)]
        assert union.singleton_rate == sum(count == 1 for count in counts.values()) / len(counts)
        assert 0 < union.singleton_rate < 1
    else:
        assert union.counts is None
        assert union.singleton_rate is None


@pytest.mark.parametrize("clients", [127, 128, 300])
def test_counts_up_to_the_whole_group_do_not_run_over(clients: int):
    touched = [np.array([7])] * clients
    union = union_of_news(touched, 9, SecureSum(simulate=True), 0)
    assert (union.news.tolist(), union.counts.tolist()) == ([7], [clients])


@pytest.mark.parametrize("holders", [1, 2, 5])
def test_hidden_counts_leave_sums_uniform_however_many_clients_touched_a_news(holders: int):
    sums = []

    class Watched(SecureSum):
        def sum(self, *arguments: object) -> tuple:
            total, cost = super().sum(*arguments)
            sums.append(total)
            return total, cost

    everything = np.arange(2000)
    touched = [everything] * holders + [everything[:0]] * (6 - holders)
    union = union_of_news(touched, 2500, Watched(simulate=True), 0, reveal_counts=False)
    assert union.news.tolist() == everything.tolist()
    assert uniform(sums[0][:2000])
    assert not sums[0][2000:].any()


def test_hidden_counts_cost_more_bytes_and_nothing_else():
    touched = histories(5)
    open_, hidden = (union_of_news(touched, CATALOGUE, SecureSum(), 0, reveal).cost for reveal in (True, False))
    assert hidden.up.total() - open_.up.total() == 5 * CATALOGUE * 7
    assert hidden.down == open_.down


def test_nobody_touching_anything_gives_an_empty_union():
    union = union_of_news([np.zeros(0, int)] * 3, 10, SecureSum(), 0)
    assert len(union.news) == 0
    assert union.singleton_rate == 0.0


def test_a_group_of_one_is_refused():
    with pytest.raises(TooFewClients):
        union_of_news(histories(1), CATALOGUE, SecureSum(), 0)
