"""Central training: the upper baseline of every table (CenNewsRec for the FedNewsRec model)."""

from collections.abc import Iterator

import numpy as np

from fednews.aggregation.updates import ClientUpdates
from fednews.data.cohort import Cohort, CohortSource, Draw
from fednews.errors import UsageError
from fednews.federated.algorithms.base import Algorithm, Selection
from fednews.federated.clients import fused_gradient
from fednews.federated.round import Round
from fednews.models.base import NewsModel
from fednews.privacy.entry import LedgerEntry
from fednews.privacy.unprotected import unprotected


class Centralized(Algorithm):
    """Minibatches of samples, whoever they belong to; every pass visits each sample once in a new order.

    Args:
        batch_size: samples a step.

    Raises:
        UsageError: a batch size below 1.
    """

    federated = False

    def __init__(self, batch_size: int = 64) -> None:
        if batch_size < 1:
            raise UsageError(f"algorithm.batch_size must be at least 1, not {batch_size}")
        self.batch_size = batch_size
        self._pass, self._order = -1, np.empty(0, np.int64)

    def select(self, source: CohortSource, round_: int) -> Selection:
        samples = len(source.samples.click)
        pass_, step = divmod(round_, -(-samples // self.batch_size))
        if pass_ != self._pass:
            self._pass, self._order = pass_, source.streams.numpy("central_pass", pass_).permutation(samples)
        rows = self._order[step * self.batch_size : (step + 1) * self.batch_size]
        owners = np.unique(np.searchsorted(source.samples.rows.offsets, rows, side="right") - 1)
        return Selection(source.of_samples(rows, round_), owners, 0)

    def share(self, draw: Draw, rank: int, processes: int) -> Draw:
        mine = slice(rank, None, processes)
        return Draw(draw.clients, draw.client[mine], draw.impression[mine], draw.candidates[mine])

    def client_updates(self, model: NewsModel, cohort: Cohort, work: Round) -> Iterator[ClientUpdates]:
        yield fused_gradient(model, cohort, "mean")

    def release(self, coordinates: int) -> LedgerEntry:
        return unprotected("behaviours", coordinates, "all behaviours are stored centrally", ("every behaviour",))
