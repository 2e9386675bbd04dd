"""FCF's user factor is the minimum of the implicit-feedback objective."""

import pytest
import torch

from fednews.data.features import NewsInfo
from fednews.errors import UsageError
from fednews.models.fcf import FCF


@pytest.fixture
def model():
    torch.manual_seed(1)
    return FCF(NewsInfo(1, 1, 1, news=20), factors=5, alpha=3.0, regularization=0.5).double()


def user(model, articles: list[int], padding: int = 0) -> torch.Tensor:
    history = torch.tensor([[0] * padding + articles])
    mask = torch.arange(history.shape[1])[None] >= padding
    return model.encode_user(model.encode_news({"news": history[0]})[None], mask, torch.zeros(1, dtype=torch.long))[0]


def objective(model, p: torch.Tensor, clicked: set[int]) -> torch.Tensor:
    """Article by article."""
    total = model.regularization * p @ p
    for article, q in enumerate(model.items.weight):
        r = float(article in clicked)
        total = total + (1 + model.alpha * r) * (r - p @ q) ** 2
    return total


@pytest.mark.parametrize("clicked", [{4}, {3, 7, 11}, set(range(20))])
def test_the_users_factor_minimises_the_objective(model, clicked):
    p = user(model, sorted(clicked)).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(objective(model, p, clicked), p)
    torch.testing.assert_close(gradient, torch.zeros(5).double(), rtol=0, atol=1e-10)


def test_without_a_click_the_factor_is_zero_and_padding_changes_nothing(model):
    assert not user(model, [], padding=3).any()
    torch.testing.assert_close(user(model, [3, 7], padding=4), user(model, [3, 7]))


def test_an_article_clicked_twice_counts_once(model):
    torch.testing.assert_close(user(model, [7, 3, 7, 7]), user(model, [3, 7]))


def test_clicked_articles_score_higher_than_before_the_click(model):
    for article in set(range(20)) - {5}:
        assert user(model, [article, 5]) @ model.items.weight[article] > user(model, [5]) @ model.items.weight[article]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_solved_in_float32(model, dtype):
    expected = user(model, [3, 7])
    low = user(model.to(dtype), [3, 7])
    assert low.dtype == dtype
    torch.testing.assert_close(low.double(), expected, rtol=0.05, atol=0.02)


def test_without_regularization_a_user_is_not_determined():
    with pytest.raises(UsageError, match="regularization must be positive"):
        FCF(NewsInfo(1, 1, 1, news=20), regularization=0.0)
