"""How a secure aggregation ends without a sum."""

from fednews.errors import FednewsError


class TooFewClients(FednewsError):
    """So many clients are missing that the round is aborted; nothing of anybody's input is known to anyone."""


class MessageRefused(FednewsError):
    """A message is not what the protocol allows: tampered with, replayed, out of order, under a wrong key, or a lie."""
