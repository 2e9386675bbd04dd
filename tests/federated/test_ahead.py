"""Preparing a round ahead changes when work is done, never what comes out."""

import threading

import pytest
import torch

from fednews.errors import UsageError
from fednews.federated.ahead import Ahead
from fednews.federated.algorithms.fedavg import FedAvg
from tests.federated.test_loop import ALGORITHMS, adam, fit, make_loop, weights


def test_a_round_that_was_begun_is_taken_and_any_other_is_made_now():
    made = []

    def prepare(number):
        made.append(number)
        return number

    ahead = Ahead(prepare)
    assert ahead.take(3) == 3
    ahead.start(4)
    assert ahead.take(4) == 4
    ahead.start(5)
    assert ahead.take(9) == 9, "training was resumed elsewhere"
    assert ahead.take(5) == 5
    assert [number for number in made if number != 5] == [3, 4, 9]
    ahead.close()


def test_the_thread_computes_alone_and_others_as_before():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        ahead = Ahead(lambda number: torch.get_num_threads())
        later = []
        other = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        other.start()
        other.join()
        assert [ahead.take(0), torch.get_num_threads(), *later] == [1, 2, 2]
        ahead.close()
    finally:
        torch.set_num_threads(before)


def test_what_preparing_raises_is_raised_where_the_round_is_taken():
    def prepare(number):
        raise UsageError("no such clients")

    ahead = Ahead(prepare)
    ahead.start(0)
    for _ in range(2):
        with pytest.raises(UsageError, match="no such clients"):
            ahead.take(0)
    ahead.close()


def test_the_thread_ends_with_training(synthetic_store, tmp_path):
    loop, data = make_loop(synthetic_store, FedAvg(4))
    fit(loop, data, tmp_path, rounds=2)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("fednews-ahead")]


def test_the_next_round_is_prepared_while_the_present_one_computes(synthetic_store, tmp_path):
    """Rounds are selected once each, in order, and the last begins none that nobody takes."""
    loop, data = make_loop(synthetic_store, FedAvg(4))
    select, aggregate, events = loop.algorithm.select, loop.algorithm.aggregate, []
    second = threading.Event()

    def selecting(source, round_):
        events.append(round_)
        if round_ == 1:
            second.set()
        return select(source, round_)

    def computing(model, cohort, work):
        if work.number == 0:
            assert second.wait(30), "round 1 is not begun before round 0 has ended"
        return aggregate(model, cohort, work)

    loop.algorithm.select, loop.algorithm.aggregate = selecting, computing
    fit(loop, data, tmp_path, rounds=4)
    assert events == [0, 1, 2, 3]


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_method_trains_the_same_ahead_and_not(synthetic_store, tmp_path, name):
    results = []
    for ahead in (True, False):
        model = "private_nrms" if name.startswith("privaterec") else "nrms"
        loop, data = make_loop(synthetic_store, ALGORITHMS[name](), model=model, optimizer=adam)
        loop.algorithm.ahead = ahead and loop.algorithm.ahead
        _, metrics = fit(loop, data, tmp_path / str(ahead), rounds=4)
        results.append((weights(loop), metrics, loop.ledger.state_dict()))
    (with_, metrics_with, ledger_with), (without, metrics_without, ledger_without) = results
    assert all(torch.equal(value, without[key]) for key, value in with_.items())
    assert metrics_with == metrics_without
    assert repr(ledger_with) == repr(ledger_without)
