"""FM against a dense factorization machine over explicit features."""

import pytest
import torch

from fednews.data.features import NewsInfo
from fednews.models.encoders.news.features import FIELDS
from fednews.models.fm import FM
from tests.models.entity_cases import assert_reads_entities

INFO = NewsInfo(words=8, categories=3, subcategories=4, users=5, entities=4)
SIZES = {"category": 3, "subcategory": 4, "title": 8, "title_entities": 4}


@pytest.fixture
def cohort(cohorts):
    return cohorts.cohort(cohorts.of_clients(cohorts.draw_clients(8, 0), 0))


def features(news: dict[str, torch.Tensor], row: int) -> torch.Tensor:
    """The explicit feature vector of one news, fields one after the other; value 0 of a field is no feature."""
    parts = []
    for field in FIELDS:
        values = news[field][row].reshape(-1)
        values = values[values != 0]
        x = torch.zeros(SIZES[field])
        for value in values.tolist():
            x[value] += 1 / len(values)
        parts.append(x)
    return torch.cat(parts)


def dense_fm(x: torch.Tensor, bias: float, weights: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Rendle 2010, eq. 1, pair by pair."""
    pairs = [
        (factors[i] @ factors[j]) * x[i] * x[j] for i in range(len(x)) for j in range(i + 1, len(x)) if x[i] and x[j]
    ]
    return bias + weights @ x + sum(pairs)


def table(factors) -> torch.Tensor:
    return torch.cat([factors.tables[field].weight for field in FIELDS])


def test_scores_differ_from_a_dense_factorization_machines_by_one_number_a_user():
    torch.manual_seed(0)
    model = FM(INFO, factors=3)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
        parameter.data[0] = 0.0
    news = {
        "category": torch.tensor([1, 2, 0, 1, 2]),
        "subcategory": torch.tensor([3, 0, 1, 3, 2]),
        "title": torch.tensor([[2, 3, 2, 7], [4, 0, 0, 0], [5, 6, 5, 5], [1, 2, 3, 0], [0, 0, 0, 0]]),
        "title_entities": torch.tensor([[1, 0, 1, 2], [0, 0, 0, 0], [3, 3, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]]),
    }
    history, mask = torch.tensor([[0, 2, 3], [0, 0, 1], [0, 0, 0]]), torch.tensor([[1, 1, 1], [0, 0, 1], [0, 0, 0]])
    user = torch.tensor([2, 0, 4])
    encoded = model.encode_news(news)
    states = model.encode_user(encoded[history], mask.bool(), user)
    scores = model.score(states, encoded.expand(3, -1, -1))

    width = sum(SIZES.values())
    factors = torch.cat([model.user.tables["user"].weight, table(model.clicked), table(model.candidate)]).detach()
    # The bias and the linear weights of the user's side are what the model leaves out: any will do.
    weights = torch.cat([torch.randn(5 + width), table(model.linear)[:, 0].detach()])
    for row in range(3):
        clicked = [features(news, int(h)) for h in history[row][mask[row].bool()]]
        side = torch.zeros(5)
        side[user[row]] = float(user[row] != 0)
        average = torch.stack(clicked).mean(0) if clicked else torch.zeros(width)
        dense = [dense_fm(torch.cat([side, average, features(news, c)]), 0.7, weights, factors) for c in range(5)]
        torch.testing.assert_close(scores[row].log_softmax(0), torch.stack(dense).log_softmax(0), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(scores[row] - scores[row, 0], torch.stack(dense) - dense[0], rtol=1e-4, atol=1e-4)


def test_a_news_that_training_never_saw_anything_of_scores_nothing():
    model = FM(INFO, factors=3)
    news = {field: torch.zeros((1, 2) if "title" in field else 1, dtype=torch.long) for field in FIELDS}
    encoded = model.encode_news(news)
    user = model.encode_user(torch.randn(1, 4, 7), torch.ones(1, 4, dtype=torch.bool), torch.tensor([3]))
    assert not model.score(user, encoded[None]).any()


def test_it_reads_entities(synthetic_store, streams, cohort):
    assert_reads_entities(lambda info: FM(info, factors=4), synthetic_store, streams, cohort)
