"""EB-NeRD, Ekstra Bladet's click log (Kruse et al. 2024, https://recsys.eb.dk), from its official parquet files."""

import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fednews.data import mind
from fednews.data.files import Member
from fednews.data.ragged import Ragged, offsets_of
from fednews.data.tables import BehaviorRow, NewsRow, Problems
from fednews.errors import DataError, UsageError

FOLDERS = {"train": "train", "dev": "validation"}
BEHAVIORS, HISTORY, ARTICLES = "behaviors.parquet", "history.parquet", "articles.parquet"
BATCH_ROWS = 8192


class EbnerdReader:
    """``{train,validation}/{behaviors,history}.parquet`` with the article texts beside the two folders.

    Columns used: of behaviors ``user_id``, ``impression_time`` (the naive wall clock read as UTC),
    ``article_ids_inview``, ``article_ids_clicked``; of history ``user_id``, ``article_id_fixed``, whole; of
    ``articles.parquet`` ``article_id``, ``title`` and, where present, ``subtitle`` (as abstract), ``category_str`` or
    else ``category``, and the first value of ``subcategory``; everything else is ignored. Without ``articles.parquet``
    the texts come from ``articles*.tsv[.gz]`` in MIND's news columns, in the same folder or in its parent. Ids read
    as in MIND's format: ``N<article_id>``, ``U<user_id>``.

    A split's news are the articles that its impressions or histories name, so that nothing of ``dev`` enters a
    vocabulary made from ``train``. ``problems`` counts what has been iterated over: ``missing_article`` (impression
    dropped because an in-view article has no text here), ``missing_history_article`` (that history item dropped; once
    per history file, not per impression), ``click_not_in_view`` (that click ignored), ``no_candidates`` (impression
    dropped), ``empty_history``, and the article file's ``empty_title`` and ``malformed_entities``.

    Args:
        root: the folder, or one that holds it. Parquet files need random access, so a .zip must be unpacked first.

    Raises:
        UsageError: the files are not there, or are there more than once.
    """

    name = "ebnerd"

    def __init__(self, root: Path | str) -> None:
        self.options: dict = {}
        self.problems = Problems()
        self._base = _find_base(Path(root))
        self.splits = tuple(split for split, folder in FOLDERS.items() if (self._base / folder / BEHAVIORS).exists())
        self._articles = _find_articles(self._base)

    def news(self, split: str) -> Iterator[NewsRow]:
        """Yield the articles that impressions or histories of ``split`` name. Raises DataError for malformed files."""
        named = np.zeros(len(self._catalogue), bool)
        for file, column in ((BEHAVIORS, "article_ids_inview"), (HISTORY, "article_id_fixed")):
            for batch in _batches(self._file(split, file), [column]):
                positions = self._positions(_lists(batch, column, self._file(split, file)).values)
                named[positions[positions >= 0]] = True
        wanted = {f"N{article}" for article in self._catalogue[named]}
        return (row for row in _read_articles(self._articles, Problems()) if row.id in wanted)

    def behaviors(self, split: str) -> Iterator[BehaviorRow]:
        """Yield the impressions of a split, in file order. Raises DataError for malformed files."""
        names = [f"N{article}" for article in self._catalogue]
        users, histories = self._histories(split)
        path, first = self._file(split, BEHAVIORS), 0
        for batch in _batches(path, ["user_id", "impression_time", "article_ids_inview", "article_ids_clicked"]):
            user, time = _integers(batch, "user_id", path), _seconds(batch["impression_time"])
            history_row = _search(users, user)
            inview, clicked = (_lists(batch, f"article_ids_{name}", path) for name in ("inview", "clicked"))
            positions = Ragged(inview.offsets, self._positions(inview.values))
            for row in range(len(user)):
                where = f"{path}: row {first + row + 1}"
                articles = inview[row].tolist()
                labels = self._judge(articles, positions[row], set(clicked[row].tolist()), where)
                if labels is None:
                    continue
                history = histories[history_row[row]].tolist() if history_row[row] >= 0 else []
                if not history:
                    self.problems.add("empty_history", where)
                candidates = [f"N{article}" for article in articles]
                yield BehaviorRow(f"U{user[row]}", time[row], [names[i] for i in history], candidates, labels)
            first += len(user)

    def _judge(self, inview: list[int], positions: np.ndarray, clicked: set[int], where: str) -> list[int] | None:
        """Label one impression's articles; None where the impression has to be dropped."""
        if not inview:
            self.problems.add("no_candidates", where)
            return None
        if positions.min() < 0:
            self.problems.add("missing_article", f"{where}: article {inview[positions.argmin()]} has no text")
            return None
        for article in clicked.difference(inview):
            self.problems.add("click_not_in_view", f"{where}: article {article}")
        return [int(article in clicked) for article in inview]

    def _histories(self, split: str) -> tuple[np.ndarray, Ragged]:
        """Users in ascending order and, aligned, their clicks as positions in the catalogue (int32)."""
        path = self._file(split, HISTORY)
        users, lengths, values = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, np.int32)]
        for batch in _batches(path, ["user_id", "article_id_fixed"]):
            clicks = _lists(batch, "article_id_fixed", path)
            positions = self._positions(clicks.values)
            known = positions >= 0
            for article in clicks.values[~known]:
                self.problems.add("missing_history_article", f"{path}: article {article} has no text")
            kept = np.concatenate([[0], np.cumsum(known)])
            users.append(_integers(batch, "user_id", path))
            lengths.append(np.diff(kept[clicks.offsets]))
            values.append(positions[known].astype(np.int32))
        user = np.concatenate(users)
        order = np.argsort(user, kind="stable")
        repeated = user[order][1:][np.diff(user[order]) == 0]
        if len(repeated):
            raise DataError(f"{path}: user {repeated[0]} has two rows; each user may have one")
        histories = Ragged(offsets_of(np.concatenate(lengths)), np.concatenate(values))
        return user[order], histories.take(order)

    @functools.cached_property
    def _catalogue(self) -> np.ndarray:
        """The ids of all articles with text, int64, ascending."""
        rows = _read_articles(self._articles, self.problems)
        return np.unique(np.fromiter((int(row.id[1:]) for row in rows), np.int64))

    def _positions(self, articles: np.ndarray) -> np.ndarray:
        return _search(self._catalogue, articles)

    def _file(self, split: str, name: str) -> Path:
        return self._base / FOLDERS[split] / name


def _search(ascending: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Find the position of each wanted value in a sorted array, -1 where it is absent."""
    if len(ascending) == 0:
        return np.full(len(wanted), -1)
    positions = np.minimum(np.searchsorted(ascending, wanted), len(ascending) - 1)
    return np.where(ascending[positions] == wanted, positions, -1)


def _batches(path: Path, columns: list[str], optional: tuple[str, ...] = ()) -> Iterator[pa.RecordBatch]:
    try:
        with pq.ParquetFile(path) as file:
            present = file.schema_arrow.names
            absent = [column for column in columns if column not in present]
            if absent:
                raise DataError(f"{path}: column {absent[0]!r} is missing; columns are {', '.join(present)}")
            chosen = columns + [column for column in optional if column in present]
            yield from file.iter_batches(BATCH_ROWS, columns=chosen)
    except FileNotFoundError as error:
        raise UsageError(f"{path} does not exist; EB-NeRD keeps {BEHAVIORS} and {HISTORY} in each split") from error
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: not a readable parquet file ({str(error).splitlines()[0]})") from error


def _integers(batch: pa.RecordBatch, column: str, path: Path) -> np.ndarray:
    if batch[column].null_count:
        raise DataError(f"{path}: column {column!r} has an empty value")
    return batch[column].to_numpy(zero_copy_only=False).astype(np.int64)


def _seconds(times: pa.Array) -> list[int]:
    """Read naive times as UTC; -1 where there is none."""
    return pc.fill_null(times.cast(pa.timestamp("s"), safe=False).cast(pa.int64()), -1).to_pylist()


def _lists(batch: pa.RecordBatch, column: str, path: Path) -> Ragged:
    """Read a list column of ids as int64; a null list is an empty one, a null id is -1 (no article has it)."""
    kind = batch[column].type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        raise DataError(f"{path}: column {column!r} holds {kind}, expected lists of article ids")
    lengths = pc.fill_null(pc.list_value_length(batch[column]), 0)
    values = pc.fill_null(batch[column].flatten().cast(pa.int64()), -1)
    return Ragged(offsets_of(lengths.to_numpy(zero_copy_only=False)), values.to_numpy(zero_copy_only=False))


def _find_base(root: Path) -> Path:
    if not root.is_dir():
        hint = "unpack it and give its folder" if root.is_file() else "give the folder that holds the data"
        raise UsageError(
            f"{root} is not a folder; looked there for train/{BEHAVIORS} and validation/{BEHAVIORS}; {hint}"
        )
    found = {path.parent.parent for path in root.rglob(BEHAVIORS) if path.parent.name in FOLDERS.values()}
    if not found:
        raise UsageError(f"no train/{BEHAVIORS} or validation/{BEHAVIORS} at {root} or in the folders below")
    if len(found) > 1:
        raise UsageError(f"{root} holds several EB-NeRD sets ({', '.join(map(str, sorted(found)))}); give one of them")
    return found.pop()


def _find_articles(base: Path) -> Path:
    if (base / ARTICLES).exists():
        return base / ARTICLES
    for folder in (base, base.resolve().parent):
        tables = sorted(path for pattern in ("articles*.tsv", "articles*.tsv.gz") for path in folder.glob(pattern))
        if len(tables) > 1:
            raise UsageError(f"{folder} holds several article tables ({tables[0].name}, {tables[1].name}); keep one")
        if tables:
            return tables[0]
    raise UsageError(
        f"no article texts: looked for {ARTICLES} in {base} and articles*.tsv[.gz] there and in its parent"
    )


def _read_articles(path: Path, problems: Problems) -> Iterator[NewsRow]:
    if path.name != ARTICLES:
        for number, row in enumerate(mind.read_news(Member("", path.name, path), problems), 1):
            if not (row.id.startswith("N") and row.id[1:].isdecimal()):
                raise DataError(f"{path}:{number}: {row.id!r} is not an EB-NeRD article id like 'N9738663'")
            yield row
        return
    optional = ("subtitle", "category_str", "category", "subcategory")
    for batch in _batches(path, ["article_id", "title"], optional):
        for article in batch.to_pylist():
            if article["article_id"] is None:
                raise DataError(f"{path}: column 'article_id' has an empty value")
            row = _article(article)
            if not row.title.strip():
                problems.add("empty_title", f"{path}: article {article['article_id']}")
            yield row


def _article(article: dict) -> NewsRow:
    category = article.get("category_str") or article.get("category")
    subcategory = next(iter(article.get("subcategory") or ()), None)
    texts = (category, subcategory, article["title"], article.get("subtitle"))
    return NewsRow(f"N{article['article_id']}", *("" if text is None else str(text) for text in texts))
