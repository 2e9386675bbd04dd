import numpy as np
import pytest

from fednews.aggregation.fixed_point import FixedPoint, Packing, from_limbs, to_limbs
from fednews.errors import FednewsError, UsageError


def test_encoding_rounds_to_the_nearest_step():
    values = np.random.default_rng(0).uniform(-3.7, 3.7, 1000)
    for bits in (1, 7, 24, 50):
        fixed = FixedPoint(bits, 4.0)
        assert np.abs(fixed.decode(fixed.encode(values)) - values).max() <= 2.0 ** -(bits + 1)


def test_multiples_of_the_step_are_exact():
    values = np.arange(-100, 101) / 2**5
    fixed = FixedPoint(5, 4.0)
    np.testing.assert_array_equal(fixed.decode(fixed.encode(values)), values)
    np.testing.assert_array_equal(fixed.encode(values), np.arange(-100, 101))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_weighted_values_are_products_in_float64_rounded_once(dtype):
    values, weight = np.random.default_rng(0).normal(size=(7, 3001)).astype(dtype), 17 / 3
    fixed, expected = FixedPoint(20, 64.0), np.rint(np.ldexp(values.astype(np.float64) * weight, 20)).astype(np.int64)
    np.testing.assert_array_equal(fixed.encode(values, weight), expected)
    narrow = np.empty(values.shape, np.int32)
    assert fixed.encode(values, weight, out=narrow) is narrow
    np.testing.assert_array_equal(narrow, expected)


@pytest.mark.parametrize("value", [4.0, -4.0, 3.97, 1e300])
def test_a_value_that_rounds_to_the_bound_or_beyond_is_refused(value: float):
    with pytest.raises(FednewsError, match=r"raise the aggregation's bound"):
        FixedPoint(4, 4.0).encode(np.array([0.0, value]))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused(value: float):
    for values, weight in (([0.0, value], 1.0), ([0.0, 1.0], value)):
        with pytest.raises(FednewsError, match="not finite"):
            FixedPoint(4, 4.0).encode(np.array(values), weight)


@pytest.mark.parametrize(("bits", "bound"), [(0, 4.0), (8, 0.5), (40, 2.0**22), (8, np.inf), (8, np.nan)])
def test_an_encoding_beyond_62_bits_is_refused(bits: int, bound: float):
    with pytest.raises(UsageError, match="fraction_bits"):
        FixedPoint(bits, bound)


def test_limbs_of_sums_are_sums_of_limbs():
    rng = np.random.default_rng(0)
    values = rng.integers(-(2**61), 2**61, (9, 40))
    for bits in (1, 5, 24, 31, 61):
        limbs = np.stack([to_limbs(row, bits) for row in values])
        assert np.abs(limbs).max() < 2**bits
        summed = limbs.astype(object).sum(axis=0)
        assert from_limbs(summed, bits) == values.astype(object).sum(axis=0).tolist()


@pytest.mark.parametrize(("width", "slots"), [(2, 3), (8, 4), (13, 11), (41, 6), (63, 2)])
@pytest.mark.parametrize("n", [1, 7, 12])
def test_sums_of_packed_integers_are_packed_sums(width: int, slots: int, n: int):
    packing, clients = Packing(width, slots), 3
    most = (2 ** (width - 1) - 1) // clients
    values = np.random.default_rng(0).integers(-most, most + 1, (clients, n))
    values[:, 0] = -most
    packed = [sum(integers) for integers in zip(*map(packing.pack, values), strict=True)]
    assert len(packed) == -(-n // slots)
    assert max(abs(integer) for integer in packed) < 2 ** (width * slots)
    np.testing.assert_array_equal(packing.unpack(packed, n), values.sum(axis=0))


def test_packing_is_the_positional_sum():
    values = [5, -3, 0, 100, -128, 127]
    assert Packing(8, 3).pack(np.array(values)) == [
        sum(value << 8 * (2 - i) for i, value in enumerate(values[start : start + 3])) for start in (0, 3)
    ]
