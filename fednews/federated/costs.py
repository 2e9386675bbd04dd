"""What a round costs: bytes by kind of message, and seconds by who computes."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeVar

from fednews.timing import Sections

T = TypeVar("T")
Payer = Literal["client", "server", "aggregation", "simulation"]


@dataclass(frozen=True)
class Messages:
    """What travels between server and clients.

    Attributes:
        receivers: clients that ``down`` is sent to.
        senders: clients that send ``up``.
        down, up: bytes for one client, by kind of message.
    """

    receivers: int
    senders: int
    down: dict[str, int]
    up: dict[str, int]


class RoundCosts:
    """Adds up what a round costs, aborted attempts included.

    Time spent inside one clock does not count for the clock around it: "simulation" is what a deployment would not do.
    """

    def __init__(self) -> None:
        self._sections = Sections()
        self.down: Counter[str] = Counter()
        self.up: Counter[str] = Counter()
        self.receivers = self.senders = 0

    @property
    def seconds(self) -> dict[Payer, float]:
        return self._sections.seconds

    @contextmanager
    def clock(self, payer: Payer) -> Iterator[None]:
        """Count the block's time for ``payer``."""
        self._sections.enter(payer)
        try:
            yield
        finally:
            self._sections.leave()

    def timed(self, parts: Iterable[T]) -> Iterator[T]:
        """The same items; the time to make them counts for clients."""
        parts = iter(parts)
        while True:
            with self.clock("client"):
                try:
                    part = next(parts)
                except StopIteration:
                    return
            yield part

    def send(self, messages: Messages) -> None:
        """Count messages."""
        self.receivers += messages.receivers
        self.senders += messages.senders
        self.down.update({kind: messages.receivers * size for kind, size in messages.down.items()})
        self.up.update({kind: messages.senders * size for kind, size in messages.up.items()})

    def carry(self, kind: str, up: int, down: int) -> None:
        """Count bytes of all clients together."""
        self.up[kind] += up
        self.down[kind] += down

    def traffic(self) -> dict[str, float]:
        """Bytes of all clients, their parts by kind, and means over clients."""
        metrics: dict[str, float] = {}
        for way, kinds, clients in (("down", self.down, self.receivers), ("up", self.up, self.senders)):
            metrics[f"bytes_{way}"] = kinds.total()
            metrics |= {f"bytes_{way}_{kind}": count for kind, count in sorted(kinds.items()) if count}
            metrics[f"bytes_{way}_per_client"] = kinds.total() / max(clients, 1)
        return metrics

    def times(self) -> dict[str, float]:
        """Seconds of all clients together, of the sums, and of the server; and the mean of a client."""
        metrics = {f"{payer}_seconds": self.seconds[payer] for payer in ("client", "aggregation", "server")}
        return metrics | {"per_client_seconds": self.seconds["client"] / self.senders if self.senders else 0.0}
