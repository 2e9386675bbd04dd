"""FINDING's limits are other methods, and its state is whole."""

import math
from typing import ClassVar

import numpy as np
import pytest
import torch

from fednews.aggregation.ckks import CKKS
from fednews.aggregation.paillier import Paillier
from fednews.aggregation.plain import Plain
from fednews.errors import UsageError
from fednews.evaluation.evaluate import evaluate
from fednews.evaluation.scorers import SharedModel
from fednews.federated.algorithms.fedavg import FedAvg
from fednews.federated.algorithms.finding import Finding
from fednews.federated.clients import fused_gradient, trainable
from fednews.privacy.accounting import epsilon_of
from tests.federated.test_loop import adam, fit, make_loop, same, weights


class SmallPaillier(Paillier):
    """Short keys: tests are about sums, not about secrecy."""

    def __init__(self) -> None:
        super().__init__(key_bits=512, max_clients=64, threads=1)


def halving(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def run(store, algorithm, folder, rounds=5, **settings):
    loop, data = make_loop(store, algorithm, **settings)
    fit(loop, data, folder, rounds)
    return loop, data


def group_weights(loop, group):
    return {name: value.detach().clone() for name, value in loop.algorithm._models.parameters[group].items()}


@pytest.mark.parametrize("settings", [{"groups": 1}, {"groups": 3, "max_lambda": 0}])
def test_one_group_and_no_personal_weight_are_vanilla_fl_bit_for_bit(synthetic_store, tmp_path, settings):
    common = {"clients_per_round": 9, "client_dropout": 0.3}
    optimizing = {"optimizer": adam, "scheduler": halving}
    method = Finding(**common, **settings, recluster_every=2, mix_moments=True)
    finding, data = run(synthetic_store, method, tmp_path / "finding", **optimizing)
    vanilla, _ = run(synthetic_store, FedAvg(**common, local_steps=1, local_lr=1), tmp_path / "vanilla", **optimizing)
    expected = weights(vanilla)
    assert all(torch.equal(value, expected[name]) for name, value in weights(finding).items())
    assert all(torch.equal(value, expected[name]) for name, value in group_weights(finding, 0).items())
    assert not list(method.releases())
    assert finding.ledger.participations(method.release(828)).sum() > 0

    catalogue = data.catalogue("dev", torch.device("cpu"))
    scorers = (finding.scorer(catalogue), SharedModel(vanilla.model.eval(), catalogue))
    means = [evaluate(scorer, data.impressions("dev"), torch.device("cpu")).means() for scorer in scorers]
    assert means[0] == means[1]


class Recorded(Finding):
    """Keeps who worked in each round."""

    def select(self, source, round_):
        self.selections = [*getattr(self, "selections", []), super().select(source, round_)]
        return self.selections[-1]


class Replayed(FedAvg):
    """Vanilla FL with the same clients in the same order."""

    selections: ClassVar[list] = []

    def select(self, source, round_):
        return self.selections[round_]


def test_many_groups_with_hardly_any_personal_weight_come_close_to_vanilla_fl(synthetic_store, tmp_path):
    method, vanilla = Recorded(3, 20, max_lambda=1e-9, recluster_every=2), Replayed(20)
    finding, _ = run(synthetic_store, method, tmp_path / "finding", dropout=0.0, optimizer=sgd)
    vanilla.selections = method.selections
    expected = weights(run(synthetic_store, vanilla, tmp_path / "vanilla", dropout=0.0, optimizer=sgd)[0])
    assert len(np.unique(method.grouping.labels)) == 3
    for name, value in weights(finding).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6)


def test_with_lambda_one_every_group_trains_alone(synthetic_store, tmp_path):
    method = Finding(3, 25, alpha=None, beta=0, recluster_every=None)
    loop, data = make_loop(synthetic_store, method, dropout=0.0, optimizer=adam)
    start = weights(loop)
    fit(loop, data, tmp_path, rounds=4)
    source = data.cohorts()
    draws = [method.select(source, round_).draw for round_ in range(4)]
    for group in range(3):
        alone, _ = make_loop(synthetic_store, FedAvg(25), dropout=0.0)
        alone.model.load_state_dict(start)
        optimizer = adam(trainable(alone.model).values())
        for draw in draws:
            mine = np.flatnonzero(method.grouping.labels[draw.clients] == group)
            if len(mine):
                update = fused_gradient(alone.model, source.cohort(draw.of_clients(mine)), "mean").updates
                for name, parameter in trainable(alone.model).items():
                    parameter.grad = update[name][0]
                optimizer.step()
        for name, value in group_weights(loop, group).items():
            torch.testing.assert_close(value, alone.model.state_dict()[name], rtol=1e-4, atol=1e-5)


def test_a_step_in_the_layers_with_a_group_for_each_user_is_fedper(synthetic_store, tmp_path):
    """Lower layers are shared and averaged over the round's users, the last one is each user's own (section 5.3.3)."""
    clients = synthetic_store.samples.clients
    method = Finding(clients, 8, alpha=None, beta=math.inf, recluster_every=None)
    method.grouping.append(0, np.arange(clients), None)  # k-means would join two users with the same history
    loop, data = make_loop(synthetic_store, method, dropout=0.0, optimizer=sgd)
    start = weights(loop)
    fit(loop, data, tmp_path, rounds=3)

    model, source = make_loop(synthetic_store, FedAvg(1), dropout=0.0)[0].model, data.cohorts()
    model.load_state_dict(start)
    last = {name for name, layer in model.layer_of().items() if layer == len(model.layers) - 1}
    heads = [{name: start[name].clone() for name in last} for _ in range(clients)]
    body = {name: start[name].clone() for name in trainable(model) if name not in last}
    for round_ in range(3):
        draw = method.select(source, round_).draw
        total, samples = {name: torch.zeros_like(value) for name, value in body.items()}, 0
        for position, client in enumerate(draw.clients):
            model.load_state_dict({**start, **body, **heads[client]})
            part = fused_gradient(model, source.cohort(draw.of_clients(np.array([position]))), "mean")
            for name in last:
                heads[client][name] -= 0.1 * part.updates[name][0]
            samples += part.weights[0]
            for name in body:
                total[name] += part.weights[0] * part.updates[name][0]
        for name in body:
            body[name] -= 0.1 * total[name] / samples
    for name, value in body.items():
        torch.testing.assert_close(weights(loop)[name], value, rtol=1e-5, atol=1e-6)
    for client in range(clients):
        for name in last:
            torch.testing.assert_close(group_weights(loop, client)[name], heads[client][name], rtol=1e-5, atol=1e-6)


def test_group_models_start_a_round_between_their_own_weights_and_the_global_ones(synthetic_store, tmp_path):
    """One round more, by hand: eq. 1a in every layer, also for groups without a client in the round."""
    method = Finding(4, 3, alpha=1.5, beta=0.5)
    loop, _ = run(synthetic_store, method, tmp_path / "three", rounds=3, dropout=0.0, optimizer=sgd)
    again = Finding(4, 3, alpha=1.5, beta=0.5)
    further, data = run(synthetic_store, again, tmp_path / "four", rounds=4, dropout=0.0, optimizer=sgd)
    source, layers = data.cohorts(), loop.model.layer_of()
    draw = again.select(source, 3).draw
    in_round = method.grouping.labels[draw.clients]
    assert set(in_round.tolist()) < {0, 1, 2, 3}
    globally = weights(loop)
    total = {name: torch.zeros_like(value) for name, value in trainable(loop.model).items()}
    for group in range(4):
        between = {}
        for name, value in group_weights(loop, group).items():
            share = (1 - 1.5**-4) * ((layers[name] + 1) / 5) ** 0.5
            between[name] = share * value + (1 - share) * globally[name]
        mine = np.flatnonzero(in_round == group)
        if len(mine):
            part = fused_gradient(loop.model, source.cohort(draw.of_clients(mine)), "mean", between)
            between = {name: value - 0.1 * part.updates[name][0] for name, value in between.items()}
            for name in total:
                total[name] += part.weights[0] * part.updates[name][0] / len(draw.client)
        for name, value in group_weights(further, group).items():
            torch.testing.assert_close(value, between[name], rtol=1e-5, atol=1e-6)
    for name, value in total.items():
        torch.testing.assert_close(weights(further)[name], globally[name] - 0.1 * value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("settings", [{}, {"mix_moments": True, "interpolate_every": 2, "clustering": Plain()}])
def test_a_run_resumed_between_two_clusterings_equals_one_that_never_stopped(synthetic_store, tmp_path, settings):
    def loop_of():
        common = {"alpha": 1.3, "recluster_every": 2, "client_dropout": 0.2, "vector_clip": 1, "vector_noise": 0.1}
        method = Finding(3, 12, **common, **settings)
        return make_loop(synthetic_store, method, optimizer=adam, scheduler=halving)

    whole, data = loop_of()
    whole_trainer, _ = fit(whole, data, tmp_path / "whole", rounds=5, every=3)
    first, data = loop_of()
    fit(first, data, tmp_path / "parts", rounds=3, every=3)
    second, data = loop_of()
    trainer, _ = fit(second, data, tmp_path / "parts", 5, every=3, resume=tmp_path / "parts" / "step=3.ckpt")
    saved = [torch.load(tmp_path / part / "step=5.ckpt", weights_only=True) for part in ("whole", "parts")]
    assert same(saved[0]["federated"]["algorithm"], saved[1]["federated"]["algorithm"])
    assert whole.algorithm.grouping.rounds == second.algorithm.grouping.rounds == [0, 2, 4]
    assert all(torch.equal(weights(whole)[name], value) for name, value in weights(second).items())
    assert trainer.callback_metrics["val_auc"] == whole_trainer.callback_metrics["val_auc"]
    assert whole.algorithm.artifacts() == second.algorithm.artifacts()


@pytest.mark.parametrize(("scheme", "precision"), [(CKKS, 1e-4), (SmallPaillier, 1e-6)])
def test_a_run_whose_gradients_and_clusters_are_encrypted_equals_the_plain_one(
    synthetic_store, tmp_path, scheme, precision
):
    found = []
    for aggregation in (Plain, scheme):
        method = Finding(3, 4, alpha=1.3, recluster_every=3, clustering=aggregation(), clustering_steps=2)
        loop, data = make_loop(synthetic_store, method, dropout=0.0, optimizer=sgd)
        loop.aggregation = aggregation()
        fit(loop, data, tmp_path / aggregation.__name__, rounds=5)
        found.append(loop)
    plain, encrypted = (loop.algorithm.grouping for loop in found)
    assert plain.rounds == encrypted.rounds == [0, 3]
    assert all(np.array_equal(*labels) for labels in zip(plain.history, encrypted.history, strict=True))
    for name, value in weights(found[1]).items():
        torch.testing.assert_close(value, weights(found[0])[name], rtol=0, atol=precision)
    for group in range(3):
        for name, value in group_weights(found[1], group).items():
            torch.testing.assert_close(value, group_weights(found[0], group)[name], rtol=0, atol=precision)


def test_the_ledger_counts_a_release_of_every_client_at_each_clustering(synthetic_store, tmp_path):
    method = Finding(3, 4, recluster_every=2, vector_clip=1.0, vector_noise=8.0)
    loop, _ = run(synthetic_store, method, tmp_path, rounds=5)
    (entry,) = [entry for entry in loop.ledger.entries if entry.release == "user vector"]
    assert set(loop.ledger.participations(entry).tolist()) == {3}
    one, three = (epsilon_of(((entry, count),), 1e-5).epsilon for count in (1, 3))
    assert 0 < one < three < math.inf
    assert loop.trainer.callback_metrics["epsilon_accounted"] == math.inf  # gradients go without noise


def test_groups_with_too_few_answers_send_nothing(cohorts, nrms):
    method = Finding(3, 20, min_group_clients=6, client_dropout=0.3)
    method.setup(nrms, cohorts, sgd)
    everybody = Finding(3, 20, client_dropout=0.3)
    everybody.grouping = method.grouping
    answered, kept = 0, 0
    for round_ in range(6):
        selection = method.select(cohorts, round_)
        labels = method.grouping.labels
        sizes = np.bincount(labels[everybody.select(cohorts, round_).participants], minlength=3)
        assert np.bincount(labels[selection.participants], minlength=3).tolist() == [s * (s >= 6) for s in sizes]
        assert selection.invited == 20
        answered, kept = answered + sizes.sum(), kept + len(selection.participants)
    assert 0 < kept < answered


def test_the_first_groups_come_from_the_untrained_model_and_spend_one_release(cohorts, nrms):
    method = Finding(3, 5, vector_clip=0.5, vector_noise=1.0)
    method.setup(nrms, cohorts, sgd)
    method.select(cohorts, 0)
    ((entry, clients),) = method.releases()
    assert clients.tolist() == list(range(cohorts.samples.clients))
    assert (entry.noise, entry.sensitivity, entry.sensitivity_norm) == ("gaussian", 1.0, "l2")
    assert not list(method.releases())
    assert method.metrics()["clustering_bytes_up"] == cohorts.samples.clients * 10 * 4


def test_more_groups_than_clients_are_refused():
    with pytest.raises(UsageError, match="61, but the data has 60"):
        Finding(61, 5).check(60)


@pytest.mark.parametrize(
    ("settings", "named"), [({"groups": 0}, "groups"), ({"recluster_every": 1}, "recluster"), ({"alpha": 0.9}, "alpha")]
)
def test_settings_out_of_range_are_usage_errors(settings, named):
    with pytest.raises(UsageError, match=named):
        Finding(**settings)
