"""What a method is told of the round that it computes."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import numpy as np

from fednews.aggregation.updates import Aggregate, ClientUpdates
from fednews.federated.costs import RoundCosts
from fednews.streams import Streams


@dataclass(frozen=True)
class NewsUnion:
    """News that a round's clients touched.

    Attributes:
        seen: int64 ``[catalogue]``, what the server learns: how many clients touched each news, or 1 for however many
            where counts stay hidden.
        holders: int64 ``[catalogue]``, how many did; where counts are hidden, only the simulation knows.
        revealed: whether ``seen`` has the counts.
    """

    seen: np.ndarray
    holders: np.ndarray
    revealed: bool

    @property
    def singleton_rate(self) -> float:
        """The fraction of the union that one client alone touched: of those rows a sum hides nothing."""
        return float((self.holders == 1).sum() / max((self.holders > 0).sum(), 1))


@dataclass(frozen=True)
class Round:
    """One round of training.

    Attributes:
        number: the round's number, from 0.
        streams: the experiment's random streams.
        separate: the aggregation needs each client's own update, so that nothing may be summed before it.
        sum: sums client updates through the aggregation and over all processes.
        sums_only: no single update is simulated as it would leave its client, so that noises may be drawn as one.
        union: counts news that clients touched in the same way: each client's rows of the catalogue, and its length.
        attempt: how many attempts at this round were aborted before.
        costs: of the round so far.
    """

    number: int
    streams: Streams
    separate: bool
    sum: Callable[[Iterable[ClientUpdates]], Aggregate]
    sums_only: bool = False
    union: Callable[[Sequence[np.ndarray], int], NewsUnion] | None = None
    attempt: int = 0
    costs: RoundCosts = field(default_factory=RoundCosts)

    def on_server(self) -> AbstractContextManager[None]:
        """Count a block's time for the server; what a method computes else is its clients' work."""
        return self.costs.clock("server")
