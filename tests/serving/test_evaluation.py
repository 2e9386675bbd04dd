"""The offline evaluation of serving, against the service and against its limits."""

import math

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient

from fednews.evaluation.evaluate import evaluate
from fednews.evaluation.scorers import SharedModel
from fednews.privacy.private_attention import PrivateAttention
from fednews.privacy.user_embedding import PrivateEmbedding
from fednews.serving.evaluation import AttentionServing, EmbeddingServing, evaluate_serving, largest_multiplicity

from .conftest import BASIS

CPU = torch.device("cpu")


@pytest.fixture
def attention_serving(served, streams):
    def make(**settings) -> AttentionServing:
        mechanism = PrivateAttention(**{"noise": "laplace", "basis": BASIS} | settings)
        return AttentionServing(served.model, served.vectors, streams, served.device, mechanism)

    return make


@pytest.fixture
def embedding_serving(served, streams):
    def make(**settings) -> EmbeddingServing:
        mechanism = PrivateEmbedding(served.vectors.shape[1], **settings)
        return EmbeddingServing(served.model, served.vectors, streams, mechanism)

    return make


@pytest.fixture
def plain(served) -> dict[str, float]:
    """Metrics without any serving mechanism."""
    scorer = SharedModel.__new__(SharedModel)
    scorer.model, scorer.vectors = served.model, served.vectors
    return evaluate(scorer, served.impressions(), CPU).means()


def test_the_same_weights_give_the_service_and_the_evaluation_the_same_ranking(served, attention_serving):
    batch = next(iter(served.impressions()))
    sent = attention_serving(epsilon=3.0).attention(batch)
    scorer = attention_serving(epsilon=3.0)  # draws the same
    scores = scorer.score(batch)
    http = TestClient(served.app(k_max=1000))
    ids = list(served.store.news.id)
    for impression, row in enumerate(batch.impression_history.tolist()[:20]):
        body = {"attention": sent[row].tolist(), "k": len(ids)}
        answer = http.post("/recommend", json=body).json()["news"]
        place = {news["id"]: rank for rank, news in enumerate(answer)}
        online = {news["id"]: news["score"] for news in answer}
        start, end = batch.offsets[impression : impression + 2].tolist()
        shown = [ids[news] for news in batch.candidates[start:end].tolist()]
        offline = scores[start:end]
        assert [online[name] for name in shown] == pytest.approx(offline.tolist(), rel=1e-4, abs=1e-4)
        order = [shown[i] for i in offline.argsort(descending=True, stable=True).tolist()]
        assert len(set(np.round(offline.numpy(), 4).tolist())) > 1, "a ranking of equal scores shows nothing"
        assert [name for name in sorted(shown, key=place.get)] == order


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_epsilon_to_infinity_is_the_clean_ranking(served, attention_serving, noise):
    for epsilon in (1e7, math.inf):
        scorer = attention_serving(epsilon=epsilon, padding=0.0, noise=noise)
        for batch in served.impressions():
            torch.testing.assert_close(scorer.score(batch), scorer.clean_score(batch), rtol=1e-4, atol=1e-4)
    [row] = evaluate_serving([attention_serving(epsilon=math.inf, padding=0.0)], served.impressions())
    assert row["skew"] == 0.0
    assert row["epsilon_published"] == row["epsilon_accounted"] == math.inf


def test_without_noise_relu_is_the_plain_evaluation(served, attention_serving, plain):
    [row] = evaluate_serving(
        [attention_serving(epsilon=math.inf, padding=0.0, activation="relu")], served.impressions()
    )
    for name in ("auc", "mrr", "ndcg_5", "ndcg_10"):
        assert row[name] == pytest.approx(plain[name], abs=1e-6)


def test_an_embedding_without_noise_is_the_plain_evaluation(served, embedding_serving, plain):
    [row] = evaluate_serving([embedding_serving(epsilon=math.inf)], served.impressions())
    assert row["auc"] == pytest.approx(plain["auc"], abs=1e-6)
    assert row["skew"] == pytest.approx(0.0, abs=1e-3)  # clipping rounds


def test_noise_that_drowns_everything_ranks_at_random(served, embedding_serving):
    """AUC of a random ranking has mean 1/2; within 5 standard errors of impressions' AUCs, seed fixed."""
    [row] = evaluate_serving([embedding_serving(epsilon=1e-3)], served.impressions())
    impressions = served.impressions()
    assert row["auc"] == pytest.approx(0.5, abs=5 * 0.3 / math.sqrt(len(impressions.rows)))
    assert row["skew"] > 0.8


def test_less_budget_moves_more_ranks(served, attention_serving):
    rows = evaluate_serving([attention_serving(epsilon=e, padding=0.0) for e in (0.1, 10, 1000)], served.impressions())
    skews = [row["skew"] for row in rows]
    assert skews == sorted(skews, reverse=True)
    assert skews[0] > 2 * skews[2]


def test_padding_alone_moves_ranks_without_noise(served, attention_serving):
    [row] = evaluate_serving([attention_serving(epsilon=math.inf, padding=0.9)], served.impressions())
    assert row["skew"] > 0


def test_both_readings_stand_beside_each_other(served, attention_serving, embedding_serving):
    scorers = [attention_serving(epsilon=5.0, padding=0.0), embedding_serving(epsilon=5.0)]
    private, vanilla = evaluate_serving(scorers, served.impressions())
    assert private["epsilon_published"] == vanilla["epsilon_published"] == pytest.approx(5.0)
    assert private["epsilon_accounted"] == pytest.approx(10.0)  # L1 distance 2, published 1
    assert vanilla["epsilon_accounted"] == pytest.approx(5.0 * math.sqrt(served.vectors.shape[1]))


def test_an_evaluation_draws_the_same_again(served, attention_serving):
    first, second = (evaluate_serving([attention_serving(epsilon=1.0)], served.impressions()) for _ in range(2))
    assert first == second


def test_the_largest_multiplicity_counts_real_clicks_only():
    history = torch.tensor([[0, 0, 0, 5], [1, 2, 1, 3]])
    mask = torch.tensor([[False, False, False, True], [True] * 4])
    assert largest_multiplicity(history, mask) == 2
    assert largest_multiplicity(history[:1], mask[:1]) == 1
    assert largest_multiplicity(history, torch.zeros_like(mask)) == 1
    assert largest_multiplicity(history[:0], mask[:0]) == 1
