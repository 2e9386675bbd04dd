"""A client's upload as one vector of integers: [w u, w, loss, samples] in fixed point (SPEC section 2, step 3)."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import Tensor

from fednews.aggregation.fixed_point import FixedPoint, from_limbs, to_limbs
from fednews.aggregation.updates import Aggregate, ClientUpdates

SCALARS = FixedPoint(fraction_bits=32, bound=2.0**29)
"""Encoding of weight, loss and samples, which need more range than updates: several elements hold one of them."""


@dataclass(frozen=True)
class Encoding:
    """Between client updates and integer vectors ``[n]``.

    Attributes:
        fixed: encoding of weighted updates.
        like: names and shapes of the updates.
        limb_bits: bits of an element that holds part of a scalar.
        dtype: of the integers; it holds those of ``fixed`` and of ``limb_bits``.
    """

    fixed: FixedPoint
    like: dict[str, Tensor]
    limb_bits: int
    dtype: DTypeLike = np.int64

    @property
    def length(self) -> int:
        """n, how many integers a client's vector has."""
        return self._size + len(to_limbs(np.zeros(3, np.int64), self.limb_bits))

    @property
    def _size(self) -> int:
        return sum(value.numel() for value in self.like.values())

    def encode(self, part: ClientUpdates, row: int) -> np.ndarray:
        """Integers ``[n]`` of one client.

        Raises:
            FednewsError: a value is not finite or beyond the encoding's bound.
        """
        scalars = torch.stack([column[row].detach().double() for column in (part.weights, part.loss, part.samples)])
        scalars = scalars.cpu().numpy()
        vector, start = np.empty(self.length, self.dtype), 0
        for value in part.whole_of(row, self.like):
            wide = torch.promote_types(value.dtype, torch.float32)
            flat = value.detach().to("cpu", wide).numpy().reshape(-1)
            self.fixed.encode(flat, scalars[0], out=vector[start : start + len(flat)])
            start += len(flat)
        vector[start:] = to_limbs(SCALARS.encode(scalars), self.limb_bits)
        return vector

    def decode(self, total: np.ndarray) -> Aggregate:
        """The sums that the sum of integer vectors stands for."""
        sums = Aggregate.zeros(self.like)
        values = torch.from_numpy(self.fixed.decode(total[: self._size]))
        sizes = [value.numel() for value in self.like.values()]
        for target, flat in zip(sums.total.values(), values.split(sizes), strict=True):
            target.copy_(flat.view_as(target))
        scalars = from_limbs(total[self._size :], self.limb_bits)
        for target, scalar in zip((sums.weight, sums.loss, sums.samples), scalars, strict=True):
            target.fill_(scalar / 2**SCALARS.fraction_bits)
        return sums
