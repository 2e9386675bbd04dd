"""The bridge to the accounting library: one client's releases in, an epsilon that holds out.

A release with Laplace noise of scale b on each of n coordinates, each of which can move by S between adjacent data
sets, is n Laplace mechanisms of noise multiplier b / S; T rounds are n * T of them (composition is adaptive, so later
rounds may depend on earlier ones). For FedNewsRec S = 2 * delta and b = lambda.

Neighbouring relation: S is already the distance between a client's two data sets under the adjacency that the ledger
entry names (replace-one), so the library is asked about one query whose answer moves by at most S. Its Laplace
accounting is only offered under the names add-or-remove-one and replace-special, where the "record" contributes at most
S; the pair of distributions, Lap(0, b) against Lap(S, b), is the same. Its own replace-one relation (which would have
to double S once more, and whose handling is an open defect, google/differential-privacy issue 378) is not used.
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

#: (epsilon of one release, number of releases) for each kind of release.
Releases = tuple[tuple[float, int], ...]


@dataclass(frozen=True)
class Accounted:
    """An epsilon that holds.

    Attributes:
        epsilon: ``inf`` where nothing holds.
        delta: the delta that it holds for.
        method: the bound that gave it: ``"pld"``, ``"rdp"``, ``"zcdp"``, ``"pure"``, or ``"none"`` (nothing released,
            or nothing holds).
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
    2020; pessimistic, in the library) where k is small enough; Renyi composition of the exact Laplace curve (Mironov
    2017, Proposition 6, in the library); zCDP, rho = k * eps0^2 / 2 (Bun and Steinke 2016, Propositions 1.3 and 1.4),
    smallest when k is huge and eps0 small; and k * eps0, the only one for ``delta = 0``.

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
    if not made:
        return Accounted(0.0, delta, "none")
    single = tuple((_epsilon_of_coordinate(entry), entry.coordinates * count) for entry, count in made)
    return _smallest_bound(single, delta)


def _epsilon_of_coordinate(entry: "LedgerEntry") -> float:
    if (entry.noise, entry.sensitivity_norm) != ("laplace", "linf"):
        raise FednewsError(
            f"{entry.mechanism}: no accounting for {entry.noise} noise with {entry.sensitivity_norm} sensitivity; "
            "add it to fednews/privacy/accounting.py"
        )
    return entry.sensitivity / entry.noise_scale


def _smallest_bound(releases: Releases, delta: float) -> Accounted:
    epsilons = {method: bound(releases, delta) for method, bound in BOUNDS.items()}
    method = min(epsilons, key=epsilons.__getitem__)
    return Accounted(float(epsilons[method]), delta, method)


def _pure(releases: Releases, delta: float) -> float:
    return sum(count * epsilon for epsilon, count in releases)


def _zcdp(releases: Releases, delta: float) -> float:
    if delta == 0:
        return math.inf
    rho = sum(count * epsilon**2 / 2 for epsilon, count in releases)
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def _rdp(releases: Releases, delta: float) -> float:
    if delta == 0:
        return math.inf
    from dp_accounting import rdp  # 1.7 s to import

    accountant = rdp.RdpAccountant(_RDP_ORDERS)
    return accountant.compose(_event(releases)).get_epsilon(delta)


def _pld(releases: Releases, delta: float) -> float:
    """Numeric composition, or ``inf`` where it would be slow or inaccurate."""
    interval = min(epsilon for epsilon, _ in releases) / _PLD_STEPS
    largest = max(epsilon for epsilon, _ in releases)
    if delta < _PLD_MIN_DELTA or largest > _PLD_MAX_EPSILON or _pure(releases, 0) / interval > _PLD_MAX_STEPS:
        return math.inf
    from dp_accounting import pld

    accountant = pld.PLDAccountant(value_discretization_interval=interval)
    return accountant.compose(_event(releases)).get_epsilon(delta)


def _event(releases: Releases) -> "DpEvent":
    import dp_accounting

    return dp_accounting.ComposedDpEvent(
        [dp_accounting.SelfComposedDpEvent(dp_accounting.LaplaceDpEvent(1 / e), count) for e, count in releases]
    )


#: Every bound by name; of equal ones the first is reported.
BOUNDS: dict[str, Callable[[Releases, float], float]] = {"pure": _pure, "pld": _pld, "rdp": _rdp, "zcdp": _zcdp}
