"""Adressa's raw day files. Every click below is synthetic except those in the tests on real data."""

import datetime
import gzip
import json
import random
import zipfile
import zlib
import zoneinfo
from pathlib import Path

import pytest

from fednews.data.adressa import NEGATIVES, AdressaReader
from fednews.data.tables import NewsRow
from fednews.errors import DataError, UsageError

OSLO = zoneinfo.ZoneInfo("Europe/Oslo")


def at(day: int, hour: int = 12, minute: int = 0, second: int = 0) -> int:
    """POSIX seconds of a time in Oslo on day 1 to 7 of January 2017."""
    return int(datetime.datetime(2017, 1, day, hour, minute, second, tzinfo=OSLO).timestamp())


def synthetic_event(user: str, article: str | None, time: int, /, **change) -> dict:
    event = {"userId": user, "time": time, "eventId": zlib.crc32(repr((user, article, time)).encode()), "activeTime": 5}
    if article is not None:
        url = f"http://adressa.no/nyheter/trondheim/2017/01/01/{article}.ece"
        event |= {"id": article, "title": f"Title {article}", "category1": "nyheter|trondheim", "url": url}
    return {name: value for name, value in (event | change).items() if value is not None}


def write_days(root: Path, events: list, name=lambda day: f"201701{day:02}") -> Path:
    """Write seven day files; an event goes to the file of its Oslo day. ``None`` and texts go to day 1."""
    root.mkdir(parents=True, exist_ok=True)
    lines: dict[int, list[str]] = {day: [] for day in range(1, 8)}
    for event in events:
        day = datetime.datetime.fromtimestamp(event["time"], OSLO).day if isinstance(event, dict) else 1
        lines[day].append(event if isinstance(event, str) else json.dumps(event))
    for day, texts in lines.items():
        (root / name(day)).write_text("\n".join(texts), encoding="utf-8")
    return root


def catalogue(size: int, day: int = 1) -> list[dict]:
    """Synthetic clicks of one reader who sees every article."""
    return [synthetic_event("everything", f"a{number:03}", at(day, 1, 0, number % 60)) for number in range(size)]


def synthetic_week(users: int = 30) -> list[dict]:
    draw = random.Random(5)
    times = [at(day, draw.randrange(24), draw.randrange(60)) for day in range(1, 8) for _ in range(users * 2)]
    events = [synthetic_event(f"u{draw.randrange(users):02}", f"a{draw.randrange(60):03}", time) for time in times]
    return catalogue(60) + events


def read(root: Path, seed: int = 0) -> tuple[dict[str, list], AdressaReader]:
    reader = AdressaReader(root, seed)
    return {split: list(reader.behaviors(split)) for split in reader.splits}, reader


def day_seven(rows: dict[str, list]) -> list:
    return sorted(rows["dev"] + rows["test"], key=lambda row: row.time)


def test_day_six_is_train_with_days_one_to_five_and_day_seven_the_rest_with_days_one_to_six(tmp_path):
    clicks = [synthetic_event("u", f"c{day}{hour:02}", at(day, hour)) for day in range(1, 8) for hour in (8, 20)]
    rows, _ = read(write_days(tmp_path, clicks))
    days = {day: [f"c{day}08", f"c{day}20"] for day in range(1, 8)}
    before = [news for day in range(1, 6) for news in days[day]]
    assert [row.history for row in rows["train"]] == [before, before]
    assert [row.candidates[0] for row in rows["train"]] == days[6]
    assert [row.history for row in day_seven(rows)] == [before + days[6]] * 2
    assert [row.candidates[0] for row in day_seven(rows)] == days[7]


def test_the_click_stands_first_and_no_negative_was_clicked_or_repeats(tmp_path):
    events = synthetic_week()
    root = write_days(tmp_path, events)
    rows, reader = read(root)
    clicked: dict[str, set[str]] = {}
    for event in events:
        clicked.setdefault(event["userId"], set()).add(event["id"])
    early = {event["id"] for event in events if event["time"] < at(7, 0)}
    for split in reader.splits:
        known = {row.id for row in reader.news(split)}
        assert rows[split]
        for row in rows[split]:
            assert row.labels == [1] + [0] * NEGATIVES
            assert len(set(row.candidates)) == NEGATIVES + 1
            assert row.candidates[0] in clicked[row.user]
            assert known.issuperset(row.candidates)
            assert split == "train" or clicked[row.user].isdisjoint(row.candidates[1:])
    assert all(early.issuperset(row.candidates) for row in rows["train"])
    assert "few_negatives" not in reader.problems.counts


def test_train_negatives_avoid_clicks_up_to_day_six_and_know_nothing_of_day_seven(tmp_path):
    events = [*catalogue(23), synthetic_event("u", "a000", at(2)), synthetic_event("u", "a001", at(6))]
    events += [synthetic_event("u", "a002", at(7)), synthetic_event("u", "late", at(7, 13))]
    rows, reader = read(write_days(tmp_path, events))
    (row,) = rows["train"]
    assert set(row.candidates[1:]) <= {f"a{number:03}" for number in range(2, 23)}
    assert {news.id for news in reader.news("train")} == {f"a{number:03}" for number in range(23)}
    assert {news.id for news in reader.news("test")} == {f"a{number:03}" for number in range(23)} | {"late"}
    # Day 7: 24 articles less the four clicked leave exactly the 20 that must all be drawn.
    remaining = {f"a{number:03}" for number in range(3, 23)}
    assert [set(row.candidates[1:]) for row in day_seven(rows)] == [remaining, remaining]


def test_negatives_are_uniform_over_the_articles_not_clicked(tmp_path):
    users = 400
    events = catalogue(60) + [synthetic_event(f"u{number}", "a000", at(7)) for number in range(users)]
    rows, _ = read(write_days(tmp_path, events))
    drawn = [news for row in day_seven(rows) for news in row.candidates[1:]]
    first = [row.candidates[1] for row in day_seven(rows)]
    # 59 articles: counts are binomial with p = 20/59 and 1/59; six standard deviations.
    for draws, share in ((drawn, NEGATIVES / 59), (first, 1 / 59)):
        counts = [draws.count(f"a{number:03}") for number in range(1, 60)]
        spread = 6 * (users * share * (1 - share)) ** 0.5
        assert max(abs(count - users * share) for count in counts) < spread


def test_day_seven_is_divided_into_a_fifth_dev_and_four_fifths_test(tmp_path):
    events = catalogue(60) + [synthetic_event(f"u{number:02}", "a000", at(7, 1, number)) for number in range(50)]
    rows, _ = read(write_days(tmp_path, events))
    assert (len(rows["dev"]), len(rows["test"])) == (10, 40)
    assert [row.user for row in day_seven(rows)] == [f"u{number:02}" for number in range(50)]


def test_the_seed_fixes_division_and_negatives(tmp_path):
    root = write_days(tmp_path, synthetic_week())
    (rows, reader), (again, _), (other, _) = read(root, 3), read(root, 3), read(root, 4)
    assert rows == again
    assert reader.options == {"seed": 3}
    assert [row.user for row in rows["dev"]] != [row.user for row in other["dev"]]
    assert [row.candidates[0] for row in rows["train"]] == [row.candidates[0] for row in other["train"]]
    assert [row.candidates for row in rows["train"]] != [row.candidates for row in other["train"]]


def test_the_order_of_files_and_lines_does_not_matter(tmp_path):
    events = synthetic_week()
    rows, reader = read(write_days(tmp_path / "sorted", sorted(events, key=lambda event: event["time"])))
    random.Random(1).shuffle(events)
    mixed, mixed_reader = read(write_days(tmp_path / "mixed", events))
    # Without dates in their names the files are read from day 7 back to day 1.
    renamed, _ = read(write_days(tmp_path / "renamed", events, name=lambda day: f"part{9 - day}.jsonl"))
    assert rows == mixed == renamed
    assert reader.problems.counts == mixed_reader.problems.counts
    assert list(reader.news("train")) == list(mixed_reader.news("train"))


def test_histories_run_from_the_oldest_to_the_latest_click_of_unsorted_lines(tmp_path):
    clicks = [("late", at(5)), ("first", at(1)), ("middle", at(3)), ("early", at(1, 13))]
    events = [synthetic_event("u", name, time) for name, time in clicks] + [synthetic_event("u", "x", at(6))]
    rows, _ = read(write_days(tmp_path, events))
    assert rows["train"][0].history == ["first", "early", "middle", "late"]


def test_events_without_an_article_are_skipped_and_counted(tmp_path):
    events = [synthetic_event("u", "a", at(2)), synthetic_event("u", None, at(6)), synthetic_event("u", "b", at(6))]
    rows, reader = read(write_days(tmp_path, events))
    assert [(row.history, row.candidates) for row in rows["train"]] == [(["a"], ["b"])]
    assert reader.problems.counts["no_article"] == 1
    assert reader.problems.examples["no_article"] == f"{tmp_path}/20170106:1"


def test_literal_null_lines_are_skipped_and_counted(tmp_path):
    _, reader = read(write_days(tmp_path, ["null", synthetic_event("u", "a", at(1)), "null"]))
    assert reader.problems.counts["null_line"] == 2
    assert [news.id for news in reader.news("train")] == ["a"]


def test_a_missing_active_time_changes_nothing(tmp_path):
    events = synthetic_week()
    rows, reader = read(write_days(tmp_path / "with", events))
    bare = [{name: value for name, value in event.items() if name != "activeTime"} for event in events]
    assert read(write_days(tmp_path / "without", bare))[0] == rows
    assert "incomplete_event" not in reader.problems.counts


def test_events_without_user_or_time_are_skipped_and_counted(tmp_path):
    events = [synthetic_event("u", "a", at(6)), json.dumps(synthetic_event("u", "b", at(1), time=None))]
    events.append(synthetic_event("u", "c", at(6), userId=None))
    rows, reader = read(write_days(tmp_path, events))
    assert [row.candidates for row in rows["train"]] == [["a"]]
    assert reader.problems.counts["incomplete_event"] == 2


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_of_two_titles_the_first_in_time_is_kept_and_the_article_counted(tmp_path, order):
    titles = [("Old title", at(1, 8)), ("New title", at(1, 9)), ("Newest title", at(1, 10))]
    events = [synthetic_event(f"u{number}", "a", titles[number][1], title=titles[number][0]) for number in order]
    _, reader = read(write_days(tmp_path, events))
    assert [news.title for news in reader.news("train")] == ["Old title"]
    assert reader.problems.counts["two_titles"] == 1


def test_a_title_that_comes_later_is_taken_and_a_missing_one_counted(tmp_path):
    events = [synthetic_event("u", "a", at(1), title=None), synthetic_event("v", "a", at(2), title="A")]
    _, reader = read(write_days(tmp_path, [*events, synthetic_event("u", "b", at(3), title=None)]))
    assert [(news.id, news.title) for news in reader.news("train")] == [("a", "A"), ("b", "")]
    assert reader.problems.counts["empty_title"] == 1
    assert "two_titles" not in reader.problems.counts


def test_only_the_first_click_on_an_article_counts(tmp_path):
    events = [synthetic_event("u", "a", at(6, 9)), synthetic_event("u", "a", at(3)), synthetic_event("u", "a", at(7))]
    events += [
        synthetic_event("u", "b", at(6, 10)),
        synthetic_event("u", "b", at(6, 11)),
        synthetic_event("v", "a", at(6)),
    ]
    rows, reader = read(write_days(tmp_path, events))
    assert [(row.user, row.history, row.candidates[0]) for row in rows["train"]] == [("u", ["a"], "b"), ("v", [], "a")]
    assert day_seven(rows) == []
    assert reader.problems.counts["repeated_click"] == 3


def test_an_exact_duplicate_event_is_dropped_but_a_colliding_number_is_not(tmp_path):
    event = synthetic_event("u", "a", at(6), eventId=77)
    other = synthetic_event("u", "b", at(6), eventId=77)
    rows, reader = read(write_days(tmp_path, [event, event, other, event]))
    assert sorted(row.candidates[0] for row in rows["train"]) == ["a", "b"]
    assert reader.problems.counts["duplicate_event"] == 2
    assert "repeated_click" not in reader.problems.counts


def test_events_without_a_number_are_never_duplicates_of_each_other(tmp_path):
    rows, reader = read(write_days(tmp_path, [synthetic_event("u", "a", at(6), eventId=None)] * 2))
    assert [row.candidates for row in rows["train"]] == [["a"]]
    assert reader.problems.counts["repeated_click"] == 1
    assert "duplicate_event" not in reader.problems.counts


def test_a_user_without_history_is_kept_and_counted(tmp_path):
    rows, reader = read(write_days(tmp_path, [*catalogue(30), synthetic_event("new", "a000", at(6))]))
    assert [(row.user, row.history) for row in rows["train"]] == [("new", [])]
    assert reader.problems.counts["empty_history"] == 1


def test_fewer_articles_than_negatives_give_what_there_is_and_count_it(tmp_path):
    rows, reader = read(write_days(tmp_path, [*catalogue(4), synthetic_event("new", "a000", at(6))]))
    assert [(set(row.candidates[1:]), row.labels) for row in rows["train"]] == [
        ({"a001", "a002", "a003"}, [1, 0, 0, 0])
    ]
    assert reader.problems.counts["few_negatives"] == 1


@pytest.mark.parametrize("name", [lambda day: f"part{day}.jsonl", lambda day: f"201701{day:02}"])
def test_a_day_begins_at_midnight_in_oslo_and_not_at_midnight_utc(tmp_path, name):
    boundary = [("five", at(6, 0) - 1), ("six", at(6, 0)), ("six_still", at(7, 0) - 1), ("seven", at(7, 0, 30))]
    assert datetime.datetime.fromtimestamp(at(6, 0), datetime.UTC).day == 5
    events = [synthetic_event("v", "day_one", at(1, 0)), synthetic_event("v", "day_seven", at(7, 23, 59, 59))]
    events += [synthetic_event("u", article, time) for article, time in boundary]
    rows, _ = read(write_days(tmp_path, events, name))
    assert [(row.candidates[0], row.history) for row in rows["train"]] == [("six", ["five"]), ("six_still", ["five"])]
    assert [row.candidates[0] for row in day_seven(rows)] == ["seven", "day_seven"]


def test_a_file_named_by_a_date_decides_the_day_of_its_events(tmp_path):
    write_days(tmp_path, [])
    late = synthetic_event("u", "a", at(7, 0, 0, 5))
    (tmp_path / "20170106").write_text(json.dumps(late))
    rows, _ = read(tmp_path)
    assert [row.candidates for row in rows["train"]] == [["a"]]
    assert day_seven(rows) == []


def test_time_is_the_wall_clock_in_oslo_read_as_utc(tmp_path):
    rows, _ = read(write_days(tmp_path, [synthetic_event("u", "a", at(6, 0, 30))]))
    clock = datetime.datetime.fromtimestamp(rows["train"][0].time, datetime.UTC)
    assert clock == datetime.datetime(2017, 1, 6, 0, 30, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"category1": "sport|fotball"}, ("sport", "fotball")),
        ({"category1": "sport"}, ("sport", "")),
        ({"category1": "sport|fotball|eliteserien"}, ("sport", "fotball")),
        ({"category1": None}, ("nyheter", "trondheim")),
        ({"category1": None, "url": "http://adressa.no/reise/Kuleste-passtempler-798b.html"}, ("reise", "")),
        ({"category1": None, "url": "http://adressa.no/x.ece"}, ("", "")),
        ({"category1": None, "canonicalUrl": "http://www.adressa.no/kultur/2017/x.ece"}, ("kultur", "")),
        ({"category1": None, "url": None}, ("", "")),
    ],
)
def test_categories_come_from_category1_or_else_from_the_address(tmp_path, change, expected):
    _, reader = read(write_days(tmp_path, [synthetic_event("u", "a", at(1), **change)]))
    assert list(reader.news("train")) == [NewsRow("a", *expected, "Title a")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": "a"', "not JSON"),
        ("[1]", "expected a JSON object or null"),
        (json.dumps(synthetic_event("u", "a", 1, time="1483225202")), "'time' must be of type int"),
        (json.dumps(synthetic_event("u", "a", 1483225202000)), "not in POSIX seconds"),
        (json.dumps(synthetic_event("u", "a", 1, id=5)), "'id' must be of type str"),
    ],
)
def test_a_malformed_event_names_file_and_line(tmp_path, line, message):
    root = write_days(tmp_path, [synthetic_event("u", "a", at(1)), line])
    with pytest.raises(DataError, match=rf"20170101:2: .*{message}"):
        read(root)


def test_anything_but_seven_days_is_refused(tmp_path):
    root = write_days(tmp_path, [synthetic_event("u", "a", at(1))])
    (root / "20170108").write_text("")
    with pytest.raises(DataError, match="seven days of one week, found 2017-01-01 to 2017-01-08"):
        read(root)
    for day in ("20170107", "20170108"):
        (root / day).unlink()
    with pytest.raises(DataError, match="found 2017-01-01 to 2017-01-06"):
        read(root)


def test_files_without_events_and_folders_without_files_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"no event files named like 20170101"):
        AdressaReader(tmp_path)
    (tmp_path / "events.jsonl").write_text("null\n")
    with pytest.raises(DataError, match="no events in 1 files"):
        read(tmp_path)


def test_compressed_days_and_days_in_a_zip_read_the_same(tmp_path):
    plain = write_days(tmp_path / "plain", synthetic_week())
    (tmp_path / "packed").mkdir()
    with zipfile.ZipFile(tmp_path / "week.zip", "w") as archive:
        for path in plain.iterdir():
            archive.write(path, f"one_week/{path.name}")
            (tmp_path / "packed" / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert read(plain)[0] == read(tmp_path / "packed")[0] == read(tmp_path / "week.zip")[0]


def test_the_four_genuine_events_are_read(real_data):
    rows, reader = read(real_data / "adressa")
    assert rows == {"train": [], "dev": [], "test": []}
    assert reader.problems.counts == {"no_article": 2}
    assert list(reader.news("train")) == [
        NewsRow("2607fc7d7b4c0ede839a5ff6d499fa428237443e", "nyheter", "trondheim", "- Det blir fyrverkeri"),
        NewsRow("9f3999bd1a1a8d67bcb073ad54840f15cb30f014", "nyheter", "", "Se lesernes nyttårsbilder"),
    ]


def test_genuine_events_moved_to_days_six_and_seven_become_samples(real_data, tmp_path):
    lines = (real_data / "adressa" / "sample_events.jsonl").read_text(encoding="utf-8").splitlines()
    write_days(tmp_path, [])
    (tmp_path / "20170106").write_text(lines[1], encoding="utf-8")
    (tmp_path / "20170107").write_text(lines[2], encoding="utf-8")
    rows, _ = read(tmp_path)
    users = [json.loads(line)["userId"] for line in lines[1:3]]
    assert [row.user for row in rows["train"]] == users[:1]
    assert [row.user for row in day_seven(rows)] == users[1:]
    # 23:00:02 UTC on 31 December is two seconds past midnight in Oslo.
    assert [row.time % 86400 for row in rows["train"] + day_seven(rows)] == [2, 3]
