"""Personal models are scored as if each user's model were evaluated by itself."""

import copy

import numpy as np
import pytest
import torch

from fednews.data.features import news_features
from fednews.data.impressions import Impressions
from fednews.evaluation.scorers import Catalogue, ModelPerGroup, ModelPerUser, SharedModel, of_impressions


@pytest.fixture
def impressions(synthetic_store):
    return Impressions(synthetic_store.splits["dev"], synthetic_store.samples, 8, 1000)


@pytest.fixture
def batch(impressions):
    return impressions.batch(impressions.rows)


@pytest.fixture
def catalogue(impressions, synthetic_store, nrms):
    features = news_features(synthetic_store, nrms.inputs, 30, 50)
    return Catalogue(features, torch.from_numpy(impressions.news()), torch.device("cpu"))


def other(model, names, scale):
    """The model with some parameters changed, and those parameters."""
    changed = copy.deepcopy(model)
    with torch.no_grad():
        for name in names:
            changed.get_parameter(name).mul_(scale)
    return changed, {name: changed.get_parameter(name).detach() for name in names}


def everything(model):
    return [name for name, _ in model.named_parameters()]


def user_part(model):
    return [name for name in everything(model) if name not in model.news_parameters()]


def test_impressions_can_be_taken_out_of_a_batch(impressions, batch):
    chosen = torch.tensor([0, 3, 4])
    part = of_impressions(batch, chosen)
    alone = impressions.batch(batch.rows[chosen].numpy())
    for name in ("candidates", "offsets", "labels", "rows"):
        assert torch.equal(getattr(part, name), getattr(alone, name)), name
    for name in ("history", "history_mask", "user"):
        rows = getattr(part, name)[part.impression_history]
        assert torch.equal(rows, getattr(alone, name)[alone.impression_history]), name


@pytest.mark.parametrize("part", [everything, user_part])
def test_a_model_per_group_scores_each_user_by_the_groups_model(nrms, catalogue, batch, part):
    models, own = zip(*(other(nrms, part(nrms), scale) for scale in (1.0, 0.7, 1.4)), strict=True)
    scorer = ModelPerGroup(nrms, catalogue, list(own), lambda b: b.user % 3)
    apart = torch.stack([SharedModel(model, catalogue).score(batch) for model in models])
    owner = batch.user[batch.impression_history].repeat_interleave(batch.offsets.diff())
    torch.testing.assert_close(scorer.score(batch), apart[owner % 3, torch.arange(len(owner))])


@pytest.mark.parametrize("part", [everything, user_part])
def test_a_model_per_user_scores_each_user_by_own_parameters(nrms, catalogue, batch, part):
    scorer = ModelPerUser(nrms, catalogue, lambda client: other(nrms, part(nrms), 1 + client / 50)[1])
    scores = scorer.score(batch)
    owner = batch.user[batch.impression_history].repeat_interleave(batch.offsets.diff())
    assert owner.min() == 0, "some user is unknown"
    for user in np.unique(owner)[:6].tolist():
        model = other(nrms, part(nrms), 1 + (user - 1) / 50)[0] if user else nrms
        expected = SharedModel(model, catalogue).score(batch)[owner == user]
        torch.testing.assert_close(scores[owner == user], expected)
