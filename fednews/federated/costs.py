"""What a round costs: bytes by kind of message, and seconds by who computes."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch

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

    Args:
        device: where the round computes.
    """

    def __init__(self, device: torch.device) -> None:
        self.seconds: Counter[Payer] = Counter()
        self.down: Counter[str] = Counter()
        self.up: Counter[str] = Counter()
        self.receivers = self.senders = 0
        self._device = device
        self._payers: list[Payer] = []
        self._since = 0.0

    @contextmanager
    def clock(self, payer: Payer) -> Iterator[None]:
        """Count the block's time for ``payer``."""
        self._settle()
        self._payers.append(payer)
        try:
            yield
        finally:
            self._settle()
            self._payers.pop()

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

    def _settle(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        if self._payers:
            self.seconds[self._payers[-1]] += now - self._since
        self._since = now
