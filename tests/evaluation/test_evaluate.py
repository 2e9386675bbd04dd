import numpy as np
import pytest
import torch

from fednews.data.features import news_features, take_news
from fednews.data.impressions import Impressions
from fednews.evaluation.evaluate import evaluate
from fednews.evaluation.metrics import evaluate_rankings
from fednews.evaluation.scorers import Catalogue, SharedModel


@pytest.mark.parametrize("batch_size", [1, 7, 1000])
def test_evaluation_equals_scoring_one_impression_at_a_time(make_model, synthetic_store, batch_size):
    model, dev = make_model(), synthetic_store.splits["dev"]
    features = news_features(synthetic_store, model.inputs, 30, 50, model.tokenizer)
    model.eval()
    impressions = Impressions(dev, synthetic_store.samples, 8, batch_size)
    catalogue = Catalogue(features, torch.from_numpy(impressions.news()), torch.device("cpu"))
    sums = evaluate(SharedModel(model, catalogue), impressions, torch.device("cpu"))

    users = synthetic_store.samples.client_of(dev.user) + 1
    scores = []
    with torch.no_grad():
        for user, history, candidates in zip(users, dev.history, dev.candidates, strict=True):
            clicked = torch.from_numpy(history[-8:].astype(np.int64))
            shown = model.encode_news(take_news(features, torch.from_numpy(candidates.astype(np.int64))))
            vectors = model.encode_news(take_news(features, clicked if len(clicked) else torch.zeros(1).long()))[None]
            mask = torch.full(vectors.shape[:2], bool(len(clicked)))
            state = model.encode_user(vectors, mask, torch.tensor([user]))
            scores.append(model.score(state, shown[None])[0].numpy())
    expected = evaluate_rankings(np.concatenate(scores), np.asarray(dev.labels), np.asarray(dev.candidates.offsets))
    assert sums.means() == pytest.approx(expected, abs=1e-3)
    assert sums.impressions == len(dev)
