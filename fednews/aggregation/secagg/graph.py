"""Who masks with whom: everybody with everybody, or each client with O(log n) neighbours (Bell et al. 2020)."""

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy.stats import hypergeom

from fednews.errors import UsageError

_SECURITY_BITS = 40
_CORRECTNESS_BITS = 20


@dataclass(frozen=True)
class Graph:
    """Neighbours of every member, and how many of a member's share holders open its secrets.

    Attributes:
        members: clients, ascending.
        threshold: shares that open a secret.
        degree: neighbours of a member, an even number; None: all others.
        seed: what places the members on the ring, each next to the ``degree / 2`` on either side (a Harary graph).
    """

    members: tuple[int, ...]
    threshold: int
    degree: int | None = None
    seed: bytes = b""

    def neighbours(self, client: int) -> tuple[int, ...]:
        """The peers of ``client``, ascending."""
        if self.degree is None:
            return tuple(other for other in self.members if other != client)
        place, size = self._place[client], len(self.members)
        steps = [step for step in range(-self.degree // 2, self.degree // 2 + 1) if step]
        return tuple(sorted(self._ring[(place + step) % size] for step in steps))

    def holders(self, client: int) -> tuple[int, ...]:
        """Who gets shares of ``client``'s secrets, ascending; the client keeps one itself."""
        return tuple(sorted((*self.neighbours(client), client)))

    @cached_property
    def _ring(self) -> list[int]:
        return sorted(self.members, key=lambda c: hashlib.sha256(self.seed + c.to_bytes(4, "big")).digest())

    @cached_property
    def _place(self) -> dict[int, int]:
        return {client: place for place, client in enumerate(self._ring)}


@dataclass(frozen=True)
class Sparse:
    """What a sparse graph is made for.

    Attributes:
        corrupt: largest fraction of clients that collude with the server.
        dropout: largest fraction of clients that drop out.

    Raises:
        UsageError: they are not fractions that leave somebody over.
    """

    corrupt: float
    dropout: float

    def __post_init__(self) -> None:
        if min(self.corrupt, self.dropout) < 0 or self.corrupt + self.dropout >= 1:
            raise UsageError(
                f"aggregation.corrupt ({self.corrupt}) and aggregation.dropout ({self.dropout}) are fractions of the "
                "clients that together stay below 1"
            )

    def parameters(self, members: int) -> tuple[int, int] | None:
        """The smallest degree that is safe, and its threshold; None where no degree below ``members - 1`` is.

        Safe after Bell et al. 2020 (their conditions on a good graph): but for a probability of 2^-40, the honest
        clients that stay form one connected graph, and no client's colluding neighbours can open its secrets by
        themselves; but for a probability of 2^-20, every client's secrets can be opened.
        """
        return _sparse_parameters(members, math.ceil(self.corrupt * members), math.ceil(self.dropout * members))


@lru_cache
def _sparse_parameters(members: int, corrupt: int, dropped: int) -> tuple[int, int] | None:
    for degree in range(2, members - 1, 2):
        threshold = _threshold(members, degree, corrupt, dropped)
        if threshold is not None:
            return degree, threshold
    return None


def _threshold(members: int, degree: int, corrupt: int, dropped: int) -> int | None:
    risk = 2.0 ** -(_SECURITY_BITS + 1)  # half of it for either event
    if _log_disconnected(members, degree, corrupt + dropped) > math.log(risk):
        return None
    counts = np.arange(degree + 2)
    colluding = hypergeom.sf(counts, members - 1, corrupt, degree)  # P[more than count]
    most = int(np.argmax(colluding * members <= risk))
    threshold = max(most + 1, 2)
    missing = hypergeom.cdf(threshold - 1, members - 1, members - 1 - dropped, degree) * members
    return threshold if missing <= 2.0**-_CORRECTNESS_BITS else None


def _log_disconnected(members: int, degree: int, lost: int) -> float:
    """Log of a bound on the probability that losing ``lost`` random members cuts the ring in two.

    A cut needs degree / 2 neighbours in a row missing at two places: for fixed places with probability
    C(members - degree, lost - degree) / C(members, lost), and there are fewer than members^2 / 2 pairs of places.
    """
    if degree > lost:
        return -math.inf
    factors = np.arange(degree)
    return 2 * math.log(members) - math.log(2) + float(np.log((lost - factors) / (members - factors)).sum())
