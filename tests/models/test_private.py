"""PrivateRec's model over its bases: padding tokens, the anonymous news, and what is refused."""

import pytest
import torch

from fednews.data.features import NewsInfo
from fednews.errors import UsageError
from fednews.models.base import click_losses
from fednews.models.private import PrivateRecModel
from tests.conftest import MODELS


def make(store, streams, base, **settings):
    with streams.torch_global("test_model"):
        info = NewsInfo.of(store, None, streams)
        return PrivateRecModel(info, lambda info: MODELS[base](info, dropout=0.0, **settings), basis=4)


@pytest.mark.parametrize("base", ["nrms", "naml", "plm_nr"])
def test_the_padding_vector_fills_short_titles_and_makes_the_anonymous_news(synthetic_store, streams, cohorts, base):
    model = make(synthetic_store, streams, base)
    cohort = cohorts.cohort(cohorts.of_clients(cohorts.draw_clients(4, 0), 0))
    news, r0 = model.encode_news(cohort.news), model.anonymous_news()
    with torch.no_grad():
        model.padding += 1.0
    assert (model.encode_news(cohort.news) - news).abs().amax(1).min() > 0, "every title here is shorter than 30"
    assert (model.anonymous_news() - r0).abs().max() > 0
    scores = model(
        cohort.news, cohort.history, cohort.history_mask, cohort.user, cohort.sample_history, cohort.candidates
    )
    click_losses(scores).sum().backward()
    assert model.padding.grad.abs().max() > 0, "trained, though the table of words is frozen"
    assert model.basis.grad.abs().max() > 0


def test_the_anonymous_news_is_the_news_of_an_empty_title(synthetic_store, streams):
    model = make(synthetic_store, streams, "nrms")
    torch.testing.assert_close(
        model.encode_news({"title": torch.zeros(3, 7, dtype=torch.long)})[2], model.anonymous_news()
    )


@pytest.mark.parametrize(
    ("base", "message"),
    [("fm", "no titles word by word"), ("ebnr", "no titles word by word"), ("dkn", "no vectors before")],
)
def test_bases_without_words_or_user_vectors_are_refused(synthetic_store, streams, base, message):
    with pytest.raises(UsageError, match=message):
        make(synthetic_store, streams, base)


def test_a_single_basis_vector_is_refused(synthetic_store, streams):
    with pytest.raises(UsageError, match="at least 2"):
        PrivateRecModel(NewsInfo.of(synthetic_store, None, streams), MODELS["nrms"], basis=1)
