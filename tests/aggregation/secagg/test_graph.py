import math

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components

from fednews.aggregation.secagg.graph import Graph, Sparse
from fednews.errors import UsageError

MEMBERS = tuple(range(3, 64, 2))


@pytest.mark.parametrize("degree", [None, 2, 6, 28])
def test_every_member_has_the_same_number_of_mutual_neighbours(degree: int | None):
    graph = Graph(MEMBERS, 3, degree, b"seed")
    for member in MEMBERS:
        neighbours = graph.neighbours(member)
        assert len(set(neighbours)) == (len(MEMBERS) - 1 if degree is None else degree)
        assert list(neighbours) == sorted(neighbours)
        assert member not in neighbours
        assert all(member in graph.neighbours(other) for other in neighbours)
        assert graph.holders(member) == tuple(sorted((*neighbours, member)))


def test_the_seed_draws_the_graph():
    graphs = [Graph(MEMBERS, 3, 6, seed) for seed in (b"a", b"a", b"b")]
    first, again, other = ([graph.neighbours(member) for member in MEMBERS] for graph in graphs)
    assert first == again != other


def test_neighbours_are_uniform_over_seeds():
    counts = np.zeros(20)
    for seed in range(2000):
        counts[list(Graph(tuple(range(20)), 3, 4, seed.to_bytes(4, "big")).neighbours(0))] += 1
    assert counts[0] == 0
    assert np.abs(counts[1:] - 2000 * 4 / 19).max() < 5 * math.sqrt(2000 * 4 / 19)


def test_the_degree_grows_with_the_logarithm_of_the_group():
    degrees = {members: Sparse(0.1, 0.1).parameters(members)[0] for members in (500, 1000, 2000, 4000)}
    steps = np.diff(list(degrees.values()))
    assert all(0 <= step <= 8 for step in steps)
    assert degrees[4000] < 60


@pytest.mark.parametrize(("members", "corrupt", "dropout"), [(40, 0.1, 0.1), (100, 0.2, 0.1), (300, 0.1, 0.2)])
def test_random_colluders_stay_below_the_threshold_and_random_survivors_reach_it(
    members: int, corrupt: float, dropout: float
):
    degree, threshold = Sparse(corrupt, dropout).parameters(members)
    assert degree < members - 1
    rng = np.random.default_rng(0)
    graph = Graph(tuple(range(members)), threshold, degree, b"seed")
    adjacent = np.zeros((members, members), int)
    for member in range(members):
        adjacent[member, list(graph.neighbours(member))] = 1
    for _ in range(100):
        colluding, dropped = np.zeros((2, members), int)
        order = rng.permutation(members)
        colluding[order[: int(corrupt * members)]] = 1
        dropped[order[-int(dropout * members) :]] = 1
        assert (adjacent @ colluding).max() < threshold <= (adjacent @ (1 - dropped)).min()
        honest = (colluding + dropped) == 0
        assert connected_components(adjacent[honest][:, honest])[0] == 1


def test_a_group_that_is_too_small_has_no_sparse_graph():
    assert Sparse(0.3, 0.3).parameters(8) is None
    assert Sparse(0.0, 0.0).parameters(2) is None


@pytest.mark.parametrize(("corrupt", "dropout"), [(-0.1, 0.1), (0.1, -0.1), (0.5, 0.5)])
def test_fractions_that_leave_nobody_are_refused(corrupt: float, dropout: float):
    with pytest.raises(UsageError, match="corrupt"):
        Sparse(corrupt, dropout)
