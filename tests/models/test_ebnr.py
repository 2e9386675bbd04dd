import numpy as np
import pytest
import torch

from fednews.data.features import NewsInfo, news_features
from fednews.data.tables import TRAIN
from fednews.errors import DataError
from fednews.federated.clients import trainable
from fednews.models.base import click_losses
from fednews.models.ebnr import EBNR
from fednews.models.encoders.news.denoising import BagOfWords, Triplets, reconstruction_loss, triplet_loss

CATEGORY = torch.tensor([2, 0, 1, 2, 1, 3, 0, 2])


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def encoder():
    torch.manual_seed(0)
    encoder = BagOfWords(words=20, dim=6, corruption=0.3, trainable=True)
    with torch.no_grad():
        encoder.bias.normal_()
    return encoder


def test_the_encoder_is_the_papers_formula_on_the_binary_bag(encoder):
    tokens = torch.tensor([[5, 9, 5, 0, 0], [2, 3, 4, 19, 2]])
    x = torch.zeros(2, 20)
    x[0, [5, 9]] = x[1, [2, 3, 4, 19]] = 1.0
    expected = torch.sigmoid(0.7 * x @ encoder.words.weight + encoder.bias) - torch.sigmoid(encoder.bias)
    torch.testing.assert_close(encoder(tokens), expected)


def test_an_article_without_a_known_word_is_like_no_other(encoder):
    assert not encoder(torch.tensor([[0, 0, 0], [1, 1, 0]])).any()


def test_neither_order_nor_repetition_nor_unknown_words_matter(encoder):
    same = torch.tensor([[4, 7, 0, 0, 0], [7, 4, 7, 4, 0], [0, 1, 7, 1, 4]])
    torch.testing.assert_close(encoder(same), encoder(same[:1]).expand(3, -1))


def test_triplets_hold_a_companion_and_a_stranger_and_every_anchor_once():
    triplets, seen = Triplets(CATEGORY), set()
    for seed in range(40):
        anchor, companion, stranger = triplets.draw(generator(seed))
        assert sorted(anchor.tolist()) == [0, 2, 3, 4, 7], "unknown and lone categories are no anchors"
        assert (companion != anchor).all()
        assert (CATEGORY[companion] == CATEGORY[anchor]).all()
        assert (CATEGORY[stranger] != CATEGORY[anchor]).all()
        assert (CATEGORY[stranger] != 0).all()
        seen |= {(a, c) for a, c in zip(anchor.tolist(), companion.tolist(), strict=True)}
        seen |= {(a, s) for a, s in zip(anchor.tolist(), stranger.tolist(), strict=True)}
    known = CATEGORY.nonzero().flatten().tolist()
    assert seen == {(a, other) for a in (0, 2, 3, 4, 7) for other in known if other != a}, "every pair can be drawn"


@pytest.mark.parametrize("category", [[0, 0, 0], [1, 1, 0], [1, 2, 3]])
def test_categories_that_teach_nothing_are_refused(category):
    with pytest.raises(DataError, match="two categories"):
        Triplets(torch.tensor(category))


def test_reconstruction_is_cross_entropy_over_the_vocabulary():
    logits, bag = torch.randn(3, 9), torch.tensor([[2, 5, 8], [3, 0, 0], [4, 4, 6]])
    present = torch.tensor([[True] * 3, [True, False, False], [True, False, True]])
    x = torch.zeros(3, 9)
    x[0, [2, 5, 8]] = x[1, 3] = x[2, [4, 6]] = 1.0
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(1)
    torch.testing.assert_close(reconstruction_loss(logits, bag, present), expected)


def test_the_triplet_loss_is_the_papers():
    anchor, companion, stranger = torch.randn(3, 4, 5)
    expected = [torch.log(1 + torch.exp(a @ s - a @ c)) for a, c, s in zip(anchor, companion, stranger, strict=True)]
    torch.testing.assert_close(triplet_loss(anchor, companion, stranger), torch.stack(expected))


@pytest.fixture
def make_ebnr(synthetic_store, streams):
    def make(**settings):
        torch.manual_seed(1)
        info = NewsInfo.of(synthetic_store, None, streams)
        return EBNR(info, dim=20, state_dim=10, **{"dropout": 0.0, "pretrain_batch_size": 32} | settings)

    return make


@pytest.fixture
def news(synthetic_store):
    return news_features(synthetic_store, EBNR.inputs, 30, 50)


@pytest.fixture
def train(synthetic_store):
    split = synthetic_store.split(TRAIN)
    return torch.from_numpy(np.unique(np.concatenate([split.candidates.values, split.history.values])).astype(np.int64))


def taken(news, rows):
    return {name: column[rows] for name, column in news.items()}


def alike(model, news) -> float:
    """Chance that two articles of one category have a larger product than two of different ones."""
    vectors = model.encode_news(news).detach()
    pair = torch.ones(len(vectors), len(vectors), dtype=torch.bool).triu(1)
    same = (news["category"][:, None] == news["category"])[pair]
    products = (vectors @ vectors.T)[pair]
    return float((products[same][:, None] > products[~same][None, ::17]).float().mean())


def test_pretraining_makes_articles_of_one_category_alike_unseen_ones_too(make_ebnr, news, train):
    unseen = train[::4]
    seen = train[~torch.isin(train, unseen)]
    model = make_ebnr(pretrain_epochs=30)
    before = alike(model, taken(news, unseen))
    model.pretrain(taken(news, seen), generator())
    assert alike(model, taken(news, unseen)) > max(0.7, before + 0.1)


def test_the_autoencoder_learns_words_that_go_together_without_categories_weight(make_ebnr):
    """Two kinds of articles with words of their own: reconstruction alone must tell them apart."""
    first = torch.randint(2, 12, (120, 6), generator=generator())
    title = torch.cat([first, first + 10])
    category = torch.arange(240) % 2 + 1  # says nothing of the words
    news = {"title": title, "abstract": torch.zeros_like(title), "category": category}
    model = make_ebnr(pretrain_epochs=60, triplet_weight=0.0)
    model.pretrain(news, generator())
    assert alike(model, news | {"category": torch.arange(240) // 120}) > 0.9


def test_pretraining_is_a_function_of_its_generator(make_ebnr, news, train):
    weights = []
    for seed in (3, 3, 4):
        model = make_ebnr(pretrain_epochs=1)
        torch.manual_seed(len(weights))
        model.pretrain(taken(news, train), generator(seed))
        weights.append(model.news.words.weight.detach())
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("train_news", [False, True])
def test_the_news_encoder_is_frozen_unless_it_is_to_be_trained(make_ebnr, news, train, train_news):
    model = make_ebnr(train_news=train_news, pretrain_epochs=1)
    model.pretrain(taken(news, train), generator())
    everything = {name for name, _ in model.named_parameters()}
    assert set(trainable(model)) == (everything if train_news else everything - model.news_parameters())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_no_epochs_leave_the_encoder_as_it_is(make_ebnr, news, train):
    model = make_ebnr(pretrain_epochs=0)
    before = model.news.words.weight.clone()
    model.pretrain(taken(news, train), generator())
    assert torch.equal(model.news.words.weight, before)


def test_clicks_are_learned_by_the_user_model_alone(make_ebnr, news, train, cohorts):
    model = make_ebnr(pretrain_epochs=5)
    model.pretrain(taken(news, train), generator())
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    cohort = cohorts.cohort(cohorts.of_clients(cohorts.draw_clients(15, 0), 0))
    optimizer = torch.optim.Adam(trainable(model).values(), lr=0.02)
    losses = []
    for _ in range(60):
        scores = model(
            cohort.news, cohort.history, cohort.history_mask, cohort.user, cohort.sample_history, cohort.candidates
        )
        losses.append(click_losses(scores).mean())
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0] - 0.3
    moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, start[name])}
    assert moved == set(start) - model.news_parameters()


def test_a_user_without_history_is_the_learned_first_state(make_ebnr):
    model = make_ebnr()
    with torch.no_grad():
        model.user.initial.normal_()
    vectors = model.encode_user(torch.randn(2, 3, 20), torch.zeros(2, 3, dtype=torch.bool), torch.zeros(2).long())
    expected = torch.tanh(model.user.decode.weight @ model.user.initial + model.user.decode.bias)
    torch.testing.assert_close(vectors, expected.expand(2, -1))


def test_the_parameters_are_those_of_the_papers_layers():
    model = EBNR(NewsInfo(words=50, categories=1, subcategories=1))
    user = 200 + 3 * (500 + 200 + 1) * 200 + (200 + 1) * 500
    assert sum(parameter.numel() for parameter in trainable(model).values()) == user
    assert sum(parameter.numel() for parameter in model.parameters()) == user + 50 * 500 + 500
