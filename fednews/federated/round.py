"""What a method is told of the round that it computes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fednews.aggregation.updates import Aggregate, ClientUpdates
from fednews.streams import Streams


@dataclass(frozen=True)
class Round:
    """One round of training.

    Attributes:
        number: the round's number, from 0.
        streams: the experiment's random streams.
        separate: the aggregation needs each client's own update, so that nothing may be summed before it.
        sum: sums client updates through the aggregation and over all processes.
        sums_only: no single update is simulated as it would leave its client, so that noises may be drawn as one.
    """

    number: int
    streams: Streams
    separate: bool
    sum: Callable[[Iterable[ClientUpdates]], Aggregate]
    sums_only: bool = False
