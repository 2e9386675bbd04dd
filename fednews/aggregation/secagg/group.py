"""What clients and server of one execution agree on beforehand."""

import struct
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fednews.aggregation.secagg.graph import Graph, Sparse
from fednews.aggregation.secagg.keys import check_signature, sign
from fednews.aggregation.secagg.messages import CLIENT_KEYS, SERVER, SIGNED_KEYS, Head, Kind
from fednews.aggregation.secagg.ring import Ring


@dataclass(frozen=True)
class Group:
    """Public parameters of one execution.

    Attributes:
        round: number of the training round, bound to every message.
        clients: how many clients are invited; they are numbered from 0.
        threshold: how many inputs a sum must have; on the full graph also how many shares open a secret.
        ring: where vectors live.
        length: elements of a vector.
        sparse: None for the full graph.
        identities: the clients' Ed25519 public keys; None where nothing is signed and the server is trusted to follow
            the protocol.
    """

    round: int
    clients: int
    threshold: int
    ring: Ring
    length: int
    sparse: Sparse | None = None
    identities: tuple[bytes, ...] | None = None

    @property
    def signed(self) -> bool:
        return self.identities is not None

    @property
    def keys_layout(self) -> struct.Struct:
        """Records of the KEYS message."""
        return SIGNED_KEYS if self.signed else CLIENT_KEYS

    def graph(self, members: tuple[int, ...], transcript: bytes) -> Graph:
        """The graph of those who advertised keys; the full graph where they are too few for a sparse one."""
        if self.sparse is not None:
            parameters = self.sparse.parameters(len(members))
            if parameters is not None:
                degree, threshold = parameters
                return Graph(members, threshold, degree, transcript)
        return Graph(members, self.threshold)

    def after(self, kind: Kind) -> Kind:
        """The kind of message that follows, whichever way it goes."""
        if kind == Kind.SURVIVORS and not self.signed:
            return Kind.REVEAL
        return Kind(kind + 1)

    def sign_keys(self, identity: Ed25519PrivateKey, client: int, keys: bytes) -> bytes:
        return sign(identity, self._head(Kind.ADVERTISE, client) + keys)

    def check_keys(self, client: int, keys: bytes, signature: bytes) -> None:
        """Raise MessageRefused where ``client`` did not sign its two public keys."""
        check_signature(self.identities[client], self._head(Kind.ADVERTISE, client) + keys, signature)

    def sign_survivors(self, identity: Ed25519PrivateKey, client: int, transcript: bytes, flags: bytes) -> bytes:
        return sign(identity, self._head(Kind.CONFIRMATION, client) + transcript + flags)

    def check_survivors(self, client: int, transcript: bytes, flags: bytes, signature: bytes) -> None:
        """Raise MessageRefused where ``client`` did not sign that it was told of these survivors."""
        check_signature(self.identities[client], self._head(Kind.CONFIRMATION, client) + transcript + flags, signature)

    def _head(self, kind: Kind, client: int) -> bytes:
        return Head(kind, self.round, client, SERVER).pack()
