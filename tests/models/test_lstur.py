import pytest
import torch

from fednews.data.features import NewsInfo
from fednews.models.encoders.user.personal import LongTermUser
from fednews.models.layers import GRU
from fednews.models.lstur import LSTUR

INFO = NewsInfo(words=30, categories=4, subcategories=6, users=5)
KNOWN, UNKNOWN = torch.tensor([3]), torch.tensor([0])


@pytest.fixture
def make_lstur():
    def make(variant, **settings):
        torch.manual_seed(0)
        settings = {"word_dim": 6, "filters": 7, "topic_dim": 3, "query_dim": 4} | settings
        model = LSTUR(INFO, variant, **settings)
        with torch.no_grad():  # as if trained
            model.long.embedding.weight[1:].normal_()
        return model

    return make


@pytest.fixture
def news():
    return {
        "title": torch.randint(1, 30, (6, 5)),
        "category": torch.tensor([0, 1, 2, 3, 1, 2]),
        "subcategory": torch.tensor([5, 4, 3, 2, 1, 0]),
    }


def history(length=4, dim=13):
    return torch.randn(1, length, dim), torch.ones(1, length, dtype=torch.bool)


def test_a_gru_goes_on_from_the_state_it_is_given():
    gru, (x, mask) = GRU(13, 4), history(length=7)
    torch.testing.assert_close(gru(x[:, 3:], mask[:, 3:], gru(x[:, :3], mask[:, :3])), gru(x, mask))
    state = torch.randn(1, 4)
    assert torch.equal(gru(x, torch.zeros_like(mask), state), state)


def test_a_news_is_title_topic_and_subtopic_side_by_side(make_lstur, news):
    model = make_lstur("ini").eval()
    title, topic, subtopic = model.encode_news(news).split([7, 3, 3], dim=-1)
    torch.testing.assert_close(title, model.title(news["title"]))
    assert torch.equal(topic, model.category.weight[news["category"]])
    assert torch.equal(subtopic, model.subcategory.weight[news["subcategory"]])


def test_ini_starts_the_gru_at_the_long_term_vector(make_lstur):
    model, (clicks, mask) = make_lstur("ini").eval(), history()
    long = model.long.embedding.weight[3:4]
    torch.testing.assert_close(model.encode_user(clicks, mask, KNOWN), model.short(clicks, mask, long))
    assert torch.equal(model.encode_user(clicks, ~mask, KNOWN), long), "without clicks it is all there is"


def test_con_puts_the_long_term_vector_beside_the_short_term_one(make_lstur):
    model, (clicks, mask) = make_lstur("con").eval(), history()
    short, long = model.encode_user(clicks, mask, KNOWN).split([7, 6], dim=-1)
    torch.testing.assert_close(short, model.short(clicks, mask))
    assert torch.equal(long, model.long.embedding.weight[3:4])


@pytest.mark.parametrize("variant", ["ini", "con"])
@pytest.mark.parametrize("filters", [6, 7])
def test_users_are_as_wide_as_news(make_lstur, news, variant, filters):
    model = make_lstur(variant, filters=filters)
    vectors = model.encode_news(news)
    assert model.encode_user(vectors[None], torch.ones(1, 6, dtype=torch.bool), KNOWN).shape == vectors[:1].shape


@pytest.mark.parametrize("variant", ["ini", "con"])
def test_an_unknown_user_is_one_whose_long_term_vector_is_masked(make_lstur, variant):
    model, (clicks, mask) = make_lstur(variant, masking=1.0, dropout=0.0), history()
    unknown = model.encode_user(clicks, mask, UNKNOWN)
    assert torch.equal(model.encode_user(clicks, mask, KNOWN), unknown)
    assert not torch.equal(model.eval().encode_user(clicks, mask, KNOWN), unknown), "masking is for training alone"


@pytest.mark.parametrize("variant", ["ini", "con"])
def test_a_user_who_was_never_trained_acts_like_an_unknown_one(variant):
    model, (clicks, mask) = LSTUR(INFO, variant, word_dim=6, filters=7, topic_dim=3).eval(), history()
    assert torch.equal(model.encode_user(clicks, mask, KNOWN), model.encode_user(clicks, mask, UNKNOWN))


def test_masking_hides_whole_vectors_with_its_probability():
    long = LongTermUser(2, 8, masking=0.3)
    with torch.no_grad():
        long.embedding.weight[1] = 2.0
    vectors = long(torch.ones(20_000, dtype=torch.long))
    hidden = (vectors == 0).all(1)
    assert (vectors[~hidden] == 2.0).all(), "what is not hidden is not scaled"
    assert hidden.float().mean() == pytest.approx(0.3, abs=0.02)  # six standard deviations


@pytest.mark.parametrize(("variant", "long", "short"), [("ini", 500, 500), ("con", 250, 250)])
def test_the_parameters_are_those_of_the_papers_layers(variant, long, short):
    model = LSTUR(NewsInfo(words=50, categories=18, subcategories=270, users=10), variant)
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    title = (3 * 200 + 1) * 300 + (300 + 1) * 200 + 200
    gru = 3 * (500 + short + 1) * short
    assert trained == title + (18 + 270) * 100 + 10 * long + gru
