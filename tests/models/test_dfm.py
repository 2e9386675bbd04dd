"""DFM: inception modules and channels that may be missing."""

import pytest
import torch

from fednews.models.dfm import DFM
from fednews.models.encoders.user.channels import ChannelUser, Inception
from tests.models.entity_cases import assert_reads_entities

SMALL = {"word_dim": 6, "entity_dim": 4, "category_dim": 3, "dim": 5, "hidden": 8, "depths": (1, 2), "query_dim": 4}


@pytest.fixture
def cohort(cohorts):
    return cohorts.cohort(cohorts.of_clients(cohorts.draw_clients(8, 0), 0))


def test_an_inception_module_joins_channels_of_the_given_depths():
    module, x = Inception(4, 6, 3, (1, 3), 0.0), torch.randn(2, 4)
    channels = []
    for depth, channel in zip((1, 3), module.channels, strict=True):
        layers = [layer for layer in channel if isinstance(layer, torch.nn.Linear)]
        assert len(layers) == depth
        hidden = x
        for layer in layers:
            hidden = (hidden @ layer.weight.T + layer.bias).clamp(min=0)
        channels.append(hidden)
    torch.testing.assert_close(module(x), torch.cat(channels, 1) @ module.join.weight.T + module.join.bias)


def test_a_channel_that_says_nothing_has_no_weight():
    users = ChannelUser(5, dim=3, hidden=4, depths=(1, 2), query_dim=2, dropout=0.0)
    clicks, some, none = torch.randn(1, 4, 3), torch.ones(1, 4, dtype=torch.bool), torch.zeros(1, 4, dtype=torch.bool)
    known, unknown = torch.tensor([2]), torch.tensor([0])
    by_id, by_clicks = users.inceptions
    torch.testing.assert_close(users(clicks, none, known), by_id(users.ids(known)))
    torch.testing.assert_close(users(clicks, some, unknown), by_clicks(users.clicks(clicks, some)))
    assert not users(clicks, none, unknown).any()
    both = users(clicks, some, known)
    assert not torch.allclose(both, users(clicks, some, unknown))
    assert not torch.allclose(both, users(clicks, none, known))


def test_it_reads_entities(synthetic_store, streams, cohort):
    assert_reads_entities(lambda info: DFM(info, **SMALL), synthetic_store, streams, cohort)
