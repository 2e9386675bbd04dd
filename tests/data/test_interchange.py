import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict

from fednews.data import interchange
from fednews.data.interchange import DatasetsReader, export, to_datasets
from fednews.data.mind import MindReader
from fednews.data.store import Store, write_store
from fednews.data.synthetic import synthesize
from fednews.data.tables import BehaviorRow, NewsRow
from fednews.errors import DataError, UsageError

NEWS = {"id": ["N1", "N2"], "category": ["a", "b"], "subcategory": ["c", None], "title": ["One", "Two"]}
TRAIN = {"user": ["U1", "U2"], "history": [["N1"], []], "candidates": [["N1", "N2"], ["N2"]], "labels": [[0, 1], [1]]}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Synthetic train and dev, and an unlabelled test split made of some of dev."""
    folder = tmp_path_factory.mktemp("interchange")
    synthesize(folder / "raw", 1200, 400)
    (folder / "raw" / "test").mkdir()
    lines = (folder / "raw" / "dev" / "behaviors.tsv").read_text().splitlines()[:50]
    unlabelled = [line.replace("-0", "").replace("-1", "") for line in lines]
    (folder / "raw" / "test" / "behaviors.tsv").write_text("\n".join(unlabelled) + "\n")
    (folder / "raw" / "test" / "news.tsv").write_bytes((folder / "raw" / "dev" / "news.tsv").read_bytes())
    return write_store(MindReader(folder / "raw"), folder / "store")


def _arrays(store: Store) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in store.path.iterdir() if path.suffix != ".json"}


def _check_same(back: Store, store: Store) -> None:
    expected, found = _arrays(store), _arrays(back)
    assert len(expected) > 10
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []
    assert back.meta["splits"] == store.meta["splits"]
    assert back.meta["problems"] == store.meta["problems"]


def test_a_store_comes_back_the_same_from_a_dataset_dict(store: Store, tmp_path: Path) -> None:
    _check_same(write_store(DatasetsReader(to_datasets(store)), tmp_path / "back"), store)


def test_a_store_comes_back_the_same_from_a_saved_folder(store: Store, tmp_path: Path) -> None:
    to_datasets(store).save_to_disk(tmp_path / "saved")
    _check_same(write_store(DatasetsReader(tmp_path / "saved"), tmp_path / "back"), store)


def test_a_store_comes_back_the_same_from_parquet_files_in_several_parts(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "parquet"
    (folder / "dev").mkdir(parents=True)
    data = to_datasets(store)
    data["news"].to_parquet(folder / "news.parquet")
    half = len(data["train"]) // 2
    data["train"].select(range(half)).to_parquet(folder / "train-00000-of-00002.parquet")
    data["train"].select(range(half, len(data["train"]))).to_parquet(folder / "train-00001-of-00002.parquet")
    data["dev"].to_parquet(folder / "dev" / "data.parquet")
    data["test"].to_parquet(folder / "test.parquet")
    _check_same(write_store(DatasetsReader(folder), tmp_path / "back"), store)


def test_the_datasets_hold_the_rows_of_the_store_in_order(store: Store) -> None:
    data = to_datasets(store)
    assert list(data) == ["news", "train", "dev", "test"]
    assert data["news"].column_names == list(NewsRow._fields)
    for split, behaviors in store.splits.items():
        assert len(data[split]) == len(behaviors)
        row = len(behaviors) - 1
        assert data[split][row] == {
            "user": store.users[behaviors.user[row]],
            "time": behaviors.time[row],
            "history": [store.news.id[news] for news in behaviors.history[row]],
            "candidates": [store.news.id[news] for news in behaviors.candidates[row]],
            "labels": None
            if behaviors.labels is None
            else behaviors.labels[behaviors.candidates.offsets[row] :].tolist(),
        }


def test_both_directions_go_batch_by_batch(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = to_datasets(store)
    rows = list(DatasetsReader(whole).behaviors("train"))
    monkeypatch.setattr(interchange, "_BATCH", 7)
    parts = to_datasets(store)
    assert max(len(chunk) for chunk in parts["train"].data.column("user").chunks) == 7
    assert parts["train"].data.table.combine_chunks().equals(whole["train"].data.table.combine_chunks())
    assert list(DatasetsReader(parts).behaviors("train")) == rows


def _dict(**splits: dict) -> DatasetDict:
    return DatasetDict({name: Dataset.from_dict(columns) for name, columns in {"news": NEWS, **splits}.items()})


def test_missing_optional_columns_have_their_defaults_and_null_texts_are_empty() -> None:
    unlabelled = {name: column for name, column in TRAIN.items() if name != "labels"}
    reader = DatasetsReader(_dict(train=unlabelled))
    assert list(reader.news("train")) == [NewsRow("N1", "a", "c", "One"), NewsRow("N2", "b", "", "Two")]
    assert list(reader.behaviors("train")) == [
        BehaviorRow("U1", -1, ["N1"], ["N1", "N2"], None),
        BehaviorRow("U2", -1, [], ["N2"], None),
    ]
    assert reader.problems.counts == {"empty_history": 1}


def test_timestamps_are_read_as_the_wall_clock_and_numeric_ids_as_text() -> None:
    columns = {"user": [7], "history": [[1]], "candidates": [[1, 2]], "labels": [[0, 1]]}
    zone = datetime.timezone(datetime.timedelta(hours=2))
    for clock in (datetime.datetime(1970, 1, 2, 0, 0, 5), datetime.datetime(1970, 1, 2, 0, 0, 5, tzinfo=zone)):
        (row,) = DatasetsReader(_dict(train={**columns, "time": [clock]})).behaviors("train")
        assert row == BehaviorRow("7", 86_405, ["1"], ["1", "2"], [0, 1])


def test_validation_is_read_as_dev_and_train_comes_first() -> None:
    reader = DatasetsReader(_dict(validation=TRAIN, train=TRAIN))
    assert reader.splits == ("train", "dev")
    assert len(list(reader.behaviors("dev"))) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": [[0, 1], None]}, "train row 2: labelled and unlabelled"),
        ({"labels": [[0, 1], [1, 0]]}, "train row 2: 1 candidates need as many labels"),
        ({"labels": [[0, 1], [2]]}, "train row 2: 1 candidates need as many labels, each 0 or 1"),
        ({"candidates": [["N1", "N2"], []]}, "train row 2: no user or no candidate"),
        ({"user": ["U1", None]}, "train row 2: no user or no candidate"),
    ],
)
def test_a_malformed_row_is_an_error_that_names_split_and_row(change: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(DatasetsReader(_dict(train={**TRAIN, **change})).behaviors("train"))


def test_an_article_without_an_id_is_an_error() -> None:
    data = _dict(train=TRAIN)
    data["news"] = Dataset.from_dict({**NEWS, "id": ["N1", None]})
    with pytest.raises(DataError, match="no id"):
        list(DatasetsReader(data).news("train"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (DatasetDict({"train": Dataset.from_dict(TRAIN)}), "no 'news'"),
        (DatasetDict({"news": Dataset.from_dict(NEWS)}), "splits such as train and dev are missing"),
        (_dict(train={"user": ["U1"], "history": [["N1"]]}), "'train' has no column candidates"),
        (_dict(dev=TRAIN, validation=TRAIN), "two names for one split"),
    ],
)
def test_a_dataset_dict_of_another_shape_is_a_usage_error(data: DatasetDict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        DatasetsReader(data)


def test_a_folder_of_neither_kind_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="neither a saved DatasetDict nor a folder of parquet files"):
        DatasetsReader(tmp_path / "nothing")


def test_a_damaged_parquet_file_is_a_data_error_that_names_it(tmp_path: Path) -> None:
    pq.write_table(pa.table(NEWS), tmp_path / "news.parquet")
    (tmp_path / "train.parquet").write_bytes(b"not parquet")
    with pytest.raises(DataError, match=r"train\.parquet"):
        DatasetsReader(tmp_path)


def test_arrays_of_the_store_are_not_copied_for_news_texts(store: Store) -> None:
    texts = interchange._texts(store.news.title)
    assert texts.buffers()[2].address == np.asarray(store.news.title.data.values).ctypes.data
    assert texts.to_pylist() == list(store.news.title)


def test_an_export_is_read_back_and_never_overwrites(tmp_path: Path, synthetic_store: Store) -> None:
    export(synthetic_store.path, tmp_path / "out")
    again = write_store(DatasetsReader(tmp_path / "out"), tmp_path / "again")
    assert list(again.news.title) == list(synthetic_store.news.title)
    with pytest.raises(UsageError, match="exists already"):
        export(synthetic_store.path, tmp_path / "out")
