"""DAN: the LSTM against torch's own, attention at every step against a plain loop, its entities."""

import pytest
import torch
from torch import nn

from fednews.data.features import NewsInfo
from fednews.models.dan import DAN
from fednews.models.encoders.user.candidate_aware import LSTM, attend_at_every_step, pack, unpack
from tests.models.entity_cases import assert_reads_entities

SMALL = {"word_dim": 6, "entity_dim": 4, "filters": 3, "windows": (1, 2), "dim": 5, "attention_dim": 4}


@pytest.fixture
def cohort(cohorts):
    return cohorts.cohort(cohorts.of_clients(cohorts.draw_clients(8, 0), 0))


def test_the_lstm_equals_torchs_own_and_waits_at_padding():
    ours, theirs = LSTM(3, 4), nn.LSTM(3, 4, batch_first=True)
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(ours.input.weight)
        theirs.bias_ih_l0.copy_(ours.input.bias)
        theirs.weight_hh_l0.copy_(ours.state.weight)
        theirs.bias_hh_l0.zero_()
    x, starts = torch.randn(3, 6, 3), [0, 4, 6]
    states = ours(x, torch.arange(6) >= torch.tensor(starts)[:, None])
    for row, start in enumerate(starts):
        assert not states[row, :start].any()
        if start < 6:
            expected, _ = theirs(x[row : row + 1, start:])
            torch.testing.assert_close(states[row, start:], expected[0], rtol=1e-5, atol=1e-6)
    behind = ours(x, (torch.arange(6) < 2).expand(3, -1))
    assert torch.equal(behind[:, 2:], behind[:, 1:2].expand(-1, 4, -1))


def test_attention_at_every_step_sees_the_past_alone():
    logits, states = torch.randn(3, 2, 5) * 3, torch.randn(3, 5, 4)
    mask = torch.arange(5) >= torch.tensor([[0], [3], [5]])
    found = attend_at_every_step(logits, mask, states)
    for row, first in enumerate((0, 3)):
        for candidate in range(2):
            steps = [
                logits[row, candidate, first : t + 1].softmax(0) @ states[row, first : t + 1] for t in range(first, 5)
            ]
            torch.testing.assert_close(found[row, candidate], torch.stack(steps).mean(0), rtol=1e-5, atol=1e-6)
    assert not found[2].any()


def test_what_is_packed_is_unpacked_without_what_stands_at_padding():
    mask = torch.tensor([[False, True]])
    a, b = torch.full((1, 2, 3), 7.0), torch.full((1, 2, 1), 8.0)
    a[0, 0, 0] = torch.nan
    real, first, second = unpack(pack(mask, a, b), 3, 1)
    assert torch.equal(real, mask)
    assert first.tolist() == [[[0, 0, 0], [7, 7, 7]]]
    assert second.tolist() == [[[0], [8]]]


def test_the_order_of_clicks_matters():
    model = DAN(NewsInfo(9, 1, 1), **SMALL).eval()
    clicks, candidates, user = torch.randn(1, 4, 5), torch.randn(1, 3, 5), torch.zeros(1, dtype=torch.long)
    mask = torch.ones(1, 4, dtype=torch.bool)
    forwards, backwards = (
        model.score(model.encode_user(history, mask, user), candidates) for history in (clicks, clicks.flip(1))
    )
    assert not torch.allclose(forwards, backwards)


def test_both_attentions_know_the_candidate():
    """The same candidate in other company scores the same; the user's vector differs between candidates."""
    model = DAN(NewsInfo(9, 1, 1), **SMALL).eval()
    clicks, candidates = torch.randn(1, 4, 5), torch.randn(1, 3, 5)
    user = model.encode_user(clicks, torch.ones(1, 4, dtype=torch.bool), torch.zeros(1, dtype=torch.long))
    scores = model.score(user, candidates)
    torch.testing.assert_close(model.score(user, candidates[:, 1:2]), scores[:, 1:2])
    doubled = model.score(user, 2 * candidates)
    assert not torch.allclose(doubled, 2 * scores), "a user vector that is fixed would double the score"


def test_it_reads_entities(synthetic_store, streams, cohort):
    assert_reads_entities(lambda info: DAN(info, **SMALL), synthetic_store, streams, cohort)
