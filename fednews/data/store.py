"""The store: one data set as memory-mapped columns, with a fingerprint of content and preprocessing."""

import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from fednews.data.aside import check_target, written_aside
from fednews.data.columns import (
    Column,
    RaggedColumn,
    hash_columns,
    read_array,
    read_ragged,
    read_strings,
    write_array,
    write_strings,
)
from fednews.data.ragged import Ragged, Strings, offsets_of
from fednews.data.tables import TRAIN, Behaviors, News, Reader
from fednews.data.text import build_vocabulary, encode
from fednews.errors import DataError, UsageError

FORMAT = 1
_META = "meta.json"
_NEWS_TEXTS = News.__dataclass_fields__.keys()
_CHUNK = 200_000


@dataclass(frozen=True)
class Samples:
    """Training samples (one clicked candidate each) grouped by client.

    Attributes:
        user: int32 ``[clients]``, the store's user index of every client that has a sample.
        rows: per client, its samples as rows of the next two.
        impression: int32 ``[samples]``, row of the train behaviours.
        click: int64 ``[samples]``, position of the clicked candidate in ``candidates.values``.
    """

    user: np.ndarray
    rows: Ragged
    impression: np.ndarray
    click: np.ndarray

    @property
    def clients(self) -> int:
        return len(self.user)

    def client_of(self, users: np.ndarray) -> np.ndarray:
        """Rows of the given users (indices of the store), -1 for those who have no sample."""
        if not self.clients:
            return np.full(len(users), -1)
        place = np.minimum(np.searchsorted(self.user, users), self.clients - 1)
        return np.where(self.user[place] == users, place, -1)


class Store:
    """A prepared data set, opened read-only; nothing is loaded until it is touched.

    Use :meth:`open`; :func:`write_store` makes one.
    """

    def __init__(self, path: Path, meta: dict) -> None:
        self.path = path
        self.meta = meta

    @classmethod
    def open(cls, path: str | Path) -> "Store":
        """Open the store at ``path``.

        Raises:
            UsageError: nothing there, not a store, or a store of another format version.
        """
        path = Path(path)
        meta_file = path / _META
        if not meta_file.is_file():
            make = f"'fednews data prepare FORMAT --root DIR --out {path}'"
            raise UsageError(f"no prepared data at {path}: make it with {make}, or bring it back if it moved")
        try:
            meta = json.loads(meta_file.read_text())
        except ValueError:
            raise UsageError(f"{meta_file} is damaged: prepare the data again") from None
        if meta.get("format") != FORMAT:
            raise UsageError(f"{path} was prepared by another version of fednews: prepare it again with --overwrite")
        return cls(path, meta)

    @property
    def name(self) -> str:
        return self.meta["name"]

    @property
    def fingerprint(self) -> str:
        return self.meta["fingerprint"]

    def verify(self) -> None:
        """Hash the content again.

        Raises:
            DataError: the files are not those that were fingerprinted.
        """
        if hash_columns(self.path, _header(self.meta)) != self.fingerprint:
            raise DataError(f"{self.path} was changed after it was prepared: prepare it again")

    @cached_property
    def news(self) -> News:
        return News(**{column: read_strings(self.path, f"news.{column}") for column in _NEWS_TEXTS})

    @cached_property
    def users(self) -> Strings:
        return read_strings(self.path, "users")

    @cached_property
    def vocabulary(self) -> Strings:
        return read_strings(self.path, "vocabulary")

    @cached_property
    def categories(self) -> Strings:
        return read_strings(self.path, "categories")

    @cached_property
    def subcategories(self) -> Strings:
        return read_strings(self.path, "subcategories")

    @cached_property
    def title_tokens(self) -> Ragged:
        return read_ragged(self.path, "tokens.title", np.int32)

    @cached_property
    def abstract_tokens(self) -> Ragged:
        return read_ragged(self.path, "tokens.abstract", np.int32)

    @cached_property
    def category(self) -> np.ndarray:
        return read_array(self.path, "tokens.category", np.int32)

    @cached_property
    def subcategory(self) -> np.ndarray:
        return read_array(self.path, "tokens.subcategory", np.int32)

    @cached_property
    def splits(self) -> dict[str, Behaviors]:
        return {split: self._behaviors(split) for split in self.meta["splits"]}

    def split(self, name: str) -> Behaviors:
        """The behaviours of one split.

        Raises:
            UsageError: the store has no such split.
        """
        if name not in self.splits:
            raise UsageError(f"{self.path} has no split '{name}': it has {', '.join(self.splits)}")
        return self.splits[name]

    def labelled_split(self, name: str) -> Behaviors:
        """The behaviours of one split that says what was clicked.

        Raises:
            UsageError: the store has no such split, or it has no labels.
        """
        behaviors = self.split(name)
        if behaviors.labels is None:
            raise UsageError(f"split '{name}' of {self.path} has no labels to evaluate on")
        return behaviors

    def _behaviors(self, split: str) -> Behaviors:
        labelled = self.meta["splits"][split]["labelled"]
        return Behaviors(
            user=read_array(self.path, f"{split}.user", np.int32),
            time=read_array(self.path, f"{split}.time", np.int64),
            history=read_ragged(self.path, f"{split}.history", np.int32),
            candidates=read_ragged(self.path, f"{split}.candidates", np.int32),
            labels=read_array(self.path, f"{split}.labels", np.int8) if labelled else None,
        )

    @cached_property
    def samples(self) -> Samples:
        return Samples(
            user=read_array(self.path, "samples.user", np.int32),
            rows=Ragged(
                read_array(self.path, "samples.offsets", np.int64), np.arange(self.meta["samples"], dtype=np.int64)
            ),
            impression=read_array(self.path, "samples.impression", np.int32),
            click=read_array(self.path, "samples.click", np.int64),
        )


def write_store(
    reader: Reader, out: str | Path, overwrite: bool = False, min_count: int = 1, notes: dict | None = None
) -> Store:
    """Stream ``reader`` into a store at ``out``.

    It is written aside and renamed when whole, so that ``out`` never holds half a store.

    Args:
        reader: the raw data; its ``train`` split alone gives the vocabulary and the categories.
        out: folder to make.
        overwrite: replace a store that is already there.
        min_count: words seen less often in the train split's news become unknown.
        notes: further entries of the store's ``meta``, outside the fingerprint.

    Raises:
        UsageError: ``out`` exists and ``overwrite`` is off, or is not a store; the reader has no train split.
        DataError: a behaviour names an article that no news row has.
    """
    out = Path(out)
    check_target(out, "a prepared store", _META, overwrite)
    if TRAIN not in reader.splits:
        raise UsageError(f"no train split found: found {', '.join(reader.splits) or 'nothing'}")
    with written_aside(out) as aside:
        meta = _Writer(reader, aside, min_count).write()
        meta |= notes or {}
        meta["fingerprint"] = hash_columns(aside, _header(meta))
        (aside / _META).write_text(json.dumps(meta, indent=1))
    return Store.open(out)


def _header(meta: dict) -> str:
    return json.dumps({key: meta[key] for key in ("format", "name", "options")}, sort_keys=True)


class _Writer:
    def __init__(self, reader: Reader, folder: Path, min_count: int) -> None:
        self.reader = reader
        self.folder = folder
        self.min_count = min_count
        self.news_index: dict[str, int] = {}
        self.user_index: dict[str, int] = {}

    def write(self) -> dict:
        self._write_news()
        self.in_train = np.zeros(len(self.news_index), bool)
        splits = {split: self._write_behaviors(split) for split in self.reader.splits}
        write_strings(self.folder, "users", self.user_index)
        self._write_tokens()
        samples = (
            self._write_samples() if splits[TRAIN]["labelled"] else {"clients": 0, "samples": 0, "dropped_samples": 0}
        )
        return {
            "format": FORMAT,
            "name": self.reader.name,
            "options": {**self.reader.options, "min_count": self.min_count},
            "splits": splits,
            "news": len(self.news_index),
            "users": len(self.user_index),
            **samples,
            "problems": dict(self.reader.problems.counts),
            "problem_examples": self.reader.problems.examples,
        }

    def _write_news(self) -> None:
        columns = {name: RaggedColumn(self.folder, f"news.{name}", np.uint8) for name in _NEWS_TEXTS}
        titles = array("q")
        for split in self.reader.splits:
            for row in self.reader.news(split):
                if row.id not in self.news_index:
                    self.news_index[row.id] = len(self.news_index)
                    titles.append(hash(row.title))
                    for name, text in zip(columns, row, strict=True):
                        columns[name].append(text.encode())
                elif titles[self.news_index[row.id]] != hash(row.title):
                    self.reader.problems.add("two_titles_of_one_news", f"{row.id} in {split}")
        for column in columns.values():
            column.close()

    def _write_behaviors(self, split: str) -> dict:
        user, time = (Column(self.folder, f"{split}.{n}", t) for n, t in (("user", np.int32), ("time", np.int64)))
        history, candidates = (RaggedColumn(self.folder, f"{split}.{n}", np.int32) for n in ("history", "candidates"))
        labels = Column(self.folder, f"{split}.labels", np.int8)
        labelled, rows = True, 0
        for rows, row in enumerate(self.reader.behaviors(split), 1):
            shown = self._news_rows(row.candidates, f"candidates of {split} behaviour {rows}")
            clicked = self._news_rows(row.history, f"history of {split} behaviour {rows}")
            user.append(self.user_index.setdefault(row.user, len(self.user_index)))
            time.append(row.time)
            history.append(clicked)
            candidates.append(shown)
            labelled = labelled and row.labels is not None
            labels.extend(row.labels if labelled else ())
            if split == TRAIN:
                self.in_train[shown] = True
                self.in_train[clicked] = True
        for column in (user, time, history, candidates, labels):
            column.close()
        return {"impressions": rows, "labelled": labelled}

    def _news_rows(self, ids: Sequence[str], where: str) -> list[int]:
        try:
            return [self.news_index[news_id] for news_id in ids]
        except KeyError as missing:
            raise DataError(f"{where}: news {missing} is in no news row") from None

    def _write_tokens(self) -> None:
        news = News(**{column: read_strings(self.folder, f"news.{column}") for column in _NEWS_TEXTS})
        train = np.flatnonzero(self.in_train)
        words = build_vocabulary(_texts(news, train), self.min_count)
        write_strings(self.folder, "vocabulary", words)
        index = {word: row for row, word in enumerate(words)}
        for name, texts in (("title", news.title), ("abstract", news.abstract)):
            column = RaggedColumn(self.folder, f"tokens.{name}", np.int32)
            for text in texts:
                column.append(encode(text, index))
            column.close()
        self._write_categories("category", "categories", news.category, train)
        self._write_categories("subcategory", "subcategories", news.subcategory, train)

    def _write_categories(self, name: str, plural: str, texts: Strings, train: np.ndarray) -> None:
        known = sorted({texts[row] for row in train} - {""})
        index = {text: row for row, text in enumerate(known, 1)}
        write_strings(self.folder, plural, ["<unk>", *known])
        write_array(self.folder, f"tokens.{name}", np.array([index.get(text, 0) for text in texts], np.int32))

    def _write_samples(self) -> dict:
        user = read_array(self.folder, f"{TRAIN}.user", np.int32)
        candidates = read_ragged(self.folder, f"{TRAIN}.candidates", np.int32)
        labels = read_array(self.folder, f"{TRAIN}.labels", np.int8)
        impression, click, dropped = _clicks_with_negatives(candidates.offsets, labels)
        order = np.argsort(user[impression], kind="stable")
        impression, click = impression[order], click[order]
        clients, counts = np.unique(user[impression], return_counts=True)
        write_array(self.folder, "samples.user", clients.astype(np.int32))
        write_array(self.folder, "samples.offsets", offsets_of(counts))
        write_array(self.folder, "samples.impression", impression.astype(np.int32))
        write_array(self.folder, "samples.click", click)
        return {"clients": len(clients), "samples": len(click), "dropped_samples": dropped}


def _texts(news: News, rows: np.ndarray) -> Iterator[str]:
    for row in rows:
        yield news.title[row]
        yield news.abstract[row]


def _clicks_with_negatives(offsets: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Impression and flat position of every click whose impression also has a non-click, and how many have none."""
    impressions, clicks, dropped = [], [], 0
    for start in range(0, len(offsets) - 1, _CHUNK):
        part = offsets[start : start + _CHUNK + 1]
        clicked = np.flatnonzero(labels[part[0] : part[-1]] == 1) + part[0]
        owner = np.searchsorted(part, clicked, side="right") - 1
        negatives = np.diff(part) - np.bincount(owner, minlength=len(part) - 1)
        usable = negatives[owner] > 0
        impressions.append(owner[usable] + start)
        clicks.append(clicked[usable])
        dropped += int((~usable).sum())
    empty = np.empty(0, np.int64)
    return np.concatenate([*impressions, empty]), np.concatenate([*clicks, empty]), dropped
