import math

import pytest
import torch
from torch import nn

from fednews.models.layers import GRU, AdditiveAttention, FastDropout, SelfAttention, WordConvolution, masked_softmax


@pytest.fixture
def mask() -> torch.Tensor:
    return torch.arange(6) < torch.tensor([[6], [2], [0]])


def test_masked_softmax_equals_softmax_over_what_is_real(mask):
    values = torch.randn(3, 6) * 50
    weights = masked_softmax(values, mask)
    torch.testing.assert_close(weights[0], values[0].softmax(0))
    torch.testing.assert_close(weights[1, :2], values[1, :2].softmax(0))
    assert not weights[1, 2:].any()
    assert not weights[2].any()


def test_self_attention_equals_torchs_own(mask):
    ours = SelfAttention(8, heads=2, head_dim=4)
    theirs = nn.MultiheadAttention(8, 2, bias=False, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(ours.qkv.weight)
        theirs.out_proj.weight.copy_(torch.eye(8))
    x = torch.randn(2, 6, 8)
    expected, _ = theirs(x, x, x, key_padding_mask=~mask[:2])
    real = mask[:2]
    torch.testing.assert_close(ours(x, real)[real], expected[real], rtol=1e-5, atol=1e-6)


def test_the_convolution_equals_torchs_own_on_unpadded_text():
    ours = WordConvolution(4, 5, window=3)
    theirs = nn.Conv1d(4, 5, 3, padding=1)
    with torch.no_grad():
        theirs.weight.copy_(ours.conv.weight.view(5, 3, 4).transpose(1, 2))
        theirs.bias.copy_(ours.conv.bias)
    x = torch.randn(2, 7, 4)
    expected = theirs(x.transpose(1, 2)).transpose(1, 2).relu()
    torch.testing.assert_close(ours(x, torch.ones(2, 7, dtype=torch.bool)), expected, rtol=1e-5, atol=1e-6)


def test_the_gru_follows_its_definition_step_by_step(mask):
    gru = GRU(3, 4)
    x = torch.randn(3, 6, 3)
    (wz, wr, wn), (bz, br, bn) = gru.input.weight.chunk(3), gru.input.bias.chunk(3)
    uz, ur = gru.gates.weight.chunk(2)
    states = []
    for row in range(3):
        h = torch.zeros(4)
        for step in range(int(mask[row].sum())):
            z = torch.sigmoid(wz @ x[row, step] + bz + uz @ h)
            r = torch.sigmoid(wr @ x[row, step] + br + ur @ h)
            n = torch.tanh(wn @ x[row, step] + bn + gru.candidate.weight @ (r * h))
            h = z * h + (1 - z) * n
        states.append(h)
    torch.testing.assert_close(gru(x, mask), torch.stack(states), rtol=1e-5, atol=1e-6)


def test_additive_attention_is_a_convex_combination_and_zero_for_nothing(mask):
    pool = AdditiveAttention(4, query_dim=3)
    x = torch.ones(3, 6, 4) * torch.arange(6.0)[:, None]
    pooled = pool(x, mask)
    assert ((pooled[0] > 0) & (pooled[0] < 5)).all()
    assert ((pooled[1] > 0) & (pooled[1] < 1)).all()
    assert not pooled[2].any()


@pytest.mark.parametrize("rate", [0.2, 0.5])
def test_dropout_drops_at_its_rate_and_keeps_the_mean(rate):
    torch.manual_seed(5)
    dropped = FastDropout(rate)(torch.ones(1001, 1003))
    error = 5 * math.sqrt(rate * (1 - rate) / dropped.numel())  # passed by chance but once in 1.7 million
    assert (dropped == 0).double().mean().item() == pytest.approx(rate, abs=error)
    assert dropped.double().mean().item() == pytest.approx(1, abs=error / (1 - rate))
    assert dropped.unique().numel() == 2
    neighbours = (dropped[:, :-1] == 0) & (dropped[:, 1:] == 0)  # elements that share a draw are independent too
    assert neighbours.double().mean().item() == pytest.approx(rate**2, abs=3 * error)


def test_dropout_does_nothing_in_evaluation_or_at_rate_zero():
    x = torch.randn(3, 5)
    assert torch.equal(FastDropout(0.3).eval()(x), x)
    assert torch.equal(FastDropout(0.0)(x), x)
