"""Client work computed together equals a plain loop over clients."""

import numpy as np
import pytest
import torch

from fednews.aggregation.plain import plain_sum
from fednews.federated import ragged_clients
from fednews.federated.clients import client_gradients, fused_gradient, local_training, trainable
from fednews.federated.parts import each_client
from fednews.federated.ragged_clients import RaggedClients
from fednews.models.base import click_losses, few_words
from fednews.models.ebnr import EBNR
from fednews.models.layers import Words

CLOSE = {"rtol": 1e-4, "atol": 1e-6}
at_once = pytest.mark.parametrize("at_once", [4, None], ids=["together", "unpadded"])


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
@at_once
def test_every_clients_own_gradient_equals_a_plain_loop(make_model, cohort, one_by_one, reduction, at_once):
    model = make_model(dropout=0.0)
    seen = 0
    for part in client_gradients(model, cohort, reduction, clients_at_once=at_once):
        for place, client in enumerate(part.clients.tolist()):
            expected = plain_gradient(model, one_by_one[client], reduction)
            for name, gradient in expected.items():
                torch.testing.assert_close(part.updates[name][place], gradient, **CLOSE)
            assert part.weights[place] == cohort.counts[client]
            seen += 1
    assert seen == 9


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@at_once
def test_the_fused_gradient_is_the_weighted_mean_of_the_clients(make_model, cohort, reduction, at_once):
    model = make_model(dropout=0.0)
    fused = plain_sum([fused_gradient(model, cohort, reduction)], trainable(model))
    apart = plain_sum(client_gradients(model, cohort, reduction, at_once), trainable(model))
    for name, update in fused.mean().items():
        torch.testing.assert_close(update, apart.mean()[name], **CLOSE)
    torch.testing.assert_close(fused.loss, apart.loss, rtol=1e-5, atol=0)
    assert fused.samples == apart.samples == cohort.counts.sum()
    assert fused.weight == apart.weight == cohort.counts.sum()


@at_once
def test_local_training_equals_each_client_training_alone(make_model, cohort, one_by_one, at_once):
    model = make_model(dropout=0.0)
    start = {name: parameter.detach().clone() for name, parameter in trainable(model).items()}
    parts = list(local_training(model, cohort, "mean", steps=3, lr=0.1, clients_at_once=at_once))
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


@at_once
def test_client_work_leaves_the_model_as_it_was(nrms, cohort, at_once):
    before = {name: value.clone() for name, value in nrms.state_dict().items()}
    list(client_gradients(nrms, cohort, "sum", at_once))
    list(local_training(nrms, cohort, "sum", 2, 0.1, at_once))
    fused_gradient(nrms, cohort, "sum")
    assert all(torch.equal(value, before[name]) for name, value in nrms.state_dict().items())
    assert all(parameter.grad is None for parameter in nrms.parameters())


def test_clients_draw_different_dropout_masks(make_model, cohorts):
    """Two clients with the same data would get the same gradient if they shared masks."""
    model = make_model(dropout=0.5)
    draw = cohorts.of_clients(np.array([0, 0]), 0)
    parts = list(client_gradients(model, cohorts.cohort(draw), "sum", 2))
    assert any((update[0] != update[1]).any() for update in parts[0].updates.values())


def test_clients_side_by_side_draw_different_dropout_masks(make_model, cohorts):
    model, cohort = make_model(dropout=0.5), cohorts.cohort(cohorts.of_clients(np.array([0]), 0))
    if model.ragged is None:
        pytest.skip("its clients compute one after the other")
    twins = RaggedClients(model, False, None, (), [cohort, cohort])
    gradients, _ = twins(trainable(model), stacked=False)
    assert any((gradient[0] != gradient[1]).any() for gradient in gradients.values())


def rows_of(part):
    return [{name: update[row] for name, update in part.updates.items()} for row in range(len(part.clients))]


def test_clients_of_few_words_are_computed_together(nrms, cohort, monkeypatch):
    """As many as may be, and one that has more by itself; what comes out does not depend on it."""
    words = [int((part.news["title"] != 0).sum()) for part in each_client(cohort)]
    monkeypatch.setattr(ragged_clients, "_WORDS_AT_ONCE", sorted(words)[-1] - 1)
    parts = list(client_gradients(nrms.eval(), cohort, "mean"))
    together = [sum(words[client] for client in part.clients.tolist()) for part in parts]
    assert [client for part in parts for client in part.clients.tolist()] == list(range(9))
    assert any(len(part.clients) > 1 for part in parts)
    assert all(few < max(words) or len(part.clients) == 1 for few, part in zip(together, parts, strict=True))
    monkeypatch.setattr(ragged_clients, "_WORDS_AT_ONCE", sum(words))
    (whole,) = client_gradients(nrms, cohort, "mean")
    rows = [update for part in parts for update in rows_of(part)]
    for found, expected in zip(rows, rows_of(whole), strict=True):
        torch.testing.assert_close(found, expected, **CLOSE)


def test_layers_that_are_not_trained_are_the_same_for_all_clients(make_model, cohort):
    model = make_model(dropout=0.0)
    frozen = [parameter for name, parameter in trainable(model).items() if model.layer_of()[name] < 2]
    for parameter in frozen:
        parameter.requires_grad_(False)
    if not trainable(model):
        pytest.skip("nothing is left to train")
    unpadded, together = (
        plain_sum(client_gradients(model, cohort, "mean", at_once), trainable(model)).total for at_once in (None, 4)
    )
    torch.testing.assert_close(unpadded, together, **CLOSE)


def test_mixed_precision_does_without_ragged_sequences(nrms, cohort):
    """Autocast does not reach into their layers."""
    with torch.autocast("cpu", torch.bfloat16):
        parts = list(client_gradients(nrms.eval(), cohort, "mean"))
    assert len(parts) == 9
    full = plain_sum(client_gradients(nrms, cohort, "mean"), trainable(nrms))
    torch.testing.assert_close(plain_sum(parts, trainable(nrms)).loss, full.loss, rtol=0.02, atol=0)


@at_once
def test_gradients_of_trained_words_equal_a_plain_loop(make_model, cohort, one_by_one, at_once):
    """Words are looked up among those of the cohort, or of clients together."""
    model = make_model(dropout=0.0, train_words=True)
    fused = plain_sum([fused_gradient(model, cohort, "mean")], trainable(model)).total
    expected = {name: torch.zeros_like(parameter) for name, parameter in trainable(model).items()}
    for few in client_gradients(model, cohort, "mean", clients_at_once=at_once):
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


@at_once
def test_updates_have_the_rows_of_read_words_alone(make_model, cohort, at_once):
    """Not where a model reads its table otherwise, as EBNR's denoising encoder does."""
    model = make_model(dropout=0.0, train_words=True)
    tables = {name for name in trainable(model) if name.endswith("words.weight") and not isinstance(model, EBNR)}
    for work in (
        client_gradients(model, cohort, "mean", at_once),
        local_training(model, cohort, "mean", 2, 0.1, at_once),
    ):
        parts = list(work)
        assert all(set(part.rows) == tables for part in parts)
        few, like = plain_sum(parts, trainable(model)), trainable(model)
        whole = plain_sum([part.whole(like) for part in parts], like)
        apart = sum(
            torch.cat([value.double().flatten() for value in part.whole_of(row, like)]) * part.weights[row].double()
            for part in parts
            for row in range(len(part.clients))
        )
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


@at_once
def test_work_at_other_parameters_leaves_the_model_as_it_was(make_model, cohort, at_once):
    """Every module has its own parameter back, those that stand at several places of a model too."""
    model = make_model(dropout=0.0, train_words=True)
    before = dict(model.named_parameters(remove_duplicate=False))
    values = {name: value.detach().clone() for name, value in before.items()}
    moved = {name: value.detach() + 1 for name, value in trainable(model).items()}
    fused_gradient(model, cohort, "mean", moved)
    for work in (
        client_gradients(model, cohort, "mean", at_once, moved),
        local_training(model, cohort, "mean", 2, 0.1, at_once),
    ):
        list(work)
    after = dict(model.named_parameters(remove_duplicate=False))
    assert [name for name in before if after.get(name) is not before[name]] == []
    assert all(torch.equal(value, values[name]) for name, value in after.items())
