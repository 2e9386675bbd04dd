"""Secure aggregation of client updates against plain sums."""

import dataclasses

import numpy as np
import pytest
import torch

from fednews.aggregation.plain import plain_sum
from fednews.aggregation.secagg.aggregation import SecureAggregation
from fednews.aggregation.secagg.errors import TooFewClients
from fednews.aggregation.secagg.ring import Ring
from fednews.aggregation.updates import Aggregate, ClientUpdates
from fednews.errors import FednewsError, UsageError
from fednews.privacy.accounting import DEFAULT_DELTA
from fednews.privacy.ledger import PrivacyLedger
from fednews.privacy.mechanisms import ClippedLaplace
from fednews.streams import Streams
from tests.aggregation.encrypted_cases import LIKE, check_sum, client_updates, split

GRAPHS = ("full", "sparse")


def secure_sum(aggregation: SecureAggregation, parts: list[ClientUpdates]) -> Aggregate:
    return aggregation.sum(parts, LIKE, Streams(0), 4)


@pytest.mark.parametrize("simulate", [True, False])
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("clients", [2, 12])
def test_the_sum_is_that_of_the_rounded_updates(simulate: bool, graph: str, clients: int):
    check_sum(SecureAggregation(graph=graph, simulate=simulate), clients)


@pytest.mark.parametrize(("bits", "bound"), [(1, 8.0), (6, 2.0**10), (24, 256.0), (40, 2.0**16), (12, 1000.5)])
def test_the_step_is_that_of_the_setting_in_small_and_large_rings(bits: int, bound: float):
    bound = max(bound, 8.0)
    check_sum(SecureAggregation(fraction_bits=bits, bound=bound), 3)


def test_without_signatures_sums_are_the_same():
    part = client_updates(5)
    sums = [secure_sum(SecureAggregation(signatures=signed), [part]) for signed in (True, False)]
    for a, b in zip(*(s.tensors() for s in sums), strict=True):
        assert torch.equal(a, b)


def test_how_clients_are_parted_does_not_matter():
    part = client_updates(5)
    whole, parts = secure_sum(SecureAggregation(), [part]), secure_sum(SecureAggregation(), split(part, 2))
    for a, b in zip(whole.tensors(), parts.tensors(), strict=True):
        assert torch.equal(a, b)


def test_multiples_of_the_step_sum_like_plain_sums():
    part = client_updates(4, dtype=torch.float64)
    part = dataclasses.replace(
        part, updates={n: (u * 2**10).round() / 2**10 for n, u in part.updates.items()}, weights=torch.arange(4.0)
    )
    like = {name: value.double() for name, value in LIKE.items()}
    secure, plain = SecureAggregation().sum([part], like, Streams(0), 0), plain_sum([part], like)
    for name in like:
        assert torch.equal(secure.total[name], plain.total[name])


@pytest.mark.parametrize(("clients", "bits"), [(4, 32), (5, 64)])
def test_the_extreme_values_of_all_clients_do_not_run_over(clients: int, bits: int):
    aggregation = SecureAggregation(fraction_bits=14, bound=2.0**15)
    like = {"w": torch.zeros(2, dtype=torch.float64)}
    assert Ring.holding(aggregation.fixed.limit, clients).bits == bits
    most = aggregation.fixed.limit / 2**14
    updates = torch.tensor([[most, -most]], dtype=torch.float64).expand(clients, 2)
    ones = torch.ones(clients, dtype=torch.float64)
    sums = aggregation.sum(
        [ClientUpdates(torch.arange(clients), {"w": updates}, ones, 5e8 * ones, ones.long())], like, Streams(0), 0
    )
    assert sums.total["w"].tolist() == [clients * most, -clients * most]
    assert sums.loss == clients * 5e8


def test_an_update_beyond_the_bound_or_not_finite_is_refused():
    for value, match in ((64.0, "raise the aggregation's bound"), (float("nan"), "not finite")):
        part = client_updates(3)
        part.updates["b"][1] = value
        part = dataclasses.replace(part, weights=torch.ones(3))
        with pytest.raises(FednewsError, match=match):
            secure_sum(SecureAggregation(), [part])


def test_a_ring_that_is_too_small_for_the_group_is_refused():
    aggregation = SecureAggregation(fraction_bits=40, bound=2.0**22 - 1)
    with pytest.raises(FednewsError, match=r"over 4 clients .* does not fit into 64 bits"):
        secure_sum(aggregation, [client_updates(4)])


def test_nothing_sums_to_zeros_without_cost():
    aggregation = SecureAggregation()
    assert not any(value.any() for value in secure_sum(aggregation, []).tensors())
    assert not any(aggregation.metrics().values())


def test_a_single_client_is_not_summed():
    with pytest.raises(TooFewClients, match="1 clients"):
        secure_sum(SecureAggregation(), [client_updates(1)])


def test_sums_over_clients_are_no_input():
    part = dataclasses.replace(client_updates(2), clients=torch.empty(0, dtype=torch.int64))
    with pytest.raises(ValueError, match="every client's own update"):
        secure_sum(SecureAggregation(), [part])


@pytest.mark.parametrize("graph", GRAPHS)
def test_metrics_add_up_over_sums_and_start_again(graph: str):
    aggregation = SecureAggregation(graph=graph)
    secure_sum(aggregation, [client_updates(6)])
    once = aggregation.metrics()
    for _ in range(2):
        secure_sum(aggregation, [client_updates(6)])
    twice = aggregation.metrics()
    for name in once:
        if "bytes" in name:
            assert twice[name] == 2 * once[name] > 0
    assert not any(aggregation.metrics().values())
    for way in ("up", "down"):
        kinds = [value for name, value in once.items() if name.startswith(f"aggregation_bytes_{way}_")]
        assert sum(kinds) == once[f"aggregation_bytes_{way}"]
    assert "aggregation_bytes_up_masked_input" in once
    clients = 6 * once["aggregation_client_seconds"]
    assert 0 < clients + once["aggregation_server_seconds"] <= once["aggregation_seconds"]


def test_a_simulation_has_the_bytes_and_claims_no_seconds_of_clients():
    real, simulated = SecureAggregation(), SecureAggregation(simulate=True)
    for aggregation in (real, simulated):
        secure_sum(aggregation, [client_updates(5)])
    expected = {name: value for name, value in real.metrics().items() if "bytes" in name}
    metrics = simulated.metrics()
    assert metrics.pop("aggregation_seconds") > 0
    assert metrics == expected


def test_the_ledger_says_that_sums_are_seen_and_no_epsilon_improves():
    entry = ClippedLaplace(0.005, 0.015).entry(30)
    covered = SecureAggregation().covers(entry)
    assert covered.view == "central"
    assert any("exact sums" in seen for seen in covered.server_sees)
    assert dataclasses.replace(covered, view=entry.view, server_sees=entry.server_sees) == entry
    figures = []
    for release in (entry, covered):
        ledger = PrivacyLedger(4)
        ledger.record(release, np.arange(3), 0)
        figures.append([ledger.epsilon(reading, "total", DEFAULT_DELTA) for reading in ("published", "accounted")])
    assert figures[0] == figures[1]


@pytest.mark.parametrize(
    "settings",
    [{"threshold": 0.4}, {"min_clients": 0}, {"fraction_bits": 0}, {"bound": 0.1}, {"corrupt": 0.6, "dropout": 0.5}],
)
def test_settings_out_of_range_are_refused(settings: dict):
    with pytest.raises(UsageError, match=next(iter(settings))):
        SecureAggregation(graph="sparse", **settings)
