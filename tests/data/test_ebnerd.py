"""EB-NeRD's official parquet files."""

import datetime
import gzip
from itertools import zip_longest
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fednews.data.ebnerd import BATCH_ROWS, EbnerdReader
from fednews.data.mind import MindReader
from fednews.data.tables import BehaviorRow, NewsRow
from fednews.errors import DataError, UsageError

MOMENT = datetime.datetime(2023, 5, 21, 21, 6, 50)
SECONDS = int(MOMENT.replace(tzinfo=datetime.UTC).timestamp())
IDS = pa.large_list(pa.int32())
BEHAVIORS = pa.schema(
    {
        "impression_id": pa.uint32(),
        "impression_time": pa.timestamp("us"),
        "article_ids_inview": IDS,
        "article_ids_clicked": IDS,
        "user_id": pa.uint32(),
    }
)
HISTORY = pa.schema({"user_id": pa.uint32(), "article_id_fixed": IDS})
ARTICLES = pa.schema(
    {
        "article_id": pa.int32(),
        "title": pa.string(),
        "subtitle": pa.string(),
        "body": pa.string(),
        "category": pa.int16(),
        "subcategory": pa.list_(pa.int16()),
        "category_str": pa.string(),
    }
)


def impression(user: int = 7, inview: tuple | None = (1, 2, 3), clicked: tuple | None = (2,), time=MOMENT) -> dict:
    return {
        "impression_id": 1,
        "impression_time": time,
        "article_ids_inview": inview,
        "article_ids_clicked": clicked,
        "user_id": user,
    }


def article(number: int, **change) -> dict:
    row = {"article_id": number, "title": f"Title {number}", "subtitle": f"Sub {number}", "body": "long"}
    return row | {"category": 118, "subcategory": [133, 134], "category_str": "nyheder"} | change


def write_split(folder: Path, impressions: list[dict], histories: dict[int, list]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"user_id": user, "article_id_fixed": clicks} for user, clicks in histories.items()]
    pq.write_table(pa.Table.from_pylist(impressions, BEHAVIORS), folder / "behaviors.parquet")
    pq.write_table(pa.Table.from_pylist(rows, HISTORY), folder / "history.parquet")


def write_articles(root: Path, rows: list[dict], schema: pa.Schema = ARTICLES) -> None:
    pq.write_table(pa.Table.from_pylist(rows, schema), root / "articles.parquet")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_articles(tmp_path, [article(number) for number in (1, 2, 3, 4, 5)])
    return tmp_path


def read(root: Path, split: str = "train") -> tuple[list[BehaviorRow], EbnerdReader]:
    reader = EbnerdReader(root)
    return list(reader.behaviors(split)), reader


def test_an_impression_gets_its_users_history_labels_from_clicks_and_its_wall_clock(root):
    write_split(root / "train", [impression(8), impression(7, (3, 2, 1), (1, 3))], {7: [4, 5, 4], 8: [2]})
    rows, reader = read(root)
    assert rows == [
        BehaviorRow("U8", SECONDS, ["N2"], ["N1", "N2", "N3"], [0, 1, 0]),
        BehaviorRow("U7", SECONDS, ["N4", "N5", "N4"], ["N3", "N2", "N1"], [1, 0, 1]),
    ]
    assert not reader.problems.counts


def test_splits_are_train_and_dev_where_their_folders_are_there(root):
    write_split(root / "validation", [impression()], {7: [1]})
    assert EbnerdReader(root).splits == ("dev",)
    write_split(root / "train", [impression()], {7: [1]})
    assert EbnerdReader(root).splits == ("train", "dev")


def test_an_impression_with_an_article_without_text_is_dropped_and_counted(root):
    write_split(root / "train", [impression(), impression(inview=(1, 99)), impression(inview=(2, 98))], {7: [1]})
    rows, reader = read(root)
    assert [row.candidates for row in rows] == [["N1", "N2", "N3"]]
    assert reader.problems.counts == {"missing_article": 2}
    assert reader.problems.examples["missing_article"].endswith(
        "train/behaviors.parquet: row 2: article 99 has no text"
    )


def test_history_items_without_text_are_dropped_and_counted_once(root):
    write_split(root / "train", [impression(), impression(), impression(8)], {8: [99], 7: [4, 99, 5, 98]})
    rows, reader = read(root)
    assert [row.history for row in rows] == [["N4", "N5"], ["N4", "N5"], []]
    assert reader.problems.counts == {"missing_history_article": 3, "empty_history": 1}


def test_users_without_a_history_are_kept_with_an_empty_one(root):
    write_split(root / "train", [impression(6), impression(7), impression(9)], {7: None, 8: [1]})
    rows, reader = read(root)
    assert [list(row.history) for row in rows] == [[], [], []]
    assert reader.problems.counts == {"empty_history": 3}


def test_empty_lists_and_unknown_times_are_handled(root):
    write_split(root / "train", [impression(inview=()), impression(inview=None), impression(time=None)], {7: [1]})
    rows, reader = read(root)
    assert [row.time for row in rows] == [-1]
    assert reader.problems.counts == {"no_candidates": 2}


def test_a_click_on_an_article_not_in_view_is_ignored_and_counted(root):
    write_split(root / "train", [impression(clicked=(2, 5)), impression(clicked=None)], {7: [1]})
    rows, reader = read(root)
    assert [row.labels for row in rows] == [[0, 1, 0], [0, 0, 0]]
    assert reader.problems.counts == {"click_not_in_view": 1}


def test_batches_and_row_groups_do_not_shift_users_or_rows(root):
    many = BATCH_ROWS + 100
    write_split(
        root / "train", [impression(user) for user in range(many)], {user: [1 + user % 5] for user in range(many)}
    )
    path = root / "train" / "history.parquet"
    reversed_rows = pq.read_table(path).take(list(range(many - 1, -1, -1)))
    pq.write_table(reversed_rows, path, row_group_size=1000)
    rows, _ = read(root)
    assert [row.user for row in rows] == [f"U{user}" for user in range(many)]
    assert [row.history for row in rows] == [[f"N{1 + user % 5}"] for user in range(many)]


def test_row_numbers_of_problems_count_on_across_batches(root):
    write_split(root / "train", [impression()] * BATCH_ROWS + [impression(inview=(99,))], {7: [1]})
    _, reader = read(root)
    assert f"row {BATCH_ROWS + 1}:" in reader.problems.examples["missing_article"]


def test_news_of_a_split_are_the_articles_its_impressions_and_histories_name(root):
    write_split(root / "train", [impression(inview=(1, 2))], {7: [5]})
    write_split(root / "validation", [impression(inview=(2, 4))], {7: [2]})
    reader = EbnerdReader(root)
    assert [[row.id for row in reader.news(split)] for split in reader.splits] == [["N1", "N2", "N5"], ["N2", "N4"]]


def test_official_article_columns_become_a_news_row(tmp_path):
    rows = [article(1), article(2, subtitle=None, category_str=None, subcategory=[]), article(3, title=None)]
    write_articles(tmp_path, rows)
    write_split(tmp_path / "train", [impression()], {7: [1]})
    reader = EbnerdReader(tmp_path)
    assert list(reader.news("train")) == [
        NewsRow("N1", "nyheder", "133", "Title 1", "Sub 1"),
        NewsRow("N2", "118", "", "Title 2"),
        NewsRow("N3", "nyheder", "133", "", "Sub 3"),
    ]
    assert reader.problems.counts == {"empty_title": 1}


def test_articles_with_id_and_title_alone_are_enough(tmp_path):
    schema = pa.schema({"article_id": pa.int32(), "title": pa.string()})
    write_articles(tmp_path, [{"article_id": number, "title": "T"} for number in (3, 2, 1)], schema)
    write_split(tmp_path / "train", [impression()], {7: [1]})
    assert [row for row in EbnerdReader(tmp_path).news("train")] == [NewsRow(f"N{n}", "", "", "T") for n in (3, 2, 1)]


@pytest.mark.parametrize("place", ["raw", "."])
@pytest.mark.parametrize("packed", [True, False])
def test_a_table_in_minds_columns_stands_in_for_the_articles(tmp_path, place, packed):
    text = "".join(f"N{number}\tc1\ts2\tTitle {number}\tSub\t\t[]\t[]\n" for number in (1, 2, 3)).encode()
    write_split(tmp_path / "raw" / "train", [impression(), impression(inview=(1, 4))], {7: [3]})
    name = "articles_some.tsv.gz" if packed else "articles_some.tsv"
    (tmp_path / place / name).write_bytes(gzip.compress(text) if packed else text)
    for root in (tmp_path / "raw", tmp_path):
        rows, reader = read(root)
        assert [row.candidates for row in rows] == [["N1", "N2", "N3"]]
        assert list(reader.news("train"))[2] == NewsRow("N3", "c1", "s2", "Title 3", "Sub")


def test_an_article_table_with_foreign_ids_names_the_line(tmp_path):
    write_split(tmp_path / "train", [impression()], {7: [3]})
    lines = ("N1\tc\ts\tT\t\t\t[]\t[]", "X2\tc\ts\tT\t\t\t[]\t[]")
    (tmp_path / "articles.tsv").write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"articles\.tsv:2: 'X2' is not an EB-NeRD article id"):
        read(tmp_path)


def test_missing_files_and_columns_say_what_was_looked_for_and_where(root):
    with pytest.raises(UsageError, match=r"no train/behaviors\.parquet or validation/behaviors\.parquet at"):
        EbnerdReader(root)
    with pytest.raises(UsageError, match=r"nowhere is not a folder"):
        EbnerdReader(root / "nowhere")
    with pytest.raises(UsageError, match="unpack it"):
        EbnerdReader(root / "articles.parquet")
    write_split(root / "train", [impression()], {7: [3]})
    pq.write_table(pa.table({"user_id": [7]}), root / "train" / "history.parquet")
    with pytest.raises(DataError, match=r"history\.parquet: column 'article_id_fixed' is missing"):
        read(root)
    (root / "train" / "history.parquet").unlink()
    with pytest.raises(UsageError, match=r"history\.parquet does not exist"):
        read(root)
    (root / "train" / "history.parquet").write_bytes(b"not parquet")
    with pytest.raises(DataError, match=r"history\.parquet: not a readable parquet file"):
        read(root)
    (root / "articles.parquet").unlink()
    with pytest.raises(UsageError, match=r"no article texts: looked for articles\.parquet"):
        EbnerdReader(root)


def test_two_history_rows_of_one_user_are_an_error(root):
    write_split(root / "train", [impression()], {7: [3]})
    history = pq.read_table(root / "train" / "history.parquet")
    pq.write_table(pa.concat_tables([history, history]), root / "train" / "history.parquet")
    with pytest.raises(DataError, match="user 7 has two rows"):
        read(root)


def test_a_column_of_another_type_is_an_error(root):
    write_split(root / "train", [impression()], {7: [3]})
    pq.write_table(pa.table({"user_id": [7], "article_id_fixed": ["3 4"]}), root / "train" / "history.parquet")
    with pytest.raises(DataError, match=r"history\.parquet: column 'article_id_fixed' holds string"):
        read(root)


@pytest.mark.parametrize(("split", "impressions", "dropped"), [("train", 24666, 58), ("dev", 25306, 50)])
def test_the_raw_demo_equals_its_conversion_except_that_histories_are_whole(real_data, split, impressions, dropped):
    reader = EbnerdReader(real_data / "ebnerd-demo" / "raw")
    converted = MindReader(real_data / "ebnerd-demo" / "mind_format")
    rows, longest = 0, 0
    for raw, short in zip_longest(reader.behaviors(split), converted.behaviors(split)):
        assert raw.history[-50:] == short.history
        assert raw._replace(history=()) == short._replace(history=())
        rows, longest = rows + 1, max(longest, len(raw.history))
    assert longest > 50
    assert rows == impressions
    assert reader.problems.counts["missing_article"] == dropped


@pytest.mark.parametrize("split", ["train", "dev"])
def test_the_raw_demos_news_cover_its_conversion_and_its_whole_histories(real_data, split):
    reader = EbnerdReader(real_data / "ebnerd-demo")
    news = {row.id for row in reader.news(split)}
    converted = {row.id for row in MindReader(real_data / "ebnerd-demo" / "mind_format").news(split)}
    assert converted < news
    assert all(news.issuperset(row.history) for row in reader.behaviors(split))
    assert reader.problems.counts["empty_title"] == 7
