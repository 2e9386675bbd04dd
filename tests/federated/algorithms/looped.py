"""Plain loops that the methods are held against: one client at a time, one process, SGD at the server."""

import numpy as np
import torch
from torch.func import functional_call

from fednews.aggregation.plain import plain_sum
from fednews.federated.clients import trainable
from fednews.federated.round import Round
from fednews.models.base import click_losses


def detached(model):
    return {name: parameter.detach().clone() for name, parameter in trainable(model).items()}


def run(algorithm, model, cohorts, rounds, lr=1.0):
    """Set the method up, train, and give the global model's trained parameters."""
    algorithm.setup(model, cohorts, None)
    for number in range(rounds):
        step(algorithm, model, cohorts, number, lr)
    return detached(model)


def step(algorithm, model, cohorts, number, lr=1.0):
    """One round; returns its sums."""
    selection = algorithm.select(cohorts, number)
    algorithm.begin_round(cohorts, selection)
    cohort = cohorts.cohort(selection.draw)
    work = Round(number, cohorts.streams, False, lambda parts: plain_sum(parts, algorithm.communicated(model)))
    with cohorts.streams.torch_global("dropout", number):
        sums = algorithm.aggregate(model, cohort, work)
    update = sums.mean()
    with torch.no_grad():
        for name, parameter in trainable(model).items():
            if name in update:
                parameter -= lr * update[name]
    return sums


def clients_of(algorithm, cohorts, number):
    """``(client, weight, cohort of that client alone)`` of a round."""
    draw = algorithm.select(cohorts, number).draw
    for place, client in enumerate(draw.clients.tolist()):
        cohort = cohorts.cohort(draw.of_clients(np.array([place])))
        yield client, int(cohort.counts[0]), cohort


def gradient(model, parameters, cohort):
    """Gradients of a client's mean loss at ``parameters``, the rest being the model's."""
    at = {name: value.detach().requires_grad_() for name, value in parameters.items()}
    inputs = (cohort.news, cohort.history, cohort.history_mask, cohort.user, cohort.sample_history, cohort.candidates)
    loss = click_losses(functional_call(model, at, inputs)).mean()
    return dict(zip(at, torch.autograd.grad(loss, list(at.values())), strict=True))


def local_steps(model, start, cohort, steps, lr, extra=lambda name, value: 0.0):
    """Gradient descent on the client's loss plus a term whose gradient ``extra`` gives."""
    local = dict(start)
    for _ in range(steps):
        slopes = gradient(model, local, cohort)
        local = {name: value - lr * (slopes[name] + extra(name, value)) for name, value in local.items()}
    return local


def averaged(start, ends, weights):
    """The weighted mean of the clients' ends, the way FedAvg's server with SGD and rate 1 makes it."""
    total = sum(weights)
    return {name: sum(w * end[name] for w, end in zip(weights, ends, strict=True)) / total for name in start}


def lively(model, scale=4.0, dropout=0.0):
    """Grown weights: a small model's gradients would else be lost in rounding for most of its layers."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= scale
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = dropout
    return model


def restore(model, parameters):
    model.load_state_dict(parameters, strict=False)
    return model


def assert_moved_alike(found, expected, start, within=1e-3):
    """Moved far from ``start``, and each tensor to the same end but for a small part of its way, or rounding."""
    assert farthest(expected, start) > 1e-3
    assert_alike(found, expected, start, within)


def assert_alike(found, expected, start, within=1e-3):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        way, apart = (float((value - other[name]).abs().max()) for other in (start, found))
        assert apart <= within * way + 5e-6, f"{name}: {apart} apart after {way}"


def assert_clients_alike(store, expected, start):
    """What each client keeps; some of them, though not all, moved far."""
    assert len(store) == len(expected)
    assert max(farthest(own, start) for own in expected.values()) > 1e-3
    for client, own in expected.items():
        assert_alike(store.read_one(client, torch.device("cpu")), own, start)


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def farthest(found, start):
    return max(float((value - start[name]).abs().max()) for name, value in found.items())
