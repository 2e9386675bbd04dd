"""Ragged sequences against padded ones, and clients' layers against one after the other."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from fednews.models.layers import AdditiveAttention, Linear, SelfAttention, WordEmbedding, Words
from fednews.models.ragged import Sequences, clients_linear

CLOSE = {"rtol": 1e-6, "atol": 1e-9}
LENGTHS = torch.tensor([3, 1, 4, 0, 3, 2])
OWNERS = [range(3), range(3), range(3), range(3, 6), range(3, 6), range(3, 6)]
COUNTS = [8, 5]


@pytest.fixture
def sequences():
    return Sequences.of(LENGTHS, COUNTS)


def padded(x):
    """``[T, d]`` -> ``[N, 4, d]``, and where it is real."""
    mask = torch.arange(4) < LENGTHS[:, None]
    out = x.new_zeros(*mask.shape, x.shape[-1])
    out[mask] = x
    return out, mask


def test_groups_hold_every_position_once_and_give_it_back(sequences):
    x = torch.arange(13.0)[:, None]
    groups = list(sequences.groups(x))
    rows = [row.flatten().tolist() for group in groups for row in group]
    starts = (LENGTHS.cumsum(0) - LENGTHS).tolist()
    expected = [list(range(start, start + length)) for start, length in zip(starts, LENGTHS.tolist(), strict=True)]
    assert [rows[place] for place in sequences.place.tolist()] == expected
    assert torch.equal(sequences.flat(groups), x)


@pytest.mark.parametrize("bias", [True, False])
def test_clients_layers_equal_one_after_the_other(bias):
    x = torch.randn(13, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    offset = torch.randn(2, 3, dtype=torch.float64, requires_grad=True) if bias else None
    inputs = [tensor for tensor in (x, weight, offset) if tensor is not None]
    found = clients_linear(x, weight, offset, COUNTS)
    expected = torch.cat([
        nn.functional.linear(rows, weight[client], None if offset is None else offset[client])
        for client, rows in enumerate(x.split(COUNTS))
    ])  # fmt: skip
    torch.testing.assert_close(found, expected, **CLOSE)
    slopes = torch.randn_like(found)
    mine, theirs = (torch.autograd.grad((out * slopes).sum(), inputs) for out in (found, expected))
    torch.testing.assert_close(mine, theirs, **CLOSE)


def test_clients_layers_leave_out_gradients_that_nobody_wants():
    weight = torch.randn(2, 3, 5, requires_grad=True)
    clients_linear(torch.randn(13, 5), weight, None, COUNTS).sum().backward()
    assert weight.grad is not None


@pytest.mark.parametrize("layer", [lambda: SelfAttention(6, 2, 3), lambda: AdditiveAttention(6, 4)])
def test_a_ragged_layer_equals_the_padded_one_of_each_client(sequences, layer):
    layer = layer().double()
    stacked = {
        name: torch.randn(2, *p.shape, dtype=p.dtype, requires_grad=True) for name, p in layer.named_parameters()
    }
    x = torch.randn(13, 6, dtype=torch.float64, requires_grad=True)
    found = functional_call(_Ragged(layer), {f"layer.{n}": p for n, p in stacked.items()}, (x, sequences))
    rows, mask = padded(x)
    own = ({name: value[min(owner) // 3] for name, value in stacked.items()} for owner in OWNERS)
    outs = [functional_call(layer, at, (rows[[i]], mask[[i]]))[0] for i, at in enumerate(own)]
    if isinstance(layer, SelfAttention):
        expected = torch.cat([out[real] for out, real in zip(outs, mask, strict=True)])
    else:
        expected = torch.stack(outs)
        assert not found[3].any(), "an empty sequence pools to zero"
    torch.testing.assert_close(found, expected, **CLOSE)
    slopes = torch.randn_like(found)
    inputs = [x, *stacked.values()]
    mine, theirs = (torch.autograd.grad((out * slopes).sum(), inputs) for out in (found, expected))
    torch.testing.assert_close(mine, theirs, **CLOSE)


class _Ragged(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, sequences):
        return self.layer.ragged(x, sequences)


@pytest.mark.parametrize("few", [None, False, True], ids=["all words", "gathered here", "gathered before"])
def test_words_of_ragged_texts_are_each_clients_own(few):
    tokens, tables = torch.tensor([1, 4, 2, 4, 1]), torch.randn(2, 6, 3)
    embedding = WordEmbedding(6, 3, None, trainable=True)
    words = Words.of(torch.tensor([0, 1, 2, 4]), 6)
    del embedding.weight
    embedding.weight = tables[:, words.present] if few else tables
    expected = torch.stack([tables[client, token] for client, token in zip([0, 0, 0, 1, 1], tokens, strict=True)])
    if few is None:
        assert torch.equal(embedding.ragged(tokens, [3, 2]), expected)
        return
    with embedding.among(words, few):
        assert torch.equal(embedding.ragged(tokens, [3, 2]), expected)


def test_a_layer_without_clients_is_a_plain_one():
    layer, x = Linear(4, 3), torch.randn(2, 5, 4)
    assert torch.equal(layer(x), nn.functional.linear(x, layer.weight, layer.bias))
