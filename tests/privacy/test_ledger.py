"""The ledger against a plain loop over clients."""

import io
import json
import math
import time

import numpy as np
import pytest
import torch

from fednews.errors import FednewsError
from fednews.privacy.accounting import DEFAULT_DELTA, epsilon_of
from fednews.privacy.ledger import PrivacyLedger
from fednews.privacy.mechanisms import ClippedLaplace

ENTRIES = [ClippedLaplace(0.005, 0.015).entry(30), ClippedLaplace(0.01, 0.5).entry(4), ClippedLaplace(1, 9).entry(7)]


def random_history(ledger: PrivacyLedger, rounds: range, seed: int = 0) -> list[list[tuple[int, np.ndarray]]]:
    """Rounds in which every entry has a cohort of its own; returns what was recorded."""
    history = []
    for index in rounds:
        rng = np.random.default_rng([seed, index])
        history.append([])
        for entry in rng.permutation(len(ENTRIES))[: rng.integers(1, 4)]:
            clients = rng.choice(ledger.n_clients, rng.integers(0, 5), replace=False)
            ledger.record(ENTRIES[entry], clients, index)
            history[-1].append((entry, clients))
    return history


def slow_epsilon(history: list[list[tuple[int, np.ndarray]]], n_clients: int) -> float:
    counts = np.zeros((n_clients, len(ENTRIES)), int)
    for entry, clients in (release for one_round in history for release in one_round):
        for client in clients:
            counts[client, entry] += 1
    return max(epsilon_of(tuple(zip(ENTRIES, map(int, row), strict=True)), DEFAULT_DELTA).epsilon for row in counts)


def test_the_total_is_the_maximum_over_clients_of_a_plain_loop():
    ledger = PrivacyLedger(12)
    history = []
    for stop in (1, 4, 15):
        history += random_history(ledger, range(len(history), stop))
        assert ledger.epsilon("accounted", "total") == pytest.approx(slow_epsilon(history, 12), rel=1e-9)


def test_the_round_figure_is_the_dearest_single_round_of_any_client():
    ledger = PrivacyLedger(12)
    history = random_history(ledger, range(10))
    dearest = max(slow_epsilon([one_round], 12) for one_round in history)
    assert ledger.epsilon("accounted", "round") == pytest.approx(dearest, rel=1e-9)
    assert ledger.epsilon("accounted", "round") < ledger.epsilon("accounted", "total")


def test_budgets_of_different_clients_are_never_added():
    ledger = PrivacyLedger(100)
    ledger.record(ENTRIES[0], np.arange(100), 0)
    assert ledger.epsilon("accounted", "total") == ledger.epsilon("accounted", "round")
    assert ledger.epsilon("accounted", "total") == epsilon_of(((ENTRIES[0], 1),), DEFAULT_DELTA).epsilon


def test_every_round_of_a_client_spends_again_and_the_published_figure_does_not_compose():
    ledger = PrivacyLedger(5)
    spent = []
    for index in range(4):
        ledger.record(ENTRIES[0], np.array([2]), index)
        spent.append(ledger.epsilon("accounted", "total"))
        assert ledger.epsilon("published", "total") == ledger.epsilon("published", "round") == 2 * 0.005 / 0.015
    assert spent == sorted(set(spent))


def test_an_empty_ledger_and_an_empty_cohort_have_spent_nothing():
    ledger = PrivacyLedger(5)
    assert ledger.epsilon("accounted", "total") == ledger.epsilon("published", "round") == 0
    ledger.record(ENTRIES[0], np.array([]), 0)
    assert ledger.epsilon("accounted", "total") == ledger.epsilon("published", "round") == 0
    assert ledger.report()["readings"]["accounted"]["total"]["client"] is None


def test_equal_entries_made_apart_share_one_count():
    ledger = PrivacyLedger(5)
    for index in range(3):
        ledger.record(ClippedLaplace(0.005, 0.015).entry(30), np.array([1, 3]), index)
    assert ledger.entries == [ENTRIES[0]]
    assert ledger.participations(ENTRIES[0]).tolist() == [0, 3, 0, 3, 0]


def test_a_client_twice_in_one_cohort_is_an_error_and_changes_nothing():
    ledger = PrivacyLedger(5)
    ledger.record(ENTRIES[0], np.array([1]), 0)
    for clients in ([2, 3, 2], [3, 1]):  # within one call, and over two calls of one round
        before = ledger.report()
        with pytest.raises(FednewsError, match="stands twice in the cohort of round 0"):
            ledger.record(ENTRIES[0], np.array(clients), 0)
        assert ledger.report() == before


def test_two_kinds_of_release_by_one_client_in_one_round_are_one_round():
    ledger = PrivacyLedger(5)
    ledger.record(ENTRIES[0], np.array([1]), 0)
    ledger.record(ENTRIES[1], np.array([1, 2]), 0)
    both = epsilon_of(((ENTRIES[0], 1), (ENTRIES[1], 1)), DEFAULT_DELTA).epsilon
    assert ledger.epsilon("accounted", "round") == both
    assert ledger.report()["rounds"] == 1
    assert ledger.epsilon("published", "round") == ENTRIES[0].published_epsilon + ENTRIES[1].published_epsilon


def test_rounds_that_go_backwards_are_an_error():
    ledger = PrivacyLedger(5)
    ledger.record(ENTRIES[0], np.array([1]), 6)
    with pytest.raises(FednewsError, match="replayed"):
        ledger.record(ENTRIES[0], np.array([2]), 5)


@pytest.mark.parametrize("client", [-1, 5])
def test_a_client_outside_the_population_is_an_error(client):
    with pytest.raises(FednewsError, match=f"client {client} is outside"):
        PrivacyLedger(5).record(ENTRIES[0], np.array([0, client]), 0)


def saved_and_loaded(state: dict) -> dict:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("stop", [0, 1, 7])
def test_a_resumed_ledger_equals_one_that_was_never_stopped(stop):
    whole, first, resumed = PrivacyLedger(12), PrivacyLedger(12), PrivacyLedger(12)
    random_history(whole, range(14))
    random_history(first, range(stop))
    resumed.load_state_dict(saved_and_loaded(first.state_dict()))
    assert resumed.report() == first.report()
    random_history(resumed, range(stop, 14))
    assert resumed.report() == whole.report()
    assert str(resumed.state_dict()) == str(whole.state_dict())


def test_a_resumed_ledger_still_refuses_the_round_it_has_seen():
    ledger, resumed = PrivacyLedger(5), PrivacyLedger(5)
    ledger.record(ENTRIES[0], np.array([1]), 3)
    resumed.load_state_dict(saved_and_loaded(ledger.state_dict()))
    with pytest.raises(FednewsError, match="stands twice"):
        resumed.record(ENTRIES[0], np.array([1]), 3)


def test_a_state_is_a_copy_that_later_rounds_do_not_change():
    ledger = PrivacyLedger(3)
    ledger.record(ENTRIES[0], np.array([1]), 0)
    state = ledger.state_dict()
    ledger.record(ENTRIES[0], np.array([1]), 1)
    assert state["counts"][0].tolist() == [0, 1, 0]


def test_a_state_of_another_population_is_an_error():
    with pytest.raises(FednewsError, match="4 clients and this data 5"):
        PrivacyLedger(5).load_state_dict(PrivacyLedger(4).state_dict())


def test_the_report_is_strict_json_with_all_three_readings_and_the_worst_client():
    ledger = PrivacyLedger(9)
    for index, clients in enumerate(([1, 4], [4, 5], [0, 4])):
        ledger.record(ENTRIES[0], np.array(clients), index)
    report = json.loads(json.dumps(ledger.report(), allow_nan=False))
    readings = report["readings"]
    assert readings["published"]["total"]["epsilon"] == pytest.approx(2 * 0.005 / 0.015)
    assert "does not compose" in readings["published"]["total"]["note"]
    assert readings["accounted"]["total"]["epsilon"] == epsilon_of(((ENTRIES[0], 3),), DEFAULT_DELTA).epsilon
    assert readings["accounted"]["total"]["client"] == 4
    assert readings["accounted"]["round"]["method"] == "pld"
    assert readings["audited"]["total"] is None
    assert report["entries"][0]["participations"] == {"clients": 4, "max": 3, "mean": 1.5}
    assert (report["clients"], report["rounds"], report["delta"]) == (9, 3, DEFAULT_DELTA)
    assert "same number of samples" in report["entries"][0]["adjacency"]
    assert any("|B_u|" in seen for seen in report["server_sees"])


@pytest.mark.parametrize(
    "mechanism", [ClippedLaplace(None, 0.015), ClippedLaplace(0.005, 0.0), ClippedLaplace(None, 0)]
)
def test_an_infinite_figure_is_strict_json_with_its_reason(mechanism):
    ledger = PrivacyLedger(3)
    ledger.record(mechanism.entry(10), np.array([0]), 0)
    assert ledger.epsilon("accounted", "total") == ledger.epsilon("published", "round") == math.inf
    readings = json.loads(json.dumps(ledger.report(), allow_nan=False))["readings"]
    for figure in (readings["accounted"]["round"], readings["accounted"]["total"], readings["published"]["total"]):
        assert figure["epsilon"] == "inf"
        assert figure["reason"] == mechanism.entry(10).no_guarantee_reason


def test_one_unprotected_round_makes_that_clients_total_infinite():
    ledger = PrivacyLedger(3)
    ledger.record(ENTRIES[0], np.array([0, 1]), 0)
    ledger.record(ClippedLaplace(0.005, 0.0).entry(30), np.array([1]), 1)
    assert ledger.epsilon("accounted", "total") == math.inf
    assert ledger.report()["readings"]["accounted"]["total"]["client"] == 1


def test_an_unknown_reading_or_scope_is_an_error():
    with pytest.raises(ValueError, match="reading must be one of"):
        PrivacyLedger(3).epsilon("audited", "total")


def test_a_round_that_raises_no_maximum_asks_the_accountant_for_nothing():
    ledger = PrivacyLedger(50)
    ledger.record(ENTRIES[0], np.arange(10), 0)
    ledger.record(ENTRIES[0], np.array([3]), 1)
    ledger.epsilon("accounted", "total")
    before = epsilon_of.cache_info().misses
    ledger.record(ENTRIES[0], np.arange(4, 50), 2)
    ledger.epsilon("accounted", "total")
    assert epsilon_of.cache_info().misses == before


def test_a_million_clients_cost_four_bytes_each_and_a_round_the_price_of_its_cohort():
    ledger, rng = PrivacyLedger(1_000_000), np.random.default_rng(0)
    cohorts = [rng.choice(1_000_000, 50, replace=False) for _ in range(100)]
    for index, clients in enumerate(cohorts[:5]):  # the first rounds fill the accountant's cache
        ledger.record(ENTRIES[0], clients, index)
        ledger.epsilon("accounted", "total")
    start = time.process_time()
    for index, clients in enumerate(cohorts[5:], 5):
        ledger.record(ENTRIES[0], clients, index)
    assert (time.process_time() - start) / 95 < 0.01  # about 0.3 ms
    assert ledger.state_dict()["counts"][0].element_size() == 4
    assert int(ledger.participations(ENTRIES[0]).sum()) == 100 * 50
