"""FedPer: the base is FedAvg's, and no personal layer ever leaves its client."""

import numpy as np
import pytest
import torch

from fednews.data.features import news_features
from fednews.data.impressions import Impressions
from fednews.errors import UsageError
from fednews.evaluation.scorers import Catalogue, SharedModel
from fednews.federated.algorithms.fedavg import FedAvg
from fednews.federated.algorithms.fedper import FedPer
from fednews.federated.clients import trainable
from tests.federated.algorithms.looped import (
    assert_clients_alike,
    assert_moved_alike,
    assert_same,
    averaged,
    clients_of,
    detached,
    lively,
    local_steps,
    restore,
    run,
    step,
)
from tests.federated.test_loop import adam, fit, make_loop, weights

CPU = torch.device("cpu")


def test_without_personal_layers_it_is_fedavg_bit_for_bit(nrms, cohorts):
    start = detached(lively(nrms, dropout=0.2))
    found = run(FedPer(5, 2, 0.1, personal_layers=0), nrms, cohorts, rounds=2)
    assert_same(found, run(FedAvg(5, 2, 0.1), restore(nrms, start), cohorts, rounds=2))


def test_the_user_encoder_is_personal_unless_told_otherwise(make_model):
    model = make_model()
    shared = set(trainable(model)) & model.news_parameters()
    assert set(FedPer().communicated(model)) == shared
    last = {name for name, layer in model.layer_of().items() if layer == len(model.layers) - 1}
    assert set(FedPer(personal_layers=1).communicated(model)) == set(trainable(model)) - last


def test_it_equals_each_client_training_base_and_head_alone(nrms, cohorts):
    algorithm, start = FedPer(8, 2, 0.1, clients_at_once=4), detached(lively(nrms))
    base = {name: start[name] for name in algorithm.communicated(nrms)}
    initial = {name: value for name, value in start.items() if name not in base}
    expected, heads, took_part = base, {}, []
    for number in range(3):
        ends, sizes = [], []
        for client, weight, cohort in clients_of(algorithm, cohorts, number):
            end = local_steps(nrms, expected | heads.get(client, initial), cohort, 2, 0.1)
            heads[client] = {name: end[name] for name in initial}
            ends.append(end)
            sizes.append(weight)
            took_part.append(client)
        expected = averaged(base, ends, sizes)
    assert len(set(took_part)) < len(took_part), "some client comes back to its head"
    found = run(algorithm, nrms, cohorts, rounds=3)
    assert_same({name: found[name] for name in initial}, initial)
    assert_moved_alike({name: found[name] for name in base}, expected, start)
    assert_clients_alike(algorithm.personal, heads, initial)


def test_personal_layers_are_not_uploaded_not_counted_and_not_touched_at_the_server(synthetic_store, tmp_path):
    loop, data = make_loop(synthetic_store, FedPer(6, 2, 0.1), optimizer=adam)
    start = weights(loop)
    _, metrics = fit(loop, data, tmp_path, rounds=2)
    base = loop.algorithm.communicated(loop.model)
    size = sum(parameter.numel() for parameter in base.values())
    assert loop.ledger.entries[0].coordinates == size
    assert all(round_["bytes_up"] == 6 * (4 * size + 8) for round_ in metrics.values())
    assert all(round_["bytes_down"] == 6 * 4 * size for round_ in metrics.values())
    for name, value in weights(loop).items():
        assert torch.equal(value, start[name]) == (name not in base), name


def test_users_are_evaluated_with_their_own_head_and_strangers_with_the_initial_one(nrms, cohorts, synthetic_store):
    algorithm, start = FedPer(20, 2, 0.3, clients_at_once=10), detached(lively(nrms))
    run(algorithm, nrms, cohorts, rounds=1)
    impressions = Impressions(synthetic_store.splits["dev"], synthetic_store.samples, 8, 1000)
    batch = impressions.batch(impressions.rows)
    catalogue = Catalogue(
        news_features(synthetic_store, nrms.inputs, 30, 50), torch.from_numpy(impressions.news()), CPU
    )
    scores = algorithm.scorer(nrms, catalogue).score(batch)
    owner = batch.user[batch.impression_history].repeat_interleave(batch.offsets.diff())
    known = [user for user in np.unique(owner) if user - 1 in algorithm.personal]
    assert 0 < len(known) < len(np.unique(owner))
    for user in np.unique(owner).tolist():
        head = algorithm.personal.read_one(user - 1, CPU)
        initial = {name: start[name] for name in algorithm.personal_parameters(nrms)}
        restore(nrms, head or initial)
        torch.testing.assert_close(scores[owner == user], SharedModel(nrms, catalogue).score(batch)[owner == user])


def test_a_model_without_any_shared_layer_is_refused(nrms, cohorts):
    with pytest.raises(UsageError, match="no trained layer of NRMS's 5 is left"):
        FedPer(personal_layers=4).setup(nrms, cohorts, None)
    FedPer(personal_layers=3).setup(nrms, cohorts, None)
    with pytest.raises(UsageError, match="must not be negative"):
        FedPer(personal_layers=-1)


def test_uploads_hold_the_base_alone(nrms, cohorts):
    algorithm = FedPer(4, 2, 0.1)
    algorithm.setup(nrms, cohorts, None)
    assert step(algorithm, nrms, cohorts, 0).total.keys() == algorithm.communicated(nrms).keys()
