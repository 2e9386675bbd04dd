"""A client's upload as one vector of integers: [w u, w, loss, samples] in fixed point (SPEC section 2, step 3)."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fednews.aggregation.fixed_point import FixedPoint, from_limbs, to_limbs
from fednews.aggregation.secagg.ring import Ring
from fednews.aggregation.updates import Aggregate, ClientUpdates

SCALARS = FixedPoint(fraction_bits=32, bound=2.0**29)
"""Encoding of weight, loss and samples, which need more range than updates: several elements hold one of them."""


@dataclass(frozen=True)
class Encoding:
    """Between client updates and integer vectors ``[n]``.

    Attributes:
        fixed: encoding of weighted updates.
        like: names and shapes of the updates.
    """

    fixed: FixedPoint
    like: dict[str, Tensor]

    @property
    def _limb_bits(self) -> int:
        return (self.fixed.limit + 1).bit_length() - 1  # limbs are no larger than updates

    def ring(self, clients: int) -> Ring:
        """The ring that holds sums over ``clients``."""
        return Ring.holding(self.fixed.limit, clients)

    def encode(self, part: ClientUpdates, row: int) -> np.ndarray:
        """Integers ``[n]`` of one client, of the narrowest type that holds them.

        Raises:
            FednewsError: a value is not finite or beyond the encoding's bound.
        """
        scalars = torch.stack([column[row].detach().double() for column in (part.weights, part.loss, part.samples)])
        limbs = to_limbs(SCALARS.encode(scalars.cpu().numpy()), self._limb_bits)
        narrow = np.min_scalar_type(-self.fixed.limit)
        return np.concatenate(
            [self.fixed.encode(part.weighted(row, self.like).cpu().numpy()), limbs], dtype=narrow, casting="unsafe"
        )

    def decode(self, total: np.ndarray) -> Aggregate:
        """The sums that the sum of integer vectors stands for."""
        sums = Aggregate.zeros(self.like)
        sizes = [value.numel() for value in self.like.values()]
        values = torch.from_numpy(self.fixed.decode(total[: sum(sizes)]))
        for target, flat in zip(sums.total.values(), values.split(sizes), strict=True):
            target.copy_(flat.view_as(target))
        scalars = from_limbs(total[sum(sizes) :], self._limb_bits)
        for target, scalar in zip((sums.weight, sums.loss, sums.samples), scalars, strict=True):
            target.fill_(scalar / 2**SCALARS.fraction_bits)
        return sums
