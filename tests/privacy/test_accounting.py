"""Accounting against closed forms and an independent numeric composition."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import integrate, optimize, stats

from fednews.errors import FednewsError, UsageError
from fednews.privacy.accounting import BOUNDS, DEFAULT_DELTA, Gaussian, PaddedGaussian, Pure, epsilon_of, padded_epsilon
from fednews.privacy.clipped_sum import ClippedSum
from fednews.privacy.entry import LedgerEntry
from fednews.privacy.mechanisms import ClippedLaplace
from fednews.privacy.private_attention import PrivateAttention
from fednews.privacy.user_vectors import UserVectorRelease

PAPER = ClippedLaplace(clip=0.005, scale=0.015)
PAPER_EPSILON = 2 * 0.005 / 0.015
PAPER_COORDINATES = 2_522_800


def spent(coordinates: int, rounds: int, delta: float = DEFAULT_DELTA, mechanism: ClippedLaplace = PAPER):
    return epsilon_of(((mechanism.entry(coordinates), rounds),), delta)


def single_delta(epsilon: float, eps0: float) -> float:
    """Hockey-stick divergence at ``epsilon`` of two Laplace distributions ``eps0`` scales apart, in closed form."""
    if epsilon >= eps0:
        return 0.0
    return 1 - math.exp((epsilon - eps0) / 2) if epsilon > -eps0 else 1 - math.exp(epsilon)


def composed_delta(epsilon: float, eps0: float, releases: int) -> float:
    """The same of ``releases`` independent pairs: the expectation over the first loss (two atoms and a density)."""
    if releases == 1:
        return single_delta(epsilon, eps0)

    def rest(loss: float) -> float:
        return composed_delta(epsilon - loss, eps0, releases - 1)

    def density(loss: float) -> float:
        return math.exp((loss - eps0) / 2) / 4 * rest(loss)

    between = integrate.quad(density, -eps0, eps0, epsabs=1e-10, limit=200)[0]
    return rest(eps0) / 2 + math.exp(-eps0) / 2 * rest(-eps0) + between


def kl(eps0: float) -> float:
    """Mean privacy loss of one Laplace release."""
    return eps0 + math.expm1(-eps0)


def test_one_coordinate_in_one_round_is_exactly_the_published_figure():
    figure = spent(1, 1, delta=0)
    assert figure.epsilon == pytest.approx(PAPER_EPSILON, rel=1e-15)
    assert figure.method == "pure"
    assert spent(1, 1).epsilon <= figure.epsilon


@pytest.mark.parametrize("eps0", [0.1, 2 / 3, 3.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-2])
def test_numeric_composition_of_one_release_is_the_closed_form(eps0, delta):
    exact = eps0 + 2 * math.log1p(-delta)
    assert BOUNDS["pld"](((eps0, 1),), delta) == pytest.approx(exact, abs=eps0 / 100)
    assert BOUNDS["pld"](((eps0, 1),), delta) >= exact - 1e-9


@pytest.mark.parametrize(("eps0", "releases"), [(2 / 3, 2), (2.0, 2), (2 / 3, 3)])
def test_numeric_composition_equals_quadrature_and_every_bound_lies_above(eps0, releases):
    delta = 1e-2
    exact = optimize.brentq(lambda e: composed_delta(e, eps0, releases) - delta, 0, releases * eps0, xtol=1e-6)
    assert exact < releases * eps0
    assert BOUNDS["pld"](((eps0, releases),), delta) == pytest.approx(exact, abs=1e-3)
    for bound in BOUNDS.values():
        assert bound(((eps0, releases),), delta) >= exact - 1e-5


@pytest.mark.parametrize("releases", [10, 300, 10_000])
def test_looser_bounds_are_never_below_numeric_composition(releases):
    bounds = {name: bound(((PAPER_EPSILON, releases),), DEFAULT_DELTA) for name, bound in BOUNDS.items()}
    assert math.isfinite(bounds["pld"])
    assert all(bounds["pld"] <= bounds[name] for name in ("rdp", "zcdp", "pure"))


def test_pure_composition_is_the_sum_over_coordinates_and_rounds():
    figure = spent(1000, 7, delta=0)
    assert figure.epsilon == pytest.approx(2 * 0.005 * 1000 * 7 / 0.015)


def test_coordinates_and_rounds_compose_alike():
    assert spent(60, 10) == spent(10, 60) == spent(600, 1)


def test_epsilon_rises_with_rounds_and_with_coordinates_across_the_switch_of_methods():
    by_rounds = [spent(1000, rounds) for rounds in (1, 2, 5, 9, 10, 11, 20, 1000)]
    assert {figure.method for figure in by_rounds} == {"pld", "rdp"}
    by_coordinates = [spent(coordinates, 3) for coordinates in (1, 10, 3000, 3333, 3334, 10**6)]
    for figures in (by_rounds, by_coordinates):
        epsilons = [figure.epsilon for figure in figures]
        assert epsilons == sorted(set(epsilons))


def test_epsilon_falls_with_noise_and_with_delta_and_rises_with_the_clip():
    assert spent(50, 2, mechanism=ClippedLaplace(0.005, 0.03)).epsilon < spent(50, 2).epsilon
    assert spent(50, 2, mechanism=ClippedLaplace(0.01, 0.015)).epsilon > spent(50, 2).epsilon
    assert spent(50, 2, delta=1e-3).epsilon < spent(50, 2).epsilon < spent(50, 2, delta=0).epsilon


@pytest.mark.parametrize("rounds", [1, 20])
def test_the_published_model_at_the_papers_settings_is_finite_between_mean_loss_and_every_bound(rounds):
    figure = spent(PAPER_COORDINATES, rounds)
    releases = PAPER_COORDINATES * rounds
    assert figure.method == "rdp"
    assert releases * kl(PAPER_EPSILON) < figure.epsilon < 1.02 * releases * kl(PAPER_EPSILON)
    assert figure.epsilon < releases * PAPER_EPSILON**2 / 2 < releases * PAPER_EPSILON


def test_zcdp_is_reported_where_it_is_the_smallest():
    figure = spent(10**7, 10**5, mechanism=ClippedLaplace(0.0005, 1.0))
    rho = 10**12 * 0.001**2 / 2
    assert figure.method == "zcdp"
    assert figure.epsilon == pytest.approx(rho + 2 * math.sqrt(rho * math.log(1 / DEFAULT_DELTA)))


def test_different_releases_of_one_client_compose_to_more_than_either_and_less_than_their_sum():
    one, other = PAPER.entry(40), ClippedLaplace(0.01, 0.1).entry(300)
    both = epsilon_of(((one, 3), (other, 2)), DEFAULT_DELTA)
    alone = [epsilon_of(((one, 3),), DEFAULT_DELTA).epsilon, epsilon_of(((other, 2),), DEFAULT_DELTA).epsilon]
    assert max(alone) < both.epsilon < sum(alone)
    assert epsilon_of(((one, 3), (other, 0)), DEFAULT_DELTA).epsilon == alone[0]


@pytest.mark.parametrize("scale", [1e-9, 1e-4, 1e3])
@pytest.mark.parametrize("delta", [1e-5, 1e-15, 0.0, 0.5])
def test_extreme_noise_and_delta_stay_finite_and_below_pure_composition(scale, delta):
    figure = spent(100, 3, delta=delta, mechanism=ClippedLaplace(0.005, scale))
    assert 0 <= figure.epsilon <= 300 * 0.01 / scale * (1 + 1e-12)


def test_nothing_released_costs_nothing():
    assert spent(100, 0).epsilon == 0
    assert epsilon_of((), DEFAULT_DELTA).epsilon == 0


@pytest.mark.parametrize("mechanism", [ClippedLaplace(None, 0.015), ClippedLaplace(0.005, 0.0)])
def test_no_clip_or_no_noise_is_infinite_with_the_reason(mechanism):
    figure = spent(10, 1, mechanism=mechanism)
    assert figure.epsilon == math.inf
    assert figure.reason == mechanism.entry(10).no_guarantee_reason


@pytest.mark.parametrize("delta", [-1e-9, 1.0, math.nan])
def test_a_delta_that_is_no_probability_is_a_usage_error(delta):
    with pytest.raises(UsageError, match="delta"):
        spent(1, 1, delta=delta)


def test_noise_without_accounting_is_an_error_and_not_a_guess():
    entry = LedgerEntry("x", "y", "z", "local", 3, 1.0, "l2", "laplace", 1.0, 1.0, "nobody")
    with pytest.raises(FednewsError, match="no accounting for laplace noise with l2"):
        epsilon_of(((entry, 1),), DEFAULT_DELTA)


def gaussian(multiplier: float, count: int = 1):
    return ((Gaussian(multiplier), count),)


def gaussian_delta(epsilon: float, multiplier: float) -> float:
    """Hockey-stick divergence of N(0, 1) and N(1 / multiplier, 1) by quadrature."""
    shift = 1 / multiplier

    def excess(x: float) -> float:
        one, other = math.exp(-((x - shift) ** 2) / 2), math.exp(-(x**2) / 2)
        return max(one - math.exp(epsilon) * other, 0) / math.sqrt(2 * math.pi)

    start = epsilon * multiplier + shift / 2  # where the integrand leaves 0
    return integrate.quad(excess, start, start + 40, epsabs=1e-12)[0]


@pytest.mark.parametrize("multiplier", [0.5, 2.0, 10.0])
@pytest.mark.parametrize("count", [1, 7])
def test_gaussian_noise_alone_is_exact_and_every_bound_lies_above(multiplier, count):
    figure = BOUNDS["gaussian"](gaussian(multiplier, count), DEFAULT_DELTA)
    assert gaussian_delta(figure, multiplier / math.sqrt(count)) == pytest.approx(DEFAULT_DELTA, rel=1e-4)
    for name, bound in BOUNDS.items():
        assert bound(gaussian(multiplier, count), DEFAULT_DELTA) >= figure - 1e-6, name
    assert BOUNDS["rdp"](gaussian(multiplier, count), DEFAULT_DELTA) < 2 * figure


def test_numeric_composition_agrees_with_the_exact_gaussian():
    exact = BOUNDS["gaussian"](gaussian(1.5), DEFAULT_DELTA)
    assert BOUNDS["pld"](gaussian(1.5), DEFAULT_DELTA) == pytest.approx(exact, rel=1e-2)


def test_gaussian_and_laplace_releases_compose_to_more_than_either_and_less_than_their_sum():
    laplace, mixed = ((2 / 3, 3),), ((2 / 3, 3), *gaussian(2.0))
    alone = [_best(laplace), _best(gaussian(2.0))]
    assert max(alone) < _best(mixed) < sum(alone)
    assert _best(mixed) == BOUNDS["pld"](mixed, DEFAULT_DELTA)


def _best(releases):
    return min(bound(releases, DEFAULT_DELTA) for bound in BOUNDS.values())


def test_gaussian_noise_gives_nothing_for_pure_privacy_and_says_so():
    entry = UserVectorRelease(1.0, 1.0).entry(5)
    figure = epsilon_of(((entry, 1),), 0.0)
    assert (figure.epsilon, figure.method) == (math.inf, "none")
    assert "delta = 0" in figure.reason


def test_the_number_of_coordinates_of_a_gaussian_release_does_not_matter():
    few, many = (epsilon_of(((UserVectorRelease(1.0, 4.0).entry(n), 3),)) for n in (2, 2000))
    assert few == many
    assert few.method == "gaussian"


def test_laplace_noise_on_a_vector_is_no_worse_than_on_its_l1_distance_along_one_coordinate():
    for whole, share in ((2.0, 0.5), (3.0, 0.1), (0.5, 0.3)):
        one, other = whole * share, whole * (1 - share)
        for epsilon in np.linspace(0, whole, 7):
            # As composed_delta, with coordinates that move by different distances.
            density = lambda loss: math.exp((loss - one) / 2) / 4 * single_delta(epsilon - loss, other)  # noqa: B023, E731
            between = integrate.quad(density, -one, one, limit=200)[0]
            ends = (single_delta(epsilon - one, other) + math.exp(-one) * single_delta(epsilon + one, other)) / 2
            assert ends + between <= single_delta(epsilon, whole) + 1e-9


@pytest.mark.parametrize(("epsilon", "times"), [(0.5, 3), (1.5, 10)])
def test_pure_releases_compose_as_randomized_response_does(epsilon, times):
    """Exact (Kairouz et al. 2015): the losses are a binomial number of +epsilon and -epsilon."""
    kept = math.exp(epsilon) / (1 + math.exp(epsilon))
    heads = np.arange(times + 1)
    loss = (2 * heads - times) * epsilon
    delta = lambda e: stats.binom.pmf(heads, times, kept) @ np.maximum(0, -np.expm1(e - loss))  # noqa: E731
    exact = optimize.brentq(lambda e: delta(e) - 1e-4, 0, times * epsilon)
    assert BOUNDS["pld"](((Pure(epsilon), times),), 1e-4) == pytest.approx(exact, abs=epsilon / 50)
    for bound in BOUNDS.values():
        assert bound(((Pure(epsilon), times),), 1e-4) >= exact - 1e-6
    assert BOUNDS["pure"](((Pure(epsilon), times),), 0) == times * epsilon


def test_padding_lowers_epsilon_by_the_formula_and_never_below_zero():
    for present in (0.2, 0.5, 1.0):
        for epsilon in (0.0, 0.1, 3.0, 40.0):
            by_hand = math.log(1 + present * math.expm1(epsilon))
            assert padded_epsilon(epsilon, present) == pytest.approx(by_hand, abs=1e-12)
    assert padded_epsilon(3.0, 0.0) == 0
    assert padded_epsilon(5000.0, 0.5) == pytest.approx(5000 + math.log(0.5))


def test_padded_gaussian_releases_are_bounded_each_by_itself_or_without_padding():
    single = BOUNDS["padded"](((PaddedGaussian(0.5, 0.3), 1),), 1e-5)
    assert single < BOUNDS["gaussian"](((PaddedGaussian(0.5, 0.3), 1),), 1e-5)
    own = PrivateAttention(scale=0.5 * math.sqrt(2), padding=0.7).entry()
    assert epsilon_of(((own, 1),), 1e-5).epsilon == pytest.approx(single)
    assert epsilon_of(((own, 1),), 1e-5).method == "padded"
    many = epsilon_of(((own, 50),), 1e-5)
    assert many.epsilon <= 50 * BOUNDS["padded"](((PaddedGaussian(0.5, 0.3), 1),), 1e-5 / 50)
    assert many.epsilon <= BOUNDS["gaussian"](((Gaussian(0.5), 50),), 1e-5)
    mixed = ((Pure(1.0), 2), (PaddedGaussian(0.5, 0.3), 1))
    assert BOUNDS["padded"](mixed, 1e-5) == pytest.approx(single + 2)
    assert math.isinf(BOUNDS["padded"]((*mixed, (Gaussian(3.0), 1)), 1e-5))


@pytest.mark.parametrize(("drawn", "rounds"), [(5, 1), (50, 1), (50, 30)])
def test_sampling_without_replacement_in_secret_lies_between_the_exact_figure_and_no_sampling(drawn, rounds):
    """Exact for one round: the sum is noise around 0, or around one client's clipped update or its opposite."""
    entry = ClippedSum(1.0, 3.0).entry(10, drawn, 100)
    figure = epsilon_of(((entry, rounds),), 1e-5).epsilon
    known = dataclasses.replace(entry, drawn=0, population=0)
    unsampled = epsilon_of(((known, rounds),), 1e-5).epsilon
    assert figure < unsampled if drawn == 5 else figure <= unsampled
    x, q = np.linspace(-40, 40, 200_001), drawn / 100
    one, other = (q * stats.norm.pdf(x, s, 3.0) + (1 - q) * stats.norm.pdf(x, 0, 3.0) for s in (1, -1))
    delta = np.trapezoid(np.maximum(one - math.exp(figure) * other, 0), x)
    assert delta <= 1e-5
    # Wang et al. 2019, Theorem 27 at order 2, by hand: noise multiplier 1.5 for the replaced client.
    second = math.exp(1 / 1.5**2)
    order_two = math.log1p(q**2 * min(4 * (second - 1), 2 * second))
    assert figure <= rounds * order_two + math.log(1e5)


def test_a_release_that_adjacent_data_sets_do_not_change_spends_nothing():
    entry = dataclasses.replace(ClippedSum(1.0, 0.0).entry(10), sensitivity=0.0, no_guarantee_reason=None)
    assert epsilon_of(((entry, 100),), 0).epsilon == 0
