import itertools
import json

import numpy as np
import pytest
import torch

from fednews.aggregation.plain import plain_sum
from fednews.errors import UsageError
from fednews.evaluation.evaluate import evaluate
from fednews.evaluation.scorers import SharedModel
from fednews.federated.algorithms.cfl import CFL
from fednews.federated.algorithms.fedavg import FedAvg
from fednews.federated.clients import client_gradients, fused_gradient, trainable
from fednews.federated.round import Round
from tests.federated.test_loop import adam, fit, make_loop, same, weights

ALWAYS = {"eps1": 1e9, "eps2": 1e-9, "linkage": "complete", "warmup": 0}
CPU = torch.device("cpu")


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def work_of(model, source, number, separate=False):
    return Round(number, source.streams, separate, lambda parts: plain_sum(parts, trainable(model)))


def one_round(method, model, source, number):
    """A round as the loop runs it, without stepping the global model."""
    draw = method.select(source, number).draw
    work = work_of(model, source, number)
    sums = method.aggregate(model, source.cohort(draw), work)
    method.finish_round(model, sgd(list(trainable(model).values())), work)
    return draw, sums


def test_one_cluster_is_fedavg_bit_for_bit(synthetic_store, tmp_path):
    common = {"clients_per_round": 8, "local_steps": 2, "local_lr": 0.3, "client_dropout": 0.2}
    found = []
    for method in (CFL(**common, eps1=1e-9), FedAvg(**common)):
        loop, data = make_loop(synthetic_store, method, optimizer=adam)
        fit(loop, data, tmp_path / type(method).__name__, rounds=4)
        found.append(loop)
    expected = weights(found[1])
    assert all(torch.equal(value, expected[name]) for name, value in weights(found[0]).items())
    catalogue = data.catalogue("dev", CPU)
    scorers = found[0].scorer(catalogue), SharedModel(found[1].model, catalogue)
    means = [evaluate(scorer, data.impressions("dev"), CPU).means() for scorer in scorers]
    assert means[0] == means[1]


def test_after_a_cut_each_cluster_is_trained_by_its_own_clients_alone(synthetic_store, tmp_path):
    everybody = synthetic_store.samples.clients
    method = CFL(everybody, **ALWAYS, max_clusters=2)
    loop, data = make_loop(synthetic_store, method, dropout=0.0, optimizer=adam)
    start = weights(loop)
    fit(loop, data, tmp_path, rounds=3)
    sizes, source = np.bincount(method._cluster), data.cohorts()
    assert sizes[0] >= sizes[1] > 0
    assert json.loads(method.artifacts()["clusters/clusters.json"])["clients"] == sizes.tolist()
    for which, found in enumerate((weights(loop), method._models.parameters[0])):
        alone, _ = make_loop(synthetic_store, FedAvg(everybody), dropout=0.0)
        alone.model.load_state_dict(start)
        parameters = trainable(alone.model)
        optimizer = adam(parameters.values())
        for round_ in range(3):
            draw = method.select(source, round_).draw
            if round_:  # the round of the cut is finished together
                draw = draw.of_clients(np.flatnonzero(method._cluster[draw.clients] == which))
            update = fused_gradient(alone.model, source.cohort(draw), "mean").updates
            for name, parameter in parameters.items():
                parameter.grad = update[name][0]
            optimizer.step()
        for name, value in parameters.items():
            torch.testing.assert_close(found[name].detach(), value.detach(), rtol=1e-4, atol=1e-5)


def test_clients_that_missed_a_cut_follow_the_side_that_their_update_resembles(cohorts, nrms):
    method = CFL(20, **ALWAYS, max_clusters=2)
    method.setup(nrms, cohorts, sgd)
    draw, _ = one_round(method, nrms, cohorts, 0)
    drawn = set(draw.clients.tolist())
    late = [client for client in range(cohorts.samples.clients) if client not in drawn]
    assert not method._cluster[late].any()  # until they are drawn

    def flat_updates(part_draw):
        found = {}
        for part in client_gradients(nrms, cohorts.cohort(part_draw), "mean", 5):
            for row, position in enumerate(part.clients.tolist()):
                whole = torch.cat([update[row].flatten() for update in part.updates.values()])
                found[int(part_draw.clients[position])] = whole / whole.norm().clamp(min=1e-30)  # some are zero
        return found

    cut = flat_updates(draw)
    sides = [sum(cut[c] for c in drawn if method._cluster[c] == which) for which in (0, 1)]
    with torch.no_grad():
        kept = {name: value.clone() for name, value in trainable(nrms).items()}
        for value in trainable(nrms).values():
            value.add_(1.0)  # the model goes on; the cut's own model decides
    later = cohorts.of_clients(np.array(late), 1)
    method.aggregate(nrms, cohorts.cohort(later), work_of(nrms, cohorts, 1))
    nrms.load_state_dict(kept, strict=False)
    expected = [
        int(update @ sides[1] / sides[1].norm() > update @ sides[0] / sides[0].norm())
        for update in flat_updates(later).values()
    ]
    assert method._cluster[list(flat_updates(later))].tolist() == expected
    assert 0 < sum(expected) < len(expected)


def test_a_round_without_the_first_cluster_says_nothing_about_the_global_model(cohorts, nrms):
    method = CFL(20, **ALWAYS, max_clusters=2)
    method.setup(nrms, cohorts, sgd)
    one_round(method, nrms, cohorts, 0)
    before = {name: value.detach().clone() for name, value in method._models.parameters[0].items()}
    others = cohorts.of_clients(np.flatnonzero(method._cluster == 1), 1)
    work = work_of(nrms, cohorts, 1)
    sums = method.aggregate(nrms, cohorts.cohort(others), work)
    assert sums.weight == 0
    assert sums.mean() == {}
    assert sums.samples == len(others.client)
    assert sums.loss > 0
    method.finish_round(nrms, sgd(list(trainable(nrms).values())), work)
    expected = fused_gradient(nrms, cohorts.cohort(others), "mean", before).updates
    for name, value in method._models.parameters[0].items():
        torch.testing.assert_close(value.detach(), before[name] - 0.1 * expected[name][0], rtol=1e-4, atol=1e-6)


def test_nothing_is_cut_before_the_warmup_is_over(cohorts, nrms):
    method = CFL(cohorts.samples.clients, **{**ALWAYS, "warmup": 2})
    method.setup(nrms, cohorts, sgd)
    for number in range(4):
        one_round(method, nrms, cohorts, number)
        assert (method.metrics()["clusters"] > 1) == (number >= 2)


def test_clusters_are_cut_again_until_there_are_enough(cohorts, nrms):
    method = CFL(cohorts.samples.clients, **ALWAYS, max_clusters=5)
    method.setup(nrms, cohorts, sgd)
    counts = []
    for number in range(4):
        one_round(method, nrms, cohorts, number)
        counts.append(method.metrics()["clusters"])
    assert counts == [2, 4, 5, 5]
    assert sorted(set(method._cluster.tolist())) == [0, 1, 2, 3, 4]


def test_a_resumed_run_equals_one_that_never_stopped(synthetic_store, tmp_path):
    def loop_of():
        return make_loop(synthetic_store, CFL(15, **ALWAYS, max_clusters=3, client_dropout=0.2), optimizer=adam)

    for folder, parts in (("whole", [5]), ("parts", [2, 5])):
        resume = None
        for rounds in parts:
            loop, data = loop_of()
            fit(loop, data, tmp_path / folder, rounds, resume=resume)
            resume = tmp_path / folder / f"step={rounds}.ckpt"
    saved = [torch.load(tmp_path / folder / "step=5.ckpt", weights_only=True) for folder in ("whole", "parts")]
    assert same(saved[0]["federated"], saved[1]["federated"])
    assert same(saved[0]["state_dict"], saved[1]["state_dict"])
    assert len(loop.algorithm._models) == 2


def test_known_users_are_scored_by_their_cluster_and_others_by_the_first(synthetic_store, tmp_path):
    loop, data = make_loop(synthetic_store, CFL(20, **ALWAYS, max_clusters=2), optimizer=adam)
    fit(loop, data, tmp_path, rounds=3)
    loop.eval()
    scorer = loop.scorer(data.catalogue("dev", CPU))
    for batch in data.impressions("dev"):
        owners = batch.user.tolist()
        assert scorer.assign(batch).tolist() == [loop.algorithm._cluster[o - 1] if o else 0 for o in owners]


def test_the_global_model_rests_while_only_others_work(synthetic_store, tmp_path):
    """Adam would move on its momentum if it were stepped with zeros."""
    method = CFL(3, **ALWAYS, max_clusters=2)
    loop, data = make_loop(synthetic_store, method, optimizer=adam)
    fit(loop, data, tmp_path, rounds=8)
    saved = [torch.load(tmp_path / f"step={step}.ckpt", weights_only=True) for step in range(1, 9)]
    rested = 0
    for before, after in itertools.pairwise(saved):
        number, cluster = before["federated"]["round"], after["federated"]["algorithm"]["cluster"]
        worked = (cluster[torch.from_numpy(method.select(data.cohorts(), number).participants)] == 0).any()
        same_weights = same(before["state_dict"], after["state_dict"])
        assert bool(worked) != same_weights
        rested += same_weights
    assert rested


def test_aggregation_that_hides_single_updates_is_refused(cohorts, nrms):
    method = CFL(5)
    method.setup(nrms, cohorts, sgd)
    draw = method.select(cohorts, 0).draw
    with pytest.raises(UsageError, match="single updates"):
        method.aggregate(nrms, cohorts.cohort(draw), work_of(nrms, cohorts, 0, separate=True))
