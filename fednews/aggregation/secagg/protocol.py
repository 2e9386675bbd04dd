"""Runs the protocol between objects of one process, and its simulation without cryptography."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fednews.aggregation.secagg.client import Client
from fednews.aggregation.secagg.cost import Cost, calculated
from fednews.aggregation.secagg.errors import TooFewClients
from fednews.aggregation.secagg.graph import Sparse
from fednews.aggregation.secagg.group import Group
from fednews.aggregation.secagg.messages import Head, Kind
from fednews.aggregation.secagg.ring import Ring
from fednews.aggregation.secagg.server import Server
from fednews.errors import UsageError

T = TypeVar("T")


@dataclass(frozen=True)
class SecureSum:
    """Settings of secure sums over groups of any size.

    Attributes:
        threshold: fraction of a group whose inputs a sum must have, above a half; with signatures, a server gains
            nothing from lying while a fraction below ``2 threshold - 1`` of the group colludes with it.
        sparse: None for the full graph.
        signatures: whether clients sign their keys and what they are told of survivors.
        simulate: add up in the clear, and calculate the bytes that the protocol would take.
        min_clients: the smallest group that is summed, at least 2: a sum over one client is that client's input.

    Raises:
        UsageError: a setting out of range.
    """

    threshold: float = 2 / 3
    sparse: Sparse | None = None
    signatures: bool = True
    simulate: bool = False
    min_clients: int = 2

    def __post_init__(self) -> None:
        if not 0.5 < self.threshold <= 1:
            raise UsageError(f"aggregation.threshold is a fraction above 0.5 and at most 1, not {self.threshold}")
        if self.min_clients < 2:
            raise UsageError(f"aggregation.min_clients is at least 2, not {self.min_clients}")

    def sum(self, vectors: Sequence[np.ndarray], ring: Ring, round_: int) -> tuple[np.ndarray, Cost]:
        """The sum of one vector of ring elements ``[length]`` per client, and what it cost.

        Raises:
            TooFewClients: the group is smaller than ``min_clients``.
        """
        if len(vectors) < self.min_clients:
            raise TooFewClients(
                f"round {round_} has {len(vectors)} clients to sum over and aggregation.min_clients is "
                f"{self.min_clients}: invite more clients"
            )
        identities = [Ed25519PrivateKey.generate() for _ in vectors] if self.signatures and not self.simulate else []
        group = Group(
            round=round_,
            clients=len(vectors),
            threshold=math.ceil(self.threshold * len(vectors) - 1e-9),
            ring=ring,
            length=len(vectors[0]),
            sparse=self.sparse,
            identities=tuple(i.public_key().public_bytes_raw() for i in identities) if self.signatures else None,
        )
        if self.simulate:
            total = np.zeros(group.length, ring.dtype)
            for vector in vectors:
                total += vector
            return total, calculated(group)
        server = Server(group)
        signers = identities or [None] * len(vectors)
        clients = [Client(number, group, server.public_key, vectors[number], key) for number, key in enumerate(signers)]
        return execute(server, clients)


def execute(
    server: Server, clients: Sequence[Client], silent_from: Mapping[int, Kind] | None = None
) -> tuple[np.ndarray, Cost]:
    """Carry messages between a server and its clients, and open the sum.

    Args:
        server: before its first message.
        clients: by number, before their first message.
        silent_from: clients that drop out, each with the first kind of message that does not arrive any more.

    Raises:
        TooFewClients: too many dropped out.
        MessageRefused: somebody did not follow the protocol.
    """
    courier = _Courier(server, silent_from or {})
    for number, client in enumerate(clients):
        courier.send(number, client.advertise)
    while outgoing := courier.close():
        for number, message in outgoing.items():
            courier.send(number, partial(clients[number].answer, message))
    return courier.on_server(server.total), courier.cost


class _Courier:
    """Delivers messages, weighs them and clocks who makes them."""

    def __init__(self, server: Server, silent_from: Mapping[int, Kind]) -> None:
        self.cost = Cost(server.group.clients)
        self._server, self._silent_from = server, silent_from

    def send(self, number: int, make: Callable[[], bytes]) -> None:
        start = time.perf_counter()
        message = make()
        self.cost.client_seconds += time.perf_counter() - start
        kind = Head.of(message).kind
        if number in self._silent_from and kind >= self._silent_from[number]:
            return
        self.cost.up[kind] += len(message)
        self.on_server(partial(self._server.receive, message))

    def close(self) -> dict[int, bytes]:
        outgoing = self.on_server(self._server.close)
        for message in outgoing.values():
            self.cost.down[Head.of(message).kind] += len(message)
        return outgoing

    def on_server(self, work: Callable[[], T]) -> T:
        start = time.perf_counter()
        result = work()
        self.cost.server_seconds += time.perf_counter() - start
        return result
