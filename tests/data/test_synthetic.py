import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fednews.data.mind import MindReader
from fednews.data.ragged import Ragged
from fednews.data.synthetic import SyntheticReader, Truth, best_possible, synthesize
from fednews.data.synthetic_groups import LEVELS, topic_interests
from fednews.data.synthetic_model import (
    BLOCK,
    DEV_DAY,
    Catalogue,
    Settings,
    _clicks,
    _matches,
    click_probabilities,
    simulate,
)
from fednews.data.words import COMMON, TOPICS
from fednews.errors import UsageError

USERS, NEWS = 3000, 3000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truth]:
    out = tmp_path_factory.mktemp("synthetic") / "data"
    return out, synthesize(out, USERS, NEWS, seed=3)


@pytest.fixture(scope="module")
def rows(made: tuple[Path, Truth]) -> dict[str, list]:
    reader = MindReader(made[0])
    return {split: list(reader.behaviors(split)) for split in reader.splits}


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        synthesize(tmp_path / name, 300, 300, seed=seed)
    a, b, c = (_files(tmp_path / name) for name in "abc")
    assert a == b
    assert a.keys() == c.keys()
    assert a["train/behaviors.tsv"] != c["train/behaviors.tsv"]
    assert a["train/news.tsv"] != c["train/news.tsv"]


def test_users_do_not_depend_on_how_many_follow_them(tmp_path: Path) -> None:
    synthesize(tmp_path / "few", BLOCK, 300)
    synthesize(tmp_path / "many", BLOCK + 10, 300)
    few, many = (_files(tmp_path / name)["train/behaviors.tsv"].splitlines() for name in ("few", "many"))
    assert len(few) < len(many)
    assert many[: len(few)] == few


def test_the_files_are_read_as_mind_with_no_problem_but_empty_histories(made: tuple[Path, Truth]) -> None:
    out, truth = made
    reader = MindReader(out)
    assert reader.splits == ("train", "dev")
    news = {row.id for split in reader.splits for row in reader.news(split)}
    assert len(news) == truth.counts["news"] == NEWS
    assert {split: sum(1 for _ in reader.behaviors(split)) for split in reader.splits} == {
        split: truth.counts[split] for split in reader.splits
    }
    assert set(reader.problems.counts) == {"empty_history"}
    for split in reader.splits:
        listed = {row.id for row in reader.news(split)}
        used = {news_id for row in reader.behaviors(split) for news_id in (*row.history, *row.candidates)}
        assert used <= listed


def test_some_news_is_in_the_dev_split_only(made: tuple[Path, Truth]) -> None:
    reader = MindReader(made[0])
    train, dev = ({row.id for row in reader.news(split)} for split in ("train", "dev"))
    assert 0 < len(dev - train) < len(dev)


def test_statistics_are_near_those_of_mind(made: tuple[Path, Truth], rows: dict[str, list]) -> None:
    impressions = rows["train"] + rows["dev"]
    candidates = np.array([len(row.candidates) for row in impressions])
    assert candidates.mean() == pytest.approx(37.2, abs=1.5)
    assert np.median(candidates) == pytest.approx(24, abs=2)
    assert candidates.min() >= 2
    assert candidates.max() > 200
    assert np.mean([sum(row.labels) for row in impressions]) == pytest.approx(1.5, abs=0.05)
    histories = {row.user: len(row.history) for row in rows["train"]}
    assert np.mean(list(histories.values())) == pytest.approx(30, abs=3)
    assert np.median(list(histories.values())) < 22
    titles = [row.title for split in ("train", "dev") for row in MindReader(made[0]).news(split)]
    assert np.mean([len(title.split()) for title in titles]) == pytest.approx(11.5, abs=0.2)


def test_activity_is_skewed_around_its_mean(made: tuple[Path, Truth], rows: dict[str, list]) -> None:
    counts = np.sort(list(Counter(row.user for row in rows["train"] + rows["dev"]).values()))
    assert len(counts) == USERS
    assert counts.mean() == pytest.approx(3, rel=0.06)
    assert np.median(counts) <= 2
    assert counts[-USERS // 10 :].sum() > 0.3 * counts.sum()


def test_every_impression_has_a_click_and_a_non_click_and_no_candidate_twice(rows: dict[str, list]) -> None:
    for row in rows["train"] + rows["dev"]:
        assert 0 < sum(row.labels) < len(row.labels)
        assert len(set(row.candidates)) == len(row.candidates)


def test_cold_users_are_exactly_those_of_dev_who_are_not_in_train(
    made: tuple[Path, Truth], rows: dict[str, list]
) -> None:
    new = {row.user for row in rows["dev"]} - {row.user for row in rows["train"]}
    assert len(new) == made[1].counts["cold_users"]
    assert len(new) / USERS == pytest.approx(0.1, abs=4 * math.sqrt(0.1 * 0.9 / USERS))


def test_a_share_of_users_has_no_history(rows: dict[str, list]) -> None:
    empty = {row.user: not row.history for row in rows["train"]}
    assert np.mean(list(empty.values())) == pytest.approx(0.03, abs=4 * math.sqrt(0.03 * 0.97 / len(empty)))


def test_dev_is_later_than_train_and_its_histories_go_on_with_the_train_clicks(rows: dict[str, list]) -> None:
    assert max(row.time for row in rows["train"]) < min(row.time for row in rows["dev"])
    clicks: dict[str, list] = {}
    start = {}
    for row in rows["train"]:
        start[row.user] = row.history
        clicked = [news for news, label in zip(row.candidates, row.labels, strict=True) if label]
        clicks.setdefault(row.user, []).append((row.time, clicked))
    later = {row.user: row.history for row in rows["dev"] if row.user in start}
    assert later
    for user, history in later.items():
        visits = sorted(clicks[user], key=lambda visit: visit[0])
        read = dict.fromkeys([*start[user], *(news for _, visit in visits for news in visit)])
        assert set(history) == set(read)
        assert history[: len(start[user])] == start[user]


def test_nothing_is_shown_before_it_is_published() -> None:
    settings = Settings(500, 500)
    catalogue = Catalogue(settings)
    for block in simulate(settings, catalogue):
        for shown in block.impressions.values():
            seconds = np.repeat(shown.seconds, shown.candidates.lengths())
            assert (catalogue.published[shown.candidates.values] * 86_400 < seconds).all()
        assert (catalogue.published[block.history["train"].values] < 0).all()


def test_the_click_rate_does_not_depend_on_the_position(rows: dict[str, list]) -> None:
    """The sum of the clicked positions, against its exact mean and variance under random order."""
    total = expected = variance = 0.0
    for row in rows["train"] + rows["dev"]:
        size, clicks = len(row.labels), sum(row.labels)
        total += sum(place for place, label in enumerate(row.labels, 1) if label)
        expected += clicks * (size + 1) / 2
        variance += clicks * (size - clicks) * (size + 1) / 12
    assert abs(total - expected) < 4 * math.sqrt(variance)


def test_candidates_stand_in_random_order(rows: dict[str, list]) -> None:
    """The number of rising neighbours, against its exact mean and variance (Eulerian numbers)."""
    rising = expected = variance = 0.0
    for row in rows["train"] + rows["dev"]:
        numbers = np.array([int(news[1:]) for news in row.candidates])
        rising += np.count_nonzero(np.diff(numbers) > 0)
        expected += (len(numbers) - 1) / 2
        variance += (len(numbers) + 1) / 12
    assert abs(rising - expected) < 4 * math.sqrt(variance)


def _auc(labels: list[int], scores: np.ndarray) -> float:
    """Count the pairs of a click and a non-click that are in the right order, a tie as half a pair."""
    clicked = np.array(labels) == 1
    ahead = np.asarray(scores)[clicked][:, None] - np.asarray(scores)[~clicked]
    return float(((ahead > 0) + (ahead == 0) / 2).mean())


def _dev_auc(settings: Settings, catalogue: Catalogue, files: list) -> tuple[float, float]:
    """Mean per-impression AUC, pair by pair, of the true probabilities, and without interest, on the files' labels."""
    auc, impersonal, impression = [], [], 0
    for block in simulate(settings, catalogue):
        dev = block.impressions["dev"]
        probabilities = Ragged(dev.candidates.offsets, click_probabilities(dev.logits, dev.candidates.offsets))
        without = Ragged(dev.candidates.offsets, dev.impersonal)
        for scores, other, shown in zip(probabilities, without, dev.candidates, strict=True):
            row = files[impression]
            assert row.candidates == [f"N{news + 1}" for news in shown]
            auc.append(_auc(row.labels, scores))
            impersonal.append(_auc(row.labels, other))
            impression += 1
    assert impression == len(files)
    return float(np.mean(auc)), float(np.mean(impersonal))


def test_the_printed_ceiling_is_the_auc_of_the_true_probabilities(
    made: tuple[Path, Truth], rows: dict[str, list]
) -> None:
    truth = made[1]
    auc, impersonal = _dev_auc(truth.settings, Catalogue(truth.settings), rows["dev"])
    assert truth.best_possible["auc"] == pytest.approx(auc, abs=1e-9)
    assert truth.without_interest["auc"] == pytest.approx(impersonal, abs=1e-9)


def test_the_ceiling_is_mostly_interest_and_much_of_it_is_in_the_histories(
    made: tuple[Path, Truth], rows: dict[str, list]
) -> None:
    """Topics counted in each history, read from the files alone, beat all that one who knows no user can do."""
    truth = made[1]
    topic = {row.id: row.subcategory for split in ("train", "dev") for row in MindReader(made[0]).news(split)}
    shares = Counter(topic.values())
    scores = []
    for row in rows["dev"]:
        read = Counter(topic[news] for news in row.history)
        ratio = [(read[topic[news]] + 0.5) / shares[topic[news]] for news in row.candidates]
        scores.append(_auc(row.labels, ratio))
    assert 0.70 < truth.best_possible["auc"] < 0.80
    assert truth.without_interest["auc"] < 0.6
    assert truth.without_interest["auc"] + 0.05 < np.mean(scores) < truth.best_possible["auc"] - 0.02


def test_without_any_weight_no_ranking_is_better_than_chance(tmp_path: Path) -> None:
    truth = synthesize(tmp_path / "flat", 1500, 500, interest=0.0, popularity=0.0, recency=0.0)
    assert truth.best_possible == truth.without_interest
    assert truth.best_possible["auc"] == pytest.approx(0.5, abs=1e-12)  # all scores tie


def test_titles_hold_words_of_their_topic_and_of_no_other_but_shared_ones(made: tuple[Path, Truth]) -> None:
    own = {topic.name: {*topic.words} for topic in TOPICS}
    may = {topic.name: {*topic.words, *topic.category_words, *COMMON} for topic in TOPICS}
    category = {topic.name: topic.category for topic in TOPICS}
    for row in MindReader(made[0]).news("train"):
        words = set(row.title.lower().split())
        assert words & own[row.subcategory]
        assert words <= may[row.subcategory]
        assert row.category == category[row.subcategory]


def test_clicks_follow_the_probabilities_they_are_said_to_have() -> None:
    """With two candidates exactly one is clicked, so its frequency is its probability."""
    repeats = 20_000
    logits, offsets = np.tile([0.3, -0.7], repeats), 2 * np.arange(repeats + 1)
    labels = _clicks(np.random.default_rng(0), logits, offsets).reshape(-1, 2)
    first = click_probabilities(logits, offsets).reshape(-1, 2)[:, 0]
    assert (labels.sum(axis=1) == 1).all()
    assert first == pytest.approx(1 / (1 + math.exp(-1)), abs=1e-12)
    assert labels[:, 0].mean() == pytest.approx(first[0], abs=4 * 0.5 / math.sqrt(repeats))


def test_interests_drift_as_far_as_asked_and_keep_their_spread() -> None:
    still = _matches(np.random.default_rng(0), 50, 0.0, 0.5)
    assert (still == still[:, :1]).all()
    gone = _matches(np.random.default_rng(0), 2000, 1.0, 0.5)
    assert abs(np.corrcoef(gone[:, 0].ravel(), gone[:, 1].ravel())[0, 1]) < 0.02
    some = _matches(np.random.default_rng(0), 2000, 0.5, 0.5)
    weekly, daily = (np.corrcoef(some[:, a].ravel(), some[:, b].ravel())[0, 1] for a, b in ((0, 1), (4, 5)))
    assert 0.5 < weekly < daily < 1
    assert some[:, -1].std() == pytest.approx(some[:, 0].std(), rel=0.05)


def test_topics_of_a_category_share_as_much_of_their_interest_as_asked() -> None:
    """Of levels that are standard normal, whatever the kinship; category and topic independent."""
    noise = np.random.default_rng(0).standard_normal((200_000, LEVELS), np.float32)
    siblings = [number for number, topic in enumerate(TOPICS) if topic.category == TOPICS[0].category][:2]
    spread = [topic_interests(noise, kinship)[:, 0].std() for kinship in (0.0, 0.5, 1.0)]
    assert spread == pytest.approx([spread[0]] * 3, rel=0.02)
    same = topic_interests(noise, 1.0)
    assert (same[:, siblings[0]] == same[:, siblings[1]]).all()
    apart = np.corrcoef(topic_interests(noise, 0.0)[:, siblings].T)[0, 1]
    half = np.corrcoef(topic_interests(noise, 0.5)[:, siblings].T)[0, 1]
    assert abs(apart) < 4 / math.sqrt(len(noise))
    assert 0.3 < half < 0.5  # below the levels' 0.5: interests are cut off


def test_the_truth_is_on_disk_and_says_that_the_data_are_synthetic(made: tuple[Path, Truth]) -> None:
    out, truth = made
    written = json.loads((out / "truth.json").read_text())
    assert written["synthetic"] is True
    assert written["best_possible"] == truth.best_possible
    assert Truth.read(out) == truth
    assert (out / "README.txt").read_text().startswith("SYNTHETIC")


def test_the_first_dev_second_is_the_start_of_the_dev_day(rows: dict[str, list]) -> None:
    midnight = min(row.time for row in rows["train"]) // 86_400
    assert {row.time // 86_400 - midnight for row in rows["dev"]} == {DEV_DAY}


def test_the_reader_names_synthetic_data_so_and_knows_its_ceiling(made: tuple[Path, Truth]) -> None:
    reader = SyntheticReader(made[0])
    assert reader.name == "synthetic"
    assert best_possible(made[0]) == made[1].best_possible
    assert f"best possible on dev: auc {made[1].best_possible['auc']:.4f}" in made[1].summary()
    assert next(reader.behaviors("dev")) == next(MindReader(made[0]).behaviors("dev"))


def test_other_data_has_no_known_ceiling(tmp_path: Path) -> None:
    assert best_possible(tmp_path) is None
    (tmp_path / "data.zip").write_bytes(b"")
    assert best_possible(tmp_path / "data.zip") is None


@pytest.mark.parametrize(
    ("text", "message"), [(None, "is not synthetic data"), ("{", "damaged"), ('{"synthetic": true}', "damaged")]
)
def test_a_folder_without_a_whole_truth_is_a_usage_error(tmp_path: Path, text: str | None, message: str) -> None:
    if text:
        (tmp_path / "truth.json").write_text(text)
    with pytest.raises(UsageError, match=message):
        SyntheticReader(tmp_path)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"users": 0}, "0 users"),
        ({"news": 10}, "10 news"),
        ({"seed": -1}, "seed -1"),
        ({"impressions_per_user": 0.5}, "impressions_per_user 0.5: it must lie between 1 and 1000"),
        ({"drift": 2.0}, "drift 2.0"),
        ({"cold_users": 1.0}, "cold_users 1"),
        ({"history": 0.5}, "history 0.5"),
        ({"kinship": -0.1}, "kinship -0.1"),
        ({"groups": 0}, "groups 0"),
        ({"groups": 54}, "groups 54: it must lie between 1 and 53"),
        ({"group_strength": 1.1}, "group_strength 1.1"),
        ({"group_visibility": 1.0}, "group_visibility 1"),
        ({"interest": math.nan}, "interest nan"),
        ({"tempo": 1.0}, "unknown setting tempo"),
    ],
)
def test_settings_that_cannot_work_are_usage_errors_and_leave_nothing(
    tmp_path: Path, wrong: dict, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        synthesize(tmp_path / "out", **{"users": 10, "news": 300, **wrong})
    assert not list(tmp_path.iterdir())


def test_too_few_users_for_a_dev_split_is_a_usage_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no dev impression"):
        synthesize(tmp_path / "out", 5, 300, impressions_per_user=1.0, cold_users=0.0)
    assert not list(tmp_path.iterdir())


def test_only_synthetic_data_is_overwritten_and_only_when_asked(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = synthesize(out, 100, 300, seed=1)
    with pytest.raises(UsageError, match="exists already"):
        synthesize(out, 100, 300, seed=2)
    assert synthesize(out, 100, 300, seed=2, overwrite=True) != first
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="will not be overwritten"):
        synthesize(foreign, 100, 300, overwrite=True)
    assert (foreign / "thesis.txt").read_text() == "mine"


def test_the_truth_is_found_below_the_root_that_is_prepared(tmp_path: Path) -> None:
    truth = synthesize(tmp_path / "a" / "raw", users=30, news=200)
    assert best_possible(tmp_path) == best_possible(tmp_path / "a" / "raw") == truth.best_possible
    assert best_possible(tmp_path / "a" / "raw" / "train") is None


@pytest.mark.parametrize("size", [{"users": 10**11, "news": 200}, {"users": 5, "news": 10**9}])
def test_a_size_that_no_machine_can_write_is_refused_at_once(tmp_path: Path, size: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="at most 10,000,000"):
        synthesize(tmp_path / "raw", **size)
