"""Impressions for evaluation: batches in which every distinct (user, history) is encoded once."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from fednews.data.store import Samples
from fednews.data.tables import Behaviors


@dataclass  # not frozen: Lightning's precision plugins rebuild the batches that they convert
class ImpressionBatch:
    """Some impressions of one split; news are indices into the store's news.

    Attributes:
        history: int64 ``[R, H]``, padded on the left; history_mask: bool ``[R, H]``.
        impression_history: int64 ``[I]``, row of ``history`` per impression.
        candidates: int64 ``[V]``, all candidates of all impressions, flat.
        offsets: int64 ``[I + 1]``, where each impression's candidates begin.
        labels: int8 ``[V]``, empty for an unlabelled split.
        rows: int64 ``[I]``, the impressions' rows in the split.
        user: int64 ``[R]``, row in the store's samples, plus one, of the history's owner; 0 without samples.
    """

    history: Tensor
    history_mask: Tensor
    impression_history: Tensor
    candidates: Tensor
    offsets: Tensor
    labels: Tensor
    rows: Tensor
    user: Tensor

    def to(self, device: torch.device) -> "ImpressionBatch":
        return replace(self, **{f.name: getattr(self, f.name).to(device) for f in fields(self)})


class Impressions(IterableDataset):
    """The impressions of a split in batches, users together.

    Args:
        behaviors: the split.
        samples: the store's training samples, which say who is a training user.
        history_length: latest clicks kept.
        batch_size: impressions a batch.
        rows: the impressions to use, all when not given.
        share: ``(rank, world_size)``; this process gets every ``world_size``-th impression.
    """

    def __init__(
        self,
        behaviors: Behaviors,
        samples: Samples,
        history_length: int,
        batch_size: int,
        rows: np.ndarray | None = None,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        self.behaviors = behaviors
        self.samples = samples
        self.history_length = history_length
        self.batch_size = batch_size
        rows = np.arange(len(behaviors)) if rows is None else rows
        rows = rows[np.argsort(behaviors.user[rows], kind="stable")]
        self.rows = rows[share[0] :: share[1]]

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch_size)

    def __iter__(self) -> Iterator[ImpressionBatch]:
        for start in range(0, len(self.rows), self.batch_size):
            yield self.batch(self.rows[start : start + self.batch_size])

    def news(self) -> np.ndarray:
        """Every article that the split shows or that a kept history holds, sorted."""
        shown = self.behaviors.candidates.take(self.rows).values
        return np.unique(
            np.concatenate([shown, self.behaviors.history.take(self.rows).last(self.history_length).values])
        )

    def batch(self, rows: np.ndarray) -> ImpressionBatch:
        """The given impressions as tensors."""
        history, _ = self.behaviors.history.take(rows).last(self.history_length).padded(fill=-1, side="left")
        keyed = np.column_stack([self.behaviors.user[rows], history])
        keyed, row = np.unique(keyed, axis=0, return_inverse=True)
        candidates = self.behaviors.candidates.take(rows)
        labels = self.behaviors.labels
        flat = np.empty(0, np.int8) if labels is None else _aligned(self.behaviors, rows, labels)
        return ImpressionBatch(
            history=torch.from_numpy(np.maximum(keyed[:, 1:], 0).astype(np.int64)),
            history_mask=torch.from_numpy(keyed[:, 1:] >= 0),
            impression_history=torch.from_numpy(row.reshape(-1)),
            candidates=torch.from_numpy(candidates.values.astype(np.int64)),
            offsets=torch.from_numpy(candidates.offsets),
            labels=torch.from_numpy(flat),
            rows=torch.from_numpy(rows.astype(np.int64)),
            user=torch.from_numpy(self.samples.client_of(keyed[:, 0]) + 1),
        )


def _aligned(behaviors: Behaviors, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return replace(behaviors.candidates, values=labels).take(rows).values
