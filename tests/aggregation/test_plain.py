import torch

from fednews.aggregation.plain import plain_sum
from fednews.aggregation.updates import ClientUpdates


def updates(values: torch.Tensor, weights: torch.Tensor) -> ClientUpdates:
    return ClientUpdates(torch.arange(len(weights)), {"w": values}, weights, weights, weights.long())


def test_the_mean_is_weighted_and_does_not_depend_on_the_parts():
    values, weights = torch.randn(5, 3, 2), torch.tensor([1.0, 4.0, 2.0, 0.0, 3.0])
    expected = (values * weights[:, None, None]).sum(0) / weights.sum()
    whole = plain_sum([updates(values, weights)], {"w": torch.zeros(3, 2)})
    parts = plain_sum([updates(values[i : i + 2], weights[i : i + 2]) for i in (0, 2, 4)], {"w": torch.zeros(3, 2)})
    torch.testing.assert_close(whole.mean()["w"], expected)
    torch.testing.assert_close(parts.mean()["w"], expected)
    assert whole.samples == parts.samples == 10


def test_nothing_sums_to_zeros():
    nothing = plain_sum([], {"w": torch.ones(3)})
    assert not nothing.total["w"].any()
    assert nothing.weight == nothing.samples == 0
