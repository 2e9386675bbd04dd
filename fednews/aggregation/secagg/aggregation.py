"""Secure aggregation of client updates."""

import dataclasses
import time
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
from torch import Tensor

from fednews.aggregation.base import Aggregation
from fednews.aggregation.encoding import Encoding
from fednews.aggregation.fixed_point import FixedPoint
from fednews.aggregation.secagg.cost import Cost
from fednews.aggregation.secagg.graph import Sparse
from fednews.aggregation.secagg.protocol import SecureSum
from fednews.aggregation.secagg.ring import Ring
from fednews.aggregation.secagg.union import union_of_news
from fednews.aggregation.updates import Aggregate, ClientUpdates
from fednews.errors import UsageError
from fednews.privacy.entry import LedgerEntry
from fednews.streams import Streams

SERVER_SEES = (
    "exact sums over the round's clients of what they upload: weighted updates, weights, losses and sample counts",
    "which clients take part in which round",
)


class SecureAggregation(Aggregation):
    """Sums of fixed-point numbers by the protocol of `fednews.aggregation.secagg`: exact sums of what clients rounded.

    They differ from the plain sum by at most half a step of 2^-fraction_bits per client and element. A group must have
    ``2 * clients * bound * 2^fraction_bits`` within 2^32 for vectors of 4 bytes an element (up to 128 clients with the
    defaults), or they take 8 bytes. All of a sum's clients are held in memory, encoded, as their keys come first.

    Args:
        fraction_bits: bits behind the point of a weighted update's elements.
        bound: what the magnitude of every element of a client's weighted update stays below.
        threshold: fraction of the clients whose inputs a sum must have, above a half; on the full graph also the
            fraction of shares that opens a secret.
        graph: ``full`` (each client masks with all others) or ``sparse`` (with O(log n) neighbours).
        corrupt: of the sparse graph: largest fraction of clients that collude with the server.
        dropout: of the sparse graph: largest fraction of clients that drop out while sums are made.
        signatures: clients sign their keys and refuse a server that tells them different things; without, the server
            is trusted to follow the protocol.
        simulate: skip the cryptography: the same sums and bytes, calculated, for long experiments; clients'
            noises (Laplace, or Gaussian shares) are then drawn as one, with the distribution of their sum.
        min_clients: the smallest number of clients to sum over.
        retries: how often a round in which too few clients are left is tried again with other clients.
        reveal_counts: of a union of news (EfficientFedRec), whether the server learns how many clients touched a news,
            or only that one did.

    Raises:
        UsageError: a setting out of range.
    """

    def __init__(
        self,
        fraction_bits: int = 18,
        bound: float = 64.0,
        threshold: float = 2 / 3,
        graph: Literal["full", "sparse"] = "full",
        corrupt: float = 0.1,
        dropout: float = 0.1,
        signatures: bool = True,
        simulate: bool = False,
        min_clients: int = 2,
        retries: int = 3,
        reveal_counts: bool = True,
    ) -> None:
        if retries < 0:
            raise UsageError(f"aggregation.retries must not be negative, but is {retries}")
        self.fixed = FixedPoint(fraction_bits, bound)
        sparse = Sparse(corrupt, dropout) if graph == "sparse" else None
        self.protocol = SecureSum(threshold, sparse, signatures, simulate, min_clients)
        self.sums_only = simulate
        self.retries = retries
        self.reveals_counts = reveal_counts
        self._cost, self._seconds = Cost(simulated=simulate), 0.0
        self._traffic = (0, 0)

    def sum(self, parts: Iterable[ClientUpdates], like: dict[str, Tensor], streams: Streams, round_: int) -> Aggregate:
        """Sum as `Aggregation.sum` says.

        Raises:
            FednewsError: a value is not finite or beyond the bound, or sums do not fit into 64 bits.
            TooFewClients: there are clients, but fewer than ``min_clients``.
            ValueError: a part holds sums over clients instead of single clients' updates.
        """
        limit = self.fixed.limit
        encoding = Encoding(self.fixed, like, (limit + 1).bit_length() - 1, np.min_scalar_type(-limit))
        vectors: list[np.ndarray] = []
        encoding_seconds = 0.0
        for part in parts:
            if len(part.clients) != len(part.weights):
                raise ValueError("secure aggregation needs every client's own update, not sums over clients")
            start = time.perf_counter()
            vectors += (encoding.encode(part, row) for row in range(len(part.weights)))
            encoding_seconds += time.perf_counter() - start
        if not vectors:
            return Aggregate.zeros(like)
        start = time.perf_counter()
        ring = Ring.holding(limit, len(vectors))
        for number, vector in enumerate(vectors):  # one by one: memory holds all vectors once
            vectors[number] = ring.wrap(vector)
        total, cost = self.protocol.sum(vectors, ring, round_)
        sums = encoding.decode(ring.unwrap(total))
        cost.client_seconds += encoding_seconds
        self._spend(cost, encoding_seconds + time.perf_counter() - start)
        return sums

    def count_news(self, touched: Sequence[np.ndarray], catalogue: int, streams: Streams, round_: int) -> np.ndarray:
        """Count as `Aggregation.count_news` says, in a ring just wide enough; 1 for all of the union without counts.

        Raises:
            TooFewClients: there are clients, but fewer than ``min_clients``.
        """
        seen = np.zeros(catalogue, np.int64)
        if not touched:
            return seen
        start = time.perf_counter()
        union = union_of_news(touched, catalogue, self.protocol, round_, self.reveals_counts)
        seen[union.news] = 1 if union.counts is None else union.counts
        # The same clients take part in the round's sum, over whom means are taken.
        self._spend(dataclasses.replace(union.cost, clients=0), time.perf_counter() - start)
        return seen

    def traffic(self) -> tuple[int, int]:
        traffic, self._traffic = self._traffic, (0, 0)
        return traffic

    def _spend(self, cost: Cost, seconds: float) -> None:
        self._cost += cost
        self._seconds += seconds
        self._traffic = self._traffic[0] + cost.up.total(), self._traffic[1] + cost.down.total()

    def metrics(self) -> dict[str, float]:
        """Cost of the sums since the last call: ``aggregation_seconds`` for all, and `Cost.metrics`."""
        metrics = {"aggregation_seconds": self._seconds} | self._cost.metrics("aggregation")
        self._cost, self._seconds = Cost(simulated=self.protocol.simulate), 0.0
        return metrics

    def covers(self, entry: LedgerEntry) -> LedgerEntry:
        """Only sums reach the server; what the release guarantees by its own noise does not change."""
        return dataclasses.replace(entry, view="central", server_sees=SERVER_SEES)
