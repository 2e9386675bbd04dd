"""SCAFFOLD against FedSGD, FedAvg and a plain loop."""

import torch

from fednews.federated.algorithms.fedavg import FedAvg
from fednews.federated.algorithms.scaffold import SCAFFOLD
from fednews.federated.clients import trainable
from tests.federated.algorithms.looped import (
    assert_clients_alike,
    assert_moved_alike,
    averaged,
    clients_of,
    detached,
    farthest,
    lively,
    local_steps,
    restore,
    run,
)
from tests.federated.test_loop import fit, make_loop


def zeros(like):
    return {name: torch.zeros_like(value) for name, value in like.items()}


def test_one_full_participation_local_step_is_fedsgd(nrms, cohorts):
    everybody, start = cohorts.samples.clients, detached(lively(nrms))
    found = run(SCAFFOLD(everybody, 1, 0.1, clients_at_once=20), nrms, cohorts, rounds=3)
    assert_moved_alike(found, run(FedAvg(everybody, 1, 0.1), restore(nrms, start), cohorts, rounds=3), start)


def test_the_first_round_is_fedavg(nrms, cohorts):
    """All control variates are zero then."""
    start = detached(lively(nrms))
    found = run(SCAFFOLD(5, 3, 0.1), nrms, cohorts, rounds=1)
    assert_moved_alike(found, run(FedAvg(5, 3, 0.1), restore(nrms, start), cohorts, rounds=1), start)


def test_it_equals_each_client_training_alone(nrms, cohorts):
    algorithm, start = SCAFFOLD(9, 2, 0.1, clients_at_once=5), detached(lively(nrms))
    expected, control, controls = start, zeros(start), {}
    for number in range(3):
        ends, weights, change = [], [], zeros(start)
        for client, weight, cohort in clients_of(algorithm, cohorts, number):
            own = controls.get(client, zeros(start))
            end = local_steps(nrms, expected, cohort, 2, 0.1, lambda name, _, o=own, c=control: c[name] - o[name])
            new = {name: own[name] - control[name] + (expected[name] - end[name]) / (2 * 0.1) for name in start}
            change = {name: value + weight * (new[name] - own[name]) for name, value in change.items()}
            controls[client] = new
            ends.append(end)
            weights.append(weight)
        expected = averaged(start, ends, weights)
        samples = len(cohorts.samples.click)
        control = {name: value + change[name] / samples for name, value in control.items()}
    assert len(controls) < 27, "some client comes back to its variate"
    found = run(algorithm, nrms, cohorts, rounds=3)
    assert_moved_alike(found, expected, start)
    assert_moved_alike(algorithm.control, control, zeros(start))
    assert_clients_alike(algorithm.controls, controls, zeros(start))
    uncorrected = run(FedAvg(9, 2, 0.1), restore(nrms, start), cohorts, rounds=3)
    assert farthest(uncorrected, found) > farthest(uncorrected, start) / 100


def test_the_servers_variate_is_the_mean_of_all_clients_variates(nrms, cohorts):
    """Weighted by samples, over clients that have not taken part yet too."""
    algorithm = SCAFFOLD(11, 2, 0.1, clients_at_once=6)
    run(algorithm, lively(nrms), cohorts, rounds=3)
    counts = torch.from_numpy(cohorts.samples.rows.lengths()).float()
    own = algorithm.controls.read(torch.arange(len(counts)))
    mean = {name: torch.tensordot(counts, value, 1) / counts.sum() for name, value in own.items()}
    assert 11 <= len(algorithm.controls) < len(counts)
    assert_moved_alike(algorithm.control, mean, zeros(mean))


def test_a_round_sends_twice_the_model_each_way(synthetic_store, tmp_path):
    loop, data = make_loop(synthetic_store, SCAFFOLD(6, 2, 0.1))
    _, metrics = fit(loop, data, tmp_path, rounds=1)
    size = sum(parameter.nbytes for parameter in trainable(loop.model).values())
    assert metrics[1]["bytes_down"] == 6 * 2 * size
    assert metrics[1]["bytes_up"] == 6 * (2 * size + 8)
    assert loop.ledger.entries[0].release == "model update and control variate"
