"""Finite rings Z / 2^bits, in which masks are uniform and sums exact."""

from dataclasses import dataclass

import numpy as np

from fednews.errors import FednewsError


@dataclass(frozen=True)
class Ring:
    """Unsigned integers of ``bits`` bits (8, 16, 32 or 64); the upper half stands for negative numbers."""

    bits: int

    @classmethod
    def holding(cls, largest: int, clients: int) -> "Ring":
        """The smallest ring in which no sum of ``clients`` integers of magnitude up to ``largest`` runs over.

        Raises:
            FednewsError: even 64 bits are too few.
        """
        for bits in (8, 16, 32, 64):
            if largest * clients < 1 << (bits - 1):
                return cls(bits)
        raise FednewsError(
            f"a secure sum over {clients} clients of integers up to {largest} does not fit into 64 bits: lower the "
            "aggregation's fraction_bits or bound"
        )

    @property
    def dtype(self) -> np.dtype:
        """Little-endian unsigned integers, in memory as in messages."""
        return np.dtype(f"<u{self.bits // 8}")

    def wrap(self, values: np.ndarray) -> np.ndarray:
        """Ring elements of signed integers ``[...]``, which they share memory with where these are as wide."""
        same = values.dtype == np.dtype(f"<i{self.bits // 8}")
        return values.view(self.dtype) if same else values.astype(self.dtype)

    def unwrap(self, elements: np.ndarray) -> np.ndarray:
        """The int64 ``[...]`` of least magnitude that ring elements stand for."""
        return elements.view(f"<i{self.bits // 8}").astype(np.int64)
