"""The model that synthetic clicks are drawn from; ``synthetic.py`` writes them to files.

Time runs in days from the first training day: clicks before it are history, the days from 0 to 5 are the
train split and day 6 is the dev split. Users have an interest in every topic that walks at random from week
to week (history) and from day to day (impressions). An impression shows recent articles in random order, and
its clicks are drawn without replacement from the softmax of

    logit = interest * match(user, day, topic) + popularity * appeal(article) + recency * exp(-age in days).

With several hidden groups of users (``synthetic_groups.py``), a share ``group_visibility`` of what a member of group g
reads before day 0 is what g's typical reader reads. The rest follows match(user, week, topic) as without groups,
but match in the logit is

    (1 - group_strength) * match(user, day, topic) + group_strength * match(user, day, source_g(topic)).

Ranking by these logits is the best that any model can do, so its metrics bound every model's.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fednews.data.ragged import Ragged, offsets_of
from fednews.data.synthetic_groups import LEVELS, Groups, topic_interests
from fednews.data.words import COMMON, TOPICS, Topic
from fednews.errors import UsageError
from fednews.streams import Streams

BLOCK = 1024  # users drawn from one stream: part of what a seed means, so a constant
FEWEST_NEWS = 200
MOST = 10_000_000
_WEEKS, DAYS, DEV_DAY, _QUARTERS = 4, 7, 6, 4
_QUARTER_SECONDS = 86_400 // _QUARTERS
_CANDIDATES_MEDIAN, _CANDIDATES_SIGMA, _CANDIDATES_MOST = 24.2, 0.94, 299  # MIND-small: median 24, mean 37, most 299
_HISTORY_SIGMA, _HISTORY_MOST = 1.05, 400  # with Settings.history: MIND-small has median 19, mean 32
_EXTRA_CLICKS = 0.53
_DEV_SHARE = 0.25  # of a known user's impressions after the first
_RANGES = (
    ("impressions_per_user", 1, 1000),
    ("interest", 0, 10),
    ("popularity", 0, 10),
    ("recency", 0, 10),
    ("drift", 0, 1),
    ("cold_users", 0, 1),
    ("empty_history", 0, 1),
    ("history", 1, _HISTORY_MOST),
    ("kinship", 0, 1),
    ("groups", 1, len(TOPICS)),
    ("group_strength", 0, 1),
    ("group_visibility", 0, 1),
)


@dataclass(frozen=True)
class Settings:
    """What generates a data set; see the module's docstring for the three weights.

    Attributes:
        users: how many.
        news: how many; with fewer than about 2,000, impressions and histories are shorter than MIND's.
        seed: the same settings and seed give the same bytes.
        impressions_per_user: mean over both splits, at least 1; a few users have many.
        interest, popularity, recency: weights of the click logit.
        drift: how far interests walk in a week, from 0 (never) to 1 (unrelated to the week before).
        cold_users: share of users who appear in the dev split only.
        empty_history: share of users without any click before day 0.
        history: median number of clicks before day 0, of users that have any; an article counts once.
        kinship: share of the variance of interests that the topics of a category have in common.
        groups: hidden groups of users; the other two mean nothing where there is one.
        group_strength: how far clicks follow the group's own map of interests, from 0 (all groups click on what
            they read) to 1 (the map alone).
        group_visibility: share of the clicks before day 0 that are those of the group's typical reader, below 1.
    """

    users: int
    news: int
    seed: int = 0
    impressions_per_user: float = 3.0
    interest: float = 2.3
    popularity: float = 0.25
    recency: float = 0.3
    drift: float = 0.2
    cold_users: float = 0.1
    empty_history: float = 0.03
    history: float = 20.0
    kinship: float = 0.5
    groups: int = 1
    group_strength: float = 1.0
    group_visibility: float = 0.4

    def __post_init__(self) -> None:
        if self.users < 1:
            raise UsageError(f"{self.users} users: at least 1 is needed")
        if max(self.users, self.news) > MOST:
            raise UsageError(f"{max(self.users, self.news)} users or news: at most {MOST:,}")
        if self.news < FEWEST_NEWS:
            raise UsageError(f"{self.news} news: impressions need at least {FEWEST_NEWS} to choose from")
        if self.seed < 0:
            raise UsageError(f"seed {self.seed}: it must not be negative")
        for name, least, most in _RANGES:
            if not least <= getattr(self, name) <= most:
                raise UsageError(f"{name} {getattr(self, name)}: it must lie between {least} and {most}")
        if self.cold_users == 1:
            raise UsageError("cold_users 1: the train split would be empty")
        if self.group_visibility == 1:
            raise UsageError("group_visibility 1: histories would tell the group and nothing else of a user")


@dataclass(frozen=True)
class Impressions:
    """Some users' impressions, by user and time.

    Attributes:
        user: int64 ``[n]``, user number.
        seconds: int64 ``[n]``, since day 0.
        candidates: article numbers.
        labels: bool, aligned with ``candidates.values``.
        logits: float64, aligned; what clicks were drawn from.
        impersonal: float64, aligned; the logits without the user's interest.
    """

    user: np.ndarray
    seconds: np.ndarray
    candidates: Ragged
    labels: np.ndarray
    logits: np.ndarray
    impersonal: np.ndarray

    def __len__(self) -> int:
        return len(self.user)


@dataclass(frozen=True)
class Block:
    """``BLOCK`` users' (or the last ones') impressions per split, each with the user's history at its start.

    ``cold`` (bool) and ``group`` (int64) are per user.
    """

    first_user: int
    cold: np.ndarray
    group: np.ndarray
    impressions: dict[str, Impressions]
    history: dict[str, Ragged]


def click_probabilities(logits: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Probability of each candidate to be the first click of its impression: the softmax per row."""
    rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    weights = np.exp(logits - np.maximum.reduceat(logits, offsets[:-1])[rows])
    return weights / np.add.reduceat(weights, offsets[:-1])[rows]


# ---------------------------------------------------------------------------------------------- articles


class Catalogue:
    """The articles and how they are met; all arrays are over articles.

    Attributes:
        topic: index into ``TOPICS``.
        published: days, the history's four weeks are negative.
        appeal: standard normal; what the ``popularity`` weight multiplies.
    """

    def __init__(self, settings: Settings) -> None:
        rng = Streams(settings.seed).numpy("news")
        size = settings.news
        self.topic = rng.choice(len(TOPICS), size, p=_topic_shares())
        early = rng.random(size) < 0.5
        self.published = np.where(early, -7 * _WEEKS * rng.random(size), DAYS * rng.random(size))
        self.appeal = rng.standard_normal(size)
        self._texts = (_texts(rng, self.topic, 5, 7.15, 24), _texts(rng, self.topic, 12, 10.0, 40))
        self._shown = self._exposure()
        self._read_order, self._read, self.supply = self._reading(settings.popularity)

    def __len__(self) -> int:
        return len(self.topic)

    def _exposure(self) -> np.ndarray:
        """For each quarter of a day, the articles' cumulative shares of what is shown; flat, plus the quarter."""
        starts = np.arange(DAYS * _QUARTERS)[:, None] / _QUARTERS
        age = starts - self.published
        return _flat_cdf(np.where(age > 0, np.exp(-np.maximum(age, 0) / 2) + 0.01, 0))

    def _reading(self, popularity: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Give the articles by topic, their cumulative weights per week before day 0, and each topic's weight in it."""
        order = np.argsort(self.topic, kind="stable")
        week = (self.published[order] + 7 * _WEEKS) // 7
        ahead = week - np.arange(_WEEKS)[:, None]
        weights = np.exp(popularity * self.appeal[order]) * np.where(ahead == 0, 1.0, np.where(ahead < 0, 0.05, 0.0))
        shares = weights / weights.sum(axis=1, keepdims=True)
        starts = np.searchsorted(self.topic[order], np.arange(len(TOPICS)))
        present = np.diff(np.append(starts, len(order))) > 0
        supply = np.zeros((_WEEKS, len(TOPICS)))
        supply[:, present] = np.add.reduceat(shares, starts[present], axis=1)
        return order, _flat_cdf(weights), supply

    def shown(self, quarter: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw an article for each element, as articles are shown in that quarter of a day."""
        return _draw(self._shown, len(self), quarter, rng.random(len(quarter)))

    def read(self, week: np.ndarray, topic: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw an article of the given topic for each element, as articles are read in that week."""
        ends = np.cumsum(self.supply, axis=1)
        share = ends[week, topic] - self.supply[week, topic] * (1 - rng.random(len(week)))
        return self._read_order[_draw(self._read, len(self), week, share)]

    def rows(self) -> Iterator[str]:
        """MIND's eight columns, one line per article."""
        titles, abstracts = self._texts
        for number, (topic, title, abstract) in enumerate(zip(self.topic, titles, abstracts, strict=True), 1):
            category, name = TOPICS[topic].category, TOPICS[topic].name
            url = f"https://example.invalid/synthetic/N{number}"
            yield f"N{number}\t{category}\t{name}\t{title.title()}\t{abstract.capitalize()}.\t{url}\t[]\t[]\n"


def _topic_shares() -> np.ndarray:
    """Supply of each topic; skewed inside each category, which makes large categories of those with many topics."""
    rank, seen = [], {}
    for topic in TOPICS:
        seen[topic.category] = seen.get(topic.category, 0) + 1
        rank.append(seen[topic.category])
    weights = 1 / (2 + np.array(rank))
    return weights / weights.sum()


def _texts(rng: np.random.Generator, topic: np.ndarray, least: int, more: float, most: int) -> list[str]:
    """Write a text for each article: two words or more of its topic, some of its category, the others common."""
    lengths = np.minimum(least + rng.poisson(more, len(topic)), most)
    offsets = offsets_of(lengths)
    text = np.repeat(np.arange(len(topic)), lengths)
    within = np.arange(offsets[-1]) - offsets[text]
    kind = np.where(within < 2, 0.0, rng.random(len(text)))
    frequency = 1 / (10 + np.arange(len(COMMON)))
    common = np.minimum(np.searchsorted(np.cumsum(frequency) / frequency.sum(), rng.random(len(text))), len(COMMON) - 1)
    choice = rng.random(len(text))
    order = np.argsort(text + rng.random(len(text)), kind="stable")
    words = [_word(TOPICS[topic[t]], kind[i], choice[i], common[i]) for i, t in zip(order, text[order], strict=True)]
    return [" ".join(dict.fromkeys(words[s:e])) for s, e in itertools.pairwise(offsets)]


def _word(topic: Topic, kind: float, choice: float, common: int) -> str:
    if kind < 0.15:
        return topic.words[int(choice * len(topic.words))]
    if kind < 0.3:
        return topic.category_words[int(choice * len(topic.category_words))]
    return COMMON[common]


def _flat_cdf(weights: np.ndarray) -> np.ndarray:
    """Cumulative shares per row, plus the row's number: one sorted array for draws from any row."""
    cumulative = np.cumsum(weights, axis=1)
    return (cumulative / cumulative[:, -1:] + np.arange(len(weights))[:, None]).ravel()


def _draw(flat_cdf: np.ndarray, width: int, row: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Draw a column for each element from the given row of a ``_flat_cdf`` that was ``width`` wide."""
    # a uniform number next to 1 would round up into the next row
    return np.searchsorted(flat_cdf, row + uniform * (1 - 2.0**-30), side="right") - row * width


# ---------------------------------------------------------------------------------------------- users


def simulate(settings: Settings, catalogue: Catalogue) -> Iterator[Block]:
    """Draw all users, block by block; a block depends on nothing but settings and its number."""
    streams = Streams(settings.seed)
    groups = Groups.draw(settings.groups, settings.group_strength, settings.group_visibility, settings.kinship, streams)
    for number, first in enumerate(range(0, settings.users, BLOCK)):
        size = min(BLOCK, settings.users - first)
        group = groups.members(size, streams, number)  # of a stream of its own: groups change nobody's other draws
        yield _block(settings, catalogue, groups, group, first, streams.numpy("users", number))


def _block(
    settings: Settings, catalogue: Catalogue, groups: Groups, group: np.ndarray, first: int, rng: np.random.Generator
) -> Block:
    size = len(group)
    match = _matches(rng, size, settings.drift, settings.kinship) * settings.interest
    reads = groups.reads(np.exp(match[:, :_WEEKS]) * catalogue.supply, group, catalogue.supply, settings.interest)
    reader, read = _history(rng, catalogue, reads, settings)
    cold = rng.random(size) < settings.cold_users
    user, day = _visits(rng, cold, settings.impressions_per_user)
    quarter = day * _QUARTERS + rng.integers(_QUARTERS, size=len(day))
    seconds = quarter * _QUARTER_SECONDS + rng.integers(_QUARTER_SECONDS, size=len(day))
    order = np.lexsort((seconds, user))
    user, day, quarter, seconds = user[order], day[order], quarter[order], seconds[order]

    candidates = _candidates(rng, catalogue, quarter)
    row, shown = np.repeat(np.arange(len(user)), candidates.lengths()), candidates.values
    age = seconds[row] / 86_400 - catalogue.published[shown]
    impersonal = settings.popularity * catalogue.appeal[shown] + settings.recency * np.exp(-age)
    logits = impersonal + groups.pull(match[:, _WEEKS:], group, user[row], day[row], catalogue.topic[shown])
    labels = _clicks(rng, logits, candidates.offsets)
    everything = Impressions(user, seconds, candidates, labels, logits, impersonal)

    clicked = labels & (day[row] < DEV_DAY)
    later_reader, later_read = np.append(reader, user[row[clicked]]), np.append(read, shown[clicked])
    return Block(
        first,
        cold,
        group,
        {"train": _select(everything, day < DEV_DAY), "dev": _select(everything, day == DEV_DAY)},
        {
            "train": _distinct(reader, read, size, len(catalogue)),
            "dev": _distinct(later_reader, later_read, size, len(catalogue)),
        },
    )


def _matches(rng: np.random.Generator, users: int, drift: float, kinship: float) -> np.ndarray:
    """Interests ``[users, weeks and days, topics]``, 0 for most topics: a stationary walk cut off below."""
    week = math.sqrt(1 - drift**2)
    keep = [0.0] + [week] * _WEEKS + [week ** (1 / 7)] * (DAYS - 1)
    noise = rng.standard_normal((len(keep), users, LEVELS), np.float32)
    for step in range(1, len(keep)):
        noise[step] = keep[step] * noise[step - 1] + math.sqrt(1 - keep[step] ** 2) * noise[step]
    return topic_interests(noise, kinship).transpose(1, 0, 2)


def _history(
    rng: np.random.Generator, catalogue: Catalogue, reads: np.ndarray, settings: Settings
) -> tuple[np.ndarray, np.ndarray]:
    """User and article of all clicks before day 0, in the order of weeks; ``reads [users, weeks, topics]`` weighs."""
    users = len(reads)
    most = min(_HISTORY_MOST, len(catalogue) // 8)
    lengths = np.ceil(rng.lognormal(math.log(settings.history), _HISTORY_SIGMA, users)).clip(1, most).astype(np.int64)
    lengths[rng.random(users) < settings.empty_history] = 0
    reader = np.repeat(np.arange(users), lengths)
    week = rng.integers(_WEEKS, size=len(reader))
    week = week[np.argsort(reader * _WEEKS + week, kind="stable")]
    cdf = _flat_cdf(reads.reshape(users * _WEEKS, len(TOPICS)).astype(np.float64))
    topic = _draw(cdf, len(TOPICS), reader * _WEEKS + week, rng.random(len(reader)))
    return reader, catalogue.read(week, topic, rng)


def _visits(rng: np.random.Generator, cold: np.ndarray, mean: float) -> tuple[np.ndarray, np.ndarray]:
    """User and day of every impression: cold users come on the dev day only, all others first on a train day."""
    counts = 1 + rng.poisson(rng.gamma(0.5, 2 * (mean - 1), len(cold)))
    user = np.repeat(np.arange(len(cold)), counts)
    is_first = np.zeros(len(user), bool)
    is_first[offsets_of(counts)[:-1]] = True
    day = rng.integers(DEV_DAY, size=len(user))
    late = rng.random(len(user)) < _DEV_SHARE
    return user, np.where(cold[user] | (late & ~is_first), DEV_DAY, day)


def _candidates(rng: np.random.Generator, catalogue: Catalogue, quarter: np.ndarray) -> Ragged:
    """Distinct articles for each impression, in random order."""
    most = min(_CANDIDATES_MOST, len(catalogue) // 8)
    wanted = np.rint(rng.lognormal(math.log(_CANDIDATES_MEDIAN), _CANDIDATES_SIGMA, len(quarter))).clip(2, most)
    draws = np.ceil(1.3 * wanted).astype(np.int64) + 8  # repeated articles fall out
    row = np.repeat(np.arange(len(quarter)), draws)
    key = np.sort(row * len(catalogue) + catalogue.shown(quarter[row], rng))
    key = key[np.diff(key, prepend=-1) > 0]
    row = key // len(catalogue)
    order = np.argsort(row + rng.random(len(row)), kind="stable")
    kept = order[_rank_in_row(row) < wanted[row]]
    row = row[kept]
    return Ragged(offsets_of(np.bincount(row, minlength=len(quarter))), key[kept] % len(catalogue))


def _clicks(rng: np.random.Generator, logits: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Draw at least one click per impression and never all: the largest Gumbel-perturbed logits."""
    lengths = np.diff(offsets)
    row = np.repeat(np.arange(len(lengths)), lengths)
    clicks = np.minimum(1 + rng.poisson(_EXTRA_CLICKS, len(lengths)), lengths - 1)
    order = np.lexsort((-(logits + rng.gumbel(size=len(logits))), row))
    labels = np.zeros(len(logits), bool)
    labels[order] = _rank_in_row(row) < clicks[row]
    return labels


def _rank_in_row(row: np.ndarray) -> np.ndarray:
    """Position inside its row of every element, rows being sorted."""
    starts = np.flatnonzero(np.diff(row, prepend=-1))
    return np.arange(len(row)) - np.repeat(starts, np.diff(np.append(starts, len(row))))


def _distinct(reader: np.ndarray, read: np.ndarray, users: int, news: int) -> Ragged:
    """Histories per user in the given order, only the first click on an article kept."""
    kept = np.sort(np.unique(reader * news + read, return_index=True)[1])
    kept = kept[np.argsort(reader[kept], kind="stable")]
    return Ragged(offsets_of(np.bincount(reader[kept], minlength=users)), read[kept])


def _select(all_: Impressions, chosen: np.ndarray) -> Impressions:
    values = np.repeat(chosen, all_.candidates.lengths())
    candidates = Ragged(offsets_of(all_.candidates.lengths()[chosen]), all_.candidates.values[values])
    aligned = (all_.labels[values], all_.logits[values], all_.impersonal[values])
    return Impressions(all_.user[chosen], all_.seconds[chosen], candidates, *aligned)
