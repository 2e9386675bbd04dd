"""Rounds against FedSGD on the whole model (Yi et al. 2021, section 4.2), the union, and what a round costs."""

import math
from collections import defaultdict

import numpy as np
import pytest
import torch

from fednews.aggregation.plain import Plain
from fednews.aggregation.secagg.aggregation import SecureAggregation
from fednews.errors import UsageError
from fednews.federated.algorithms.efficient_fedrec import EfficientFedRec, touched_articles
from fednews.federated.algorithms.fedavg import FedAvg
from fednews.federated.clients import trainable
from fednews.federated.round import NewsUnion, Round
from fednews.federated.split import news_parameters, user_parameters
from tests.federated.algorithms.looped import lively
from tests.federated.test_loop import fit, make_loop, weights


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.5)


def trained(store, folder, algorithm, aggregation=None, model="nrms", rounds=1, optimizer=sgd, **settings):
    """The loop after its rounds in double precision, what it started from, and the rounds' metrics."""
    dropout = settings.setdefault("dropout", 0.0)
    loop, data = make_loop(store, algorithm, model=model, optimizer=optimizer, train_words=True, **settings)
    lively(loop.model, dropout=dropout)
    if aggregation is not None:
        loop.aggregation = aggregation
    start = weights(loop)
    metrics = defaultdict(dict)
    publish = loop.publish

    def keep(found, step):
        metrics[step] |= found
        publish(found, step)

    loop.publish = keep
    fit(loop, data, folder, rounds, precision="64-true")
    return loop, {name: value.double() for name, value in start.items()}, metrics


def farthest(a, b, names):
    return max(float((a[name] - b[name]).abs().max()) for name in names)


def assert_same_rounds(found, expected, start, within):
    """Both halves moved, and to the same place."""
    for parameters in (user_parameters, news_parameters):
        names = list(parameters(found.model))
        moved = farthest(weights(expected), start, names)
        assert moved > 1e-3
        assert farthest(weights(found), weights(expected), names) < within * max(1, moved)


@pytest.mark.parametrize(("model", "at_once"), [("nrms", 30), ("nrms", None), ("naml", 30), ("plm_nr", None)])
def test_a_round_equals_one_of_fedsgd_on_the_whole_model(synthetic_store, tmp_path, model, at_once):
    expected, start, _ = trained(synthetic_store, tmp_path / "whole", FedAvg(8), model=model)
    found, _, _ = trained(synthetic_store, tmp_path / "split", EfficientFedRec(8, news_at_once=at_once), model=model)
    assert_same_rounds(found, expected, start, within=1e-8)


def test_rounds_of_adam_with_client_dropout_equal_those_on_the_whole_model(synthetic_store, tmp_path):
    adam = lambda parameters: torch.optim.Adam(parameters, lr=0.01)  # noqa: E731
    results = [
        trained(synthetic_store, tmp_path / type(method).__name__, method, rounds=3, optimizer=adam)
        for method in (FedAvg(8, client_dropout=0.4), EfficientFedRec(8, client_dropout=0.4))
    ]
    (expected, start, whole), (found, _, split) = results
    assert_same_rounds(found, expected, start, within=1e-5)
    assert [split[n]["loss"] for n in split] == pytest.approx([whole[n]["loss"] for n in whole], abs=1e-9)
    assert [split[n]["samples"] for n in split] == [whole[n]["samples"] for n in whole]


@pytest.mark.parametrize(("model", "reveal_counts"), [("nrms", True), ("nrms", False), ("plm_nr", True)])
def test_under_secure_aggregation_a_round_is_the_same_up_to_fixed_point(
    synthetic_store, tmp_path, model, reveal_counts
):
    clients = 5
    aggregation = SecureAggregation(fraction_bits=30, bound=2.0**20, reveal_counts=reveal_counts)
    expected, start, _ = trained(synthetic_store, tmp_path / "plain", EfficientFedRec(clients), model=model)
    found, _, metrics = trained(
        synthetic_store, tmp_path / "secure", EfficientFedRec(clients), aggregation, model=model
    )
    assert_same_rounds(found, expected, start, within=1e-5)
    assert 0 < metrics[1]["union_singleton_rate"] < 1
    assert any("exact sums" in seen for entry in found.ledger.entries for seen in entry.server_sees)


def test_the_news_models_own_rate_applies_to_it_alone(synthetic_store, tmp_path):
    def update(method):
        loop, start, _ = trained(synthetic_store, tmp_path / str(method.news_lr), method)
        return {name: weights(loop)[name] - start[name] for name in trainable(loop.model)}, loop

    (same, loop), (slow, _) = update(EfficientFedRec(6)), update(EfficientFedRec(6, news_lr=0.05))
    for name in user_parameters(loop.model):
        torch.testing.assert_close(slow[name], same[name])
    for name in news_parameters(loop.model):
        torch.testing.assert_close(slow[name], same[name] / 10, rtol=1e-6, atol=1e-9)


@pytest.fixture
def cohort(cohorts):
    return cohorts.cohort(cohorts.of_clients(cohorts.draw_clients(9, 0), 0))


def test_touched_articles_are_those_of_histories_and_candidates(cohort):
    for client, found in enumerate(touched_articles(cohort)):
        expected = set()
        for row in (cohort.history_client == client).nonzero().flatten().tolist():
            expected |= set(cohort.articles[cohort.history[row][cohort.history_mask[row]]].tolist())
        for sample in (cohort.client == client).nonzero().flatten().tolist():
            expected |= set(cohort.articles[cohort.candidates[sample]].tolist())
        assert found.tolist() == sorted(expected)


def work(method, model, cohorts, aggregation=None):
    """A round whose sums and unions are made by ``aggregation``, and a list of what it sums."""
    aggregation = aggregation or Plain()
    summed = []

    def sum_(parts):
        sums = aggregation.sum(parts, method.communicated(model), cohorts.streams, 0)
        summed.append(dict(sums.total))
        return sums

    def union(touched, catalogue):
        counts = aggregation.count_news(touched, catalogue, cohorts.streams, 0)
        return NewsUnion(counts, counts, True)

    return Round(0, cohorts.streams, aggregation.separate, sum_, union=union), summed


@pytest.mark.parametrize("separate", [False, True])
def test_a_minimum_multiplicity_uploads_the_rows_of_shared_news_and_no_others(nrms, cohorts, cohort, separate):
    aggregation = SecureAggregation(simulate=True) if separate else Plain()
    counts = np.bincount(np.concatenate(touched_articles(cohort)), minlength=len(cohorts.features["title"]))
    sums = []
    for least in (1, 3):
        method = EfficientFedRec(9, min_multiplicity=least)
        method.setup(nrms, cohorts, None)
        round_, summed = work(method, nrms, cohorts, aggregation)
        method.aggregate(nrms, cohort, round_)
        sums += summed
        assert len(sums[-1]["vectors"]) == (counts >= least).sum()
    often = torch.from_numpy(counts[counts > 0] >= 3)
    assert 0 < often.sum() < len(often)
    torch.testing.assert_close(sums[1]["vectors"], sums[0]["vectors"][often], rtol=1e-4, atol=1e-5)
    for name in user_parameters(nrms):
        torch.testing.assert_close(sums[1][name], sums[0][name], rtol=1e-4, atol=1e-5)


def test_a_minimum_multiplicity_needs_counts(nrms):
    method = EfficientFedRec(min_multiplicity=2)
    method.check_parts(nrms, SecureAggregation())
    with pytest.raises(UsageError, match="reveal_counts"):
        method.check_parts(nrms, SecureAggregation(reveal_counts=False))


@pytest.mark.parametrize("settings", [{"min_multiplicity": 0}, {"news_at_once": 0}, {"news_lr": 0.0}])
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(UsageError, match=next(iter(settings))):
        EfficientFedRec(**settings)


def test_what_travels_is_the_user_model_and_the_vectors_of_the_union(synthetic_store, tmp_path):
    loop, _, metrics = trained(synthetic_store, tmp_path, EfficientFedRec(6, min_multiplicity=2), rounds=2)
    user = 8 * sum(value.numel() for value in user_parameters(loop.model).values())
    for number, found in metrics.items():
        source = loop.source
        touched = touched_articles(source.cohort(loop.algorithm.select(source, number - 1).draw))
        counts = np.unique(np.concatenate(touched), return_counts=True)[1]
        union, often, row = len(counts), int((counts > 1).sum()), 8 * 10
        assert found["union_size"] == union
        assert found["union_singleton_rate"] == (counts == 1).mean()
        assert found["bytes_down_user_model"] == 6 * user
        assert found["bytes_down_vectors"] == 6 * union * row
        assert found["bytes_down_indices"] == 6 * union * 4
        assert found["bytes_up_user_update"] == 6 * (user + 8)
        assert found["bytes_up_vector_gradients"] == 6 * often * row
        assert found["bytes_up_union"] == 4 * counts.sum()
        for way in ("up", "down"):
            kinds = [
                value for name, value in found.items() if name.startswith(f"bytes_{way}_") and "per_client" not in name
            ]
            assert found[f"bytes_{way}"] == sum(kinds) == 6 * found[f"bytes_{way}_per_client"]


def test_under_secure_aggregation_what_travels_up_is_the_protocols(synthetic_store, tmp_path):
    aggregation = SecureAggregation(simulate=True, bound=2.0**20, fraction_bits=20)
    _, _, metrics = trained(synthetic_store, tmp_path, EfficientFedRec(6), aggregation)
    found = metrics[1]
    assert found["bytes_up"] == found["bytes_up_aggregation"] + found["bytes_up_union"]
    assert found["bytes_up_union"] > 6 * 200, "a byte for each news of the catalogue"
    assert found.keys().isdisjoint(["bytes_up_user_update", "bytes_up_vector_gradients"])


def test_the_ledger_says_what_the_union_shows(synthetic_store, tmp_path):
    for aggregation, view, word in (
        (None, "local", "every client's touched news"),
        (SecureAggregation(simulate=True, bound=2.0**20), "central", "how many of them"),
        (SecureAggregation(simulate=True, bound=2.0**20, reveal_counts=False), "central", "which news"),
    ):
        folder = tmp_path / f"{word[:5]}{view}"
        loop, _, _ = trained(synthetic_store, folder, EfficientFedRec(6), aggregation, rounds=2)
        gradients, union = loop.ledger.entries
        assert (union.view, gradients.view) == (view, view)
        assert word in union.server_sees[0]
        assert loop.ledger.participations(union).sum() == loop.ledger.participations(gradients).sum() == 12
        assert loop.ledger.epsilon("accounted", "total") == math.inf
        assert union.no_guarantee_reason


def test_a_round_without_answers_changes_nothing(synthetic_store, tmp_path):
    for name, aggregation in (("plain", None), ("secure", SecureAggregation(simulate=True))):
        method = EfficientFedRec(2, client_dropout=0.9999)
        loop, start, metrics = trained(synthetic_store, tmp_path / name, method, aggregation, rounds=2)
        assert all(torch.equal(value, start[name]) for name, value in weights(loop).items())
        assert metrics[2]["union_size"] == metrics[2]["bytes_down"] == 0
