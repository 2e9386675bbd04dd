"""MIND's native format, trap by trap."""

import datetime
import gzip
import json
import locale
import zipfile
from pathlib import Path

import pytest

from fednews.data.mind import MindReader, parse_time
from fednews.data.tables import BehaviorRow, NewsRow
from fednews.errors import DataError, UsageError

TIME = "11/11/2019 9:05:58 AM"
SECONDS = int(datetime.datetime(2019, 11, 11, 9, 5, 58, tzinfo=datetime.UTC).timestamp())
ENTITIES = json.dumps([{"Label": "Ukraine", "WikidataId": "Q212", "OccurrenceOffsets": [87]}])


def news_line(news: str = "N1", title: str = "A title", abstract: str = "", entities: tuple = ("[]", "[]")) -> str:
    return "\t".join((news, "news", "newsworld", title, abstract, "https://example.org/a", *entities))


def behavior_line(number: int = 1, user: str = "U1", history: str = "N1", impressions: str = "N1-1 N2-0") -> str:
    return "\t".join((str(number), user, TIME, history, impressions))


def write_split(folder: Path, news: list[str] | None = None, behaviors: list[str] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "news.tsv").write_text("\n".join([news_line()] if news is None else news), encoding="utf-8")
    (folder / "behaviors.tsv").write_text("\n".join([behavior_line()] if behaviors is None else behaviors))
    return folder


def read_news(root: Path) -> tuple[list[NewsRow], MindReader]:
    reader = MindReader(root)
    return list(reader.news("train")), reader


def read_behaviors(root: Path) -> tuple[list[BehaviorRow], MindReader]:
    reader = MindReader(root)
    return list(reader.behaviors("train")), reader


def test_a_row_is_read_as_written(tmp_path):
    write_split(tmp_path, [news_line("N1", "A title", "An abstract", (ENTITIES, "[]"))])
    assert read_news(tmp_path)[0] == [NewsRow("N1", "news", "newsworld", "A title", "An abstract", ENTITIES, "[]")]
    assert read_behaviors(tmp_path)[0] == [BehaviorRow("U1", SECONDS, ["N1"], ["N1", "N2"], [1, 0])]


def test_quote_characters_are_text_and_rows_equal_lines(tmp_path):
    titles = ['"Open quote', "It's", 'Said: "yes" and "no"', '"Closed"', 'End"', '""']
    write_split(tmp_path, [news_line(f"N{i}", title, '"') for i, title in enumerate(titles)])
    rows, _ = read_news(tmp_path)
    assert [row.title for row in rows] == titles
    assert {row.abstract for row in rows} == {'"'}


@pytest.mark.parametrize("text", ["None", "nan", "NaN", "null", "NA", "0", "1e5", "#N/A"])
def test_texts_that_other_parsers_take_for_missing_stay_text(tmp_path, text):
    write_split(
        tmp_path, [news_line("N1", text, text)], [behavior_line(user=text, history="", impressions=f"{text}-1")]
    )
    (news,), _ = read_news(tmp_path)
    (behavior,), _ = read_behaviors(tmp_path)
    assert (news.title, news.abstract) == (text, text)
    assert (behavior.user, behavior.candidates) == (text, [text])


def test_an_empty_history_is_kept_and_counted(tmp_path):
    write_split(tmp_path, behaviors=[behavior_line(1), behavior_line(2, history=""), behavior_line(3, history="")])
    rows, reader = read_behaviors(tmp_path)
    assert [list(row.history) for row in rows] == [["N1"], [], []]
    assert reader.problems.counts == {"empty_history": 2}
    assert reader.problems.examples["empty_history"] == f"{tmp_path}/behaviors.tsv:2"


def test_duplicate_clicks_in_a_history_are_kept_in_order(tmp_path):
    write_split(tmp_path, behaviors=[behavior_line(history="N3 N1 N3 N3 N2")])
    (row,), _ = read_behaviors(tmp_path)
    assert row.history == ["N3", "N1", "N3", "N3", "N2"]


def test_unlabelled_rows_have_no_labels(tmp_path):
    write_split(tmp_path / "MINDlarge_test", behaviors=[behavior_line(impressions="N1 N2 N3")] * 2)
    reader = MindReader(tmp_path)
    rows = list(reader.behaviors("test"))
    assert [(row.candidates, row.labels) for row in rows] == [(["N1", "N2", "N3"], None)] * 2


@pytest.mark.parametrize("impressions", ["N1-1 N2", "N1 N2-0", "N1-1 N2-2", "N1-1 N2-"])
def test_labelled_and_unlabelled_candidates_in_one_row_are_an_error(tmp_path, impressions):
    write_split(tmp_path, behaviors=[behavior_line(), behavior_line(impressions=impressions)])
    with pytest.raises(DataError, match=r"behaviors\.tsv:2: 'N\d-?\d?' has no label"):
        read_behaviors(tmp_path)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_labelled_and_unlabelled_rows_in_one_split_are_an_error(tmp_path, order):
    lines = [behavior_line(impressions="N1-1 N2-0"), behavior_line(impressions="N1 N2")]
    write_split(tmp_path, behaviors=[lines[i] for i in order])
    with pytest.raises(DataError, match=r"behaviors\.tsv:2: labelled and unlabelled"):
        read_behaviors(tmp_path)


def test_a_wrong_column_count_names_file_and_line(tmp_path):
    write_split(tmp_path, [news_line(), news_line() + "\textra"], [behavior_line(), "2\tU1\t" + TIME + "\tN1"])
    with pytest.raises(DataError, match=rf"^{tmp_path}/behaviors\.tsv:2: expected 5 columns, found 4$"):
        read_behaviors(tmp_path)
    with pytest.raises(DataError, match=rf"^{tmp_path}/news\.tsv:2: expected 8 columns, found 9$"):
        read_news(tmp_path)


@pytest.mark.parametrize(("change", "message"), [({"impressions": ""}, "impressions"), ({"user": ""}, "user")])
def test_a_row_without_user_or_candidates_is_an_error(tmp_path, change, message):
    write_split(tmp_path, behaviors=[behavior_line(), behavior_line(**change)])
    with pytest.raises(DataError, match=rf"behaviors\.tsv:2: the {message} column is empty"):
        read_behaviors(tmp_path)


def test_impression_ids_that_restart_per_split_are_no_keys(tmp_path):
    for split, user in (("train", "U1"), ("dev", "U2")):
        write_split(tmp_path / split, behaviors=[behavior_line(1, user), behavior_line(1, user)])
    reader = MindReader(tmp_path)
    assert [row.user for row in reader.behaviors("train")] == ["U1", "U1"]
    assert [row.user for row in reader.behaviors("dev")] == ["U2", "U2"]


@pytest.mark.parametrize("text", [TIME, "1/2/2019 12:00:00 AM", "11/15/2019 12:59:59 PM", "02/29/2020 01:00:00 PM"])
def test_the_time_format_means_what_strptime_says(text):
    moment = datetime.datetime.strptime(text, "%m/%d/%Y %I:%M:%S %p")
    assert parse_time(text, "here") == (moment - datetime.datetime(1970, 1, 1)) / datetime.timedelta(seconds=1)


MALFORMED_TIMES = ["", "2019-11-11 09:05:58", "13/1/2019 9:05:58 AM", "2/29/2019 9:05:58 AM", "1/1/2019 0:05:58 AM"]
MALFORMED_TIMES += ["1/1/2019 13:05:58 PM", "1/1/2019 9:05:58", "1/1/2019 9:05:60 AM", "1/1/2019 9:05:58 AM "]
MALFORMED_TIMES += ["\u0661/1/2019 9:05:58 AM"]


@pytest.mark.parametrize("text", MALFORMED_TIMES)
def test_a_malformed_time_names_file_and_line(tmp_path, text):
    write_split(tmp_path, behaviors=[behavior_line(), behavior_line().replace(TIME, text)])
    with pytest.raises(DataError, match=r"behaviors\.tsv:2: '.*' is not a time like"):
        read_behaviors(tmp_path)


def test_the_time_does_not_depend_on_the_locale():
    before = locale.setlocale(locale.LC_TIME)
    available = [name for name in ("nb_NO.UTF-8", "de_DE.UTF-8", "C.UTF-8", "C") if _set_time_locale(name)]
    try:
        for name in available:
            locale.setlocale(locale.LC_TIME, name)
            assert parse_time(TIME, "here") == SECONDS
    finally:
        locale.setlocale(locale.LC_TIME, before)


def _set_time_locale(name: str) -> bool:
    try:
        return bool(locale.setlocale(locale.LC_TIME, name))
    except locale.Error:
        return False


def test_an_empty_abstract_and_empty_entity_lists_are_no_problem(tmp_path):
    write_split(
        tmp_path, [news_line("N1"), news_line("N2", entities=("", "[]")), news_line("N3", entities=(ENTITIES,) * 2)]
    )
    rows, reader = read_news(tmp_path)
    assert [(row.abstract, row.title_entities, row.abstract_entities) for row in rows] == [
        ("", "[]", "[]"),
        ("", "[]", "[]"),
        ("", ENTITIES, ENTITIES),
    ]
    assert not reader.problems.counts


@pytest.mark.parametrize("text", ["[{", "{}", "[1]", '[{"Label": "x"}]', '"Q1"', "null", "nan", '[{"WikidataId": 7}]'])
def test_malformed_entities_are_counted_and_read_as_none(tmp_path, text):
    lines = [news_line("N1", entities=(ENTITIES, "[]")), news_line("N2", entities=(text, ENTITIES))]
    write_split(tmp_path, [*lines, news_line("N3", entities=("[]", text))])
    rows, reader = read_news(tmp_path)
    assert [row.title_entities for row in rows] == [ENTITIES, "[]", "[]"]
    assert [row.abstract_entities for row in rows] == ["[]", ENTITIES, "[]"]
    assert reader.problems.counts == {"malformed_entities": 2}
    assert reader.problems.examples["malformed_entities"] == f"{tmp_path}/news.tsv:2"


def test_an_empty_title_is_kept_and_counted(tmp_path):
    write_split(tmp_path, [news_line("N1"), news_line("N2", "")])
    rows, reader = read_news(tmp_path)
    assert [row.title for row in rows] == ["A title", ""]
    assert reader.problems.counts == {"empty_title": 1}


def test_a_news_id_may_stand_in_both_splits(tmp_path):
    write_split(tmp_path / "train", [news_line("N1")])
    write_split(tmp_path / "dev", [news_line("N1"), news_line("N2")])
    reader = MindReader(tmp_path)
    assert [[row.id for row in reader.news(split)] for split in reader.splits] == [["N1"], ["N1", "N2"]]


def test_crlf_line_ends_and_a_byte_order_mark_are_no_part_of_a_field(tmp_path):
    write_split(tmp_path)
    for name, line in (("news.tsv", news_line()), ("behaviors.tsv", behavior_line())):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + line.encode() + b"\r\n")
    assert read_news(tmp_path)[0] == [NewsRow("N1", "news", "newsworld", "A title")]
    assert read_behaviors(tmp_path)[0][0].candidates == ["N1", "N2"]


@pytest.mark.parametrize(
    ("folder", "split"),
    [
        ("train", "train"),
        ("MINDsmall_train", "train"),
        ("a/MINDlarge_dev/b", "dev"),
        ("valid", "dev"),
        ("x-test", "test"),
    ],
)
def test_a_split_is_named_by_its_folder(tmp_path, folder, split):
    write_split(tmp_path / folder)
    assert MindReader(tmp_path).splits == (split,)


def test_a_root_with_the_files_is_train_and_splits_come_in_their_order(tmp_path):
    write_split(tmp_path)
    write_split(tmp_path / "a_test")
    write_split(tmp_path / "b_dev")
    assert MindReader(tmp_path).splits == ("train", "dev", "test")
    assert MindReader(tmp_path / "b_dev").splits == ("train",)


def test_zips_as_downloaded_and_compressed_files_are_found(tmp_path):
    with zipfile.ZipFile(tmp_path / "MINDsmall_train.zip", "w") as archive:
        archive.writestr("news.tsv", news_line("N7"))
        archive.writestr("behaviors.tsv", behavior_line(user="U7"))
        archive.writestr("__MACOSX/._news.tsv", b"\x00")
    with zipfile.ZipFile(tmp_path / "dev.zip", "w") as archive:
        archive.writestr("MINDsmall_dev/news.tsv.gz", gzip.compress(news_line("N8").encode()))
        archive.writestr("MINDsmall_dev/behaviors.tsv.gz", gzip.compress(behavior_line(user="U8").encode()))
    reader = MindReader(tmp_path)
    assert reader.splits == ("train", "dev")
    assert [row.id for split in reader.splits for row in reader.news(split)] == ["N7", "N8"]
    assert [row.user for split in reader.splits for row in reader.behaviors(split)] == ["U7", "U8"]
    assert MindReader(tmp_path / "dev.zip").splits == ("dev",)


def test_a_folder_without_the_files_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"no behaviors\.tsv\[\.gz\] and news\.tsv"):
        MindReader(tmp_path)


def test_two_folders_for_one_split_are_refused(tmp_path):
    write_split(tmp_path / "old_train" / "misc")
    write_split(tmp_path / "train")
    with pytest.raises(UsageError, match=r"misc/behaviors\.tsv and .*/train/behaviors\.tsv are both the train split"):
        MindReader(tmp_path)


def test_behaviors_without_news_are_refused(tmp_path):
    (write_split(tmp_path / "train") / "news.tsv").unlink()
    with pytest.raises(UsageError, match=r"train/behaviors\.tsv has no news\.tsv"):
        MindReader(tmp_path)


def test_a_folder_that_names_no_split_is_refused(tmp_path):
    write_split(tmp_path / "monday")
    with pytest.raises(UsageError, match="ends in none of train, dev and test"):
        MindReader(tmp_path)


def test_news_without_any_behaviors_is_refused(real_data):
    with pytest.raises(UsageError, match=r"no behaviors\.tsv"):
        MindReader(real_data / "adressa")


def counts(reader: MindReader, split: str) -> dict[str, int]:
    users, impressions, candidates, clicks = set(), 0, 0, 0
    for row in reader.behaviors(split):
        users.add(row.user)
        impressions += 1
        candidates += len(row.candidates)
        clicks += sum(row.labels)
    news = sum(1 for _ in reader.news(split))
    return {"impressions": impressions, "users": len(users), "candidates": candidates, "clicks": clicks, "news": news}


def test_the_mind_sample_has_the_counts_of_its_readme(real_data):
    reader = MindReader(real_data / "mind-sample")
    names = ("impressions", "users", "candidates", "clicks", "news")
    assert reader.splits == ("train", "dev")
    assert counts(reader, "train") == dict(zip(names, (5630, 5126, 208726, 8426, 23020), strict=True))
    assert counts(reader, "dev") == dict(zip(names, (1306, 1278, 53893, 1977, 11777), strict=True))
    assert "malformed_entities" not in reader.problems.counts


def test_the_converted_ebnerd_has_the_counts_of_its_readme(real_data):
    reader = MindReader(real_data / "ebnerd-demo" / "mind_format")
    train, dev = counts(reader, "train"), counts(reader, "dev")
    assert (train["impressions"], train["candidates"], train["clicks"], train["news"]) == (24666, 277059, 24771, 4412)
    assert (dev["impressions"], dev["candidates"], dev["clicks"], dev["news"]) == (25306, 304161, 25394, 4325)
