"""APFL between the global model and local training, and its adaptive mixture against a plain loop."""

import pytest
import torch

from fednews.data.features import news_features
from fednews.data.impressions import Impressions
from fednews.errors import UsageError
from fednews.evaluation.scorers import Catalogue, SharedModel
from fednews.federated.algorithms.apfl import APFL
from fednews.federated.algorithms.fedavg import FedAvg
from tests.federated.algorithms.looped import (
    assert_clients_alike,
    assert_same,
    clients_of,
    detached,
    gradient,
    lively,
    local_steps,
    restore,
    run,
    step,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize("alpha", [0.0, 0.4])
def test_the_global_model_is_fedavgs_whatever_the_mixture(nrms, cohorts, alpha):
    start = detached(lively(nrms))
    found = run(APFL(5, 2, 0.1, alpha), nrms, cohorts, rounds=2)
    assert_same(found, run(FedAvg(5, 2, 0.1), restore(nrms, start), cohorts, rounds=2))


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_users_are_evaluated_with_their_mixture(nrms, cohorts, synthetic_store, alpha):
    """With alpha zero that is the global model."""
    algorithm = APFL(20, 2, 0.3, alpha, adaptive=False, clients_at_once=10)
    run(algorithm, lively(nrms), cohorts, rounds=1)
    impressions = Impressions(synthetic_store.splits["dev"], synthetic_store.samples, 8, 1000)
    batch = impressions.batch(impressions.rows)
    features = news_features(synthetic_store, nrms.inputs, 30, 50)
    catalogue = Catalogue(features, torch.from_numpy(impressions.news()), CPU)
    found, shared = algorithm.scorer(nrms, catalogue).score(batch), SharedModel(nrms, catalogue).score(batch)
    owner = batch.user[batch.impression_history].repeat_interleave(batch.offsets.diff())
    known = [user for user in owner.unique().tolist() if user - 1 in algorithm.personal]
    assert known
    strangers = ~torch.isin(owner, torch.tensor(known))
    torch.testing.assert_close(found[strangers], shared[strangers])
    globally = detached(nrms)
    for user in known[:5]:
        own = algorithm.personal.read_one(user - 1, CPU)
        restore(nrms, {name: alpha * own[name] + (1 - alpha) * value for name, value in globally.items()})
        expected = SharedModel(nrms, catalogue).score(batch)[owner == user]
        torch.testing.assert_close(found[owner == user], expected)
        assert torch.allclose(expected, shared[owner == user]) == (alpha == 0)


def test_with_alpha_one_personal_models_are_trained_locally_alone(nrms, cohorts):
    algorithm = APFL(9, 2, 0.1, alpha=1.0, adaptive=False, clients_at_once=5)
    start = detached(lively(nrms))
    algorithm.setup(nrms, cohorts, None)
    personal = {}
    for number in range(3):
        received = detached(nrms)
        for client, _, cohort in clients_of(algorithm, cohorts, number):
            personal[client] = local_steps(nrms, personal.get(client, received), cohort, 2, 0.1)
        step(algorithm, nrms, cohorts, number)
    assert len(personal) < 27, "some client comes back to its model"
    assert_clients_alike(algorithm.personal, personal, start)


def test_the_adaptive_mixture_equals_a_plain_loop(nrms, cohorts):
    algorithm = APFL(9, 2, 0.1, alpha=0.3, clients_at_once=5)
    start = detached(lively(nrms))
    algorithm.setup(nrms, cohorts, None)
    personal, alphas = {}, {}
    for number in range(3):
        received = detached(nrms)
        for client, _, cohort in clients_of(algorithm, cohorts, number):
            v, w, alpha = personal.get(client, received), received, alphas.get(client, 0.3)
            for local in range(2):
                mixed = gradient(nrms, {name: alpha * v[name] + (1 - alpha) * w[name] for name in v}, cohort)
                slopes, rate = gradient(nrms, w, cohort), alpha
                if local == 0:
                    slope = sum(float(((v[name] - w[name]) * mixed[name]).sum()) for name in v)
                    alpha = min(max(alpha - 0.1 * slope, 0.0), 1.0)
                v = {name: value - 0.1 * rate * mixed[name] for name, value in v.items()}
                w = {name: value - 0.1 * slopes[name] for name, value in w.items()}
            personal[client], alphas[client] = v, alpha
        step(algorithm, nrms, cohorts, number)
    assert max(abs(alpha - 0.3) for alpha in alphas.values()) > 1e-3
    assert_clients_alike(algorithm.personal, personal, start)
    for client in alphas:
        assert float(algorithm.alphas.read_one(client, CPU)["alpha"]) == pytest.approx(alphas[client], abs=1e-5)


def test_alpha_stays_a_weight(nrms, cohorts):
    with pytest.raises(UsageError, match="between 0 and 1"):
        APFL(alpha=1.1)
    everybody = cohorts.samples.clients
    algorithm = APFL(everybody, 1, 5.0, alpha=0.5, clients_at_once=everybody)
    run(algorithm, lively(nrms), cohorts, rounds=2)
    alphas = algorithm.alphas.read(torch.arange(everybody))["alpha"]
    assert bool(((alphas >= 0) & (alphas <= 1)).all())
    assert bool(((alphas == 0) | (alphas == 1)).any())
