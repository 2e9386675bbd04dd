"""The seam of aggregation: how client updates travel to their sum."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from torch import Tensor

from fednews.aggregation.updates import Aggregate, ClientUpdates
from fednews.privacy.entry import LedgerEntry
from fednews.streams import Streams


class Aggregation(ABC):
    """Sums client updates. All aggregations give the plain sum, within the precision that each states."""

    separate: ClassVar[bool] = True
    """Whether each client's update must come by itself, because it is masked or encrypted on the client."""

    sums_only: bool = False
    """Whether single updates are hidden from the server and only their sum is simulated."""

    @abstractmethod
    def sum(self, parts: Iterable[ClientUpdates], like: dict[str, Tensor], streams: Streams, round_: int) -> Aggregate:
        """Sum weighted updates, weights, losses and samples over all clients of ``parts``.

        With no part the sums are zeros shaped as ``like``.
        """

    def metrics(self) -> dict[str, float]:
        """What the sums since the last call cost, by metric name; empty for those that cost nothing of note."""
        return {}

    def covers(self, entry: LedgerEntry) -> LedgerEntry:
        """The ledger entry of a release that travels this way."""
        return entry
