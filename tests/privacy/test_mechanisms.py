"""Clipping and Laplace noise, against definitions and distribution tests."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from fednews.errors import FednewsError, UsageError
from fednews.privacy.mechanisms import (
    ClippedLaplace,
    _laplace_of_uniform,
    clip_elementwise,
    laplace_noise,
    summed_laplace_noise,
)
from fednews.streams import Streams

FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def generators(clients: list[int], round_index: int = 0) -> list[torch.Generator]:
    return [Streams(7).torch("noise", round_index, client) for client in clients]


def updates(clients: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(clients)
    return {
        "weight": torch.randn(clients, 7, 5, generator=generator).to(dtype),
        "bias": torch.randn(clients, 5, generator=generator).to(dtype),
        "scalar": torch.randn(clients, generator=generator).to(dtype),
    }


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bound", [0.005, 0.1, 1.0, 1e-7])
def test_no_clipped_element_exceeds_the_bound_and_smaller_ones_are_untouched(dtype, bound):
    values = torch.tensor([-math.inf, -1e4, -bound / 2, 0.0, bound / 3, bound, 5.0, math.inf]).to(dtype)
    clipped = clip_elementwise(values, bound)
    assert clipped.dtype == dtype
    assert clipped.double().abs().max() <= bound
    assert clipped[[0, 1, 6, 7]].double().abs() == pytest.approx([bound] * 4, rel=0.01, abs=6e-8)
    assert torch.equal(clipped[2:5], values[2:5])


def test_clipping_is_numpys_clip():
    values = torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    np.testing.assert_array_equal(clip_elementwise(values, 0.3).numpy(), np.clip(values.numpy(), -0.3, 0.3))


@pytest.mark.parametrize("bound", [None, math.inf])
def test_no_bound_leaves_every_value(bound):
    values = torch.tensor([-1e30, 0.0, 1e30])
    assert torch.equal(clip_elementwise(values, bound), values)


@pytest.mark.parametrize("generator", [lambda: torch.Generator().manual_seed(11), lambda: Streams(11).numpy("noise")])
@pytest.mark.parametrize("scale", [1e-6, 0.015, 3.0])
def test_noise_has_the_laplace_distribution_of_its_scale(scale, generator):
    noise = laplace_noise(200_000, scale, generator()).numpy()
    assert stats.kstest(noise, stats.laplace(scale=scale).cdf).pvalue > 0.01
    # |noise| is exponential: its mean is the scale with standard error scale / sqrt(n).
    assert np.abs(noise).mean() == pytest.approx(scale, rel=4 / math.sqrt(noise.size))
    assert stats.binomtest(int((noise > 0).sum()), noise.size).pvalue > 0.01


@pytest.mark.parametrize("terms", [1, 3, 6, 50])
def test_noise_drawn_at_once_is_distributed_like_the_sum_of_single_noises(terms):
    """Two-sample Kolmogorov-Smirnov test at 1 %, and the variance, which is 2 terms scale^2."""
    rng = Streams(12).numpy("noise", terms)
    at_once = summed_laplace_noise(40_000, {0.3: terms}, rng).numpy()
    one_by_one = rng.laplace(scale=0.3, size=(terms, 40_000)).sum(0)
    assert stats.ks_2samp(at_once, one_by_one).pvalue > 0.01
    kurtosis = 3 + 3 / terms
    error = 4 * math.sqrt((kurtosis - 1) / at_once.size)
    assert at_once.var() == pytest.approx(2 * terms * 0.3**2, rel=error)
    if 1 < terms < 10:  # of more, one term is too little to notice
        assert stats.ks_2samp(at_once, rng.laplace(scale=0.3, size=(terms - 1, 40_000)).sum(0)).pvalue < 0.01


def test_noises_of_several_scales_are_one_sum():
    """Like the single noises, and unlike as many of the mean scale."""
    rng, terms = Streams(12).numpy("noise"), {0.1: 7, 0.5: 2, 2.0: 1}
    at_once = summed_laplace_noise(40_000, terms, rng).numpy()
    single = sum(rng.laplace(scale=scale, size=(number, 40_000)).sum(0) for scale, number in terms.items())
    assert stats.ks_2samp(at_once, single).pvalue > 0.01
    mean = math.sqrt(sum(number * scale**2 for scale, number in terms.items()) / 10)
    assert stats.ks_2samp(at_once, rng.laplace(scale=mean, size=(10, 40_000)).sum(0)).pvalue < 1e-4


def test_noise_of_a_weighted_sum_is_that_of_noising_every_update():
    mechanism, weights = ClippedLaplace(0.005, 0.2), torch.tensor([1, 3, 1, 2, 1, 1, 1, 1])
    summed = {"weight": torch.zeros(30_000, dtype=torch.float64)}
    mechanism.add_summed_noise(summed, weights, Streams(3).numpy("noise"))
    noises = [Streams(4).numpy("noise", client) for client in range(len(weights))]
    single = mechanism({"weight": torch.zeros(len(weights), 30_000, dtype=torch.float64)}, noises)["weight"]
    assert stats.ks_2samp(summed["weight"].numpy(), (weights.double() @ single).numpy()).pvalue > 0.01
    assert stats.ks_2samp(summed["weight"].numpy(), single.sum(0).numpy()).pvalue < 1e-6, "weights matter"


def test_noise_is_added_to_what_was_summed():
    summed = {"weight": torch.full((1000,), 7.0)}
    ClippedLaplace(0.005, 0.01).add_summed_noise(summed, torch.ones(10), Streams(3).numpy("noise"))
    assert summed["weight"].mean().item() == pytest.approx(7, abs=5 * math.sqrt(2 * 10 / 1000) * 0.01)


def test_the_distribution_test_notices_a_wrong_scale():
    noise = laplace_noise(200_000, 0.015, torch.Generator().manual_seed(11)).numpy()
    assert stats.kstest(noise, stats.laplace(scale=0.0155).cdf).pvalue < 1e-6


def test_the_ends_of_the_uniform_draw_give_finite_and_far_tails():
    ends = torch.tensor([0.0, 2.0**-53, 0.5, 1 - 2.0**-53, 1.0], dtype=torch.float64)
    draws = _laplace_of_uniform(ends)
    assert torch.isfinite(draws).all()
    assert draws[2] == 0
    assert torch.equal(draws, draws.sort().values)
    assert draws[0] < -36 < 36 < draws[-1]
    inner = torch.linspace(0.001, 0.999, 999, dtype=torch.float64)
    np.testing.assert_allclose(_laplace_of_uniform(inner).numpy(), stats.laplace.ppf(inner.numpy()), atol=1e-13)


def test_a_zero_update_is_pure_noise_on_every_coordinate():
    zeros = {"weight": torch.zeros(3, 100, 200)}
    noised = ClippedLaplace(0.005, 0.015)(zeros, generators([0, 1, 2]))["weight"]
    assert torch.isfinite(noised).all()
    assert (noised != 0).all()
    for client in noised:
        assert stats.kstest(client.flatten().numpy(), stats.laplace(scale=0.015).cdf).pvalue > 0.001


def test_a_zero_update_without_noise_stays_zero():
    zeros = {"weight": torch.zeros(2, 4)}
    assert torch.equal(ClippedLaplace(0.005, 0.0)(zeros, [])["weight"], zeros["weight"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_released_update_is_the_clipped_update_plus_the_clients_own_noise(dtype):
    clients = [4, 0, 9]
    before = updates(3, dtype)
    released = ClippedLaplace(0.5, 0.2)(before, generators(clients))
    for row, generator in enumerate(generators(clients)):
        for name in sorted(before):
            clipped = clip_elementwise(before[name][row], 0.5)
            noise = laplace_noise(clipped.numel(), 0.2, generator).view(clipped.shape)
            assert torch.equal(released[name][row], (clipped.double() + noise).to(dtype))


def test_a_cohort_equals_a_plain_loop_over_its_clients_bit_for_bit():
    mechanism, stacked = ClippedLaplace(0.5, 0.2), updates(5)
    together = mechanism(stacked, generators([0, 1, 2, 3, 4]))
    alone = [mechanism({n: v[c : c + 1] for n, v in stacked.items()}, generators([c])) for c in range(5)]
    for name, values in together.items():
        assert torch.equal(values, torch.cat([update[name] for update in alone]))
        torch.testing.assert_close(values.sum(0), sum(update[name][0] for update in alone))


def test_a_clients_noise_depends_neither_on_its_place_in_the_cohort_nor_on_the_order_of_names():
    mechanism, stacked = ClippedLaplace(0.5, 0.2), updates(3)
    released = mechanism(stacked, generators([0, 1, 2]))
    backwards = mechanism({n: stacked[n].flip(0) for n in reversed(stacked)}, generators([2, 1, 0]))
    assert all(torch.equal(backwards[name].flip(0), released[name]) for name in released)


def test_noise_is_the_same_whatever_the_number_of_threads(monkeypatch):
    def released() -> dict[str, torch.Tensor]:
        return ClippedLaplace()(updates(7), [Streams(7).numpy("noise", 0, client) for client in range(7)])

    one = released()
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)
    assert all(torch.equal(value, one[name]) for name, value in released().items())


def test_updates_of_several_blocks_and_of_any_layout_are_noised_alike():
    """Numbers are clipped and noised block by block, in the order of the rows' elements."""
    update = torch.randn(2, 300, 400).transpose(1, 2)
    own = lambda: [Streams(7).numpy("noise", 0, client) for client in range(2)]  # noqa: E731
    released = ClippedLaplace(0.5, 0.2)({"weight": update.double()}, own())["weight"]
    same = ClippedLaplace(0.5, 0.2)({"weight": update.double().contiguous()}, own())["weight"]
    assert torch.equal(released, same)
    noise = (released - update.double().clamp(-0.5, 0.5)).flatten()
    assert len(noise.unique()) == len(noise), "no block repeats another"
    assert stats.kstest(noise.numpy(), stats.laplace(scale=0.2).cdf).pvalue > 1e-3


def test_a_sum_that_overflows_is_no_nan():
    large = {"weight": torch.tensor([[3e38, -3e38] * 64])}
    assert ClippedLaplace(2e38, 0.1).clipped(large)["weight"].abs().max() <= 2e38


def test_noise_repeats_with_its_stream_and_differs_between_rounds_and_clients():
    mechanism, zeros = ClippedLaplace(0.5, 0.2), {"weight": torch.zeros(2, 50)}
    first = mechanism(zeros, generators([0, 1]))["weight"]
    assert torch.equal(mechanism(zeros, generators([0, 1]))["weight"], first)
    assert not torch.isin(mechanism(zeros, generators([0, 1], round_index=1))["weight"], first).any()
    assert not torch.isin(first[0], first[1]).any()


@pytest.mark.parametrize(("clip", "scale"), [(None, 0.2), (0.5, 0.2), (math.inf, 0.2), (0.5, 0.0), (None, 0.0)])
def test_the_input_is_left_as_it_is(clip, scale):
    before, kept = updates(2), {name: values.clone() for name, values in updates(2).items()}
    released = ClippedLaplace(clip, scale)(before, generators([0, 1]))
    assert all(torch.equal(before[name], kept[name]) for name in kept)
    assert {n: (v.shape, v.dtype) for n, v in released.items()} == {n: (v.shape, v.dtype) for n, v in kept.items()}


def test_without_clip_and_noise_the_update_is_released_unchanged():
    before = updates(2)
    assert all(torch.equal(values, before[name]) for name, values in ClippedLaplace(None, 0.0)(before, []).items())


def test_the_declared_sensitivity_is_the_largest_distance_between_two_clipped_updates():
    mechanism = ClippedLaplace(0.005, 0.0)
    extremes = torch.tensor([[-math.inf, -1.0, 0.001], [math.inf, 1.0, 0.002]])
    clipped = mechanism({"weight": extremes}, [])["weight"].double()
    distance = float((clipped[0] - clipped[1]).abs().max())
    assert distance <= mechanism.entry(3).sensitivity
    assert distance == pytest.approx(mechanism.entry(3).sensitivity)


def test_the_entry_declares_the_papers_figure_and_what_is_released():
    entry = ClippedLaplace(clip=0.005, scale=0.015).entry(123)
    assert entry.published_epsilon == pytest.approx(2 * 0.005 / 0.015)
    assert (entry.coordinates, entry.noise, entry.noise_scale, entry.view) == (123, "laplace", 0.015, "local")
    assert entry.no_guarantee_reason is None
    assert entry == ClippedLaplace(clip=0.005, scale=0.015).entry(123)


@pytest.mark.parametrize(("clip", "scale", "reason"), [(0.005, 0.0, "no noise"), (None, 0.1, "not clipped")])
def test_the_entry_says_why_nothing_holds_without_noise_or_clip(clip, scale, reason):
    entry = ClippedLaplace(clip, scale).entry(10)
    assert entry.published_epsilon == math.inf
    assert reason in entry.no_guarantee_reason


def test_a_nan_in_a_clipped_update_is_an_error_and_not_a_release():
    broken = {"weight": torch.tensor([[1.0, math.nan]])}
    with pytest.raises(FednewsError, match="weight holds NaN"):
        ClippedLaplace(0.005, 0.015)(broken, generators([0]))


def test_one_generator_for_each_client_is_required():
    with pytest.raises(FednewsError, match="2 clients and there are 1"):
        ClippedLaplace(0.005, 0.015)({"weight": torch.zeros(2, 3)}, generators([0]))


@pytest.mark.parametrize(("clip", "scale"), [(0.0, 0.1), (-1.0, 0.1), (math.nan, 0.1), (1.0, -0.1), (1.0, math.inf)])
def test_settings_out_of_range_are_usage_errors(clip, scale):
    with pytest.raises(UsageError):
        ClippedLaplace(clip, scale)
