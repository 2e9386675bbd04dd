"""What every model must do, whatever its architecture."""

import pytest
import torch

from fednews.data.features import NewsInfo
from fednews.models.base import click_losses, encode_by_length, encode_users_by_length
from fednews.models.fednewsrec import FedNewsRecModel


@pytest.fixture
def cohort(cohorts):
    return cohorts.cohort(cohorts.of_clients(cohorts.draw_clients(15, 0), 0))


def scores(model, cohort) -> torch.Tensor:
    return model(
        cohort.news, cohort.history, cohort.history_mask, cohort.user, cohort.sample_history, cohort.candidates
    )


def test_padding_never_changes_a_score(make_model, cohort):
    model = make_model().eval()
    expected = scores(model, cohort)
    pad = torch.nn.functional.pad
    news = {name: pad(text, (0, 9)) if text.ndim == 2 else text for name, text in cohort.news.items()}
    history, mask = pad(cohort.history, (6, 0), value=3), pad(cohort.history_mask, (6, 0))
    padded = model(news, history, mask, cohort.user, cohort.sample_history, cohort.candidates)
    torch.testing.assert_close(padded, expected, rtol=1e-5, atol=1e-6)


def users_of(model, cohort, vectors, mask):
    return model.encode_user(vectors, mask, torch.arange(len(mask)) % 2)


def test_what_stands_under_the_mask_never_changes_a_score(make_model, cohort):
    model = make_model().eval()
    news = model.encode_news(cohort.news)
    clicks, mask = news[torch.randint(len(news), (3, 7))], torch.arange(7) >= torch.tensor([[0], [3], [6]])
    keep = mask.view(3, 7, *[1] * (clicks.ndim - 2))
    changed = torch.where(keep, clicks, torch.full_like(clicks, 50.0))
    candidates = news[:12].unflatten(0, (3, 4))
    expected = model.score(users_of(model, cohort, clicks, mask), candidates)
    torch.testing.assert_close(model.score(users_of(model, cohort, changed, mask), candidates), expected)


def test_an_empty_history_is_a_finite_user_with_finite_gradients(make_model, cohort):
    model = make_model().eval()
    news = model.encode_news(cohort.news).detach()
    clicks = news[:10].unflatten(0, (2, 5)).requires_grad_()
    mask = torch.tensor([[False] * 5, [False] * 4 + [True]])
    scores = model.score(
        model.encode_user(clicks, mask, torch.zeros(2, dtype=torch.long)), news[:6].unflatten(0, (2, 3))
    )
    assert scores.isfinite().all()
    scores.sum().backward()
    assert clicks.grad is None or clicks.grad.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_an_empty_title_is_a_finite_article(make_model, cohort):
    model = make_model().eval()
    news = {name: torch.zeros_like(column[:2]) for name, column in cohort.news.items()}
    assert model.encode_news(news).isfinite().all()


def test_every_parameter_lies_in_one_layer_and_news_layers_are_those_of_encode_news(make_model, cohort):
    model = make_model(dropout=0.0)
    layers = model.layer_of()
    assert set(layers.values()) == set(range(len(model.layers))), "no layer is empty"
    model.encode_news(cohort.news).sum().backward()
    touched = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert touched == model.news_parameters() & trained


def test_a_score_does_not_depend_on_the_rest_of_the_batch(make_model, cohorts, cohort):
    model = make_model().eval()
    whole = scores(model, cohort)
    alone = cohorts.cohort(cohorts.of_clients(cohorts.draw_clients(15, 0), 0).of_clients(torch.tensor([4]).numpy()))
    torch.testing.assert_close(scores(model, alone), whole[cohort.client == 4], rtol=1e-5, atol=1e-6)


def test_encoding_by_length_equals_encoding_at_once(make_model, cohort):
    model = make_model().eval()
    for least in (1, 50, 10_000):
        torch.testing.assert_close(
            encode_by_length(model, cohort.news, least), model.encode_news(cohort.news), rtol=1e-5, atol=1e-6
        )


def test_users_by_length_of_their_history_equal_users_at_once(make_model, cohort):
    model = make_model().eval()
    vectors = model.encode_news(cohort.news)
    at_once = model.encode_user(vectors[cohort.history], cohort.history_mask, cohort.user)
    inputs = cohort.history, cohort.history_mask, cohort.user
    for least in (1, 50, 10_000):
        torch.testing.assert_close(
            encode_users_by_length(model, vectors, *inputs, least=least), at_once, rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("train_words", [False, True])
def test_gradients_reach_every_trained_parameter_and_no_other(make_model, cohort, train_words):
    model = make_model(train_words=train_words, dropout=0.0)
    click_losses(scores(model, cohort)).sum().backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad.abs().sum() > 0, name
        else:
            assert parameter.grad is None, name


def test_padding_keeps_the_zero_vector_when_words_are_trained(make_model, cohort):
    model = make_model(train_words=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    click_losses(scores(model, cohort)).sum().backward()
    optimizer.step()
    embeddings = {m for m in model.modules() if type(m).__name__ == "WordEmbedding"}
    assert all(not embedding.weight[0].any() for embedding in embeddings)


def test_every_model_overfits_a_few_samples(make_model, cohort):
    model = make_model(train_words=True, dropout=0.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(150):
        optimizer.zero_grad()
        loss = click_losses(scores(model, cohort)).mean()
        loss.backward()
        optimizer.step()
    final = scores(model, cohort)
    auc = (final[:, :1] > final[:, 1:]).float().mean()
    assert auc > 0.95


def test_a_model_runs_in_half_precision(make_model, cohort):
    model = make_model(dropout=0.0).to(torch.bfloat16)
    losses = click_losses(scores(model, cohort))
    losses.sum().backward()
    assert losses.dtype == torch.bfloat16
    assert losses.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_saved_weights_give_the_same_scores(make_model, cohort, tmp_path):
    model = make_model().eval()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    other = make_model().eval()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    other.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    assert torch.equal(scores(other, cohort), scores(model, cohort))


def test_the_fednewsrec_model_has_the_published_number_of_uploaded_coordinates():
    """2,522,803 in the authors' Keras code, three of which are biases that a softmax cancels."""
    model = FedNewsRecModel(NewsInfo(words=50, categories=1, subcategories=1))
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == 2_522_803 - 3


def test_word_vectors_are_taken_over(synthetic_store, streams, make_model):
    info = NewsInfo(4, 2, 2, word_vectors=torch.tensor([[9.0, 9.0], [1, 1], [2, 2], [3, 3]]))
    embedding = FedNewsRecModel(info, word_dim=300).news.words
    assert embedding.weight.tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]], "padding is zero, the width is the vectors'"
