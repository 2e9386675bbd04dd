"""Attention of many small heads, as few passes over memory as its matrix products leave.

Written as autograd functions because what autograd records of the same products copies every head once more in each
direction, and under ``torch.func.vmap`` copies them again for each product. On a CPU torch's fused kernel takes 1.3 to
2 times as long for 20 heads of width 20 and titles of 6 to 30 words.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def small_heads(qkv: Tensor, mask: Tensor, heads: int) -> Tensor:
    """Multi-head attention: softmax of ``q k^T / sqrt(d)`` over the columns where ``mask`` is true, times v.

    Args:
        qkv: ``[B, L, 3 * heads * d]``, queries, keys and values.
        mask: bool ``[B, L]``.
        heads: how many heads.

    Returns:
        ``[B, L, heads * d]``; a row whose mask is false everywhere gets some mean of all values.
    """
    # Lowest but for room to add.
    bias = torch.zeros_like(mask, dtype=qkv.dtype).masked_fill(~mask, torch.finfo(qkv.dtype).min / 2)
    return _Attention.apply(qkv, bias, heads)[0]


class _Attention(Function):
    """(qkv, bias, heads) -> (attended, q, k and v by head ``[3, B * heads, L, d]``, weights ``[B * heads, L, L]``)."""

    @staticmethod
    def forward(qkv: Tensor, bias: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
        batch, length, _ = qkv.shape
        parts = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4).flatten(1, 2)
        q, k, v = parts.unbind()
        scores = torch.bmm(q, k.transpose(1, 2)).view(batch, heads, length, length)
        scores = torch.add(bias[:, None, None, :], scores, alpha=1 / math.sqrt(q.shape[-1]))
        weights = scores.softmax(-1).flatten(0, 1).to(qkv.dtype)
        return _by_position(torch.bmm(weights, v), heads), parts, weights

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        _, parts, weights = output
        ctx.heads = inputs[2]
        ctx.mark_non_differentiable(parts, weights)
        ctx.save_for_backward(parts, weights)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor, None, None]:
        return _AttentionBackward.apply(gradient, *ctx.saved_tensors, ctx.heads), None, None

    @staticmethod
    def vmap(info: Any, dims: tuple, qkv: Tensor, bias: Tensor, heads: int) -> tuple[tuple[Tensor, ...], tuple]:
        merged = [_merged(info.batch_size, dim, 0, tensor) for dim, tensor in zip(dims, (qkv, bias), strict=False)]
        return _unmerged(info.batch_size, (0, 1, 0), _Attention.apply(*merged, heads))


class _AttentionBackward(Function):
    """(gradient of the attended, q, k and v by head, weights, heads) -> gradient of qkv."""

    @staticmethod
    def forward(gradient: Tensor, parts: Tensor, weights: Tensor, heads: int) -> Tensor:
        q, k, v = parts.unbind()
        gradient = gradient.unflatten(-1, (heads, -1)).transpose(1, 2).flatten(0, 1)
        found = torch.empty_like(parts)
        torch.bmm(weights.transpose(1, 2), gradient, out=found[2])
        slopes = torch.bmm(gradient, v.transpose(1, 2))
        slopes = torch._softmax_backward_data(slopes, weights, -1, weights.dtype).mul_(1 / math.sqrt(q.shape[-1]))
        torch.bmm(slopes, k, out=found[0])
        torch.bmm(slopes.transpose(1, 2), q, out=found[1])
        return found.unflatten(1, (-1, heads)).permute(1, 3, 0, 2, 4).flatten(2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        """Nothing is kept: there is no second derivative."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> None:
        raise NotImplementedError("attention of small heads has no second derivative")

    @staticmethod
    def vmap(
        info: Any, dims: tuple, gradient: Tensor, parts: Tensor, weights: Tensor, heads: int
    ) -> tuple[Tensor, int]:
        size = info.batch_size
        merged = (
            _merged(size, dim, into, tensor)
            for dim, into, tensor in zip(dims, (0, 1, 0), (gradient, parts, weights), strict=False)
        )
        return _AttentionBackward.apply(*merged, heads).unflatten(0, (size, -1)), 0


def _by_position(attended: Tensor, heads: int) -> Tensor:
    """``[B * heads, L, d]`` -> ``[B, L, heads * d]``."""
    return attended.unflatten(0, (-1, heads)).transpose(1, 2).flatten(2)


def _merged(size: int, dim: int | None, into: int, tensor: Tensor) -> Tensor:
    """The mapped dimension ``dim``, new where there is none, joined with dimension ``into``."""
    moved = (
        tensor.movedim(dim, into)
        if dim is not None
        else tensor.unsqueeze(into).expand(*tensor.shape[:into], size, *tensor.shape[into:])
    )
    return moved.flatten(into, into + 1)


def _unmerged(size: int, dims: tuple[int, ...], tensors: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple]:
    return tuple(tensor.unflatten(dim, (size, -1)) for dim, tensor in zip(dims, tensors, strict=True)), dims
