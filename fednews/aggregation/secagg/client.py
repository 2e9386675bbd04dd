"""A client of the protocol (Bonawitz et al. 2017, Figure 4; the stages stand in `fednews.aggregation.secagg`)."""

import hashlib
import secrets

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fednews.aggregation.secagg.errors import MessageRefused, TooFewClients
from fednews.aggregation.secagg.group import Group
from fednews.aggregation.secagg.keys import SEED_BYTES, KeyPair, seal, unseal
from fednews.aggregation.secagg.masks import add_mask, commitment, pair_mask_key, self_mask_key, subtract_mask
from fednews.aggregation.secagg.messages import (
    BOX,
    SERVER,
    SHARE,
    SIGNATURE,
    Head,
    Kind,
    open_message,
    records,
    seal_message,
    unpack_flags,
)
from fednews.aggregation.secagg.shares import SHARE_BYTES, share


class Client:
    """Takes part in one execution; any message that it refuses ends that.

    Args:
        number: the client's number in the group.
        group: what all agreed on.
        server_key: the server's public key.
        values: the client's input, ring elements ``[length]``.
        identity: the client's signing key, in groups with signatures.

    Raises:
        ValueError: the input has another shape or type.
    """

    def __init__(
        self,
        number: int,
        group: Group,
        server_key: bytes,
        values: np.ndarray,
        identity: Ed25519PrivateKey | None = None,
    ) -> None:
        if values.shape != (group.length,) or values.dtype != group.ring.dtype:
            raise ValueError(f"input is {values.dtype}{values.shape}, not {group.ring.dtype}({group.length},)")
        self.number, self.group = number, group
        self._values, self._identity = values, identity
        self._mask_seed, self._self_seed = secrets.token_bytes(SEED_BYTES), secrets.token_bytes(SEED_BYTES)
        self._talk, self._mask = KeyPair(secrets.token_bytes(SEED_BYTES)), KeyPair(self._mask_seed)
        self._server = self._talk.agree(server_key)
        self._transcript = b""
        self._shares: dict[int, tuple[bytes, bytes]] = {}  # by owner: of its mask key's seed, of its self mask's
        self._peers: dict[int, tuple[bytes, bytes]] = {}  # what is agreed on with each: for talking, for masks
        self._awaits: Kind | None = Kind.ADVERTISE
        self._steps = {
            Kind.KEYS: self._share_seeds,
            Kind.INBOX: self._mask_input,
            Kind.SURVIVORS: self._note_survivors,
            Kind.CONFIRMATIONS: self._check_confirmations,
        }

    def advertise(self) -> bytes:
        """The client's first message: its public keys of this execution."""
        if self._awaits != Kind.ADVERTISE:
            raise MessageRefused(f"client {self.number} has advertised its keys already")
        self._awaits = Kind.KEYS
        body = self._mask.public
        if self.group.signed:
            body += self.group.sign_keys(self._identity, self.number, self._talk.public + self._mask.public)
        return seal_message(self._server, self._head(Kind.ADVERTISE), b"", body, clear=self._talk.public)

    def answer(self, message: bytes) -> bytes:
        """Answer the server's next message.

        Raises:
            MessageRefused: the message is not the next one that the server may send, or shows that the server or a
                peer does not follow the protocol. The client then answers no more.
            TooFewClients: fewer are left than the group's or the graph's threshold.
        """
        awaited, self._awaits = self._awaits, None
        if awaited not in self._steps:
            raise MessageRefused(f"client {self.number} has left the round and answers no more")
        Head.of(message).check(Head(awaited, self.group.round, SERVER, self.number))
        kind, body = self._steps[awaited](open_message(self._server, message, self._transcript))
        self._awaits = None if kind == Kind.REVEAL else self.group.after(kind)
        return seal_message(self._server, self._head(kind), self._transcript, body)

    def _share_seeds(self, body: bytes) -> tuple[Kind, bytes]:
        """Stage 1: share the seeds of the mask key and of the self mask with the peers."""
        entries = {client: keys for client, *keys in records(body, self.group.keys_layout)}
        self._check_entries(entries)
        # Answering this message already needs the transcript: peers who were told otherwise cannot open the boxes.
        self._transcript = hashlib.sha256(body).digest()
        self._members = tuple(entries)
        self._graph = self.group.graph(self._members, self._transcript)
        holders = self._graph.holders(self.number)
        self._require(len(holders), self._graph.threshold)
        parts = [share(seed, self._graph.threshold, len(holders)) for seed in (self._mask_seed, self._self_seed)]
        pairs = dict(zip(holders, zip(*parts, strict=True), strict=True))
        self._shares[self.number] = pairs.pop(self.number)
        boxes = [BOX.pack(peer, self._box(peer, entries[peer], b"".join(pair))) for peer, pair in pairs.items()]
        return Kind.SHARES, commitment(self._self_seed) + b"".join(boxes)

    def _check_entries(self, entries: dict[int, list[bytes]]) -> None:
        self._require(len(entries), self.group.threshold)
        if max(entries) >= self.group.clients:
            raise MessageRefused(f"the server lists client {max(entries)}, who is not in the group")
        if entries.get(self.number, [])[:2] != [self._talk.public, self._mask.public]:
            raise MessageRefused(f"the server changed or left out the keys of client {self.number}")
        if len({key for keys in entries.values() for key in keys[:2]}) < 2 * len(entries):
            raise MessageRefused("the server lists one public key twice")

    def _box(self, peer: int, keys: list[bytes], content: bytes) -> bytes:
        talk, mask, *signature = keys
        if self.group.signed:
            self.group.check_keys(peer, talk + mask, *signature)
        self._peers[peer] = self._talk.agree(talk), self._mask.agree(mask)
        head = Head(Kind.BOX, self.group.round, self.number, peer)
        return seal(self._peers[peer][0], head.pack(), self._transcript, content)

    def _mask_input(self, body: bytes) -> tuple[Kind, memoryview]:
        """Stage 2: mask with every peer whose shares came, and with a mask of its own."""
        for peer, box in records(body, BOX):
            if peer not in self._peers:
                raise MessageRefused(f"shares of client {peer}, who is no peer of client {self.number}")
            head = Head(Kind.BOX, self.group.round, peer, self.number)
            pair = unseal(self._peers[peer][0], head.pack(), self._transcript, box)
            self._shares[peer] = pair[:SHARE_BYTES], pair[SHARE_BYTES:]
        self._require(len(self._shares), self._graph.threshold)
        masked = self._values.copy()
        add_mask(masked, self_mask_key(self._self_seed, self._transcript))
        for peer in self._shares.keys() - {self.number}:
            combine = add_mask if self.number < peer else subtract_mask
            combine(masked, pair_mask_key(self._peers[peer][1], self._transcript))
        return Kind.MASKED_INPUT, masked.view(np.uint8).data

    def _note_survivors(self, body: bytes) -> tuple[Kind, bytes]:
        """Stage 3: sign what the server says about whose input arrived."""
        flags = unpack_flags(body, len(self._members))
        self._told, survivors = body, {c for c, alive in zip(self._members, flags, strict=True) if alive}
        self._require(len(survivors), self.group.threshold)
        if self.number not in survivors:
            raise MessageRefused(f"the server says that client {self.number} dropped out after it sent its input")
        if strangers := survivors & self._peers.keys() - self._shares.keys():
            raise MessageRefused(f"the server says that client {min(strangers)} survived, who shared no seeds")
        self._survivors = survivors
        if not self.group.signed:
            return self._reveal()
        return Kind.CONFIRMATION, self.group.sign_survivors(self._identity, self.number, self._transcript, body)

    def _check_confirmations(self, body: bytes) -> tuple[Kind, bytes]:
        """Stage 4, in groups with signatures: reveal only what enough clients were told alike."""
        confirmed = 0
        for client, signature in records(body, SIGNATURE):
            if client not in self._survivors:
                raise MessageRefused(f"a confirmation of client {client}, who is no survivor")
            self.group.check_survivors(client, self._transcript, self._told, signature)
            confirmed += 1
        self._require(confirmed, self.group.threshold)
        return self._reveal()

    def _reveal(self) -> tuple[Kind, bytes]:
        """One share per owner: of the self mask of a survivor, or of the mask key of one that dropped out."""
        chosen = {owner: pair[owner in self._survivors] for owner, pair in sorted(self._shares.items())}
        self._shares = {}
        return Kind.REVEAL, b"".join(SHARE.pack(owner, part) for owner, part in chosen.items())

    def _require(self, count: int, threshold: int) -> None:
        if count < threshold:
            raise TooFewClients(f"client {self.number} leaves: {count} clients are left and {threshold} are needed")

    def _head(self, kind: Kind) -> Head:
        return Head(kind, self.group.round, self.number, SERVER)
