"""The two halves of a model against the whole."""

import pytest
import torch

from fednews.data.cohort import Cohort
from fednews.federated.clients import cohort_losses, trainable
from fednews.federated.split import ClientHalf, ServerHalf, news_parameters, user_parameters
from fednews.streams import Streams


@pytest.fixture
def cohort(cohorts) -> Cohort:
    return cohorts.cohort(cohorts.of_clients(cohorts.draw_clients(5, 0), 0))


def server(cohorts, at_once: int) -> ServerHalf:
    return ServerHalf(cohorts.features, at_once, Streams(3))


def test_every_trained_parameter_is_in_one_half(make_model):
    model = make_model(train_words=True)
    user, news = user_parameters(model), news_parameters(model)
    assert user.keys().isdisjoint(news)
    assert user.keys() | news.keys() == trainable(model).keys()


def test_clients_with_vectors_score_as_the_whole_model_does(make_model, cohorts, cohort):
    model = make_model(dropout=0.0).eval()
    rows = torch.arange(len(cohort.articles))
    half = ClientHalf(model, server(cohorts, 7).encode(model, cohort.articles, 0))
    split = Cohort(**{**vars(cohort), "news": {"row": rows}})
    torch.testing.assert_close(cohort_losses(half, split), cohort_losses(model, cohort), rtol=1e-4, atol=1e-5)


def gradients_of(model, cohort, vectors):
    """Of the sum of vectors times ``vectors``, through the whole graph at once."""
    parameters = news_parameters(model)
    out = torch.autograd.grad(
        (model.encode_news(cohort.news) * vectors).sum(), list(parameters.values()), allow_unused=True
    )
    return {name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(parameters.items(), out, strict=True)}


def test_chunks_give_the_gradient_of_all_news_at_once(make_model, cohorts, cohort):
    model = make_model(train_words=True, dropout=0.0).double()
    torch.manual_seed(0)
    vectors = torch.randn_like(model.encode_news(cohort.news))
    expected = gradients_of(model, cohort, vectors)
    assert any(bool(value.any()) for value in expected.values())
    for at_once in (6, 1000):
        found = server(cohorts, at_once).gradients(model, cohort.articles, vectors, 0)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-8, atol=1e-10)


def test_gradients_are_of_the_vectors_that_were_sent_dropout_included(nrms, cohorts, cohort):
    """A step against the gradient moves the vectors of the same draw by the squared norm, and no others' so far."""
    for module in nrms.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    model, half = nrms.double().train(), server(cohorts, 40)
    before = half.encode(model, cohort.articles, 2)
    assert torch.equal(before, half.encode(model, cohort.articles, 2))
    assert not torch.equal(before, half.encode(model, cohort.articles, 3))
    direction = torch.ones_like(before)
    found = half.gradients(model, cohort.articles, direction, 2)
    step = 1e-7
    with torch.no_grad():
        for name, parameter in news_parameters(model).items():
            parameter += step * found[name]
    moved = float((half.encode(model, cohort.articles, 2) - before).sum()) / step
    norm = sum(float(value.square().sum()) for value in found.values())
    assert moved == pytest.approx(norm, rel=1e-4)


def test_activations_that_are_kept_give_the_same_gradient_and_serve_once(make_model, cohorts, cohort):
    model, half = make_model(dropout=0.3).train(), server(cohorts, 1000)
    again = half.encode(model, cohort.articles, 2)
    direction = torch.randn_like(again)
    expected = half.gradients(model, cohort.articles, direction, 2)
    assert torch.equal(half.encode(model, cohort.articles, 2, keep=True), again)
    encoded = []
    model.encode_news, encode = (lambda news: encoded.append(1) or encode(news)), model.encode_news
    for calls in (0, 1):
        found = half.gradients(model, cohort.articles, direction, 2)
        assert bool(encoded) == bool(calls)
        for name, value in expected.items():
            assert torch.equal(found[name], value), name


@pytest.mark.parametrize("at_once", [64, 1000])
def test_encoding_under_autocast_does_not_cut_the_gradient(nrms, cohorts, cohort, at_once):
    half = server(cohorts, at_once)
    vectors = torch.ones_like(nrms.encode_news(cohort.news))
    expected = half.gradients(nrms, cohort.articles, vectors, 0)
    with torch.autocast("cpu", torch.bfloat16):
        half.encode(nrms, cohort.articles, 0, keep=True)
        found = half.gradients(nrms, cohort.articles, vectors, 0)
    for name, value in expected.items():
        assert (found[name] - value).norm() < 0.1 * value.norm() + 5e-3, name


def test_a_news_model_without_trained_parameters_has_no_gradient(nrms, cohorts, cohort):
    for parameter in news_parameters(nrms).values():
        parameter.requires_grad_(False)
    half = server(cohorts, 64)
    vectors = half.encode(nrms, cohort.articles, 0)
    assert half.gradients(nrms, cohort.articles, vectors, 0) == {}
