"""Attention of small heads against torch's own."""

import pytest
import torch
from torch.nn import functional as F

from fednews.models.small_heads import small_heads

CLOSE = {"rtol": 1e-6, "atol": 1e-9}


def torchs_own(qkv, mask, heads):
    q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in qkv.chunk(3, -1))
    return F.scaled_dot_product_attention(q, k, v, mask[:, None, None, :]).transpose(1, 2).flatten(2)


@pytest.fixture
def mask():
    return torch.arange(5) < torch.tensor([[5], [2], [1]])


@pytest.mark.parametrize("length", [1, 5, 15, 16, 40])
def test_values_and_gradients_equal_torchs_own(length):
    """Rows shorter than a vector register are computed otherwise."""
    mask = torch.arange(length) < torch.tensor([[length], [-(-length // 2)], [1]])
    qkv = torch.randn(3, length, 3 * 4 * 6, dtype=torch.float64, requires_grad=True)
    found, expected = small_heads(qkv, mask, 4), torchs_own(qkv, mask, 4)
    torch.testing.assert_close(found, expected, **CLOSE)
    weights = torch.randn_like(found)
    mine, theirs = (torch.autograd.grad((out * weights).sum(), qkv)[0] for out in (found, expected))
    torch.testing.assert_close(mine, theirs, **CLOSE)


def test_a_row_without_a_real_key_is_finite(mask):
    qkv = torch.randn(3, 5, 24, requires_grad=True)
    out = small_heads(qkv, torch.zeros_like(mask), 2)
    assert out.isfinite().all()
    assert torch.autograd.grad(out.sum(), qkv)[0].isfinite().all()


def test_scores_far_apart_neither_overflow_nor_lose_their_order(mask):
    qkv = torch.randn(3, 5, 24) * 1e4
    torch.testing.assert_close(small_heads(qkv, mask, 2), torchs_own(qkv, mask, 2))


def test_no_positions_give_no_positions():
    qkv = torch.randn(3, 0, 24, requires_grad=True)
    out = small_heads(qkv, torch.zeros(3, 0, dtype=torch.bool), 2)
    assert out.shape == (3, 0, 8)
    assert torch.autograd.grad(out.sum(), qkv)[0].shape == qkv.shape


def test_mapped_over_clients_it_equals_a_loop(mask):
    qkv = torch.randn(2, 3, 5, 24, dtype=torch.float64)
    masks = torch.stack([mask, mask.flip(0)])

    def gradient(qkv, mask):
        return torch.func.grad(lambda x: small_heads(x, mask, 2).square().sum())(qkv)

    for shared in (False, True):
        found = torch.func.vmap(gradient, in_dims=(0, None if shared else 0))(qkv, mask if shared else masks)
        for client in range(2):
            expected = gradient(qkv[client], mask if shared else masks[client])
            torch.testing.assert_close(found[client], expected, **CLOSE)


def test_there_is_no_second_derivative(mask):
    qkv = torch.randn(3, 5, 24, requires_grad=True)
    (slope,) = torch.autograd.grad(small_heads(qkv, mask, 2).square().sum(), qkv, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        torch.autograd.grad(slope.sum(), qkv)
