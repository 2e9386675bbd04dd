"""Ditto: the global model is FedAvg's; personal ones lie between local training and the global model."""

import pytest
import torch

from fednews.errors import UsageError
from fednews.federated.algorithms.ditto import Ditto
from fednews.federated.algorithms.fedavg import FedAvg
from tests.federated.algorithms.looped import (
    assert_clients_alike,
    assert_same,
    clients_of,
    detached,
    farthest,
    lively,
    local_steps,
    restore,
    run,
    step,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize("steps", [1, 2])
def test_the_global_model_is_fedavgs_bit_for_bit(nrms, cohorts, steps):
    start = detached(lively(nrms, dropout=0.2))
    found = run(Ditto(5, steps, 0.1, personal_steps=1), nrms, cohorts, rounds=2)
    assert_same(found, run(FedAvg(5, steps, 0.1), restore(nrms, start), cohorts, rounds=2))


@pytest.mark.parametrize("lam", [0.0, 8.0])
def test_personal_models_equal_each_client_training_alone(nrms, cohorts, lam):
    """Without pull that is local training which goes on over rounds."""
    algorithm = Ditto(9, 1, 0.1, personal_steps=2, lam=lam, clients_at_once=5)
    start = detached(lively(nrms))
    algorithm.setup(nrms, cohorts, None)
    personal, times = {}, {}
    for number in range(3):
        received = detached(nrms)
        for client, _, cohort in clients_of(algorithm, cohorts, number):
            pull = lambda name, v, w=received: lam * (v - w[name])  # noqa: E731
            personal[client] = local_steps(nrms, personal.get(client, received), cohort, 2, 0.1, pull)
            times[client] = times.get(client, 0) + 1
        step(algorithm, nrms, cohorts, number)
    assert max(times.values()) > 1
    assert_clients_alike(algorithm.personal, personal, start)


def test_a_strong_pull_holds_personal_models_at_the_global_one(nrms, cohorts):
    start = detached(lively(nrms))
    for lam, bound in ((1e0, 1e-1), (1e3, 1e-3), (1e6, 1e-5)):
        algorithm = Ditto(4, 1, 1 / lam, personal_steps=2, lam=lam, clients_at_once=4)
        run(algorithm, restore(nrms, start), cohorts, rounds=1, lr=0.0)
        own = [algorithm.personal.read_one(c, CPU) for c in algorithm.select(cohorts, 0).participants.tolist()]
        assert all(bound / 1000 < farthest(model, start) < bound * 10 for model in own)


def test_settings_that_diverge_or_do_nothing_are_refused():
    for lam in (-1.0, 30.0):
        with pytest.raises(UsageError, match="between 0 and 2 / local_lr"):
            Ditto(local_lr=0.1, lam=lam)
    with pytest.raises(UsageError, match="personal_steps must be at least 1"):
        Ditto(personal_steps=0)
