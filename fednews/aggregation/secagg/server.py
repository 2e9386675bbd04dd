"""The server of the protocol (Bonawitz et al. 2017, Figure 4; the stages stand in `fednews.aggregation.secagg`)."""

import hashlib
import secrets
from collections import defaultdict

import numpy as np

from fednews.aggregation.secagg.errors import MessageRefused, TooFewClients
from fednews.aggregation.secagg.group import Group
from fednews.aggregation.secagg.keys import PUBLIC_BYTES, SEED_BYTES, KeyPair
from fednews.aggregation.secagg.messages import (
    BOX,
    COMMITMENT_BYTES,
    HEAD,
    SERVER,
    SHARE,
    SIGNATURE,
    Head,
    Kind,
    open_message,
    pack_flags,
    records,
    seal_message,
)
from fednews.aggregation.secagg.unmasking import Unmasking


class Server:
    """Runs one execution: takes messages of a stage, closes it, sends the next ones, and opens the sum.

    Args:
        group: what all agreed on.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self._keys = KeyPair(secrets.token_bytes(SEED_BYTES))
        self._secrets: dict[int, bytes] = {}
        self._public: dict[int, tuple[bytes, ...]] = {}  # of each client: c, s and, where signed, the signature
        self._transcript = b""
        self._commitments: dict[int, bytes] = {}
        self._boxes: dict[int, dict[int, bytes]] = defaultdict(dict)  # by receiver, by sender
        self._sum = np.zeros(group.length, group.ring.dtype)
        self._signatures: dict[int, bytes] = {}
        self._revealed: dict[int, dict[int, bytes]] = defaultdict(dict)  # by owner, by holder
        self._alive = set(range(group.clients))
        self._arrived: set[int] = set()
        self._awaits: Kind | None = Kind.ADVERTISE
        self._done = False
        self._takes = {
            Kind.SHARES: self._take_shares,
            Kind.MASKED_INPUT: self._take_masked,
            Kind.CONFIRMATION: self._take_confirmation,
            Kind.REVEAL: self._take_revealed,
        }
        self._closes = {
            Kind.ADVERTISE: self._publish_keys,
            Kind.SHARES: self._forward_shares,
            Kind.MASKED_INPUT: self._announce_survivors,
            Kind.CONFIRMATION: self._pass_confirmations,
        }

    @property
    def public_key(self) -> bytes:
        """The key that clients seal their messages for."""
        return self._keys.public

    @property
    def done(self) -> bool:
        """Whether the last stage is closed, so that the sum can be opened."""
        return self._done

    def receive(self, message: bytes) -> None:
        """Take a client's message of the open stage.

        Raises:
            MessageRefused: it is not one. What arrived before stands; the sender counts as not having sent it.
        """
        if self._awaits is None:
            raise MessageRefused("the round is over")
        head = Head.of(message)
        head.check(Head(self._awaits, self.group.round, head.sender, SERVER))
        if head.sender not in self._alive or head.sender in self._arrived:
            raise MessageRefused(f"client {head.sender} has dropped out, or sent its {head.kind.name} before")
        if head.kind == Kind.ADVERTISE:
            self._take_keys(head.sender, message)
        else:
            self._takes[head.kind](head.sender, open_message(self._secrets[head.sender], message, self._transcript))
        self._arrived.add(head.sender)

    def close(self) -> dict[int, bytes]:
        """End the open stage: whoever has not been heard has dropped out.

        Returns:
            What to send to each client that is left; nothing after the last stage.

        Raises:
            TooFewClients: fewer than the threshold are left; the round is over and no sum can be opened.
        """
        kind, self._awaits = self._awaits, None
        self._alive, self._arrived = self._arrived, set()
        if len(self._alive) < self.group.threshold:
            raise TooFewClients(
                f"the round is aborted after {kind.name}: {len(self._alive)} of {self.group.clients} clients are left "
                f"and {self.group.threshold} are needed; draw another group"
            )
        if kind == Kind.REVEAL:
            self._done = True
            return {}
        context = self._transcript
        bodies = self._closes[kind]()
        down = self.group.after(kind)
        self._awaits = self.group.after(down)
        heads = {client: Head(down, self.group.round, SERVER, client) for client in bodies}
        return {c: seal_message(self._secrets[c], heads[c], context, body) for c, body in bodies.items()}

    def total(self) -> np.ndarray:
        """The sum of the survivors' inputs, ring elements ``[length]``, after the last stage.

        Raises:
            TooFewClients: somebody's masks cannot be removed, too few of its neighbours answered.
            MessageRefused: shares do not open what was committed to, some client revealed wrong ones; or the last stage
                is not closed.
        """
        if not self._done:
            raise MessageRefused("the sum cannot be opened before the last stage is closed")
        mask_keys = {client: keys[1] for client, keys in self._public.items()}
        unmasking = Unmasking(self._graph, self._transcript, self._survivors, mask_keys, self._commitments)
        return unmasking.apply(self._sum, self._revealed)

    def _take_keys(self, sender: int, message: bytes) -> None:
        talk = message[HEAD.size : HEAD.size + PUBLIC_BYTES]
        if len(talk) < PUBLIC_BYTES:
            raise MessageRefused(f"a message of {len(message)} bytes is cut short")
        secret = self._keys.agree(talk)
        body = open_message(secret, message, b"", clear=PUBLIC_BYTES)
        mask, signature = body[:PUBLIC_BYTES], body[PUBLIC_BYTES:]
        if len(mask) < PUBLIC_BYTES or (signature and not self.group.signed):
            raise MessageRefused(f"client {sender} did not advertise exactly its public keys")
        if self.group.signed:
            self.group.check_keys(sender, talk + mask, signature)
        self._secrets[sender] = secret
        self._public[sender] = (talk, mask, signature) if self.group.signed else (talk, mask)

    def _publish_keys(self) -> dict[int, bytes]:
        members = tuple(sorted(self._alive))
        body = b"".join(self.group.keys_layout.pack(client, *self._public[client]) for client in members)
        self._transcript = hashlib.sha256(body).digest()
        self._graph = self.group.graph(members, self._transcript)
        return dict.fromkeys(members, body)

    def _take_shares(self, sender: int, body: bytes) -> None:
        boxes = dict(records(memoryview(body)[COMMITMENT_BYTES:], BOX))
        if tuple(boxes) != self._graph.neighbours(sender):
            raise MessageRefused(f"client {sender} did not share its seeds with exactly its peers")
        self._commitments[sender] = body[:COMMITMENT_BYTES]
        for peer, box in boxes.items():
            self._boxes[peer][sender] = box

    def _forward_shares(self) -> dict[int, bytes]:
        return {client: b"".join(self._inbox(client)) for client in sorted(self._alive)}

    def _inbox(self, client: int) -> list[bytes]:
        boxes = self._boxes.pop(client, {})
        return [BOX.pack(peer, box) for peer, box in sorted(boxes.items())]

    def _take_masked(self, sender: int, body: bytes) -> None:
        if len(body) != self._sum.nbytes:
            raise MessageRefused(f"client {sender} sent a vector of {len(body)} bytes, not {self._sum.nbytes}")
        self._sum += np.frombuffer(body, self._sum.dtype)

    def _announce_survivors(self) -> dict[int, bytes]:
        self._survivors = frozenset(self._alive)
        self._flags = pack_flags([member in self._survivors for member in self._graph.members])
        return dict.fromkeys(sorted(self._survivors), self._flags)

    def _take_confirmation(self, sender: int, body: bytes) -> None:
        self.group.check_survivors(sender, self._transcript, self._flags, body)
        self._signatures[sender] = body

    def _pass_confirmations(self) -> dict[int, bytes]:
        # As many as each client asks for: checking them is what grows with the group on the sparse graph.
        chosen = sorted(self._signatures.items())[: self.group.threshold]
        return dict.fromkeys(sorted(self._alive), b"".join(SIGNATURE.pack(*signature) for signature in chosen))

    def _take_revealed(self, sender: int, body: bytes) -> None:
        parts = dict(records(body, SHARE))
        shared = [owner for owner in self._graph.holders(sender) if owner in self._commitments]
        if list(parts) != shared:
            raise MessageRefused(f"client {sender} did not reveal exactly one share of each peer")
        for owner, part in parts.items():
            self._revealed[owner][sender] = part
