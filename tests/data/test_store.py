import numpy as np
import pytest

from fednews.data.store import Store, write_store
from fednews.data.tables import BehaviorRow, NewsRow
from fednews.errors import DataError, UsageError
from tests.conftest import RowsReader

NEWS = [
    NewsRow("N1", "sports", "soccer", "Goal in the last minute", "A late goal"),
    NewsRow("N2", "news", "world", "None"),
    NewsRow("N3", "news", "local", "nan"),
]
DEV_NEWS = [NEWS[0]._replace(title="Another title of N1"), NewsRow("N4", "weather", "snow", "Goal of snowflakes")]
TRAIN = [
    BehaviorRow("U1", 10, ["N1", "N1", "N2"], ["N3", "N2", "N1"], [0, 1, 1]),
    BehaviorRow("U2", 11, [], ["N1", "N2"], [1, 0]),
    BehaviorRow("U1", 12, ["N2"], ["N3"], [1]),
]
DEV = [BehaviorRow("U3", 13, ["N4"], ["N4", "N1"], [0, 1])]
SPLITS = {"train": (NEWS, TRAIN), "dev": (DEV_NEWS, DEV)}


def test_rows_come_back_as_they_were(rows_store):
    store = rows_store(SPLITS)
    assert list(store.news.id) == ["N1", "N2", "N3", "N4"]
    assert list(store.news.title) == ["Goal in the last minute", "None", "nan", "Goal of snowflakes"]
    assert list(store.users) == ["U1", "U2", "U3"]
    train = store.splits["train"]
    assert train.user.tolist() == [0, 1, 0]
    assert train.time.tolist() == [10, 11, 12]
    assert [row.tolist() for row in train.history] == [[0, 0, 1], [], [1]], "duplicates and order are kept"
    assert [row.tolist() for row in train.candidates] == [[2, 1, 0], [0, 1], [2]]
    assert train.labels.tolist() == [0, 1, 1, 1, 0, 1]


def test_vocabulary_and_categories_come_from_the_train_split_alone(rows_store):
    store = rows_store(SPLITS)
    assert set(store.vocabulary) == {
        "<pad>",
        "<unk>",
        "goal",
        "in",
        "the",
        "last",
        "minute",
        "a",
        "late",
        "none",
        "nan",
    }
    words = list(store.vocabulary)
    assert [words[token] for token in store.title_tokens[3]] == ["goal", "<unk>", "<unk>"]
    assert list(store.categories) == ["<unk>", "news", "sports"]
    assert store.category.tolist() == [2, 1, 1, 0]


def test_samples_are_grouped_by_client_and_need_a_non_click(rows_store):
    store = rows_store(SPLITS)
    samples = store.samples
    assert store.meta["dropped_samples"] == 1, "the last impression has no non-clicked candidate"
    assert [list(store.users)[user] for user in samples.user] == ["U1", "U2"]
    clicked = store.splits["train"].candidates.values[samples.click]
    assert [clicked[rows].tolist() for rows in samples.rows] == [[1, 0], [0]]
    assert samples.impression.tolist() == [0, 0, 1]


def test_the_fingerprint_follows_content_and_options(rows_store):
    first = rows_store(SPLITS, "a").fingerprint
    assert rows_store(SPLITS, "b").fingerprint == first
    assert rows_store(SPLITS, "c", cut=3).fingerprint != first
    changed = {**SPLITS, "train": (NEWS, [TRAIN[0]._replace(labels=[0, 1, 0]), *TRAIN[1:]])}
    assert rows_store(changed, "d").fingerprint != first
    retitled = {**SPLITS, "train": ([NEWS[0]._replace(title="Gaol"), *NEWS[1:]], TRAIN)}
    assert rows_store(retitled, "e").fingerprint != first


def test_a_store_changed_on_disk_is_found_out(rows_store):
    store = rows_store(SPLITS)
    store.verify()
    labels = store.path / "train.labels.int8"
    labels.write_bytes(bytes(reversed(labels.read_bytes())))
    with pytest.raises(DataError, match="changed after it was prepared"):
        store.verify()


def test_an_article_with_two_titles_keeps_the_first_and_is_counted(rows_store):
    assert rows_store(SPLITS).meta["problems"] == {"two_titles_of_one_news": 1}


def test_unlabelled_split_has_no_labels(rows_store):
    test = [BehaviorRow("U1", 14, ["N1"], ["N2", "N1"], None)]
    store = rows_store({**SPLITS, "test": ([], test)})
    assert store.splits["test"].labels is None
    assert store.labelled_split("dev").labels is not None
    with pytest.raises(UsageError, match=r"split .test. of .* has no labels"):
        store.labelled_split("test")


def test_nothing_half_written_is_left(tmp_path):
    broken = {"train": (NEWS, [*TRAIN, BehaviorRow("U1", 0, ["N9"], ["N1"], [1])])}
    with pytest.raises(DataError, match=r"history of train behaviour 4: news 'N9'"):
        write_store(RowsReader(broken), tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_replaced_only_when_asked_and_only_a_store(tmp_path):
    out = tmp_path / "store"
    write_store(RowsReader(SPLITS), out)
    with pytest.raises(UsageError, match="exists already"):
        write_store(RowsReader(SPLITS), out)
    broken = {"train": (NEWS, [BehaviorRow("U1", 0, ["N9"], ["N1"], [1])])}
    with pytest.raises(DataError):
        write_store(RowsReader(broken), out, overwrite=True)
    assert len(Store.open(out).news) == 4, "a failed replacement leaves the old store"
    thesis = tmp_path / "thesis"
    thesis.mkdir()
    (thesis / "chapter1.tex").write_text("years of work")
    with pytest.raises(UsageError, match="not a prepared store"):
        write_store(RowsReader(SPLITS), thesis, overwrite=True)
    assert (thesis / "chapter1.tex").read_text() == "years of work"


def test_a_data_set_without_train_split_or_without_store_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no train split"):
        write_store(RowsReader({"dev": (NEWS, DEV)}), tmp_path / "x")
    with pytest.raises(UsageError, match="no prepared data at"):
        Store.open(tmp_path / "x")


@pytest.mark.parametrize("chunk", [1, 2, 200_000])
def test_samples_do_not_depend_on_how_they_are_chunked(rows_store, monkeypatch, chunk):
    monkeypatch.setattr("fednews.data.store._CHUNK", chunk)
    samples = rows_store(SPLITS).samples
    assert samples.impression.tolist() == [0, 0, 1]
    np.testing.assert_array_equal(samples.click, [1, 2, 3])
