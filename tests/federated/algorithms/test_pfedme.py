"""pFedMe between its limits, and against a plain loop."""

import pytest

from fednews.errors import UsageError
from fednews.federated.algorithms.fedavg import FedAvg
from fednews.federated.algorithms.pfedme import PFedMe
from tests.federated.algorithms.looped import (
    assert_clients_alike,
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


def test_it_equals_each_client_training_alone(nrms, cohorts):
    algorithm = PFedMe(5, 2, 0.05, inner_steps=2, inner_lr=0.1, lam=8.0, clients_at_once=3)
    start, models = detached(lively(nrms)), {}
    expected = start
    for number in range(2):
        ends, weights = [], []
        for client, weight, cohort in clients_of(algorithm, cohorts, number):
            local = personal = expected
            for _ in range(2):
                personal = local_steps(nrms, personal, cohort, 2, 0.1, lambda name, t, w=local: 8.0 * (t - w[name]))
                local = {name: w - 0.05 * 8.0 * (w - personal[name]) for name, w in local.items()}
            models[client] = personal
            ends.append(local)
            weights.append(weight)
        expected = averaged(start, ends, weights)
    assert_moved_alike(run(algorithm, nrms, cohorts, rounds=2), expected, start)
    assert_clients_alike(algorithm.personal, models, start)


def test_without_the_envelope_personal_models_train_alone_and_the_global_one_stays(nrms, cohorts):
    algorithm = PFedMe(4, 2, 0.05, inner_steps=2, inner_lr=0.1, lam=0.0, clients_at_once=4)
    start = detached(lively(nrms))
    assert_same(run(algorithm, nrms, cohorts, rounds=1), start)
    alone = {c: local_steps(nrms, start, cohort, 4, 0.1) for c, _, cohort in clients_of(algorithm, cohorts, 0)}
    assert_clients_alike(algorithm.personal, alone, start)


def test_a_narrow_envelope_is_fedavg(nrms, cohorts):
    """As lambda grows, inner steps lead to w - grad / lambda, and the outer one descends the gradient."""
    start, apart = detached(lively(nrms)), []
    fedavg = run(FedAvg(5, 3, 0.1), nrms, cohorts, rounds=1)
    for lam in (1e2, 1e3):
        algorithm = PFedMe(5, 3, 0.1, inner_steps=2, inner_lr=1 / lam, lam=lam)
        found = run(algorithm, restore(nrms, start), cohorts, rounds=1)
        apart.append(farthest(found, fedavg))
    assert_moved_alike(found, fedavg, start, within=2e-2)
    assert apart[1] < apart[0] / 2


def test_settings_that_diverge_or_do_nothing_are_refused():
    for lam in (-1.0, 30.0):
        with pytest.raises(UsageError, match="between 0 and 2 / inner_lr"):
            PFedMe(inner_lr=0.1, lam=lam)
    with pytest.raises(UsageError, match="inner_steps must be at least 1"):
        PFedMe(inner_steps=0)
