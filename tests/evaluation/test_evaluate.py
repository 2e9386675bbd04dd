import numpy as np
import pytest
import torch

from fednews.data.features import news_features, take_news
from fednews.data.impressions import Impressions
from fednews.evaluation.evaluate import evaluate
from fednews.evaluation.metrics import evaluate_rankings


@pytest.mark.parametrize("batch_size", [1, 7, 1000])
def test_evaluation_equals_scoring_one_impression_at_a_time(make_model, synthetic_store, batch_size):
    model, dev = make_model(), synthetic_store.splits["dev"]
    features = news_features(synthetic_store, model.inputs, 30, 50)
    sums = evaluate(model, features, Impressions(dev, 8, batch_size), torch.device("cpu"))
    assert model.training, "the mode is what it was"

    model.eval()
    scores = []
    with torch.no_grad():
        for history, candidates in zip(dev.history, dev.candidates, strict=True):
            clicked = torch.from_numpy(history[-8:].astype(np.int64))
            shown = model.encode_news(take_news(features, torch.from_numpy(candidates.astype(np.int64))))
            if len(clicked):
                vectors = model.encode_news(take_news(features, clicked))[None]
            else:
                vectors = torch.zeros(1, 1, shown.shape[1])
            mask = torch.full(vectors.shape[:2], bool(len(clicked)))
            scores.append(model.score(model.encode_user(vectors, mask), shown[None])[0].numpy())
    expected = evaluate_rankings(np.concatenate(scores), np.asarray(dev.labels), np.asarray(dev.candidates.offsets))
    assert sums.means() == pytest.approx(expected, abs=1e-3)
    assert sums.impressions == len(dev)
