"""What secure aggregation costs a client, on the full and on the sparse graph."""

import numpy as np

from fednews.aggregation.secagg.graph import Sparse
from fednews.aggregation.secagg.protocol import SecureSum
from fednews.aggregation.secagg.ring import Ring
from fednews.errors import UsageError

_RING = Ring(32)


def bench_secagg(clients: int, length: int, corrupt: float = 0.1, dropout: float = 0.1) -> dict[str, object]:
    """Run the protocol once on each graph, with real keys, signatures, masks and shares.

    Args:
        clients: members of the group.
        length: elements of each client's vector, 4 bytes each.
        corrupt: fraction of clients that collude with the server, which the sparse graph is made for.
        dropout: fraction of clients that drop out, likewise.

    Returns:
        For ``full`` and ``sparse``, of a client: ``client_seconds``, ``bytes_up``, ``bytes_down``, ``overhead`` (bytes
        up over those of the bare vector), and ``server_seconds`` for the whole group.

    Raises:
        UsageError: fewer than two clients or no element.
    """
    if clients < 2 or length < 1:
        raise UsageError("a secure sum needs at least 2 clients and vectors of at least 1 element")
    vectors = [np.full(length, client, _RING.dtype) for client in range(clients)]
    graphs = {"full": None, "sparse": Sparse(corrupt, dropout)}
    return {"clients": clients, "length": length} | {name: _cost(vectors, graph) for name, graph in graphs.items()}


def _cost(vectors: list[np.ndarray], sparse: Sparse | None) -> dict[str, float]:
    _, cost = SecureSum(sparse=sparse).sum(vectors, _RING, 0)
    clients = len(vectors)
    return {
        "client_seconds": cost.client_seconds / clients,
        "server_seconds": cost.server_seconds,
        "bytes_up": cost.up.total() / clients,
        "bytes_down": cost.down.total() / clients,
        "overhead": cost.up.total() / clients / vectors[0].nbytes,
    }
