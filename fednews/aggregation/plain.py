"""Plain summation: the server sees every update. Every other aggregation must give the same sum."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from fednews.aggregation.base import Aggregation
from fednews.aggregation.updates import Aggregate, ClientUpdates
from fednews.streams import Streams


class Plain(Aggregation):
    """Updates are uploaded in the clear and summed by the server."""

    separate = False

    def sum(self, parts: Iterable[ClientUpdates], like: dict[str, Tensor], streams: Streams, round_: int) -> Aggregate:
        return plain_sum(parts, like)

    def count_news(self, touched: Sequence[np.ndarray], catalogue: int, streams: Streams, round_: int) -> np.ndarray:
        """The server sees what each client touched."""
        return np.bincount(np.concatenate([np.zeros(0, np.int64), *touched]), minlength=catalogue)


def plain_sum(parts: Iterable[ClientUpdates], like: dict[str, Tensor]) -> Aggregate:
    """Sum weighted client updates as they come; with no part the sums are zeros shaped as ``like``."""
    sums = Aggregate.zeros(like)
    for part in parts:
        for name, update in part.updates.items():
            total, rows = sums.total[name], part.rows.get(name)
            for weight, one in zip(part.weights.to(update.dtype), update, strict=True):
                if rows is None:
                    total.addcmul_(one, weight)  # the memory is gone through once
                else:
                    total.index_copy_(0, rows, torch.addcmul(total.index_select(0, rows), one, weight))
        sums.weight += part.weights.sum()
        sums.loss += part.loss.sum()
        sums.samples += part.samples.sum()
    return sums
