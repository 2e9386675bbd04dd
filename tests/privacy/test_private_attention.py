"""Private attention: its distribution, its sensitivity, and which settings keep their promise."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from fednews.errors import FednewsError, UsageError
from fednews.privacy.accounting import epsilon_of
from fednews.privacy.private_attention import PrivateAttention

USER = torch.tensor([[1.0, -2.0, 0.5, 3.0], [0.0, 0.0, 0.0, 0.0], [50.0, 0.0, 0.0, 0.0]])
BASIS = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 1.0], [-1.0, 0.0, 1.0, 0.0]])


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_clean_weights_are_the_softmax_of_scaled_products_clipped_to_the_norm():
    for theta in (1.0, 0.7, 0.3):
        clean = PrivateAttention(theta=theta, basis=3).clean(USER, BASIS)
        for user, weights in zip(USER.numpy(), clean.numpy(), strict=True):
            products = np.exp([user @ b / 2 for b in BASIS.numpy()])
            alpha = products / products.sum()
            np.testing.assert_allclose(weights, alpha / max(1, np.linalg.norm(alpha) / theta), rtol=1e-5)


def test_theta_of_one_never_clips_and_theta_below_the_uniform_norm_always_does():
    users = torch.randn(500, 4, generator=generator()) * 10
    alpha = (users @ BASIS.T / 2).softmax(-1)
    assert torch.equal(PrivateAttention(theta=1.0, basis=3).clean(users, BASIS), alpha)
    clipped = PrivateAttention(theta=0.57, basis=3).clean(users, BASIS)
    torch.testing.assert_close(clipped.norm(dim=1), torch.full((500,), 0.57))


def test_without_noise_relu_gives_the_clean_weights_and_the_server_a_plain_mixture():
    attention = PrivateAttention(epsilon=math.inf, activation="relu", basis=3)
    released = attention(USER, BASIS, generator())
    torch.testing.assert_close(released, attention.clean(USER, BASIS))
    plain = torch.stack([sum(w * b for w, b in zip(row, BASIS, strict=True)) for row in released])
    torch.testing.assert_close(attention.rebuild(released, BASIS), plain)


@pytest.mark.parametrize("activation", ["relu", "softplus"])
@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_released_weights_are_a_distribution_even_where_nothing_is_positive(activation, scale):
    attention = PrivateAttention(scale=scale, activation=activation, basis=3)
    released = attention(USER.repeat(300, 1), BASIS, generator())
    assert (released >= 0).all()
    torch.testing.assert_close(released.sum(1), torch.ones(900))
    everything_negative = attention.normalised(torch.full((2, 3), -1e4))
    torch.testing.assert_close(everything_negative, torch.full((2, 3), 1 / 3))


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
@pytest.mark.parametrize("epsilon", [0.5, 10.0])
@pytest.mark.parametrize("sensitivity", ["published", "exact"])
def test_noise_has_the_distribution_of_the_formula(noise, epsilon, sensitivity):
    attention = PrivateAttention(epsilon, 0.001, 0.8, 0.2, noise, sensitivity=sensitivity, basis=3)
    draws = attention.draw(60_000, generator(3)).numpy().ravel()
    epsilon0, delta0 = math.log((math.exp(epsilon) - 0.2) / 0.8), 0.001 / 0.8
    distance = {"published": 0.8, "exact": math.sqrt(2) * 0.8 if noise == "gaussian" else 1.8}[sensitivity]
    if noise == "laplace":
        expected = stats.laplace(scale=distance / epsilon0)
    else:
        expected = stats.norm(scale=distance / epsilon0 * math.sqrt(2 * math.log(1.25 / delta0)))
    assert stats.kstest(draws, expected.cdf).pvalue > 0.001
    assert draws.std() == pytest.approx(expected.std(), rel=0.02)


@pytest.mark.parametrize("basis", [2, 3, 5])
@pytest.mark.parametrize("theta", [0.1, 0.5, 0.7, 1.0, 2.0])
def test_exact_sensitivity_is_reached_and_never_passed(basis, theta):
    """By pairs of one weight vector's corner and another's, and by random weights of any sharpness."""
    gaussian = PrivateAttention(theta=theta, basis=basis)
    laplace = PrivateAttention(theta=theta, basis=basis, noise="laplace")
    eye = torch.eye(basis)
    sharp = torch.cat(
        [
            eye[list(rows)].mean(0, keepdim=True)
            for k in range(1, basis)
            for rows in itertools.combinations(range(basis), k)
        ]
    )
    random = torch.randn(400, basis, generator=generator()) * torch.logspace(-1, 2, 400)[:, None]
    alpha = torch.cat([sharp, random.softmax(-1)])
    clipped = (alpha / (alpha.norm(dim=1, keepdim=True) / theta).clamp(min=1)).double()
    l1, l2 = (float(torch.cdist(clipped, clipped, p=p).max()) for p in (1, 2))
    assert l2 == pytest.approx(gaussian.exact_sensitivity(), rel=1e-5)
    assert l1 == pytest.approx(laplace.exact_sensitivity(), rel=1e-5)


def test_sensitivities_are_those_of_the_specification():
    of = lambda theta, basis: PrivateAttention(theta=theta, basis=basis, noise="laplace").exact_sensitivity()  # noqa: E731
    assert of(1.0, 3) == of(1.0, 5) == 2
    assert of(0.1, 3) / 0.1 == pytest.approx(2.414, abs=0.001)
    assert of(0.1, 5) / 0.1 == pytest.approx(3.146, abs=0.001)
    assert PrivateAttention(theta=0.3).exact_sensitivity() == pytest.approx(0.3 * math.sqrt(2))


def log_ratio(attention, one, other, samples=400_000, bins=24):
    """Largest ratio of the empirical probabilities of an outcome of two neighbouring users, with a lower bound.

    Outcomes are cells of the noisy first two weights; the bound is one-sided at 1e-6 for each cell (Clopper-Pearson).
    """
    edges = np.linspace(-1.2, 2.2, bins)
    counts = []
    for seed, alpha in enumerate((one, other)):
        noisy = torch.tensor(alpha, dtype=torch.float64) + attention.draw(samples, generator(seed))
        counts.append(np.histogram2d(noisy[:, 0], noisy[:, 1], bins=(edges, edges))[0])
    low = stats.beta.ppf(1e-6, counts[0], samples - counts[0] + 1)
    high = stats.beta.ppf(1 - 1e-6, counts[1] + 1, samples - counts[1])
    return float(np.log(np.nan_to_num(low) / high).max())


def test_outputs_of_neighbouring_users_stay_within_the_budget_with_exact_sensitivity_and_leave_it_with_the_published():
    """Two users at two corners of the simplex, Laplace noise, no padding: the worst case of the sensitivity."""
    corners = ([1.0, 0.0], [0.0, 1.0])
    published, exact = (
        PrivateAttention(1.0, padding=0.0, noise="laplace", sensitivity=kind, basis=2)
        for kind in ("published", "exact")
    )
    assert log_ratio(exact, *corners) <= 1.0
    assert log_ratio(published, *corners) > 1.5
    assert exact.epsilon_accounted().epsilon == pytest.approx(1.0)
    assert published.epsilon_accounted().epsilon == pytest.approx(2.0)


def padded_delta(attention, epsilon, distance, present):
    """Probability mass beyond e^epsilon between Gaussian outputs, the differing part being present with a chance."""
    x = np.linspace(-60, 60, 400_001)
    scale = attention.noise_scale()
    here, there = (stats.norm.pdf(x, s * distance / 2, scale) for s in (-1, 1))
    # What replaces both is worst when it looks like one of them.
    one, other = present * here + (1 - present) * there, there
    return np.trapezoid(np.maximum(one - np.exp(epsilon) * other, 0), x)


@pytest.mark.parametrize("epsilon", [1.0, 5.0, 10.0])
def test_analytic_noise_for_exact_sensitivity_spends_exactly_what_was_asked(epsilon):
    settings = {"epsilon": epsilon, "delta": 1e-3, "sensitivity": "exact", "calibration": "analytic"}
    assert PrivateAttention(**settings, padding=0.0).epsilon_accounted().epsilon == pytest.approx(epsilon, rel=1e-6)
    padded = PrivateAttention(**settings, padding=0.3)
    assert padded.epsilon_accounted().epsilon == pytest.approx(epsilon, rel=1e-6)
    assert padded_delta(padded, epsilon, math.sqrt(2), 0.7) <= 1e-3 * (1 + 1e-6)


def test_the_classical_formula_falls_short_at_large_epsilon_and_the_published_sensitivity_everywhere():
    """The specification's figures: at delta 1e-3 the classical formula fails above 7.5; serving at 10 is 18 to 20."""
    spent = lambda **kw: PrivateAttention(delta=1e-3, padding=0.0, **kw).epsilon_accounted().epsilon  # noqa: E731
    assert spent(epsilon=7.0, sensitivity="exact") < 7
    assert spent(epsilon=8.0, sensitivity="exact") > 8
    for basis in (3, 5):
        published = PrivateAttention(epsilon=10.0, delta=1e-3, padding=0.2, basis=basis)
        assert 15 < published.epsilon_accounted().epsilon < 20
    laplace = PrivateAttention(10.0, padding=0.0, noise="laplace", theta=1.0, basis=5)
    assert laplace.epsilon_accounted().epsilon == pytest.approx(20)
    small = PrivateAttention(10.0, padding=0.0, noise="laplace", theta=0.1, basis=5)
    assert small.epsilon_accounted().epsilon == pytest.approx(31.46, abs=0.01)


def test_the_published_reading_of_noise_made_by_the_formula_is_the_budget_asked_for():
    for noise, p in itertools.product(("laplace", "gaussian"), (0.0, 0.5)):
        attention = PrivateAttention(7.0, padding=p, noise=noise)
        assert attention.published_epsilon() == pytest.approx(7.0)
        direct = PrivateAttention(scale=attention.noise_scale(), padding=p, noise=noise)
        assert direct.published_epsilon() == pytest.approx(7.0)


def test_an_article_that_stands_often_in_the_history_is_hidden_less():
    """By hand: epsilon0 = 2 / b, present with 1 - p^m."""
    attention = PrivateAttention(scale=1.0, padding=0.5, noise="laplace", basis=3)
    for m in (1, 2, 5):
        by_hand = math.log(0.5**m + (1 - 0.5**m) * math.exp(2))
        assert attention.epsilon_accounted(m).epsilon == pytest.approx(by_hand)
    assert epsilon_of(((attention.entry(hidden_mask=False), 1),), 0).epsilon == pytest.approx(2)
    assert epsilon_of(((attention.entry(times=3), 2),), 0).epsilon == pytest.approx(
        6 * math.log(0.5 + 0.5 * math.exp(2))
    )


def test_without_noise_nothing_holds_and_the_reason_is_given():
    accounted = PrivateAttention(epsilon=math.inf).epsilon_accounted()
    assert math.isinf(accounted.epsilon)
    assert "no noise" in accounted.reason


def test_huge_budgets_do_not_overflow():
    attention = PrivateAttention(epsilon=5000.0, noise="laplace", padding=0.2)
    assert attention.noise_scale() == pytest.approx(1 / 5000, rel=1e-3)
    assert attention.published_epsilon() == pytest.approx(5000)


@pytest.mark.parametrize(
    "settings",
    [
        {"epsilon": 0.0}, {"epsilon": -1.0}, {"epsilon": math.nan}, {"delta": 0.0}, {"delta": 0.9}, {"theta": 0.0},
        {"theta": math.inf}, {"padding": 1.0}, {"padding": -0.1}, {"basis": 1}, {"scale": -1.0}, {"scale": math.inf},
        {"noise": "uniform"}, {"activation": "tanh"}, {"sensitivity": "exakt"}, {"calibration": "none"},
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(UsageError, match=next(iter(settings))):
        PrivateAttention(**settings)


def test_a_user_that_is_not_finite_is_an_error():
    with pytest.raises(FednewsError, match="not finite"):
        PrivateAttention(basis=3)(USER * math.nan, BASIS, generator())
