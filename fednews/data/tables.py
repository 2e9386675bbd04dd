"""What every reader yields (rows) and what the store gives back (tables)."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from fednews.data.ragged import Ragged, Strings

TRAIN = "train"


class NewsRow(NamedTuple):
    """One article as a reader yields it; the entity columns are JSON lists as in MIND ("[]" for none)."""

    id: str
    category: str
    subcategory: str
    title: str
    abstract: str = ""
    title_entities: str = "[]"
    abstract_entities: str = "[]"


class BehaviorRow(NamedTuple):
    """One impression: ``history`` from oldest to latest click, ``labels`` 1 = clicked, ``None`` = unlabelled.

    ``time`` is POSIX seconds of the data set's own wall clock, -1 where the source has none.
    """

    user: str
    time: int
    history: Sequence[str]
    candidates: Sequence[str]
    labels: Sequence[int] | None


class Problems:
    """Counts what a reader tolerated, and keeps the first example of each kind with file and line."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, str] = {}

    def add(self, kind: str, where: str) -> None:
        self.counts[kind] += 1
        self.examples.setdefault(kind, where)


class Reader(Protocol):
    """A raw format. Rows are yielded one by one; nothing is held per behaviour.

    ``options`` are the settings that change what is read; they enter the store's fingerprint.
    """

    name: str
    options: dict
    splits: Sequence[str]
    problems: Problems

    def news(self, split: str) -> Iterator[NewsRow]: ...

    def behaviors(self, split: str) -> Iterator[BehaviorRow]: ...


@dataclass(frozen=True)
class News:
    """All articles of a store, one row each; an article listed in several splits stands once."""

    id: Strings
    category: Strings
    subcategory: Strings
    title: Strings
    abstract: Strings
    title_entities: Strings
    abstract_entities: Strings

    def __len__(self) -> int:
        return len(self.id)


@dataclass(frozen=True)
class Behaviors:
    """The impressions of one split.

    Attributes:
        user: int32 ``[n]``, index into the store's users.
        time: int64 ``[n]``, POSIX seconds, -1 unknown.
        history: news indices per impression, oldest click first, never truncated here.
        candidates: news indices per impression, in the source's order.
        labels: int8, aligned with ``candidates.values``; ``None`` for an unlabelled split.
    """

    user: np.ndarray
    time: np.ndarray
    history: Ragged
    candidates: Ragged
    labels: np.ndarray | None

    def __len__(self) -> int:
        return len(self.user)
