"""Serialised messages: a head in the clear, authenticated with the body, which is sealed for the receiver.

Fields are big-endian; vectors are little-endian.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from fednews.aggregation.secagg.errors import MessageRefused
from fednews.aggregation.secagg.keys import PUBLIC_BYTES, SIGNATURE_BYTES, TAG_BYTES, seal, unseal
from fednews.aggregation.secagg.shares import SHARE_BYTES

VERSION = 1
SERVER = 0xFFFFFFFF

HEAD = struct.Struct(">BBQII")  # version, kind, round, sender, receiver
CLIENT_KEYS = struct.Struct(f">I{PUBLIC_BYTES}s{PUBLIC_BYTES}s")  # client, c, s
SIGNED_KEYS = struct.Struct(f">I{PUBLIC_BYTES}s{PUBLIC_BYTES}s{SIGNATURE_BYTES}s")  # and a signature of both
SIGNATURE = struct.Struct(f">I{SIGNATURE_BYTES}s")  # client, signature
BOX = struct.Struct(f">I{2 * SHARE_BYTES + TAG_BYTES}s")  # peer, sealed shares of s's seed and of b
SHARE = struct.Struct(f">I{SHARE_BYTES}s")  # owner, share
COMMITMENT_BYTES = 32


class Kind(IntEnum):
    """Kinds of messages, in the order of the protocol; odd ones go up."""

    ADVERTISE = 1
    KEYS = 2
    SHARES = 3
    INBOX = 4
    MASKED_INPUT = 5
    SURVIVORS = 6
    CONFIRMATION = 7
    CONFIRMATIONS = 8
    REVEAL = 9
    BOX = 10  # shares from client to client, inside SHARES and INBOX

    @property
    def label(self) -> str:
        """As in metric names: ``masked_input`` for MASKED_INPUT."""
        return self.name.lower()


@dataclass(frozen=True)
class Head:
    """What a message is, of which round, from whom to whom (``SERVER`` or a client's number)."""

    kind: Kind
    round: int
    sender: int
    receiver: int

    def pack(self) -> bytes:
        return HEAD.pack(VERSION, self.kind, self.round, self.sender, self.receiver)

    @classmethod
    def of(cls, message: bytes) -> "Head":
        """Read a message's head; it is not authenticated before the message is opened.

        Raises:
            MessageRefused: there is none.
        """
        if len(message) < HEAD.size:
            raise MessageRefused(f"a message of {len(message)} bytes is cut short")
        version, kind, round_, sender, receiver = HEAD.unpack_from(message)
        if version != VERSION or kind not in Kind.__members__.values():
            raise MessageRefused(f"a message of kind {kind} in version {version} is unknown to version {VERSION}")
        return cls(Kind(kind), round_, sender, receiver)

    def check(self, expected: "Head") -> None:
        """Raise MessageRefused where this is not what is expected next."""
        if self.round != expected.round:
            raise MessageRefused(f"a message of round {self.round} was replayed in round {expected.round}")
        if self.kind != expected.kind:
            raise MessageRefused(f"{self.kind.name} came out of order: {expected.kind.name} is next")
        if (self.sender, self.receiver) != (expected.sender, expected.receiver):
            raise MessageRefused(
                f"{self.kind.name} goes from {_party(self.sender)} to {_party(self.receiver)}, "
                f"not from {_party(expected.sender)} to {_party(expected.receiver)}"
            )


def seal_message(secret: bytes, head: Head, context: bytes, body: bytes | memoryview, clear: bytes = b"") -> bytes:
    """A message; ``clear`` stands between head and sealed body, and is authenticated too."""
    packed = head.pack() + clear
    return packed + seal(secret, packed, context, body)


def open_message(secret: bytes, message: bytes, context: bytes, clear: int = 0) -> bytes:
    """The body of a message with ``clear`` bytes between head and body.

    Raises:
        MessageRefused: it is not what the sender sealed.
    """
    start = HEAD.size + clear
    return unseal(secret, message[:start], context, memoryview(message)[start:])


def records(body: bytes | memoryview, layout: struct.Struct) -> Iterator[tuple]:
    """Read equal records whose first fields ascend strictly.

    Raises:
        MessageRefused: the body holds no such records.
    """
    if len(body) % layout.size:
        raise MessageRefused("a message's length is not that of its content")
    last = -1
    for record in layout.iter_unpack(body):
        if record[0] <= last:
            raise MessageRefused("a message names a client twice or in the wrong order")
        last = record[0]
        yield record


def pack_flags(flags: list[bool]) -> bytes:
    """Eight flags to a byte."""
    return np.packbits(flags).tobytes()


def unpack_flags(body: bytes, count: int) -> list[bool]:
    """Read ``count`` flags.

    Raises:
        MessageRefused: the body has another length, or bits beyond them.
    """
    flags = np.unpackbits(np.frombuffer(body, np.uint8)).astype(bool).tolist()
    if len(body) != -(-count // 8) or any(flags[count:]):
        raise MessageRefused("a message's length is not that of its content")
    return flags[:count]


def _party(number: int) -> str:
    return "the server" if number == SERVER else f"client {number}"
