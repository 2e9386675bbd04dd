"""Exchange with Hugging Face ``datasets``: a store as a ``DatasetDict``, and a reader of one.

The layout: a dataset ``news`` with the columns of ``NewsRow``, and one dataset per split with ``user`` (string),
``time`` (int64 seconds, -1 unknown), ``history`` and ``candidates`` (lists of news ids) and ``labels`` (list of int8,
or null in an unlabelled split). ``datasets`` is never used while training.
"""

import calendar
import datetime
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, DatasetDict, load_from_disk

from fednews.data.aside import check_target, written_aside
from fednews.data.mind import SPLITS
from fednews.data.ragged import Ragged, Strings
from fednews.data.store import Store
from fednews.data.tables import BehaviorRow, Behaviors, NewsRow, Problems
from fednews.errors import DataError, UsageError

NEWS = "news"
_BATCH = 1000
_NEWS_SCHEMA = pa.schema([(name, pa.string()) for name in NewsRow._fields])
_BEHAVIORS_SCHEMA = pa.schema(
    [
        ("user", pa.string()),
        ("time", pa.int64()),
        ("history", pa.list_(pa.string())),
        ("candidates", pa.list_(pa.string())),
        ("labels", pa.list_(pa.int8())),
    ]
)
_OPTIONAL = {"abstract", "title_entities", "abstract_entities", "time", "labels"}


def to_datasets(store: Store) -> DatasetDict:
    """Make the ``DatasetDict`` of the module's layout; its Arrow tables are in memory, as large as MIND's files."""
    news = _table(_NEWS_SCHEMA, _news_batches(store))
    splits = {
        name: _table(_BEHAVIORS_SCHEMA, _behavior_batches(store, behaviors)) for name, behaviors in store.splits.items()
    }
    return DatasetDict({NEWS: Dataset(news), **{name: Dataset(table) for name, table in splits.items()}})


def export(store: str | Path, out: str | Path) -> None:
    """Save the store at ``store`` as a `datasets.DatasetDict` folder at ``out``.

    Raises:
        UsageError: there is no store, or ``out`` exists.
    """
    out, opened = Path(out), Store.open(store)
    check_target(out, "an export", "dataset_dict.json", overwrite=False)
    with written_aside(out) as aside:
        to_datasets(opened).save_to_disk(aside)


class DatasetsReader:
    """Reads the module's layout; ``abstract``, the entities, ``time`` and ``labels`` may be missing.

    Args:
        source: a ``DatasetDict``, a folder saved by ``DatasetDict.save_to_disk``, or a folder of parquet files: named
            after the split (``train.parquet``, ``train-00000-of-00002.parquet``) or in a folder of that name.
            Splits called validation, valid or val are read as dev.

    Raises:
        UsageError: the source is none of these, has no ``news``, no split or not the columns.
    """

    name = "datasets"

    def __init__(self, source: DatasetDict | str | Path) -> None:
        self.options: dict = {}
        self.problems = Problems()
        parts = _open(source)
        if NEWS not in parts:
            raise UsageError(f"no '{NEWS}' in the data sets: found {', '.join(parts) or 'nothing'}")
        self._news = parts.pop(NEWS)
        self._splits = {SPLITS.get(name, name): part for name, part in parts.items()}
        if len(self._splits) < len(parts):
            raise UsageError(f"two names for one split among {', '.join(parts)}: keep one")
        if not self._splits:
            raise UsageError(f"only '{NEWS}' in the data sets: splits such as train and dev are missing")
        self.splits = tuple(sorted(self._splits, key=_split_order))
        _check_columns(NEWS, self._news.columns, _NEWS_SCHEMA.names)
        for split, part in self._splits.items():
            _check_columns(split, part.columns, _BEHAVIORS_SCHEMA.names)

    def news(self, split: str) -> Iterator[NewsRow]:
        """Yield all articles, whichever the split."""
        for row in self._news.rows():
            texts = {name: str(value) for name, value in row.items() if name in NewsRow._fields and value is not None}
            if "id" not in texts:
                raise DataError(f"{NEWS}: an article has no id")
            yield NewsRow(**{**dict.fromkeys(NewsRow._fields[:4], ""), **texts})

    def behaviors(self, split: str) -> Iterator[BehaviorRow]:
        """Yield the impressions of a split; raises DataError (split and row) for one that cannot be."""
        labelled = None
        for number, row in enumerate(self._splits[split].rows(), 1):
            where = f"{split} row {number}"
            behavior = _behavior(row, where)
            if labelled not in (None, behavior.labels is not None):
                raise DataError(f"{where}: labelled and unlabelled rows in one split; every row or none needs labels")
            labelled = behavior.labels is not None
            if not behavior.history:
                self.problems.add("empty_history", where)
            yield behavior


# ---------------------------------------------------------------------------------------------- writing


def _table(schema: pa.Schema, batches: Iterable[list[pa.Array]]) -> pa.Table:
    return pa.Table.from_batches((pa.record_batch(columns, schema=schema) for columns in batches), schema)


def _news_batches(store: Store) -> Iterator[list[pa.Array]]:
    columns = [_texts(getattr(store.news, name)) for name in NewsRow._fields]
    for start in range(0, len(store.news), _BATCH):
        yield [column.slice(start, _BATCH).cast(pa.string()) for column in columns]


def _behavior_batches(store: Store, behaviors: Behaviors) -> Iterator[list[pa.Array]]:
    users, ids = _texts(store.users), _texts(store.news.id)
    for start in range(0, len(behaviors), _BATCH):
        stop = min(start + _BATCH, len(behaviors))
        labels = (
            None if behaviors.labels is None else pa.array(_part(behaviors.labels, behaviors.candidates, start, stop))
        )
        shown = _lists(behaviors.candidates, start, stop)
        yield [
            users.take(pa.array(behaviors.user[start:stop])).cast(pa.string()),
            pa.array(behaviors.time[start:stop]),
            _ids(ids, behaviors.history, start, stop),
            _ids(ids, behaviors.candidates, start, stop),
            pa.nulls(stop - start, pa.list_(pa.int8())) if labels is None else pa.ListArray.from_arrays(shown, labels),
        ]


def _texts(strings: Strings) -> pa.Array:
    """Wrap the store's bytes as an Arrow array, without a copy."""
    buffers = [None, pa.py_buffer(strings.data.offsets), pa.py_buffer(strings.data.values)]
    return pa.Array.from_buffers(pa.large_string(), len(strings), buffers)


def _ids(ids: pa.Array, ragged: Ragged, start: int, stop: int) -> pa.Array:
    values = ids.take(pa.array(_part(ragged.values, ragged, start, stop))).cast(pa.string())
    return pa.ListArray.from_arrays(_lists(ragged, start, stop), values)


def _part(values: Any, ragged: Ragged, start: int, stop: int) -> Any:
    return values[ragged.offsets[start] : ragged.offsets[stop]]


def _lists(ragged: Ragged, start: int, stop: int) -> pa.Array:
    return pa.array(ragged.offsets[start : stop + 1] - ragged.offsets[start], pa.int32())


# ---------------------------------------------------------------------------------------------- reading


class _Part:
    """One dataset, read batch by batch: a ``Dataset`` or parquet files of the same columns."""

    def __init__(self, dataset: Dataset | None = None, files: Iterable[Path] = ()) -> None:
        self.dataset = dataset
        self.files = sorted(files)
        self.columns = dataset.column_names if dataset is not None else _parquet(self.files[0]).schema_arrow.names

    def rows(self) -> Iterator[dict]:
        for batch in self._batches():
            yield from batch.to_pylist()

    def _batches(self) -> Iterator[pa.Table | pa.RecordBatch]:
        if self.dataset is not None:
            yield from self.dataset.with_format("arrow").iter(_BATCH)
        for file in self.files:
            yield from _parquet(file).iter_batches(_BATCH)


def _open(source: DatasetDict | str | Path) -> dict[str, _Part]:
    if not isinstance(source, DatasetDict):
        folder = Path(source)
        if not (folder / "dataset_dict.json").is_file():
            return _parquet_parts(folder)
        source = load_from_disk(str(folder))
    return {name: _Part(dataset) for name, dataset in source.items()}


def _parquet_parts(folder: Path) -> dict[str, _Part]:
    files: dict[str, list[Path]] = {}
    for file in [*folder.glob("*.parquet"), *folder.glob("*/*.parquet")]:
        name = file.stem.split("-")[0] if file.parent == folder else file.parent.name
        files.setdefault(name, []).append(file)
    if not files:
        raise UsageError(f"{folder} is neither a saved DatasetDict nor a folder of parquet files")
    return {name: _Part(files=part) for name, part in files.items()}


def _parquet(file: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file)
    except pa.ArrowInvalid as error:
        raise DataError(f"{file}: not a parquet file, or a damaged one ({error})") from error


def _split_order(split: str) -> tuple[int, str]:
    known = ("train", "dev", "test")
    return (known.index(split) if split in known else len(known), split)


def _check_columns(name: str, found: list[str], wanted: list[str]) -> None:
    missing = [column for column in wanted if column not in found and column not in _OPTIONAL]
    if missing:
        raise UsageError(f"data set '{name}' has no column {missing[0]}: it has {', '.join(found)}")


def _behavior(row: dict, where: str) -> BehaviorRow:
    candidates = [str(news) for news in row["candidates"] or ()]
    labels = row.get("labels")
    if row["user"] is None or not candidates:
        raise DataError(f"{where}: no user or no candidate")
    if labels is not None and (len(labels) != len(candidates) or not {0, 1}.issuperset(labels)):
        raise DataError(f"{where}: {len(candidates)} candidates need as many labels, each 0 or 1")
    history = [str(news) for news in row["history"] or ()]
    return BehaviorRow(str(row["user"]), _seconds(row.get("time")), history, candidates, labels)


def _seconds(time: int | datetime.datetime | None) -> int:
    """Seconds of the data set's own wall clock."""
    if isinstance(time, datetime.datetime):
        return calendar.timegm(time.timetuple())
    return -1 if time is None else time
