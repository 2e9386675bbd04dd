"""The ledger's entry for what leaves a client without any protection."""

import math

from fednews.privacy.entry import LedgerEntry


def unprotected(release: str, coordinates: int, reason: str, server_sees: tuple[str, ...]) -> LedgerEntry:
    """A release that no finite epsilon covers, whatever the reading.

    Args:
        release: what leaves the client.
        coordinates: how many numbers.
        reason: why nothing holds.
        server_sees: what the server learns.
    """
    return LedgerEntry(
        mechanism="none",
        release=release,
        adjacency="replace one client's data by any other data",
        view="local",
        coordinates=coordinates,
        sensitivity=math.inf,
        sensitivity_norm="linf",
        noise="none",
        noise_scale=0.0,
        published_epsilon=math.inf,
        published_source="no differential privacy is claimed",
        server_sees=server_sees,
        no_guarantee_reason=reason,
    )
