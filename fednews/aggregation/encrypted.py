"""What aggregation under additively homomorphic encryption has in common, whichever the scheme.

Roles and keys (FINDING, Yu et al. 2023, Algorithm 2; the key handling is that of FedMF, Chai et al. 2021):

- The **key holder** makes the key pair, publishes the public key, keeps the secret key and opens sums. In FINDING-HE
  all clients share the secret key, so that each of them is a key holder; a party apart from clients and server
  serves as well.
- A **client** knows the public key, and uploads its weighted update, weight, loss and sample count encrypted.
- The **server** knows the public key. It adds uploads without opening them and has the key holder open the sum.

The three are objects that exchange bytes only; in a simulation one client object stands for all, as it holds nothing
that differs between them.

What the server sees: who uploads, the number and size of the ciphertexts, and the opened sums. Algorithm 2 keeps even
the model encrypted at the server, which allows linear server steps only; the paper trains with Adam, so sums are
opened here. What this does not give:

- With a shared secret key, any one client that colludes with the server (or taps its traffic) opens every upload.
- A sum over one client is that client's update.
- An opened sum carries no noise: no differential privacy, the accounted epsilon stays that of the mechanism.
- Clients and server follow the protocol (honest but curious): nothing proves that an upload is well formed.
"""

import dataclasses
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np
from torch import Tensor

from fednews.aggregation.base import Aggregation
from fednews.aggregation.encoding import Encoding
from fednews.aggregation.fixed_point import FixedPoint
from fednews.aggregation.updates import Aggregate, ClientUpdates
from fednews.privacy.entry import LedgerEntry
from fednews.streams import Streams

SERVER_SEES = (
    "the sums over the round's clients of weighted updates, weights, losses and sample counts, once opened",
    "which clients take part in which round",
    "every single upload, if any holder of the secret key colludes with the server (all clients in FINDING-HE)",
)

COSTS = (
    "encryption_seconds",
    "aggregation_seconds",
    "decryption_seconds",
    "aggregation_bytes_up",
    "aggregation_bytes_down",
)


class KeyHolder(Protocol):
    """Holds the secret key."""

    public: bytes

    def open(self, total: list[bytes], n: int) -> np.ndarray:
        """Decrypt a sum of uploads to int64 ``[n]``."""


class Client(Protocol):
    """Encrypts what one client uploads."""

    def encrypt(self, values: np.ndarray) -> list[bytes]:
        """Encrypt int64 ``[n]``, serialised ciphertext by ciphertext."""


class Server(Protocol):
    """Adds uploads of one sum."""

    clients: int

    def add(self, upload: list[bytes]) -> None:
        """Add one client's upload."""

    def total(self) -> list[bytes]:
        """The encrypted sum of all uploads."""


class Encrypted(Aggregation):
    """Sums fixed-point integers under encryption: the result is exactly the sum of what each client rounded.

    It differs from the plain sum by at most half a step of 2^-fraction_bits per client and element.

    Args:
        fixed: encoding of weighted updates.
    """

    def __init__(self, fixed: FixedPoint) -> None:
        self.fixed = fixed
        self._key_holder: KeyHolder | None = None
        self._costs: Counter[str] = Counter()
        self._traffic = (0, 0)

    @abstractmethod
    def make_key_holder(self) -> KeyHolder:
        """Generate keys."""

    @abstractmethod
    def make_client(self, public: bytes) -> Client: ...

    @abstractmethod
    def make_server(self, public: bytes) -> Server: ...

    @property
    def key_holder(self) -> KeyHolder:
        """The one key holder of this aggregation; keys are generated when first needed."""
        if self._key_holder is None:
            self._key_holder = self.make_key_holder()
        return self._key_holder

    def sum(self, parts: Iterable[ClientUpdates], like: dict[str, Tensor], streams: Streams, round_: int) -> Aggregate:
        """Sum as `Aggregation.sum` says.

        Raises:
            FednewsError: a value is not finite or beyond the encoding's bound, or the sum beyond the scheme's range.
            ValueError: a part holds sums over clients instead of single clients' updates.
        """
        public = self.key_holder.public
        client, server = self.make_client(public), self.make_server(public)
        encoding = Encoding(self.fixed, like, self.fixed.fraction_bits)
        for part in parts:
            if len(part.clients) != len(part.weights):
                raise ValueError("encrypted aggregation needs every client's own update, not sums over clients")
            for row in range(len(part.weights)):
                with self._clock("encryption_seconds"):
                    upload = client.encrypt(encoding.encode(part, row))
                self._count(sum(map(len, upload)), 0)
                with self._clock("aggregation_seconds"):
                    server.add(upload)
        if not server.clients:
            return Aggregate.zeros(like)
        total = server.total()
        self._count(0, sum(map(len, total)))
        with self._clock("decryption_seconds"):
            return encoding.decode(self.key_holder.open(total, encoding.length))

    def traffic(self) -> tuple[int, int]:
        traffic, self._traffic = self._traffic, (0, 0)
        return traffic

    def _count(self, up: int, down: int) -> None:
        self._traffic = self._traffic[0] + up, self._traffic[1] + down
        self._costs["aggregation_bytes_up"] += up
        self._costs["aggregation_bytes_down"] += down

    def metrics(self) -> dict[str, float]:
        """Cost since the last call: wall-clock seconds of all clients together, of the server and of the key holder.

        Bytes up are the ciphertexts of all clients, bytes down those that the key holder receives to open.
        """
        costs, self._costs = self._costs, Counter()
        return {name: float(costs[name]) for name in COSTS}

    def covers(self, entry: LedgerEntry) -> LedgerEntry:
        """Only sums reach the server; what the release guarantees in itself does not change."""
        return dataclasses.replace(entry, view="central", server_sees=SERVER_SEES)

    @contextmanager
    def _clock(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._costs[name] += time.perf_counter() - start
