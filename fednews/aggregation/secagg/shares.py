"""Shamir secret sharing (Shamir 1979) of 16-byte seeds over GF(2^128).

Secrets are shared by pycryptodome. Its ``combine`` interpolates anew for every secret (66 ms at 34 shares); a server
opens as many secrets as there are clients, mostly from the same holders, so `Opening` interpolates once per set of
holders. Opened shares are no longer secret, so the arithmetic need not hide them. Tests hold both equal.
"""

from functools import reduce
from operator import xor

from Crypto.Protocol.SecretSharing import Shamir

SHARE_BYTES = 16

_BITS = 128
_REDUCTION = 0b10000111  # x^128 = x^7 + x^2 + x + 1


def share(secret: bytes, threshold: int, holders: int) -> list[bytes]:
    """Share 16 bytes among ``holders``, any ``threshold`` of whom can open it; holder i has point i + 1."""
    return [part for _, part in Shamir.split(threshold, holders, secret)]


class Opening:
    """Opens secrets from the shares at given points.

    Args:
        points: different positive points, as many as the threshold.
    """

    def __init__(self, points: tuple[int, ...]) -> None:
        # Lagrange's coefficients at 0; in characteristic 2 differences are exclusive ors.
        product = reduce(_multiply, points, 1)
        denominators = [reduce(_multiply, (x ^ other for other in points if other != x), x) for x in points]
        self._coefficients = [_multiply(product, inverse) for inverse in _inverses(denominators)]

    def open(self, parts: list[bytes]) -> bytes:
        """The secret of the shares at the points, in their order."""
        values = [int.from_bytes(part, "big") for part in parts]
        terms = (_multiply(c, value) for c, value in zip(self._coefficients, values, strict=True))
        return reduce(xor, terms).to_bytes(SHARE_BYTES, "big")


def _multiply(a: int, b: int) -> int:
    product = 0
    if a < b:
        a, b = b, a
    while b:
        if b & 1:
            product ^= a
        b >>= 1
        a <<= 1
        if a >> _BITS:
            a ^= 1 << _BITS | _REDUCTION
    return product


def _inverses(values: list[int]) -> list[int]:
    """Inverses at the price of one: invert the product and peel factors off."""
    products = [1]
    for value in values:
        products.append(_multiply(products[-1], value))
    rest, inverses = _inverse(products[-1]), []
    for value, before in zip(reversed(values), reversed(products[:-1]), strict=True):
        inverses.append(_multiply(rest, before))
        rest = _multiply(rest, value)
    return inverses[::-1]


def _inverse(value: int) -> int:
    """``value`` to the power of 2^128 - 2."""
    power, result = value, 1
    for _ in range(_BITS - 1):
        power = _multiply(power, power)
        result = _multiply(result, power)
    return result
