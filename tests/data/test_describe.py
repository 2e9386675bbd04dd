import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fednews.data.describe import describe, format_description
from fednews.data.mind import MindReader
from fednews.data.store import Store, write_store
from fednews.data.synthetic import SyntheticReader, best_possible, synthesize
from fednews.data.tables import BehaviorRow, NewsRow, Problems

NEWS = [
    NewsRow("N1", "sports", "golf", "one two three"),
    NewsRow("N2", "sports", "golf", "one two"),
    NewsRow("N3", "news", "world", "one two three four"),
    NewsRow("N4", "news", "world", "one"),
    NewsRow("N5", "news", "world", "one two three four five"),
]
BEHAVIORS = {
    "train": [
        BehaviorRow("U1", 10, ["N1"], ["N2", "N3"], [1, 0]),
        BehaviorRow("U1", 11, ["N1"], ["N1", "N2", "N3"], [0, 1, 1]),
        BehaviorRow("U2", 12, [], ["N2", "N1"], [0, 1]),
    ],
    "dev": [
        BehaviorRow("U2", 20, ["N1", "N2", "N3"], ["N4", "N1"], [1, 0]),
        BehaviorRow("U3", 21, [], ["N4", "N1", "N2", "N3"], [0, 0, 0, 1]),
    ],
    "test": [BehaviorRow("U4", 30, ["N1", "N2"], ["N3", "N4", "N1"], None)],
}


class _Hand:
    name = "hand"
    splits = ("train", "dev", "test")

    def __init__(self) -> None:
        self.options = {"cut": 3}
        self.problems = Problems()

    def news(self, split: str) -> Iterator[NewsRow]:
        yield from NEWS

    def behaviors(self, split: str) -> Iterator[BehaviorRow]:
        for number, row in enumerate(BEHAVIORS[split], 1):
            if not row.history:
                self.problems.add("empty_history", f"{split} row {number}")
            yield row


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return write_store(_Hand(), tmp_path_factory.mktemp("describe") / "store")


def test_the_counts_of_every_split_are_those_counted_by_hand(store: Store) -> None:
    splits = describe(store)["splits"]
    assert splits["train"] == {
        "users": 2,
        "cold_users": 0,
        "news": 3,
        "new_news": 0,
        "impressions": 3,
        "unlabelled_impressions": 0,
        "positive": 4,
        "negative": 3,
        "mean_candidates": pytest.approx(7 / 3),
        "mean_title_words": pytest.approx((3 + 2 + 4) / 3),
        "mean_history": pytest.approx(2 / 3),
        "empty_history": pytest.approx(1 / 3),
    }
    assert splits["dev"] == {
        "users": 2,
        "cold_users": 1,
        "news": 4,
        "new_news": 1,
        "impressions": 2,
        "unlabelled_impressions": 0,
        "positive": 2,
        "negative": 4,
        "mean_candidates": 3.0,
        "mean_title_words": pytest.approx((3 + 2 + 4 + 1) / 4),
        "mean_history": 1.5,
        "empty_history": 0.5,
    }


def test_an_unlabelled_split_counts_no_behaviours(store: Store) -> None:
    test = describe(store)["splits"]["test"]
    assert (test["impressions"], test["unlabelled_impressions"]) == (1, 1)
    assert (test["positive"], test["negative"], test["mean_candidates"]) == (0, 0, 3.0)
    assert (test["users"], test["cold_users"], test["new_news"]) == (1, 1, 1)


def test_the_total_counts_everyone_once_and_every_article_listed(store: Store) -> None:
    total = describe(store)["splits"]["total"]
    assert (total["users"], total["cold_users"], total["news"], total["new_news"]) == (4, 2, 5, 2)
    assert (total["impressions"], total["unlabelled_impressions"]) == (6, 1)
    assert (total["positive"], total["negative"]) == (6, 7)
    assert total["mean_candidates"] == pytest.approx((7 + 6 + 3) / 6)
    assert total["mean_title_words"] == 3.0
    assert total["mean_history"] == pytest.approx((2 + 3 + 2) / 6)
    assert total["empty_history"] == pytest.approx(2 / 6)


def test_the_store_and_what_its_reader_tolerated_are_named(store: Store) -> None:
    description = describe(store)
    assert description["fingerprint"] == store.fingerprint
    assert description["options"]["cut"] == 3
    assert description["problems"] == {"empty_history": 2}
    assert description["problem_examples"] == {"empty_history": "train row 3"}
    json.dumps(description)


def test_the_table_has_a_column_per_split_and_shows_the_counts(store: Store) -> None:
    lines = format_description(describe(store)).splitlines()
    assert store.fingerprint in lines[0]
    assert not any("synthetic" in line for line in lines)
    header = next(line for line in lines if "train" in line)
    assert header.split() == ["train", "dev", "test", "total"]
    negative = next(line for line in lines if line.startswith("negative"))
    assert negative.split()[-4:] == ["3", "4", "0", "7"]
    cold = next(line for line in lines if line.startswith("cold users"))
    assert cold.split()[-4:] == ["0", "1", "1", "2"]
    assert "  empty_history: 2, first at train row 3" in lines


def test_a_synthetic_store_is_described_as_it_was_generated(tmp_path: Path) -> None:
    truth = synthesize(tmp_path / "raw", 400, 400)
    notes = {"best_possible": best_possible(tmp_path / "raw")}
    description = describe(write_store(SyntheticReader(tmp_path / "raw"), tmp_path / "store", notes=notes))
    assert description["best_possible"] == truth.best_possible
    assert description["name"] == "synthetic"
    splits = description["splits"]
    assert splits["total"]["users"] == truth.counts["users"]
    assert splits["dev"]["cold_users"] == splits["total"]["cold_users"] == truth.counts["cold_users"]
    assert splits["total"]["news"] == truth.counts["news"]
    assert {split: splits[split]["impressions"] for split in ("train", "dev")} == {
        split: truth.counts[split] for split in ("train", "dev")
    }
    assert f"synthetic data; the best that any model can reach on dev: auc {truth.best_possible['auc']:.4f}" in (
        format_description(description)
    )


def test_the_real_mind_sample_has_the_counts_that_its_readme_states(real_data: Path, tmp_path: Path) -> None:
    splits = describe(write_store(MindReader(real_data / "mind-sample"), tmp_path / "store"))["splits"]
    train, dev = splits["train"], splits["dev"]
    assert (train["impressions"], train["users"], train["positive"]) == (5_630, 5_126, 8_426)
    assert train["positive"] + train["negative"] == 208_726
    assert (dev["impressions"], dev["users"], dev["positive"]) == (1_306, 1_278, 1_977)
    assert dev["positive"] + dev["negative"] == 53_893
    assert (train["news"], dev["news"]) == (23_020, 11_777)


def test_training_samples_and_clicks_without_a_non_click_are_counted(rows_store) -> None:
    rows = [*BEHAVIORS["train"], BehaviorRow("U3", 13, ["N1"], ["N2"], [1])]
    description = describe(rows_store({"train": (NEWS, rows)}))
    assert description["training"] == {"clients": 2, "samples": 4, "dropped_samples": 1}
    assert "4 samples of 2 clients; 1 clicks without a non-click dropped" in format_description(description)
