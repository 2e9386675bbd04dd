"""The seam of aggregation: how client updates travel to their sum."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np
import torch
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

    retries: int = 0
    """How often a round is tried again with other clients where too few are left."""

    reveals_counts: bool = True
    """Whether :meth:`count_news` tells the server how many clients touched a news."""

    @abstractmethod
    def sum(self, parts: Iterable[ClientUpdates], like: dict[str, Tensor], streams: Streams, round_: int) -> Aggregate:
        """Sum weighted updates, weights, losses and samples over all clients of ``parts``.

        With no part the sums are zeros shaped as ``like``.
        """

    def count_news(self, touched: Sequence[np.ndarray], catalogue: int, streams: Streams, round_: int) -> np.ndarray:
        """How many clients touched each news of the catalogue, int64 ``[catalogue]``; nothing but sums is opened.

        Args:
            touched: per client, different rows of the catalogue, int64 ``[...]``.
            catalogue: number of news.
            streams: the experiment's random streams.
            round_: the round's number.
        """
        like = {"touched": torch.zeros(catalogue)}
        parts = (_touches(number, news, catalogue) for number, news in enumerate(touched))
        counts = self.sum(parts, like, streams, round_).total["touched"]
        return counts.round().long().numpy()

    def traffic(self) -> tuple[int, int] | None:
        """Bytes that all clients sent and received in the sums since the last call; None where updates go as they are.

        Where it is not None, these bytes travel in place of the updates.
        """
        return None

    def metrics(self) -> dict[str, float]:
        """What the sums since the last call cost, by metric name; empty for those that cost nothing of note."""
        return {}

    def covers(self, entry: LedgerEntry) -> LedgerEntry:
        """The ledger entry of a release that travels this way."""
        return entry


def _touches(client: int, news: np.ndarray, catalogue: int) -> ClientUpdates:
    """A client's 0/1 vector over the catalogue, as an update."""
    vector = torch.zeros(1, catalogue)
    vector[0, torch.from_numpy(news)] = 1.0
    nothing = torch.zeros(1)
    return ClientUpdates(torch.tensor([client]), {"touched": vector}, torch.ones(1), nothing, nothing.long())
