"""Sequences of different lengths without padding, and layers whose weights are each client's own.

On a CPU this is what clients' own gradients are made of: all their positions go through the same calls, each client's
through its own matrix products, and nothing is computed for padding.
"""

from collections.abc import Sequence
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
        groups: for each length, int64 ``[B, L]``, the positions of the sequences that have it.
        place: int64 ``[N]``, where each sequence stands among those of all groups.
        counts: positions of each client, which sum up to T.
    """

    groups: list[Tensor]
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
        return cls(groups, order.argsort(), counts)


def ragged_attention(qkv: Tensor, sequences: Sequences, heads: int) -> Tensor:
    """Attention within each sequence (:func:`~fednews.models.small_heads.small_heads`).

    ``[T, 3 * heads * d]`` -> ``[T, heads * d]``.
    """
    return _Attention.apply(qkv, [group for group in sequences.groups if group.shape[1]], heads)


def ragged_pool(x: Tensor, scores: Tensor, sequences: Sequences) -> Tensor:
    """Each sequence's ``x [T, d]`` weighted by the softmax of its ``scores [T]``: ``[N, d]``, 0 for an empty one."""
    pooled = []
    for group in sequences.groups:
        weights = scores[group].softmax(-1).unsqueeze(1)
        pooled.append((weights @ x.index_select(0, group.flatten()).view(*group.shape, x.shape[-1])).squeeze(1))
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
    def forward(ctx: Any, qkv: Tensor, groups: list[Tensor], heads: int) -> Tensor:
        out, kept = qkv.new_empty(len(qkv), qkv.shape[1] // 3), []
        for group in groups:
            part = qkv.index_select(0, group.flatten()).view(*group.shape, -1)
            found, *saved = attended(part, None, heads)
            out.index_copy_(0, group.flatten(), found.flatten(0, 1))
            kept += saved
        ctx.save_for_backward(*kept)
        ctx.groups, ctx.heads = groups, heads
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        found, kept = gradient.new_empty(len(gradient), 3 * gradient.shape[1]), iter(ctx.saved_tensors)
        for group, parts, weights in zip(ctx.groups, kept, kept, strict=True):
            part = gradient.index_select(0, group.flatten()).view(*group.shape, -1)
            found.index_copy_(0, group.flatten(), attention_gradient(part, parts, weights, ctx.heads).flatten(0, 1))
        return found, None, None


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
