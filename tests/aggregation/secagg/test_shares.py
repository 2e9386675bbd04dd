import os
import random
import secrets
from itertools import combinations

import pytest
import shamirs

from fednews.aggregation.secagg.shares import PRIME, SHARE_BYTES, Opening, share


def interpolated(points: tuple[int, ...], parts: list[bytes]) -> int:
    """What the library makes of shares."""
    pairs = zip(points, parts, strict=True)
    return shamirs.interpolate([shamirs.share(point, int.from_bytes(part, "big"), PRIME) for point, part in pairs])


@pytest.mark.parametrize(("threshold", "holders"), [(1, 3), (2, 2), (3, 5), (20, 41)])
def test_shares_open_as_the_library_opens_them(threshold: int, holders: int):
    secret = os.urandom(16)
    parts = share(secret, threshold, holders)
    points = tuple(sorted(random.Random(0).sample(range(1, holders + 1), threshold)))
    chosen = [parts[point - 1] for point in points]
    assert Opening(points).open(chosen) == secret
    assert interpolated(points, chosen) == int.from_bytes(secret, "big")


@pytest.mark.parametrize("secret", [bytes(16), b"\xff" * 16, bytes(15) + b"\x01", b"\x80" + bytes(15)])
def test_secrets_with_extreme_bits_open_from_every_choice_of_shares(secret: bytes):
    parts = share(secret, 3, 5)
    for points in combinations(range(1, 6), 3):
        assert Opening(points).open([parts[point - 1] for point in points]) == secret


def test_one_opening_opens_many_secrets_like_the_library():
    points = (2, 3, 7, 11)
    opening = Opening(points)
    for _ in range(20):
        parts = [secrets.randbelow(PRIME).to_bytes(SHARE_BYTES, "big") for _ in points]
        assert int.from_bytes(opening.open(parts), "big") == interpolated(points, parts) % 2**128


def test_too_few_shares_open_something_else():
    secret = os.urandom(16)
    parts = share(secret, 4, 6)
    assert Opening((1, 2, 3)).open(parts[:3]) != secret
