"""The cost of a secure sum, on a small group."""

import pytest

from fednews.bench.secagg import bench_secagg
from fednews.errors import UsageError


def test_the_vector_is_most_of_what_a_client_sends_and_the_sparse_graph_costs_less():
    figures = bench_secagg(clients=40, length=5000)
    for graph in ("full", "sparse"):
        cost = figures[graph]
        assert cost["client_seconds"] > 0 < cost["server_seconds"]
        assert cost["overhead"] == pytest.approx(cost["bytes_up"] / 20_000)
        assert 1 < cost["overhead"] < 2
    assert figures["sparse"]["bytes_up"] <= figures["full"]["bytes_up"]


@pytest.mark.parametrize(("clients", "length"), [(1, 10), (3, 0)])
def test_a_sum_of_nothing_is_refused(clients, length):
    with pytest.raises(UsageError, match="at least"):
        bench_secagg(clients, length)
