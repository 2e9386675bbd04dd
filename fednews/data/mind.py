"""MIND's native tab-separated files (Wu et al. 2020, https://msnews.github.io)."""

import calendar
import datetime
import json
import re
from collections.abc import Iterator
from pathlib import Path

from fednews.data.files import Member, find
from fednews.data.tables import BehaviorRow, NewsRow, Problems
from fednews.errors import DataError, UsageError

NEWS, BEHAVIORS = "news.tsv", "behaviors.tsv"
NEWS_COLUMNS, BEHAVIOR_COLUMNS = 8, 5
SPLITS = {"train": "train", "dev": "dev", "valid": "dev", "validation": "dev", "val": "dev", "test": "test"}
TIME = re.compile(r"(\d{1,2})/(\d{1,2})/(\d{4}) (\d{1,2}):(\d{2}):(\d{2}) ([AP])M", re.ASCII)


class MindReader:
    """MIND, or any data set in its format: ``news.tsv`` and ``behaviors.tsv`` (plain or .gz) per split.

    A split is a folder (or .zip) below ``root`` that holds both files and whose name ends in train, dev (valid,
    validation, val) or test, such as ``MINDsmall_train``; a root that holds them itself is ``train``. Fields are split
    at tabs and nothing else: quote characters, "None" and "nan" are text. Impression ids restart in every split and
    are not used. ``problems`` counts what has been iterated over: ``empty_history``, ``empty_title`` and
    ``malformed_entities`` (replaced by "[]"; an empty field also reads as "[]").

    Args:
        root: folder, nested folders or .zip.

    Raises:
        UsageError: no split is there, a split's files are incomplete, or a split is there twice.
    """

    name = "mind"

    def __init__(self, root: Path | str) -> None:
        self.options: dict = {}
        self.problems = Problems()
        self._members = _find_splits(Path(root))
        self.splits = tuple(self._members)

    def news(self, split: str) -> Iterator[NewsRow]:
        """Yield the articles of a split, in file order. Raises DataError for a wrong number of columns."""
        yield from read_news(self._members[split][NEWS], self.problems)

    def behaviors(self, split: str) -> Iterator[BehaviorRow]:
        """Yield the impressions of a split, in file order; ``labels`` is None throughout an unlabelled split.

        Raises:
            DataError: wrong number of columns, a malformed time, no user or no candidate, or labelled and unlabelled
                candidates in one row or in one split; names file and line.
        """
        labelled = None
        for where, (_, user, time, history, impressions) in rows(self._members[split][BEHAVIORS], BEHAVIOR_COLUMNS):
            if not user.strip():
                raise DataError(f"{where}: the user column is empty")
            candidates, labels = _candidates(impressions, where)
            if labelled not in (None, labels is not None):
                raise DataError(f"{where}: labelled and unlabelled rows in one split; every row or none needs -0/-1")
            labelled = labels is not None
            clicked = history.split()
            if not clicked:
                self.problems.add("empty_history", where)
            yield BehaviorRow(user, parse_time(time, where), clicked, candidates, labels)


def rows(member: Member, columns: int) -> Iterator[tuple[str, list[str]]]:
    """Stream ``("file:line", fields)``; raises DataError for a line with another number of columns."""
    for number, text in member.lines():
        fields = text.split("\t")
        if len(fields) != columns:
            raise DataError(f"{member}:{number}: expected {columns} columns, found {len(fields)}")
        yield f"{member}:{number}", fields


def read_news(member: Member, problems: Problems) -> Iterator[NewsRow]:
    """Yield the rows of a file in MIND's news columns; the URL is left out."""
    for where, (news, category, subcategory, title, abstract, _, *entities) in rows(member, NEWS_COLUMNS):
        if not title.strip():
            problems.add("empty_title", where)
        checked = [_entities(text, where, problems) for text in entities]
        yield NewsRow(news, category, subcategory, title, abstract, *checked)


def parse_time(text: str, where: str) -> int:
    """POSIX seconds of ``11/11/2019 9:05:58 AM``, the wall clock read as UTC, whatever the locale.

    Raises:
        DataError: the text is not such a time; names ``where``.
    """
    match = TIME.fullmatch(text)
    try:
        if match is None or not 1 <= int(match[4]) <= 12:
            raise ValueError(text)
        month, day, year, hour, minute, second = (int(part) for part in match.groups()[:6])
        moment = datetime.datetime(year, month, day, hour % 12 + 12 * (match[7] == "P"), minute, second)
    except ValueError as error:
        raise DataError(f"{where}: {text!r} is not a time like '11/11/2019 9:05:58 AM'") from error
    return calendar.timegm(moment.timetuple())


def _candidates(impressions: str, where: str) -> tuple[list[str], list[int] | None]:
    texts = impressions.split()
    if not texts:
        raise DataError(f"{where}: the impressions column is empty")
    labelled = [text.endswith(("-0", "-1")) for text in texts]
    if not any(labelled):
        return texts, None
    if not all(labelled):
        raise DataError(f"{where}: {texts[labelled.index(False)]!r} has no label -0/-1 but others in its row have")
    return [text[:-2] for text in texts], [int(text[-1]) for text in texts]


def _entities(text: str, where: str, problems: Problems) -> str:
    if text in ("", "[]"):
        return "[]"
    try:
        entities = json.loads(text)
    except json.JSONDecodeError:
        entities = None
    if isinstance(entities, list) and all(
        isinstance(e, dict) and isinstance(e.get("WikidataId"), str) for e in entities
    ):
        return text
    problems.add("malformed_entities", where)
    return "[]"


def _find_splits(root: Path) -> dict[str, dict[str, Member]]:
    """Members by split and file name, splits in the order train, dev, test."""
    folders: dict[str, dict[str, Member]] = {}
    for member in find(root, lambda name: name in (NEWS, BEHAVIORS), f"{BEHAVIORS}[.gz] and {NEWS}[.gz]"):
        folders.setdefault(member.folder, {})[member.name] = member
    found: dict[str, dict[str, Member]] = {}
    for folder, members in folders.items():
        if BEHAVIORS not in members:
            continue
        if NEWS not in members:
            raise UsageError(f"{members[BEHAVIORS]} has no {NEWS}[.gz] beside it; put the split's news there")
        split = _split_of(folder, members[BEHAVIORS])
        if split in found:
            raise UsageError(f"{found[split][BEHAVIORS]} and {members[BEHAVIORS]} are both the {split} split; keep one")
        found[split] = members
    if not found:
        raise UsageError(f"no {BEHAVIORS}[.gz] at {root}: found {NEWS} alone, in {len(folders)} folders")
    return {split: found[split] for split in ("train", "dev", "test") if split in found}


def _split_of(folder: str, behaviors: Member) -> str:
    if not folder:
        return "train"
    for part in reversed(folder.lower().split("/")):
        last = re.split(r"[^a-z]+", part)[-1]
        if last in SPLITS:
            return SPLITS[last]
    raise UsageError(f"{behaviors}: the folder's name ends in none of train, dev and test; rename it")
