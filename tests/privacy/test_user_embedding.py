import math

import pytest
import torch

from fednews.errors import FednewsError, UsageError
from fednews.privacy.user_embedding import PrivateEmbedding

DIM = 50


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def users(count: int) -> torch.Tensor:
    return torch.randn(count, DIM, generator=generator(9))


def test_vectors_are_clipped_to_theta_and_short_ones_left_alone():
    mechanism = PrivateEmbedding(DIM, theta=0.5)
    long = users(20)
    torch.testing.assert_close(mechanism.clean(long).norm(dim=1), torch.full((20,), 0.5))
    torch.testing.assert_close(mechanism.clean(long) * long.norm(dim=1, keepdim=True), long * 0.5)
    short = long / long.norm(dim=1, keepdim=True) * 0.3
    assert torch.equal(mechanism.clean(short), short)


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_the_noise_has_the_scale_it_says(noise):
    """Mean absolute value and variance of 200,000 draws, within 5 standard errors."""
    mechanism = PrivateEmbedding(DIM, noise=noise, epsilon=2.0)
    sent = mechanism(torch.zeros(4000, DIM, dtype=torch.float64), generator())
    scale, n = mechanism.noise_scale(), sent.numel()
    mean = {"laplace": scale, "gaussian": scale * math.sqrt(2 / math.pi)}[noise]
    assert float(sent.abs().mean()) == pytest.approx(mean, rel=5 / math.sqrt(n))
    variance = {"laplace": 2, "gaussian": 1}[noise] * scale**2
    assert float(sent.square().mean()) == pytest.approx(variance, rel=5 * math.sqrt(5 / n))


def test_published_scales_are_the_papers():
    laplace = PrivateEmbedding(DIM, epsilon=10.0, theta=0.001, noise="laplace", stray_padding=0.5)
    assert laplace.noise_scale() == pytest.approx(0.002 / 10)
    gaussian = PrivateEmbedding(DIM, epsilon=10.0, theta=0.001, delta=1e-3, noise="gaussian", stray_padding=0.5)
    assert gaussian.noise_scale() == pytest.approx(0.002 / 10 * math.sqrt(2 * math.log(1.25 * 0.5 / 1e-3)))
    assert laplace.published_epsilon() == pytest.approx(10)
    assert gaussian.published_epsilon() == pytest.approx(10)


def test_published_laplace_noise_holds_for_one_number_and_not_for_d():
    accounted = PrivateEmbedding(DIM, epsilon=10.0, noise="laplace").epsilon_accounted()
    assert accounted.epsilon == pytest.approx(10 * math.sqrt(DIM))
    assert accounted.delta == 0


def test_the_exact_laplace_sensitivity_is_attained():
    """Two clipped vectors with equal entries of opposite sign are 2 sqrt(d) theta apart."""
    mechanism = PrivateEmbedding(DIM, theta=0.2)
    one = mechanism.clean(torch.ones(1, DIM, dtype=torch.float64))
    assert float((one - mechanism.clean(-torch.ones(1, DIM, dtype=torch.float64))).abs().sum()) == pytest.approx(
        mechanism.exact_sensitivity()
    )


@pytest.mark.parametrize("epsilon", [0.3, 2.0, 10.0])
def test_repaired_noise_spends_what_it_says(epsilon):
    laplace = PrivateEmbedding(DIM, epsilon=epsilon, noise="laplace", sensitivity="exact")
    gaussian = PrivateEmbedding(DIM, epsilon=epsilon, noise="gaussian", calibration="analytic")
    assert laplace.epsilon_accounted().epsilon == pytest.approx(epsilon)
    assert gaussian.epsilon_accounted().epsilon == pytest.approx(epsilon, rel=1e-3)


def test_the_stray_factor_lets_a_query_spend_more_than_it_says():
    plain = PrivateEmbedding(DIM, epsilon=0.5, noise="gaussian", delta=0.1)
    stray = PrivateEmbedding(DIM, epsilon=0.5, noise="gaussian", delta=0.1, stray_padding=0.9)
    assert plain.epsilon_accounted().epsilon < 0.5 < stray.epsilon_accounted().epsilon
    assert stray.noise_scale() < plain.noise_scale()


def test_without_noise_nothing_holds_and_the_clean_vector_is_sent():
    mechanism = PrivateEmbedding(DIM, epsilon=math.inf, theta=1e9)
    vectors = users(3)
    assert torch.equal(mechanism(vectors, generator()), vectors)
    assert mechanism.epsilon_accounted().epsilon == math.inf


def test_a_vector_that_is_not_finite_has_no_sensitivity():
    with pytest.raises(FednewsError, match="not finite"):
        PrivateEmbedding(DIM)(torch.full((1, DIM), float("nan")), generator())


@pytest.mark.parametrize(
    "settings",
    [{"epsilon": 0.0}, {"epsilon": -1.0}, {"theta": 0.0}, {"stray_padding": 1.0}, {"noise": "gaussian", "delta": 0.0}],
)
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(UsageError):
        PrivateEmbedding(DIM, **settings)
