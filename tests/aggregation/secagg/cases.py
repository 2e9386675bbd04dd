"""Groups, and executions that stop in the middle."""

from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from scipy.stats import chisquare

from fednews.aggregation.secagg.client import Client
from fednews.aggregation.secagg.graph import Sparse
from fednews.aggregation.secagg.group import Group
from fednews.aggregation.secagg.messages import Head, Kind
from fednews.aggregation.secagg.ring import Ring
from fednews.aggregation.secagg.server import Server


class Execution:
    """A server, its clients and what they add up.

    Args:
        clients: size of the group.
        threshold: of the group.
        signed: whether there are signatures.
        sparse: the graph's assumptions; None for the full graph.
        inputs: ring elements ``[clients, length]``; None for random ones.
        round_: number of the round.
        make_server: the server's class.
        make_client: the clients' class.
    """

    def __init__(
        self,
        clients: int = 5,
        threshold: int = 3,
        signed: bool = True,
        sparse: Sparse | None = None,
        inputs: np.ndarray | None = None,
        round_: int = 3,
        make_server: Callable[[Group], Server] = Server,
        make_client: Callable[..., Client] = Client,
    ) -> None:
        self.inputs = np.random.default_rng(0).integers(0, 2**32, (clients, 9), np.uint32) if inputs is None else inputs
        self.identities = [Ed25519PrivateKey.generate() for _ in range(clients)]
        public = tuple(identity.public_key().public_bytes_raw() for identity in self.identities)
        ring = Ring(8 * self.inputs.itemsize)
        self.group = Group(round_, clients, threshold, ring, self.inputs.shape[1], sparse, public if signed else None)
        self.server = make_server(self.group)
        self.clients = [self.client(number, make_client) for number in range(clients)]

    def client(self, number: int, make_client: Callable[..., Client] = Client) -> Client:
        key, identity = self.server.public_key, self.identities[number]
        return make_client(number, self.group, key, self.inputs[number], identity)

    def expected(self, members: set[int] | None = None) -> np.ndarray:
        """The plain sum of the inputs, by default everybody's."""
        rows = self.inputs if members is None else self.inputs[sorted(members)]
        return rows.sum(axis=0, dtype=self.inputs.dtype)

    def messages(self, kind: Kind) -> dict[int, bytes]:
        """Run from the start to the messages of ``kind``, up or down, and do not deliver these."""
        messages = {number: client.advertise() for number, client in enumerate(self.clients)}
        while messages and Head.of(next(iter(messages.values()))).kind != kind:
            messages = self.turn(messages)
        return messages

    def turn(self, messages: dict[int, bytes]) -> dict[int, bytes]:
        """Deliver the messages of one stage, up or down; returns those that follow."""
        if Head.of(next(iter(messages.values()))).kind % 2:
            for message in messages.values():
                self.server.receive(message)
            return self.server.close()
        return {number: self.clients[number].answer(message) for number, message in messages.items()}

    def finish(self, messages: dict[int, bytes]) -> np.ndarray:
        """Deliver messages until the end; returns the sum."""
        while messages:
            messages = self.turn(messages)
        return self.server.total()


def uniform(elements: np.ndarray) -> bool:
    """Whether the bytes of ring elements pass a chi-square test; uniform ones fail once in a million times."""
    counts = np.bincount(np.ascontiguousarray(elements).view(np.uint8).ravel(), minlength=256)
    return chisquare(counts).pvalue > 1e-6
