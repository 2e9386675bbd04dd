"""Fixed-point integers for schemes that add integers, and many of them side by side in one big integer."""

import math
from dataclasses import dataclass

import numpy as np

from fednews.errors import FednewsError, UsageError

_BLOCK = 8192  # numbers that stay in the cache while they are rounded


@dataclass(frozen=True)
class FixedPoint:
    """Real numbers between -bound and bound as multiples of 2^-fraction_bits.

    Attributes:
        fraction_bits: bits behind the point; rounding moves a number by at most half a step of 2^-fraction_bits.
        bound: what the magnitude of every number stays below, at least 1.

    Raises:
        UsageError: the integers would not fit into 62 bits, or there is nothing to encode with.
    """

    fraction_bits: int
    bound: float

    def __post_init__(self) -> None:
        if self.fraction_bits < 1 or not 1 <= self.bound < 2.0 ** (62 - self.fraction_bits):
            raise UsageError(
                f"aggregation with fraction_bits={self.fraction_bits} and bound={self.bound:g}: both must be at least "
                "1 and bound * 2^fraction_bits below 2^62"
            )

    @property
    def limit(self) -> int:
        """The largest encoded magnitude."""
        return int(math.ldexp(self.bound, self.fraction_bits)) - 1

    def encode(self, values: np.ndarray, weight: float = 1.0, out: np.ndarray | None = None) -> np.ndarray:
        """Round ``values [...]`` times ``weight``, both taken as float64, to multiples of the step, halves to even.

        Returns:
            ``out``, or int64 ``[...]``.

        Raises:
            FednewsError: a product is not finite or not below the bound.
        """
        scale = weight * 2.0**self.fraction_bits
        ends = np.array([values.min(initial=0.0), values.max(initial=0.0)], np.float64)
        largest = np.abs(np.rint(ends * scale)).max()  # rounding keeps order
        if not np.isfinite(largest):
            raise FednewsError("a client's update or loss is not finite and cannot be encoded: lower the learning rate")
        if largest > self.limit:
            raise FednewsError(
                f"a client's weighted update reaches {math.ldexp(largest, -self.fraction_bits):g} and its encoding "
                f"ends at {self.bound:g}: raise the aggregation's bound (init_args.bound), or clip the updates"
            )
        out = np.empty(values.shape, np.int64) if out is None else out
        flat, to, block = values.reshape(-1), out.reshape(-1), np.empty(min(values.size, _BLOCK))
        for start in range(0, values.size, _BLOCK):
            part = flat[start : start + _BLOCK]
            scaled = block[: len(part)]
            scaled[:] = part
            scaled *= scale
            to[start : start + _BLOCK] = np.rint(scaled, out=scaled)
        return out

    def decode(self, values: np.ndarray) -> np.ndarray:
        """Float64 values of int64 ``[...]``: encoded numbers or sums of them."""
        return np.ldexp(values.astype(np.float64), -self.fraction_bits)


def to_limbs(values: np.ndarray, bits: int) -> np.ndarray:
    """Split int64 ``[n]`` into limbs ``[n * ceil(63 / bits)]`` of magnitude below 2^bits, lowest first.

    Wide numbers travel in fields made for narrow ones: sums of limbs are the limbs of the sum.
    """
    count = -(-63 // bits)
    limbs = [(values >> bits * i) & ((1 << bits) - 1) for i in range(count - 1)]
    return np.stack([*limbs, values >> bits * (count - 1)], axis=1).reshape(-1)


def from_limbs(limbs: np.ndarray, bits: int) -> list[int]:
    """The numbers whose (summed) limbs these are, as Python integers: sums may exceed 64 bits."""
    rows = limbs.reshape(-1, -(-63 // bits)).tolist()
    return [sum(limb << bits * i for i, limb in enumerate(row)) for row in rows]


@dataclass(frozen=True)
class Packing:
    """Signed integers as fields of one big signed integer, sum of v_i 2^(width i): its sums are the fields' sums.

    Attributes:
        width: bits of a field, at most 63; every sum of field values must stay within ±(2^(width - 1) - 1).
        slots: fields to an integer. Magnitudes stay below 2^(width * slots).
    """

    width: int
    slots: int

    @property
    def _half(self) -> int:
        return 1 << (self.width - 1)

    @property
    def _centre(self) -> int:
        """Half a field's range in every field: adding it makes all fields non-negative."""
        return self._half * (((1 << self.width * self.slots) - 1) // ((1 << self.width) - 1))

    def pack(self, values: np.ndarray) -> list[int]:
        """Pack int64 ``[n]`` into ``ceil(n / slots)`` integers; the last one is filled up with zeros."""
        padded = np.pad(values, (0, -len(values) % self.slots))
        fields = (padded + self._half).astype(">u8").view(np.uint8).reshape(-1, self.slots, 8)
        bits = np.unpackbits(fields, axis=-1)[..., 64 - self.width :].reshape(len(fields), -1)
        rows = np.packbits(np.pad(bits, ((0, 0), (-bits.shape[1] % 8, 0))), axis=1)
        centre = self._centre
        return [int.from_bytes(row.tobytes(), "big") - centre for row in rows]

    def unpack(self, packed: list[int], n: int) -> np.ndarray:
        """The first ``n`` fields, int64 ``[n]``, of packed integers or of their sums."""
        size, centre = -(-self.width * self.slots // 8), self._centre
        rows = np.frombuffer(b"".join((value + centre).to_bytes(size, "big") for value in packed), np.uint8)
        bits = np.unpackbits(rows.reshape(len(packed), size), axis=1)[:, 8 * size - self.width * self.slots :]
        bits = np.pad(bits.reshape(-1, self.width), ((0, 0), (64 - self.width, 0)))
        return np.packbits(bits, axis=1).view(">u8").reshape(-1)[:n].astype(np.int64) - self._half
