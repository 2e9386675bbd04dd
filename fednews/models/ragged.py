"""Sequences of different lengths without padding, and layers whose weights are each client's own.

On a CPU this is what clients' own gradients are made of: all their positions go through the same calls, each client's
through its own matrix products, and nothing is computed for padding.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from fednews.models.small_heads import attended, attention_gradient


@dataclass(frozen=True)
class Sequences:
    """Sequences laid one after the other, those of one client side by side.

    Attributes:
        order: int64 ``[T]``, the positions of all sequences, shorter ones first.
        shapes: for each length, how many sequences have it, and the length.
        place: int64 ``[N]``, where each sequence stands in that order.
        counts: positions of each client, which sum up to T.
    """

    order: Tensor
    shapes: list[tuple[int, int]]
    place: Tensor
    counts: list[int]

    @classmethod
    def of(cls, lengths: Tensor, counts: list[int]) -> "Sequences":
        """Sequences of ``lengths [N]``, in the order of their clients."""
        order = lengths.argsort(stable=True)
        values, sizes = lengths[order].unique_consecutive(return_counts=True)
        starts = (lengths.cumsum(0) - lengths)[order].split(sizes.tolist())
        steps = torch.arange(int(lengths.max()) if len(lengths) else 0)
        groups = [start[:, None] + steps[:length] for start, length in zip(starts, values.tolist(), strict=True)]
        positions = torch.cat([lengths[:0], *(group.flatten() for group in groups)])
        return cls(positions, [tuple(group.shape) for group in groups], order.argsort(), counts)

    def groups(self, x: Tensor) -> Iterator[Tensor]:
        """``x [T, d]`` -> for each length ``[B, L, d]``."""
        parts = x.index_select(0, self.order).split([sequences * length for sequences, length in self.shapes])
        return (part.view(*shape, x.shape[1]) for part, shape in zip(parts, self.shapes, strict=True))

    def flat(self, groups: Iterable[Tensor]) -> Tensor:
        """What :meth:`groups` gave, or others of that length, as ``[T, d]`` again."""
        parts = torch.cat([group.flatten(0, 1) for group in groups])
        return torch.empty_like(parts).index_copy_(0, self.order, parts)


def ragged_attention(qkv: Tensor, sequences: Sequences, heads: int) -> Tensor:
    """Attention within each sequence (:func:`~fednews.models.small_heads.small_heads`).

    ``[T, 3 * heads * d]`` -> ``[T, heads * d]``.
    """
    return _Attention.apply(qkv, sequences, heads)


def ragged_pool(x: Tensor, scores: Tensor, sequences: Sequences) -> Tensor:
    """Each sequence's ``x [T, d]`` weighted by the softmax of its ``scores [T]``: ``[N, d]``, 0 for an empty one."""
    parts = zip(sequences.groups(scores.unsqueeze(1)), sequences.groups(x), strict=True)
    pooled = [(score.softmax(1).transpose(1, 2) @ part).squeeze(1) for score, part in parts]
    return torch.cat(pooled)[sequences.place]


def clients_linear(x: Tensor, weight: Tensor, bias: Tensor | None, counts: Sequence[int]) -> Tensor:
    """Linear layers of several clients.

    Args:
        x: ``[T, in]``, each client's rows, one client after the other.
        weight: ``[c, out, in]``.
        bias: ``[c, out]``, or None.
        counts: rows of each client.

    Returns:
        ``[T, out]``.
    """
    return _Linear.apply(x, weight, bias, counts)


class _Attention(Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, sequences: Sequences, heads: int) -> Tensor:
        found, *kept = zip(*(attended(part, None, heads) for part in sequences.groups(qkv)), strict=True)
        ctx.save_for_backward(*(tensor for group in zip(*kept, strict=True) for tensor in group))
        ctx.sequences, ctx.heads = sequences, heads
        return sequences.flat(found)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        kept = iter(ctx.saved_tensors)
        groups = zip(ctx.sequences.groups(gradient), kept, kept, strict=True)
        return ctx.sequences.flat(attention_gradient(*group, ctx.heads) for group in groups), None, None


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, counts: Sequence[int]) -> Tensor:
        out = x.new_empty(len(x), weight.shape[1])
        for place, (rows, to) in enumerate(zip(x.split(counts), out.split(counts), strict=True)):
            if bias is None:
                torch.mm(rows, weight[place].T, out=to)
            else:
                torch.addmm(bias[place], rows, weight[place].T, out=to)
        ctx.save_for_backward(x, weight)
        ctx.counts = counts
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        parts = gradient.split(ctx.counts)
        to_x = to_weight = to_bias = None
        if ctx.needs_input_grad[0]:
            to_x = torch.empty_like(x)
            for part, own, to in zip(parts, weight, to_x.split(ctx.counts), strict=True):
                torch.mm(part, own, out=to)
        if ctx.needs_input_grad[1]:
            to_weight = weight.new_empty(weight.shape)
            for part, rows, to in zip(parts, x.split(ctx.counts), to_weight, strict=True):
                torch.mm(part.T, rows, out=to)
        if ctx.needs_input_grad[2]:
            to_bias = torch.stack([part.sum(0) for part in parts])
        return to_x, to_weight, to_bias, None
