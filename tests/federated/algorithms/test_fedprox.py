"""FedProx between its limits: no pull is FedAvg, a strong one keeps clients where they started."""

import pytest

from fednews.errors import UsageError
from fednews.federated.algorithms.fedavg import FedAvg
from fednews.federated.algorithms.fedprox import FedProx
from tests.federated.algorithms.looped import (
    assert_moved_alike,
    assert_same,
    averaged,
    clients_of,
    detached,
    farthest,
    lively,
    local_steps,
    restore,
    run,
)


@pytest.mark.parametrize("steps", [1, 3])
def test_without_pull_it_is_fedavg_bit_for_bit(nrms, cohorts, steps):
    model = lively(nrms, dropout=0.2)
    start = detached(model)
    found = run(FedProx(5, steps, 0.1, mu=0.0), model, cohorts, rounds=2)
    assert_same(found, run(FedAvg(5, steps, 0.1), restore(model, start), cohorts, rounds=2))


def test_one_local_step_does_not_feel_the_pull(nrms, cohorts):
    start = detached(lively(nrms))
    found = run(FedProx(5, 1, 0.1, mu=20.0), nrms, cohorts, rounds=1)
    assert_same(found, run(FedAvg(5, 1, 0.1), restore(nrms, start), cohorts, rounds=1))


def test_a_strong_pull_keeps_clients_where_they_started(nrms, cohorts):
    start = detached(lively(nrms))
    moved = []
    for mu in (1e1, 1e3, 1e5):
        end = run(FedProx(4, 3, 1 / mu, mu, clients_at_once=4), restore(nrms, start), cohorts, rounds=1)
        moved.append(farthest(end, start))
    assert moved[0] > 1e-3
    assert moved[1] < moved[0] / 50
    assert moved[2] < 1e-5


def test_it_equals_each_client_training_alone(nrms, cohorts):
    algorithm, start = FedProx(5, 3, 0.1, mu=8.0, clients_at_once=3), detached(lively(nrms))
    expected = start
    for number in range(2):
        ends, weights = [], []
        for _, weight, cohort in clients_of(algorithm, cohorts, number):
            anchor = expected
            ends.append(local_steps(nrms, anchor, cohort, 3, 0.1, lambda name, w, a=anchor: 8.0 * (w - a[name])))
            weights.append(weight)
        expected = averaged(start, ends, weights)
    found = run(algorithm, nrms, cohorts, rounds=2)
    assert_moved_alike(found, expected, start)
    unpulled = run(FedAvg(5, 3, 0.1), restore(nrms, start), cohorts, rounds=2)
    assert farthest(unpulled, found) > farthest(unpulled, start) / 10


@pytest.mark.parametrize("mu", [-0.1, 30.0])
def test_a_pull_that_diverges_is_refused(mu):
    with pytest.raises(UsageError, match="between 0 and 2 / local_lr"):
        FedProx(local_lr=0.1, mu=mu)
