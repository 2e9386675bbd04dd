"""Rounds against FedSGD on the whole model (Yi et al. 2021, section 4.2), the union, and what a round costs."""

import numpy as np
import pytest
import torch

from fednews.aggregation.secagg.aggregation import SecureAggregation
from fednews.errors import UsageError
from fednews.federated.algorithms.efficient_fedrec import EfficientFedRec, touched_articles
from fednews.federated.algorithms.fedavg import FedAvg
from fednews.federated.split import news_parameters, user_parameters
from fednews.federated.clients import trainable
from tests.federated.test_loop import fit, make_loop, weights

WHOLE = {"train_words": True, "dropout": 0.0}


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.5)


def trained(store, folder, algorithm, aggregation=None, model="nrms", rounds=1, optimizer=sgd, **settings):
    loop, data = make_loop(store, algorithm, model=model, optimizer=optimizer, **(WHOLE | settings))
    if aggregation is not None:
        algorithm.check_aggregation(aggregation)
        loop.aggregation = aggregation
    start = weights(loop)
    _, metrics = fit(loop, data, folder, rounds)
    return loop, start, metrics


def farthest(a, b, names):
    return max(float((a[name] - b[name]).abs().max()) for name in names)


@pytest.mark.parametrize("model", ["nrms", "naml", "plm_nr"])
def test_a_round_equals_one_of_fedsgd_on_the_whole_model(synthetic_store, tmp_path, model):
    expected, start, _ = trained(synthetic_store, tmp_path / "whole", FedAvg(8), model=model)
    found, _, _ = trained(synthetic_store, tmp_path / "split", EfficientFedRec(8, news_at_once=30), model=model)
    for parameters in (user_parameters, news_parameters):
        names = list(parameters(found.model))
        assert farthest(weights(expected), start, names) > 1e-3
        assert farthest(weights(found), weights(expected), names) < 1e-5
