"""Adressa (Gulla et al. 2017), one week, from the raw JSON-lines files: one file of events per day."""

import datetime
import functools
import json
import re
import zoneinfo
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from fednews.data.files import Member, find
from fednews.data.tables import TRAIN, BehaviorRow, NewsRow, Problems
from fednews.errors import DataError
from fednews.streams import Streams

DAYS = 7
TRAIN_DAY, TEST_DAY = 6, 7
NEGATIVES = 20
DEV_SHARE = 0.2
ZONE = "Europe/Oslo"
NO_EVENT_ID = -1
FIELDS = {"time": int, "eventId": int} | dict.fromkeys(
    ("id", "userId", "title", "category1", "canonicalUrl", "url"), str
)
WANTED = "event files named like 20170101, or *.json / *.jsonl (plain or .gz)"


class AdressaReader:
    """The one-week protocol: clicks of day 6 are ``train``; clicks of day 7 are 20 % ``dev`` and 80 % ``test``.

    **Days.** An event's day is the date in its file's name; in a file not named by a date it is the event's time in
    Europe/Oslo, never UTC. Day 1 is the earliest day found, and the data must span seven. ``time`` of a row is
    the Oslo wall clock read as UTC, as in the other data sets.

    **Clicks.** An event with an article ``id``, whatever its ``activeTime`` (which may be missing). A user clicks an
    article once: the first event counts. The history of a day-6 click is the user's clicks of days 1-5, that of a
    day-7 click those of days 1-6, oldest first, and may be empty.

    **Candidates.** The click first, then 20 negatives drawn without replacement: for dev and test from all articles of
    the week that the user did not click in it; for train, which needs negatives for the loss, in the same way
    from the articles of days 1-6 that the user did not click in them, so that training sees nothing of day 7. Fewer,
    counted, where fewer exist. Rows, draws and the dev/test division depend on ``seed`` and on the events, not on the
    order of files and lines.

    **Articles.** Title, ``category1`` ("category|subcategory") and URL are those of the earliest event that has them;
    without ``category1`` the folders of the URL before the date stand in. There is no abstract. News of ``train``
    are the articles of days 1-6, those of dev and test all.

    ``problems`` counts ``null_line``, ``no_article`` (events without ``id``: the front page), ``incomplete_event`` (no
    user or no time), ``duplicate_event`` (the same event again), ``repeated_click``, ``two_titles`` (articles),
    ``empty_title`` (articles), ``few_negatives`` and ``empty_history``; the first seven when the files are first read.

    Memory: 36 bytes per article event (a few times that while they are sorted), and the texts of users and articles.

    Args:
        root: folder (or .zip) with the day files.
        seed: of the dev/test division and the negatives.

    Raises:
        UsageError: no day file is there.
    """

    name = "adressa"
    splits = (TRAIN, "dev", "test")

    def __init__(self, root: Path | str, seed: int = 0) -> None:
        self.options = {"seed": seed}
        self.problems = Problems()
        self._streams = Streams(seed)
        self._root = Path(root)
        self._members = find(self._root, _is_wanted, WANTED)

    def news(self, split: str) -> Iterator[NewsRow]:
        """Yield the articles of a split by id. Raises DataError (file and line) for malformed events."""
        week = self._week
        return (week.rows[article] for article in (week.early if split == TRAIN else range(len(week.rows))))

    def behaviors(self, split: str) -> Iterator[BehaviorRow]:
        """Yield the samples of a split by time. Raises DataError (file and line) for malformed events."""
        week = self._week
        day = TRAIN_DAY if split == TRAIN else TEST_DAY
        catalogue = week.early if split == TRAIN else np.arange(len(week.rows))
        for number, click in self._samples(split):
            user = week.user[click]
            own = slice(week.offsets[user], week.offsets[user + 1])
            clicked, days = week.article[own], week.day[own]
            history = clicked[days < day]
            candidates = [week.article[click], *self._negatives(day, number, catalogue, clicked[days <= day])]
            self._count(len(history), len(candidates), week.users[user])
            yield BehaviorRow(
                week.users[user],
                int(week.time[click]),
                [week.rows[article].id for article in history],
                [week.rows[article].id for article in candidates],
                [1] + [0] * (len(candidates) - 1),
            )

    def _samples(self, split: str) -> Iterator[tuple[int, int]]:
        """List (number among the day's clicks, position among the week's clicks) of each sample, by time."""
        clicks = self._week.clicks_of(TRAIN_DAY if split == TRAIN else TEST_DAY)
        chosen = np.ones(len(clicks), bool)
        if split != TRAIN:
            drawn = self._streams.numpy("adressa_dev").permutation(len(clicks))[: round(DEV_SHARE * len(clicks))]
            chosen = np.isin(np.arange(len(clicks)), drawn, invert=split == "test")
        return ((int(number), int(clicks[number])) for number in np.flatnonzero(chosen))

    def _negatives(self, day: int, number: int, catalogue: np.ndarray, clicked: np.ndarray) -> np.ndarray:
        """Take the head of a random permutation of the catalogue, less the clicked: uniform without replacement."""
        draws = self._streams.numpy("adressa_negatives", day, number)
        drawn = draws.choice(catalogue, min(NEGATIVES + len(clicked), len(catalogue)), replace=False)
        return drawn[~np.isin(drawn, clicked)][:NEGATIVES]

    def _count(self, history: int, candidates: int, user: str) -> None:
        if history == 0:
            self.problems.add("empty_history", f"{self._root}: user {user}")
        if candidates <= NEGATIVES:
            self.problems.add("few_negatives", f"{self._root}: user {user} has {candidates - 1} of {NEGATIVES}")

    @functools.cached_property
    def _week(self) -> "_Week":
        log = _Log(self.problems)
        for member in self._members:
            log.read(member)
        if not log.last_day:
            raise DataError(f"{self._root}: no events in {len(self._members)} files")
        if log.last_day - log.first_day != DAYS - 1:
            first, last = (datetime.date.fromordinal(day) for day in (log.first_day, log.last_day))
            raise DataError(f"{self._root}: needs the seven days of one week, found {first} to {last}")
        return log.week()


@dataclass(frozen=True)
class _Week:
    """Every user's first click on every article, sorted by user, then time; day 1 to 7."""

    users: list[str]
    rows: list[NewsRow]
    early: np.ndarray
    offsets: np.ndarray
    user: np.ndarray
    article: np.ndarray
    day: np.ndarray
    time: np.ndarray
    event: np.ndarray

    def clicks_of(self, day: int) -> np.ndarray:
        """Positions of a day's clicks, by time."""
        clicks = np.flatnonzero(self.day == day)
        return clicks[np.lexsort((self.article[clicks], self.user[clicks], self.event[clicks], self.time[clicks]))]


class _Earliest:
    """One text per article: that of its earliest event that has one."""

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}
        self._keys: dict[int, tuple] = {}

    def offer(self, article: int, key: tuple, text: str) -> bool:
        """Keep ``text`` where it is earlier; True where it differs from the text known until now."""
        if not text:
            return False
        before = self.texts.get(article, text)
        if article not in self._keys or key < self._keys[article]:
            self._keys[article], self.texts[article] = key, text
        return text != before


@dataclass
class _Log:
    """The article events as read: one entry of every array per event."""

    problems: Problems
    first_day: int = datetime.date.max.toordinal()
    last_day: int = 0
    files: list[Member] = field(default_factory=list)
    users: dict[str, int] = field(default_factory=dict)
    articles: dict[str, int] = field(default_factory=dict)
    titles: _Earliest = field(default_factory=_Earliest)
    categories: _Earliest = field(default_factory=_Earliest)
    urls: _Earliest = field(default_factory=_Earliest)
    retitled: set[int] = field(default_factory=set)
    user: array = field(default_factory=lambda: array("i"))
    article: array = field(default_factory=lambda: array("i"))
    day: array = field(default_factory=lambda: array("i"))
    time: array = field(default_factory=lambda: array("q"))
    event: array = field(default_factory=lambda: array("q"))
    file: array = field(default_factory=lambda: array("i"))
    line: array = field(default_factory=lambda: array("i"))

    def read(self, member: Member) -> None:
        """Take in the events of one file."""
        self.files.append(member)
        named_day = _date_of(member.name)
        if named_day is not None:
            self._saw(named_day)
        zone = zoneinfo.ZoneInfo(ZONE)
        for number, text in member.lines():
            where = f"{member}:{number}"
            event = _parse(text, where)
            if event is None:
                self.problems.add("null_line", where)
                continue
            _check(event, where)
            if event.get("time") is None or not event.get("userId"):
                self.problems.add("incomplete_event", where)
                continue
            local = _local(event["time"], zone, where)
            day = local.toordinal() if named_day is None else named_day
            self._saw(day)
            if not event.get("id"):
                self.problems.add("no_article", where)
                continue
            self._take(event, day, event["time"] + int(local.utcoffset().total_seconds()), where)
            self.file.append(len(self.files) - 1)
            self.line.append(number)

    def _saw(self, day: int) -> None:
        self.first_day, self.last_day = min(self.first_day, day), max(self.last_day, day)

    def _take(self, event: dict, day: int, time: int, where: str) -> None:
        article = self.articles.setdefault(event["id"], len(self.articles))
        event_id = NO_EVENT_ID if event.get("eventId") is None else event["eventId"]
        self.user.append(self.users.setdefault(event["userId"], len(self.users)))
        self.article.append(article)
        self.day.append(day)
        self.time.append(time)
        self.event.append(event_id)
        title, url = event.get("title") or "", event.get("canonicalUrl") or event.get("url") or ""
        for texts, text in ((self.categories, event.get("category1") or ""), (self.urls, url)):
            texts.offer(article, (time, event_id, text), text)
        if self.titles.offer(article, (time, event_id, title), title) and article not in self.retitled:
            self.retitled.add(article)
            self.problems.add("two_titles", where)

    def week(self) -> _Week:
        """Sort users and articles by id, so that the disk order leaves no trace, and keep first clicks."""
        users, user = _by_name(self.users, self.user)
        names, article = _by_name(self.articles, self.article)
        day, time, event = (np.array(column, np.int64) for column in (self.day, self.time, self.event))
        order = np.lexsort((day, event, time, article, user))
        same_click = _equals_previous(user[order], article[order])
        same_event = same_click & _equals_previous(time[order], event[order]) & (event[order] != NO_EVENT_ID)
        self._report("duplicate_event", order[same_event])
        self._report("repeated_click", order[same_click & ~same_event])
        first = order[~same_click]
        first = first[np.lexsort((article[first], event[first], time[first], user[first]))]
        day = (day - self.first_day + 1).astype(np.int8)
        early = np.unique(article[day <= TRAIN_DAY])
        rows = [self._row(name) for name in names]
        offsets = np.searchsorted(user[first], np.arange(len(users) + 1))
        return _Week(users, rows, early, offsets, user[first], article[first], day[first], time[first], event[first])

    def _report(self, kind: str, events: np.ndarray) -> None:
        for event in events:
            self.problems.add(kind, f"{self.files[self.file[event]]}:{self.line[event]}")

    def _row(self, name: str) -> NewsRow:
        article = self.articles[name]
        title = self.titles.texts.get(article, "")
        if not title.strip():
            self.problems.add("empty_title", f"article {name}")
        given = self.categories.texts.get(article)
        parts = given.split("|") if given else _folders(self.urls.texts.get(article, ""))
        category, subcategory = (*parts, "", "")[:2]
        return NewsRow(name, category, subcategory, title)


def _by_name(numbers: dict[str, int], column: array) -> tuple[list[str], np.ndarray]:
    """Names in ascending order, and the column (numbers of names) renumbered in that order."""
    names = sorted(numbers)
    rank = np.empty(len(names), np.int32)
    rank[[numbers[name] for name in names]] = np.arange(len(names))
    return names, rank[np.asarray(column, np.int64)]


def _equals_previous(*columns: np.ndarray) -> np.ndarray:
    same = np.ones(len(columns[0]), bool)
    same[:1] = False
    for column in columns:
        same[1:] &= column[1:] == column[:-1]
    return same


def _folders(url: str) -> list[str]:
    """List the folders of an article's address before its date: ``/nyheter/trondheim/2016/12/31/x.ece`` has two."""
    folders = [part for part in urlsplit(url).path.split("/")[:-1] if part]
    year = next((place for place, part in enumerate(folders) if re.fullmatch(r"\d{4}", part)), len(folders))
    return folders[:year]


def _parse(text: str, where: str) -> dict | None:
    try:
        event = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON ({error.msg}); every line must be one event or null") from error
    if event is not None and not isinstance(event, dict):
        raise DataError(f"{where}: expected a JSON object or null, found {text[:40]!r}")
    return event


def _check(event: dict, where: str) -> None:
    for name, kind in FIELDS.items():
        value = event.get(name)
        if value is not None and type(value) is not kind:
            raise DataError(f"{where}: {name!r} must be of type {kind.__name__}, found {value!r}")


def _local(time: int, zone: datetime.tzinfo, where: str) -> datetime.datetime:
    try:
        return datetime.datetime.fromtimestamp(time, zone)
    except (ValueError, OverflowError, OSError) as error:
        raise DataError(f"{where}: 'time' {time} is not in POSIX seconds") from error


def _date_of(name: str) -> int | None:
    """Give the ordinal day of a file named like ``20170101`` or ``20170101.jsonl``."""
    match = re.fullmatch(r"(\d{4})(\d{2})(\d{2})(\.jsonl?)?", name, re.ASCII)
    try:
        return match and datetime.date(*map(int, match.groups()[:3])).toordinal()
    except ValueError:
        return None


def _is_wanted(name: str) -> bool:
    return _date_of(name) is not None or (name.endswith((".json", ".jsonl")) and not name.startswith("."))
