"""The bridge to the accounting library: one client's releases in, an epsilon that holds out.

A release with Laplace noise of scale b on each of n coordinates, each of which can move by S between adjacent data
sets, is n Laplace mechanisms of noise multiplier b / S; T rounds are n * T of them (composition is adaptive, so later
rounds may depend on earlier ones). For FedNewsRec S = 2 * delta and b = lambda.

A release with Gaussian noise of standard deviation s on every coordinate of a vector that can move by S in the
Euclidean norm is one Gaussian mechanism of noise multiplier s / S, however many coordinates it has; several compose to
exactly one of multiplier (sum of S^2 / s^2)^-1/2 (Dong et al. 2022, Corollary 3.3).

A vector with Laplace noise of scale b on every coordinate that can move by S in the sum of absolute values is no worse
than one Laplace mechanism of noise multiplier b / S: moving one coordinate after the other, each step's trade-off
function is that of a shift, and shifts of one Laplace variable chain exactly (Dong et al. 2022, section 2.5).
Where an output's probability changes by at most a factor e^eps, randomised response of that eps on two values is the
worst case (Kairouz et al. 2015, Theorem 2.1).

Where what differs takes part with probability q only, and nobody sees when, (eps, delta) becomes
(log(1 + q (e^eps - 1)), q delta) (Balle et al. 2018, Theorem 2, replace-one). Of Laplace noise only the pure epsilon is
used then, of Gaussian noise (eps, delta) of each single release.

Neighbouring relation: S is already the distance between a client's two data sets under the adjacency that the ledger
entry names (replace-one), so the library is asked about one query whose answer moves by at most S. Its Laplace
accounting is only offered under the names add-or-remove-one and replace-special, where the "record" contributes at most
S; the pair of distributions, Lap(0, b) against Lap(S, b), is the same, and so is N(0, s^2) against N(S, s^2). Its own
replace-one relation (which would have to double S once more, and whose handling is an open defect,
google/differential-privacy issue 378) is not used.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fednews.errors import FednewsError, UsageError

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from fednews.privacy.entry import LedgerEntry

#: Probability with which the accounted epsilon may fail; below one over the number of users of every data set here.
DEFAULT_DELTA = 1e-5

# Numeric composition (PLD) discretises the privacy loss of one release into this many steps, ...
_PLD_STEPS = 100
# ... and is used up to this many steps in all: 10,000 equal releases, 0.2 s.
_PLD_MAX_STEPS = 1_000_000
# Above this epsilon of one release the library's exponentials overflow.
_PLD_MAX_EPSILON = 20.0
# Its Fourier transforms are accurate to about 1e-15, and it truncates tails at 1e-15.
_PLD_MIN_DELTA = 1e-11

# From 1.0101 (the library converts no order below 1.01) to 10,001.
_RDP_ORDERS = tuple(1.0001 + 10 ** (i / 50 - 2) for i in range(301))

# Of sampling without replacement the library bounds whole orders, in a time that grows with their square.
_SAMPLED_ORDERS = (*range(2, 33), 36, 40, 48, 64, 96, 128)

# A Gaussian privacy loss leaves this many standard deviations around its mean with probability below 1e-15.
_GAUSSIAN_TAIL = 8.0


@dataclass(frozen=True)
class Gaussian:
    """One release with Gaussian noise; ``multiplier`` is the noise's standard deviation over the L2 sensitivity."""

    multiplier: float


@dataclass(frozen=True)
class PaddedGaussian(Gaussian):
    """One with what differs taking part with probability ``present``."""

    present: float


@dataclass(frozen=True)
class SampledGaussian(Gaussian):
    """One in which ``drawn`` of ``population`` clients take part, without replacement and in secret."""

    drawn: int
    population: int


@dataclass(frozen=True)
class Pure:
    """One release that no output's probability changes by more than e^epsilon in."""

    epsilon: float


Release = float | Gaussian | Pure
"""A float is a Laplace release by its epsilon."""

#: (one release, how many) for each kind of release.
Releases = tuple[tuple[Release, int], ...]


@dataclass(frozen=True)
class Accounted:
    """An epsilon that holds.

    Attributes:
        epsilon: ``inf`` where nothing holds.
        delta: the delta that it holds for.
        method: the bound that gave it: ``"gaussian"``, ``"padded"``, ``"pld"``, ``"rdp"``, ``"zcdp"``, ``"pure"``, or
            ``"none"`` (nothing released, or nothing holds).
        reason: why epsilon is infinite, else None.
    """

    epsilon: float
    delta: float
    method: str
    reason: str | None = None


@functools.lru_cache(maxsize=4096)
def epsilon_of(releases: "tuple[tuple[LedgerEntry, int], ...]", delta: float = DEFAULT_DELTA) -> Accounted:
    """Epsilon of one client that made these releases: the smallest of all bounds that can be computed.

    Bounds (all proved; for k releases of eps0 each): numeric composition of privacy loss distributions (Koskela et al.
    2020; pessimistic, in the library) where k is small enough; Renyi composition of the exact curves (Mironov 2017,
    Propositions 6 and 7, in the library); zCDP, rho = k * eps0^2 / 2 (Bun and Steinke 2016, Propositions 1.3 and 1.4),
    smallest when k is huge and eps0 small; and k * eps0, the only one for ``delta = 0``. For Gaussian noise alone the
    exact curve (Balle and Wang 2018, Theorem 8, in the library); k Gaussian releases of multiplier m have
    rho = k / (2 * m^2) and no pure bound.

    Args:
        releases: ledger entries and how often the client released each.
        delta: in [0, 1); 0 asks for pure differential privacy.

    Raises:
        UsageError: delta is outside [0, 1).
        FednewsError: an entry's noise or norm has no accounting here.
    """
    if not 0 <= delta < 1:
        raise UsageError(f"delta must be at least 0 and below 1, not {delta}")
    made = [(entry, count) for entry, count in releases if count > 0]
    for entry, _ in made:
        if entry.no_guarantee_reason is not None:
            return Accounted(math.inf, delta, "none", entry.no_guarantee_reason)
    made = [(entry, count) for entry, count in made if entry.sensitivity > 0]
    if not made:
        return Accounted(0.0, delta, "none")
    return _smallest_bound(tuple(_released(entry, count) for entry, count in made), delta)


def _released(entry: "LedgerEntry", count: int) -> tuple[Release, int]:
    kind, count = (entry.noise, entry.sensitivity_norm), entry.times * count
    if kind == ("laplace", "linf") and entry.present == 1:
        return entry.sensitivity / entry.noise_scale, entry.coordinates * count
    if kind == ("laplace", "l1"):
        epsilon = entry.sensitivity / entry.noise_scale
        return (epsilon if entry.present == 1 else Pure(padded_epsilon(epsilon, entry.present))), count
    if kind == ("gaussian", "l2"):
        multiplier = entry.noise_scale / entry.sensitivity
        if entry.drawn:
            return SampledGaussian(multiplier, entry.drawn, entry.population), count
        return (Gaussian(multiplier) if entry.present == 1 else PaddedGaussian(multiplier, entry.present)), count
    if kind == ("randomized_response", "log"):
        return Pure(entry.sensitivity), count
    raise FednewsError(
        f"{entry.mechanism}: no accounting for {entry.noise} noise with {entry.sensitivity_norm} sensitivity; "
        "add it to fednews/privacy/accounting.py"
    )


def padded_epsilon(epsilon: float, present: float) -> float:
    """``log(1 + present * (e^epsilon - 1))``: epsilon where what differs takes part with probability ``present``."""
    if present == 0:
        return 0.0
    return epsilon + math.log(present) + math.log1p((1 - present) / present * math.exp(-epsilon))


def _smallest_bound(releases: Releases, delta: float) -> Accounted:
    epsilons = {method: bound(releases, delta) for method, bound in BOUNDS.items()}
    method = min(epsilons, key=epsilons.__getitem__)
    if math.isinf(epsilons[method]):
        return Accounted(math.inf, delta, "none", "Gaussian noise gives no guarantee for delta = 0")
    return Accounted(float(epsilons[method]), delta, method)


def _laplace(releases: Releases) -> tuple[tuple[float, int], ...]:
    return tuple((kind, count) for kind, count in releases if isinstance(kind, float))


def _of(kind: type, releases: Releases) -> Releases:
    return tuple((release, count) for release, count in releases if isinstance(release, kind))


def _epsilons(releases: Releases) -> tuple[tuple[float, int], ...]:
    """The pure epsilons of those releases that have one."""
    return _laplace(releases) + tuple((pure.epsilon, count) for pure, count in _of(Pure, releases))


def _distance(releases: Releases) -> float:
    """The distance, in standard deviations of the noise, of the one Gaussian mechanism that all of them make.

    Padding and sampling only hide more, so they may be left out of account.
    """
    return math.sqrt(sum(count / kind.multiplier**2 for kind, count in _of(Gaussian, releases)))


def _gaussian(releases: Releases, delta: float) -> float:
    if delta == 0 or _epsilons(releases):
        return math.inf
    import dp_accounting

    return dp_accounting.get_epsilon_gaussian(1 / _distance(releases), delta)


def _padded(releases: Releases, delta: float) -> float:
    """Sum of each padded Gaussian release's own epsilon, delta being shared out equally."""
    padded = _of(PaddedGaussian, releases)
    if delta == 0 or not padded or _distance(releases) > _distance(padded):
        return math.inf
    import dp_accounting

    share, total = delta / sum(count for _, count in padded), 0.0
    for kind, count in padded:
        own = share / kind.present
        epsilon = dp_accounting.get_epsilon_gaussian(kind.multiplier, own) if own < 1 else 0.0
        total += count * padded_epsilon(epsilon, kind.present)
    return total + sum(count * epsilon for epsilon, count in _epsilons(releases))


def _pure(releases: Releases, delta: float) -> float:
    if _of(Gaussian, releases):
        return math.inf
    return sum(count * epsilon for epsilon, count in _epsilons(releases))


def _zcdp(releases: Releases, delta: float) -> float:
    if delta == 0:
        return math.inf
    rho = sum(count * epsilon**2 / 2 for epsilon, count in _epsilons(releases)) + _distance(releases) ** 2 / 2
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def _rdp(releases: Releases, delta: float) -> float:
    if delta == 0:
        return math.inf
    from dp_accounting import NeighboringRelation, rdp  # 1.7 s to import

    orders = _SAMPLED_ORDERS if _of(SampledGaussian, releases) else _RDP_ORDERS
    accountant = rdp.RdpAccountant(orders, NeighboringRelation.REPLACE_ONE)
    return accountant.compose(_event(releases)).get_epsilon(delta)


def _event(releases: Releases) -> "DpEvent":
    import dp_accounting

    events = [
        dp_accounting.SelfComposedDpEvent(dp_accounting.LaplaceDpEvent(1 / epsilon), count)
        for epsilon, count in _laplace(releases)
    ]
    for pure, count in _of(Pure, releases):
        kept = 2 / (1 + math.exp(pure.epsilon))  # of two values, which the library replaces with this probability
        events.append(dp_accounting.SelfComposedDpEvent(dp_accounting.RandomizedResponseDpEvent(kept, 2), count))
    sampled = _of(SampledGaussian, releases)
    for kind, count in sampled:
        event = dp_accounting.GaussianDpEvent(kind.multiplier)
        event = dp_accounting.SampledWithoutReplacementDpEvent(kind.population, kind.drawn, event)
        events.append(dp_accounting.SelfComposedDpEvent(event, count))
    if distance := _distance(tuple(release for release in releases if release not in sampled)):
        events.append(dp_accounting.GaussianDpEvent(1 / distance))
    return dp_accounting.ComposedDpEvent(events)


def _pld(releases: Releases, delta: float) -> float:
    """Numeric composition, or ``inf`` where it would be slow or inaccurate, or where clients are sampled in secret."""
    if _of(SampledGaussian, releases):
        return math.inf
    pure, distance = _epsilons(releases), _distance(releases)
    single = [epsilon for epsilon, _ in pure]
    losses = [*single, distance**2 / 2 + _GAUSSIAN_TAIL * distance] if distance else single
    interval = min([*single, distance] if distance else single) / _PLD_STEPS
    whole = sum(count * epsilon for epsilon, count in pure) + sum(losses[len(single) :])
    if delta < _PLD_MIN_DELTA or max(losses) > _PLD_MAX_EPSILON or whole / interval > _PLD_MAX_STEPS:
        return math.inf
    from dp_accounting.pld import common
    from dp_accounting.pld import privacy_loss_distribution as pld

    step = {"value_discretization_interval": interval}
    parts = [pld.from_laplace_mechanism(1 / eps, **step).self_compose(count) for eps, count in _laplace(releases)]
    for kind, count in _of(Pure, releases):
        worst = common.DifferentialPrivacyParameters(kind.epsilon, 0)
        parts.append(pld.from_privacy_parameters(worst, **step).self_compose(count))
    if distance:
        parts.append(pld.from_gaussian_mechanism(1 / distance, **step))
    return functools.reduce(lambda one, other: one.compose(other), parts).get_epsilon_for_delta(delta)


#: Every bound by name; of equal ones the first is reported.
BOUNDS: dict[str, Callable[[Releases, float], float]] = {
    "gaussian": _gaussian,
    "padded": _padded,
    "pure": _pure,
    "pld": _pld,
    "rdp": _rdp,
    "zcdp": _zcdp,
}
