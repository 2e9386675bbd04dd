"""What an execution of the protocol costs."""

from collections import Counter
from dataclasses import dataclass, field

from fednews.aggregation.secagg.group import Group
from fednews.aggregation.secagg.keys import PUBLIC_BYTES, SIGNATURE_BYTES, TAG_BYTES
from fednews.aggregation.secagg.messages import BOX, COMMITMENT_BYTES, HEAD, SHARE, SIGNATURE, Kind


@dataclass
class Cost:
    """Bytes by kind of message, over all clients, and seconds of computation.

    Attributes:
        clients: executions of clients.
        up, down: bytes that clients sent and received.
        client_seconds: of all clients together.
        server_seconds: of the server.
        simulated: whether bytes are calculated and no seconds are known.
    """

    clients: int = 0
    up: Counter[Kind] = field(default_factory=Counter)
    down: Counter[Kind] = field(default_factory=Counter)
    client_seconds: float = 0.0
    server_seconds: float = 0.0
    simulated: bool = False

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.clients + other.clients,
            self.up + other.up,
            self.down + other.down,
            self.client_seconds + other.client_seconds,
            self.server_seconds + other.server_seconds,
            self.simulated or other.simulated,
        )

    def metrics(self, name: str) -> dict[str, float]:
        """Metrics whose names start with ``name``: bytes over all clients, mean seconds per client."""
        metrics = {f"{name}_bytes_up": float(self.up.total()), f"{name}_bytes_down": float(self.down.total())}
        for way, counts in (("up", self.up), ("down", self.down)):
            metrics |= {f"{name}_bytes_{way}_{kind.label}": float(count) for kind, count in counts.items()}
        if not self.simulated:
            metrics[f"{name}_client_seconds"] = self.client_seconds / max(self.clients, 1)
            metrics[f"{name}_server_seconds"] = self.server_seconds
        return metrics


def calculated(group: Group) -> Cost:
    """The bytes of an execution in which nobody drops out."""
    members = group.clients
    graph = group.graph(tuple(range(members)), b"")
    peers = members - 1 if graph.degree is None else graph.degree
    envelope = HEAD.size + TAG_BYTES
    signature = SIGNATURE_BYTES if group.signed else 0
    up = {
        Kind.ADVERTISE: 2 * PUBLIC_BYTES + signature,
        Kind.SHARES: COMMITMENT_BYTES + peers * BOX.size,
        Kind.MASKED_INPUT: group.length * group.ring.dtype.itemsize,
        Kind.REVEAL: (peers + 1) * SHARE.size,
    }
    down = {
        Kind.KEYS: members * group.keys_layout.size,
        Kind.INBOX: peers * BOX.size,
        Kind.SURVIVORS: -(-members // 8),
    }
    if group.signed:
        up[Kind.CONFIRMATION] = SIGNATURE_BYTES
        down[Kind.CONFIRMATIONS] = group.threshold * SIGNATURE.size
    up, down = (Counter({k: members * (envelope + size) for k, size in way.items()}) for way in (up, down))
    return Cost(members, up, down, simulated=True)
