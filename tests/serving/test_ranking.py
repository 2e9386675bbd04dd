import pytest
import torch

from fednews.errors import UsageError
from fednews.serving.ranking import Ranker


@pytest.fixture
def vectors(streams):
    return torch.randn(500, 24, generator=streams.torch("vectors"), dtype=torch.float64)


@pytest.fixture
def basis(streams):
    return torch.randn(5, 24, generator=streams.torch("basis"), dtype=torch.float64)


@pytest.fixture
def attention(streams):
    return torch.rand(7, 5, generator=streams.torch("attention"), dtype=torch.float64).softmax(-1)


def test_scores_are_those_of_the_rebuilt_user_vectors(vectors, basis, attention):
    rebuilt = torch.stack([sum(weight * row for weight, row in zip(user, basis, strict=True)) for user in attention])
    expected = torch.stack([torch.stack([user @ news for news in vectors[:40]]) for user in rebuilt])
    torch.testing.assert_close(Ranker(vectors, basis).scores(attention)[:, :40], expected)


@pytest.mark.parametrize("k", [1, 10, 500])
def test_the_top_k_are_the_first_of_a_whole_sort(vectors, basis, attention, k):
    ranker = Ranker(vectors, basis)
    scores, rows = ranker.top(attention, k)
    whole = ranker.scores(attention).sort(descending=True)
    torch.testing.assert_close(scores, whole.values[:, :k])
    assert torch.equal(rows, whole.indices[:, :k])


def test_a_users_ranking_does_not_depend_on_who_is_ranked_beside(vectors, basis, attention):
    ranker = Ranker(vectors, basis)
    together = ranker.top(attention, 20)[1]
    for row, user in enumerate(attention):
        assert torch.equal(ranker.top(user[None], 20)[1][0], together[row])


def test_vectors_of_two_widths_are_refused(vectors):
    with pytest.raises(UsageError, match="one width"):
        Ranker(vectors, torch.zeros(5, 8))


def test_a_diverged_model_is_refused(vectors, basis):
    vectors[3, 1] = float("nan")
    with pytest.raises(UsageError, match="not finite"):
        Ranker(vectors, basis)
