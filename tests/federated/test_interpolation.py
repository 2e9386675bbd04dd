import math

import pytest

from fednews.errors import UsageError
from fednews.federated.interpolation import Interpolation


def test_lambda_is_eq_7():
    for t in (1, 500, 12_000):
        for layer, value in enumerate(Interpolation(1.0003, 0.5)(t, 5)):
            assert value == pytest.approx((1 - 1.0003**-t) * ((layer + 1) / 5) ** 0.5, rel=1e-9)


def test_lambda_rises_with_rounds_and_with_layers_and_stays_below_one():
    early, late = Interpolation()(10, 5), Interpolation()(1000, 5)
    assert early == sorted(early)
    assert all(0 < a < b < 1 for a, b in zip(early, late, strict=True))


def test_without_beta_all_layers_are_alike():
    assert len(set(Interpolation(beta=0)(700, 4))) == 1


def test_without_alpha_all_rounds_are_alike_and_the_end_of_a_long_run():
    assert Interpolation(alpha=None)(1, 4) == Interpolation(alpha=None)(999, 4)
    assert Interpolation(alpha=None)(1, 4) == pytest.approx(Interpolation(alpha=1.5)(10_000, 4), rel=1e-12)


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_without_either_lambda_is_fixed(value):
    assert Interpolation(None, 0, value)(17, 6) == [value] * 6


def test_infinite_beta_makes_the_last_layer_alone_personal():
    assert Interpolation(None, math.inf)(3, 4) == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("settings", "named"), [({"alpha": 1.0}, "alpha"), ({"beta": -0.1}, "beta"), ({"max_lambda": 1.1}, "max_lambda")]
)
def test_parameters_out_of_range_are_usage_errors(settings, named):
    with pytest.raises(UsageError, match=named):
        Interpolation(**settings)
