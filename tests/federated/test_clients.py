"""Client work computed together equals a plain loop over clients."""

import numpy as np
import pytest
import torch

from fednews.aggregation.plain import plain_sum
from fednews.federated.clients import client_gradients, fused_gradient, local_training, trainable
from fednews.models.base import click_losses, few_words
from fednews.models.ebnr import EBNR
from fednews.models.layers import Words

CLOSE = {"rtol": 1e-4, "atol": 1e-6}


@pytest.fixture
def cohort(cohorts):
    return cohorts.cohort(cohorts.of_clients(cohorts.draw_clients(9, 0), 0))


@pytest.fixture
def one_by_one(cohorts):
    """Each client of the cohort as a cohort of its own."""
    draw = cohorts.of_clients(cohorts.draw_clients(9, 0), 0)
    return [cohorts.cohort(draw.of_clients(np.array([client]))) for client in range(9)]


def losses(model, cohort):
    return click_losses(
        model(cohort.news, cohort.history, cohort.history_mask, cohort.user, cohort.sample_history, cohort.candidates)
    )


def plain_gradient(model, cohort, reduction):
    parameters = trainable(model)
    loss = losses(model, cohort)
    loss = loss.sum() if reduction == "sum" else loss.mean()
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return {
        name: torch.zeros_like(p) if g is None else g
        for (name, p), g in zip(parameters.items(), gradients, strict=True)
    }


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_every_clients_own_gradient_equals_a_plain_loop(make_model, cohort, one_by_one, reduction):
    model = make_model(dropout=0.0)
    seen = 0
    for part in client_gradients(model, cohort, reduction, clients_at_once=4):
        for place, client in enumerate(part.clients.tolist()):
            expected = plain_gradient(model, one_by_one[client], reduction)
            for name, gradient in expected.items():
                torch.testing.assert_close(part.updates[name][place], gradient, **CLOSE)
            assert part.weights[place] == cohort.counts[client]
            seen += 1
    assert seen == 9


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_the_fused_gradient_is_the_weighted_mean_of_the_clients(make_model, cohort, reduction):
    model = make_model(dropout=0.0)
    fused = plain_sum([fused_gradient(model, cohort, reduction)], trainable(model))
    apart = plain_sum(client_gradients(model, cohort, reduction, 4), trainable(model))
    for name, update in fused.mean().items():
        torch.testing.assert_close(update, apart.mean()[name], **CLOSE)
    torch.testing.assert_close(fused.loss, apart.loss, rtol=1e-5, atol=0)
    assert fused.samples == apart.samples == cohort.counts.sum()
    assert fused.weight == apart.weight == cohort.counts.sum()


def test_local_training_equals_each_client_training_alone(make_model, cohort, one_by_one):
    model = make_model(dropout=0.0)
    start = {name: parameter.detach().clone() for name, parameter in trainable(model).items()}
    parts = list(local_training(model, cohort, "mean", steps=3, lr=0.1, clients_at_once=4))
    for part in parts:
        for place, client in enumerate(part.clients.tolist()):
            optimizer = torch.optim.SGD(trainable(model).values(), lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                losses(model, one_by_one[client]).mean().backward()
                optimizer.step()
            for name, parameter in trainable(model).items():
                torch.testing.assert_close(part.updates[name][place], start[name] - parameter, **CLOSE)
            with torch.no_grad():
                for name, parameter in trainable(model).items():
                    parameter.copy_(start[name])
    assert sum(len(part.clients) for part in parts) == 9


def test_one_local_step_is_a_scaled_gradient(nrms, cohort):
    step = plain_sum(local_training(nrms, cohort, "mean", 1, 0.3, 5), trainable(nrms)).mean()
    gradient = plain_sum([fused_gradient(nrms, cohort, "mean")], trainable(nrms)).mean()
    for name, update in step.items():
        torch.testing.assert_close(update, 0.3 * gradient[name], **CLOSE)


def test_client_work_leaves_the_model_as_it_was(nrms, cohort):
    before = {name: value.clone() for name, value in nrms.state_dict().items()}
    list(client_gradients(nrms, cohort, "sum", 4))
    list(local_training(nrms, cohort, "sum", 2, 0.1, 4))
    fused_gradient(nrms, cohort, "sum")
    assert all(torch.equal(value, before[name]) for name, value in nrms.state_dict().items())
    assert all(parameter.grad is None for parameter in nrms.parameters())


def test_clients_draw_different_dropout_masks(make_model, cohorts):
    """Two clients with the same data would get the same gradient if they shared masks."""
    model = make_model(dropout=0.5)
    draw = cohorts.of_clients(np.array([0, 0]), 0)
    parts = list(client_gradients(model, cohorts.cohort(draw), "sum", 2))
    assert any((update[0] != update[1]).any() for update in parts[0].updates.values())


def test_gradients_of_trained_words_equal_a_plain_loop(make_model, cohort, one_by_one):
    """Words are looked up among those of the cohort, or of clients together."""
    model = make_model(dropout=0.0, train_words=True)
    fused = plain_sum([fused_gradient(model, cohort, "mean")], trainable(model)).total
    expected = {name: torch.zeros_like(parameter) for name, parameter in trainable(model).items()}
    for few in client_gradients(model, cohort, "mean", clients_at_once=4):
        for name, rows in few.rows.items():
            assert few.updates[name].shape[1] == len(rows) < len(trainable(model)[name])
        part = few.whole(trainable(model))
        for place, client in enumerate(part.clients.tolist()):
            own = plain_gradient(model, one_by_one[client], "mean")
            for name, gradient in own.items():
                torch.testing.assert_close(part.updates[name][place], gradient, **CLOSE)
                expected[name] += part.weights[place] * gradient
    for name, total in expected.items():
        torch.testing.assert_close(fused[name], total, **CLOSE)


def test_updates_have_the_rows_of_read_words_alone(make_model, cohort):
    """Not where a model reads its table otherwise, as EBNR's denoising encoder does."""
    model = make_model(dropout=0.0, train_words=True)
    tables = {name for name in trainable(model) if name.endswith("words.weight") and not isinstance(model, EBNR)}
    for work in (client_gradients(model, cohort, "mean", 4), local_training(model, cohort, "mean", 2, 0.1, 4)):
        parts = list(work)
        assert all(set(part.rows) == tables for part in parts)
        few, like = plain_sum(parts, trainable(model)), trainable(model)
        whole = plain_sum([part.whole(like) for part in parts], like)
        apart = sum(part.weighted(row, like) for part in parts for row in range(len(part.clients)))
        assert all(torch.equal(few.total[name], whole.total[name]) for name in like)
        torch.testing.assert_close(apart, torch.cat([few.total[name].double().flatten() for name in like]), **CLOSE)


def test_words_are_gathered_in_the_block_alone(nrms):
    words, absent = Words.of(torch.tensor([0, 2, 5]), len(nrms.news.words.weight)), torch.tensor([[7]])
    table = nrms.news.words
    tokens = torch.tensor([[5, 2, 0], [2, 0, 0]])
    expected = table(tokens)
    with few_words(nrms, words):
        torch.testing.assert_close(table(tokens), expected, rtol=0, atol=0)
        with pytest.raises(IndexError):
            table(absent)
    torch.testing.assert_close(table(absent), table.weight[absent], rtol=0, atol=0)


def test_work_at_other_parameters_leaves_the_model_as_it_was(make_model, cohort):
    """Every module has its own parameter back, those that stand at several places of a model too."""
    model = make_model(dropout=0.0, train_words=True)
    before = dict(model.named_parameters(remove_duplicate=False))
    values = {name: value.detach().clone() for name, value in before.items()}
    moved = {name: value.detach() + 1 for name, value in trainable(model).items()}
    fused_gradient(model, cohort, "mean", moved)
    for work in (client_gradients(model, cohort, "mean", 9, moved), local_training(model, cohort, "mean", 2, 0.1, 9)):
        list(work)
    after = dict(model.named_parameters(remove_duplicate=False))
    assert [name for name in before if after.get(name) is not before[name]] == []
    assert all(torch.equal(value, values[name]) for name, value in after.items())
