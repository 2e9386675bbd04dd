"""The plain loop that speed is measured against gives the update of the real round."""

import numpy as np
import pytest
import torch

from fednews.aggregation.plain import plain_sum
from fednews.bench.reference import clients_of, has_reference, plain_round
from fednews.federated.algorithms.centralized import Centralized
from fednews.federated.algorithms.ditto import Ditto
from fednews.federated.algorithms.fedavg import FedAvg
from fednews.federated.algorithms.fednewsrec import FedNewsRec
from fednews.federated.algorithms.finding import Finding
from fednews.federated.clients import trainable
from fednews.federated.round import Round
from tests.federated.algorithms.looped import lively

ALGORITHMS = {
    "fedsgd": lambda: FedAvg(clients_per_round=8, local_lr=0.3),
    "fedavg": lambda: FedAvg(clients_per_round=8, local_steps=3, local_lr=0.1),
    "sum": lambda: FedNewsRec(clients_per_round=8, clip=None, noise_scale=0.0, loss="sum"),
    "clip": lambda: FedNewsRec(clients_per_round=8, clip=1e-3, noise_scale=0.0),
    "noise": lambda: FedNewsRec(clients_per_round=8, clip=1e-3, noise_scale=1e-3),
    "finding": lambda: Finding(groups=2, clients_per_round=8, alpha=None, max_lambda=0.5),
    "central": lambda: Centralized(batch_size=20),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_plain_loop_gives_the_update_of_the_round(name, nrms, cohorts):
    algorithm, nrms = ALGORITHMS[name](), lively(nrms)
    algorithm.setup(nrms, cohorts, torch.optim.SGD)
    selection = algorithm.select(cohorts, 0)
    algorithm.begin_round(cohorts, selection)
    draw = selection.draw
    work = Round(0, cohorts.streams, False, lambda parts: plain_sum(parts, trainable(nrms)))
    fast = algorithm.aggregate(nrms, cohorts.cohort(draw), work).mean()
    plain = plain_round(algorithm, nrms, cohorts, draw, 0)
    assert plain.keys() == fast.keys()
    assert max(float(update.abs().max()) for update in fast.values()) > 1e-4
    for parameter, update in fast.items():
        torch.testing.assert_close(update, plain[parameter], rtol=1e-4, atol=1e-6)


def test_each_client_has_its_own_part_of_a_draw(cohorts):
    draw = cohorts.of_clients(cohorts.draw_clients(6, 0), 0)
    parts = list(clients_of(draw))
    assert [part.clients.tolist() for part, _ in parts] == [[client] for client in draw.clients.tolist()]
    np.testing.assert_array_equal(np.concatenate([part.impression for part, _ in parts]), draw.impression)


def test_a_method_without_a_plain_loop_says_so(nrms, cohorts):
    ditto = Ditto(clients_per_round=4)
    assert not has_reference(ditto)
    assert plain_round(ditto, nrms, cohorts, cohorts.of_clients(cohorts.draw_clients(4, 0), 0), 0) is None
