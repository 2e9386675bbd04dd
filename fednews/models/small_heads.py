"""Attention of many small heads, in as few passes over memory as its matrix products leave.

Written as autograd functions because what autograd records of the same products copies every head once more in each
direction, and under ``torch.func.vmap`` once more for each product. On a CPU torch's fused kernel takes 1.3 to 2 times
as long for 20 heads of width 20 and titles of 6 to 30 words, and its softmax 5 times as long as the formula where a row
is shorter than a vector register.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

_REGISTER = 16  # float32 numbers in the widest vector register


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


def attended(qkv: Tensor, bias: Tensor | None, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """The same without derivative, with ``bias [B, L]`` added to a row's scores.

    Returns:
        The attended, and for :func:`attention_gradient` q, k and v by head ``[3, B * heads, L, d]`` and the weights
        ``[B * heads, L, L]``.
    """
    batch, length, _ = qkv.shape
    parts = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4).flatten(1, 2)
    q, k, v = parts.unbind()
    scores = _scaled(q, k.transpose(1, 2), q)
    if bias is not None:
        scores.view(batch, heads, length, length).add_(bias[:, None, None, :])
    weights = _softmax_(scores).to(qkv.dtype)
    return torch.bmm(weights, v).unflatten(0, (-1, heads)).transpose(1, 2).flatten(2), parts, weights


def attention_gradient(gradient: Tensor, parts: Tensor, weights: Tensor, heads: int) -> Tensor:
    """The gradient of qkv, given that of what :func:`attended` gave and what it kept."""
    q, k, v = parts.unbind()
    gradient = gradient.unflatten(-1, (heads, -1)).transpose(1, 2).flatten(0, 1)
    found = torch.empty_like(parts)
    torch.bmm(weights.transpose(1, 2), gradient, out=found[2])
    slopes = _softmax_gradient_(torch.bmm(gradient, v.transpose(1, 2)), weights)
    _scaled(slopes, k, q, out=found[0])
    _scaled(slopes.transpose(1, 2), q, q, out=found[1])
    return found.unflatten(1, (-1, heads)).permute(1, 3, 0, 2, 4).flatten(2)


def _scaled(a: Tensor, b: Tensor, heads: Tensor, out: Tensor | None = None) -> Tensor:
    """The batched product over the root of the width of ``heads``."""
    return torch.baddbmm(a.new_zeros(()), a, b, beta=0, alpha=1 / math.sqrt(heads.shape[-1]), out=out)


def _softmax_(scores: Tensor) -> Tensor:
    """Softmax of the last dimension; may overwrite ``scores``."""
    if not _in_passes(scores):
        return scores.softmax(-1)
    scores.sub_(scores.amax(-1, keepdim=True)).exp_()
    return scores.mul_(scores.sum(-1, keepdim=True).reciprocal_())


def _softmax_gradient_(gradient: Tensor, weights: Tensor) -> Tensor:
    """The gradient of scores, given that of their softmax ``weights``; may overwrite ``gradient``."""
    if not _in_passes(gradient):
        return torch._softmax_backward_data(gradient, weights, -1, weights.dtype)
    return gradient.sub_((gradient * weights).sum(-1, keepdim=True)).mul_(weights)


def _in_passes(scores: Tensor) -> bool:
    """Whether passes over all scores are faster than torch's softmax, which takes a row at a time."""
    wide = scores.dtype in (torch.float32, torch.float64)
    return wide and scores.device.type == "cpu" and 0 < scores.shape[-1] < _REGISTER


class _Attention(Function):
    @staticmethod
    def forward(qkv: Tensor, bias: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
        return attended(qkv, bias, heads)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.heads = inputs[2]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*output[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor, None, None]:
        return _AttentionGradient.apply(gradient, *ctx.saved_tensors, ctx.heads), None, None

    @staticmethod
    def vmap(info: Any, dims: tuple, qkv: Tensor, bias: Tensor, heads: int) -> tuple[tuple[Tensor, ...], tuple]:
        merged = [_merged(info.batch_size, dim, 0, tensor) for dim, tensor in zip(dims, (qkv, bias), strict=False)]
        found = zip((0, 1, 0), _Attention.apply(*merged, heads), strict=True)
        return tuple(tensor.unflatten(dim, (info.batch_size, -1)) for dim, tensor in found), (0, 1, 0)


class _AttentionGradient(Function):
    """A function of its own for its ``vmap``; it has no derivative."""

    @staticmethod
    def forward(gradient: Tensor, parts: Tensor, weights: Tensor, heads: int) -> Tensor:
        return attention_gradient(gradient, parts, weights, heads)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> None:
        raise NotImplementedError("attention of small heads has no second derivative")

    @staticmethod
    def vmap(info: Any, dims: tuple, *inputs: Any) -> tuple[Tensor, int]:
        *tensors, heads = inputs
        merged = (
            _merged(info.batch_size, dim, into, tensor)
            for dim, into, tensor in zip(dims, (0, 1, 0), tensors, strict=False)
        )
        return _AttentionGradient.apply(*merged, heads).unflatten(0, (info.batch_size, -1)), 0


def _merged(size: int, dim: int | None, into: int, tensor: Tensor) -> Tensor:
    """The mapped dimension ``dim``, a new one where there is none, joined with dimension ``into``."""
    if dim is None:
        moved = tensor.unsqueeze(into).expand(*tensor.shape[:into], size, *tensor.shape[into:])
    else:
        moved = tensor.movedim(dim, into)
    return moved.flatten(into, into + 1)
