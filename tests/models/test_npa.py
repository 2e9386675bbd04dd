import pytest
import torch

from fednews.data.features import NewsInfo
from fednews.models.base import click_losses
from fednews.models.npa import NPA

INFO = NewsInfo(words=30, categories=1, subcategories=1, users=5, title_length=8)


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = NPA(INFO, word_dim=6, filters=4, user_dim=3, query_dim=5).eval()
    with torch.no_grad():  # as if trained: readers differ visibly
        for parameter in model.parameters():
            parameter.mul_(4)
    return model


@pytest.fixture
def titles():
    titles = torch.randint(1, 30, (10, 8), generator=torch.Generator().manual_seed(1))
    return titles * (torch.arange(8) < torch.arange(1, 11)[:, None])


def as_reader_sees(model, title, query):
    """Contextual words weighted by softmax(cᵀ tanh(W q + b)), one word at a time, without padding."""
    words = [model.news.words.weight[word] for word in title if word]
    contextual = []
    for place in range(len(words)):
        window = [words[i] if 0 <= i < len(words) else torch.zeros(6) for i in range(place - 1, place + 2)]
        contextual.append(model.news.convolution.conv(torch.cat(window)).relu())
    weights = torch.stack([word @ query for word in contextual]).softmax(0)
    return sum(weight * word for weight, word in zip(weights, contextual, strict=True))


def query_of(dense, embedding):
    preference = torch.relu(dense.preference.weight @ embedding + dense.preference.bias)
    return torch.tanh(dense.projection.weight @ preference + dense.projection.bias)


@pytest.mark.parametrize("user", [0, 1, 4])
def test_scores_follow_the_papers_equations(model, titles, user):
    embedding = model.users.weight[user]
    word_query, news_query = query_of(model.word_query, embedding), query_of(model.news_query, embedding)
    news = torch.stack([as_reader_sees(model, title, word_query) for title in titles])
    weights = (news[:4] @ news_query).softmax(0)
    expected = news[4:] @ (weights @ news[:4])

    encoded = model.encode_news({"title": titles})
    reader = model.encode_user(encoded[None, :4], torch.ones(1, 4, dtype=torch.bool), torch.tensor([user]))
    torch.testing.assert_close(model.score(reader, encoded[None, 4:])[0], expected, rtol=1e-4, atol=1e-5)


def test_two_readers_with_the_same_history_are_different_users_who_score_differently(model, titles):
    encoded = model.encode_news({"title": titles})
    history, mask = encoded[:4].expand(2, 4, -1, -1), torch.ones(2, 4, dtype=torch.bool)
    first, second = model.score(model.encode_user(history, mask, torch.tensor([1, 2])), encoded.expand(2, -1, -1, -1))
    assert (first - second).abs().max() > 0.01


def test_readers_that_are_the_same_person_score_alike(model, titles):
    with torch.no_grad():
        model.users.weight[3] = model.users.weight[0]
    encoded = model.encode_news({"title": titles})
    history, mask = encoded[:4].expand(2, 4, -1, -1), torch.ones(2, 4, dtype=torch.bool)
    zero, unknown = model.score(model.encode_user(history, mask, torch.tensor([3, 0])), encoded.expand(2, -1, -1, -1))
    torch.testing.assert_close(zero, unknown)


def test_a_title_that_is_longer_than_the_data_allows_is_cut(model, titles):
    longer = torch.cat([titles, torch.full((10, 3), 7)], dim=1)
    torch.testing.assert_close(model.encode_news({"title": longer}), model.encode_news({"title": titles}))


def test_training_moves_the_embeddings_of_its_readers_alone(model, titles):
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = model.users.weight.detach().clone()
    encoded = model.encode_news({"title": titles})
    readers = model.encode_user(
        encoded[:6].unflatten(0, (2, 3)), torch.ones(2, 3, dtype=torch.bool), torch.tensor([2, 0])
    )
    click_losses(model.score(readers, encoded[6:].unflatten(0, (2, 2)))).sum().backward()
    optimizer.step()
    moved = (model.users.weight != before).any(1)
    assert moved.tolist() == [False, False, True, False, False]


def test_the_parameters_are_those_of_the_papers_layers():
    model = NPA(NewsInfo(words=50, categories=1, subcategories=1, users=10))
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert trained == (3 * 300 + 1) * 400 + 10 * 50 + 2 * ((50 + 1) * 200 + (200 + 1) * 400)
