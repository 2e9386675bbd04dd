import numpy as np
import pytest

from fednews.aggregation.secagg.ring import Ring
from fednews.errors import FednewsError


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_wrapping_and_unwrapping_are_inverse_on_the_whole_range(bits: int):
    ends = np.array([-(2 ** (bits - 1)), -1, 0, 1, 2 ** (bits - 1) - 1])
    ring = Ring(bits)
    assert ring.wrap(ends).dtype.itemsize == bits // 8
    np.testing.assert_array_equal(ring.unwrap(ring.wrap(ends)), ends)


@pytest.mark.parametrize(("largest", "clients"), [(1, 127), (1, 128), (2**24 - 1, 50), (2**24, 128), (2**40, 9)])
def test_the_largest_sums_of_the_chosen_ring_do_not_run_over_and_the_next_smaller_ring_is_too_small(
    largest: int, clients: int
):
    ring = Ring.holding(largest, clients)
    for sign in (1, -1):
        total = ring.wrap(np.full((clients, 1), sign * largest)).sum(axis=0, dtype=ring.dtype)
        assert ring.unwrap(total) == sign * largest * clients
    if ring.bits > 8:
        smaller = Ring(ring.bits // 2)
        total = smaller.wrap(np.full((clients, 1), largest)).sum(axis=0, dtype=smaller.dtype)
        assert smaller.unwrap(total) != largest * clients


def test_sums_beyond_64_bits_are_refused():
    assert Ring.holding(2**57, 63).bits == 64
    with pytest.raises(FednewsError, match="lower the aggregation's fraction_bits or bound"):
        Ring.holding(2**57, 64)
