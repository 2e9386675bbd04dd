import pytest
import torch
from scipy import stats

from fednews.errors import UsageError
from fednews.privacy.history_padding import HistoryPadding

R0 = torch.tensor([9.0, 9.0])


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("p", [0.05, 0.2, 0.5])
def test_clicks_are_replaced_with_probability_p_independently(p):
    drawn = HistoryPadding(p).draw((20_000, 10), generator()).numpy()
    assert stats.binomtest(int(drawn.sum()), drawn.size, p).pvalue > 1e-4
    both = (drawn[:, 0] & drawn[:, 1]).sum()
    assert stats.binomtest(int(both), len(drawn), p * p).pvalue > 1e-4


def test_only_real_clicks_become_the_anonymous_news_and_the_rest_stays():
    history = torch.randn(500, 8, 2, generator=generator())
    mask = torch.arange(8) >= 3
    mask = mask.expand(500, 8)
    padded = HistoryPadding(0.4)(history, mask, R0, generator(1))
    replaced = HistoryPadding(0.4).draw((500, 8), generator(1)) & mask
    assert torch.equal(padded[replaced], R0.expand(int(replaced.sum()), 2))
    assert torch.equal(padded[~replaced], history[~replaced])
    assert 0 < int(replaced.sum()) < mask.sum()


def test_no_padding_is_the_history_as_it_is():
    history = torch.randn(5, 8, 2, generator=generator())
    assert torch.equal(HistoryPadding(0.0)(history, torch.ones(5, 8, dtype=torch.bool), R0, generator()), history)


@pytest.mark.parametrize("p", [-0.1, 1.0, 2.0])
def test_a_rate_that_is_no_probability_below_one_is_refused(p):
    with pytest.raises(UsageError, match="padding"):
        HistoryPadding(p)
