"""The union of the news that a group's clients touched (Yi et al. 2021, section 3.4; SPEC section 2, step 1).

What the server learns is the union, and how many clients touched each of its news unless that is hidden; a news that
one client touched is in the union all the same. Nothing here is differentially private.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fednews.aggregation.secagg.cost import Cost
from fednews.aggregation.secagg.protocol import SecureSum
from fednews.aggregation.secagg.ring import Ring

_SUPPORT = Ring(64)


@dataclass(frozen=True)
class Union:
    """News that at least one client touched.

    Attributes:
        news: int64 ``[m]``, ascending.
        counts: int64 ``[m]``, how many clients touched each; None where that stays hidden.
        cost: of the protocol.
    """

    news: np.ndarray
    counts: np.ndarray | None
    cost: Cost

    @property
    def singleton_rate(self) -> float | None:
        """The fraction of the union that one client alone touched: of those rows a sum hides nothing.

        None where counts stay hidden; 0 for an empty union.
        """
        if self.counts is None:
            return None
        return float(np.mean(self.counts == 1)) if len(self.counts) else 0.0


def union_of_news(
    touched: Sequence[np.ndarray], catalogue: int, protocol: SecureSum, round_: int, reveal_counts: bool = True
) -> Union:
    """Sum the clients' vectors over the catalogue by secure aggregation.

    With counts, a client's vector is 1 at the news that it touched. Without, it is a random non-zero 64-bit ring
    element there, so that sums over the union are uniform (but for 2^-63) however many clients touched a news; a news
    is then missed with probability 2^-64, when its elements add to zero.

    Args:
        touched: per client, the news that it touched, int ``[...]`` below ``catalogue``; repetitions count once.
        catalogue: number of news.
        protocol: settings of the sum.
        round_: number of the round.
        reveal_counts: whether the server may learn counts.

    Raises:
        TooFewClients: the group is smaller than ``protocol.min_clients``.
    """
    ring = Ring.holding(1, len(touched)) if reveal_counts else _SUPPORT
    vectors = []
    for news in touched:
        vector = np.zeros(catalogue, ring.dtype)
        vector[news] = 1 if reveal_counts else _random_elements(len(news))
        vectors.append(vector)
    total, cost = protocol.sum(vectors, ring, round_)
    news = np.flatnonzero(total)
    return Union(news, ring.unwrap(total[news]) if reveal_counts else None, cost)


def _random_elements(count: int) -> np.ndarray:
    """Non-zero ring elements ``[count]`` from the system's generator; 0 has a probability of 2^-64 and becomes 1."""
    return np.maximum(np.frombuffer(secrets.token_bytes(8 * count), _SUPPORT.dtype), 1)
