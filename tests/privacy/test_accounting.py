"""Accounting against closed forms and an independent numeric composition."""

import math

import pytest
from scipy import integrate, optimize

from fednews.errors import FednewsError, UsageError
from fednews.privacy.accounting import BOUNDS, DEFAULT_DELTA, Gaussian, epsilon_of
from fednews.privacy.entry import LedgerEntry
from fednews.privacy.mechanisms import ClippedLaplace
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
