import time

import numpy as np
import pytest
import torch

from fednews.data.cohort import CohortSource, client_batches, draw_negatives
from fednews.data.features import news_features, take_news
from fednews.data.ragged import Ragged
from fednews.data.store import Samples, Store
from fednews.data.tables import BehaviorRow, NewsRow
from fednews.errors import UsageError
from fednews.streams import Streams

NEWS = [NewsRow(f"N{i}", "c", "s", " ".join(["word"] * (i + 1))) for i in range(8)]
TRAIN = [
    BehaviorRow("A", 0, ["N0", "N1", "N2"], ["N3", "N4", "N5"], [1, 0, 1]),
    BehaviorRow("B", 1, [], ["N6", "N7"], [0, 1]),
    BehaviorRow("A", 2, ["N0", "N1", "N2"], ["N6", "N0"], [1, 0]),
    BehaviorRow("A", 3, ["N0", "N1", "N2", "N3"], ["N6", "N7"], [1, 0]),
]


def source_of(store: Store, **settings) -> CohortSource:
    features = news_features(store, ("title",), title_length=30, abstract_length=50)
    return CohortSource(store, features, **{"negatives": 2, "history_length": 3, "streams": Streams(0), **settings})


@pytest.fixture
def source(rows_store) -> CohortSource:
    return source_of(rows_store({"train": (NEWS, TRAIN)}))


def title_lengths(cohort) -> torch.Tensor:
    """Title length identifies an article of NEWS: article i has i + 1 words."""
    return (cohort.news["title"] != 0).sum(1)


def test_each_article_and_each_history_stands_once(source):
    cohort = source.cohort(source.of_clients(np.array([0, 1]), 0))
    news = title_lengths(cohort) - 1
    assert len(news.unique()) == len(news)
    assert cohort.counts.tolist() == [4, 1]
    assert cohort.client.tolist() == [0, 0, 0, 0, 1]
    assert sorted(cohort.history_client.tolist()) == [0, 0, 1], "two histories of A (one used three times), one of B"
    rows = [news[row[mask]].tolist() for row, mask in zip(cohort.history, cohort.history_mask, strict=True)]
    used = [rows[row] for row in cohort.sample_history]
    assert used == [[0, 1, 2]] * 3 + [[1, 2, 3], []], "cut to the latest three, oldest first"


def test_the_clicked_candidate_comes_first_and_negatives_are_its_impressions_own(source):
    cohort = source.cohort(source.of_clients(np.array([0, 1]), 0))
    candidates = (title_lengths(cohort) - 1)[cohort.candidates]
    assert candidates[:, 0].tolist() == [3, 5, 6, 6, 7]
    shown_not_clicked = [{4}, {4}, {0}, {7}, {6}]
    assert [set(row.tolist()) for row in candidates[:, 1:]] == shown_not_clicked, "with replacement where too few"


@pytest.mark.parametrize("k", [1, 3, 5])
def test_negatives_are_distinct_where_there_are_enough(k):
    rng = np.random.default_rng(0)
    candidates = Ragged.from_rows([np.arange(10) + 100 * i for i in range(40)], np.int32)
    labels = np.tile(np.array([1, 0, 0, 0, 1, 0, 1, 0, 0, 1], np.int8), 40)
    drawn = draw_negatives(candidates, labels, np.arange(40), k, rng)
    for row, values in enumerate(drawn):
        assert len(set(values)) == k
        assert set(values - 100 * row) <= {1, 2, 3, 5, 7, 8}


def test_negatives_are_uniform():
    candidates = Ragged.from_rows([range(6)] * 20_000, np.int32)
    labels = np.tile(np.array([0, 1, 0, 0, 0, 0], np.int8), 20_000)
    drawn = draw_negatives(candidates, labels, np.arange(20_000), 2, np.random.default_rng(0))
    counts = np.bincount(drawn.ravel(), minlength=6)
    assert counts[1] == 0
    np.testing.assert_allclose(np.delete(counts, 1) / 8000, 1.0, atol=0.05)


def test_a_cohort_is_a_function_of_seed_and_round(source):
    def drawn(source, round_):
        return source.of_clients(source.draw_clients(2, round_), round_)

    first, again = drawn(source, 3), drawn(source, 3)
    np.testing.assert_array_equal(first.candidates, again.candidates)
    assert any((drawn(source, r).candidates != drawn(source, r + 1).candidates).any() for r in range(10))


def test_no_client_is_drawn_twice_into_a_round(cohorts):
    for round_ in range(50):
        clients = cohorts.draw_clients(30, round_)
        assert len(set(clients)) == 30


def test_every_client_is_drawn_equally_often(cohorts):
    population = cohorts.samples.clients
    counts = np.bincount(np.concatenate([cohorts.draw_clients(10, r) for r in range(2000)]), minlength=population)
    expected = 2000 * 10 / population
    assert abs(counts - expected).max() < 5 * np.sqrt(expected)


def test_a_part_of_a_draw_has_the_samples_of_those_clients(cohorts):
    draw = cohorts.of_clients(cohorts.draw_clients(9, 0), 0)
    parts = [draw.of_clients(np.arange(9)[rank::2]) for rank in range(2)]
    assert sum(len(part.client) for part in parts) == len(draw.client)
    for rank, part in enumerate(parts):
        for position, client in enumerate(part.clients):
            whole = draw.candidates[draw.client == rank + 2 * position]
            assert client == draw.clients[rank + 2 * position]
            np.testing.assert_array_equal(part.candidates[part.client == position], whole)


@pytest.mark.parametrize("size", [1, 4, 100])
def test_client_batches_hold_the_same_samples_as_the_cohort(cohorts, size):
    cohort = cohorts.cohort(cohorts.of_clients(cohorts.draw_clients(12, 0), 0))
    seen = []
    for batch in client_batches(cohort, size):
        for place, client in enumerate(batch.clients.tolist()):
            seen.append(client)
            mine = (cohort.client == client).nonzero().flatten()
            assert batch.sample_mask[place].sum() == len(mine) == cohort.counts[client]
            for slot, sample in enumerate(mine):
                news = {name: column[place] for name, column in batch.news.items()}
                expected = take_news(cohort.news, cohort.candidates[sample])["title"]
                assert torch.equal(trimmed(news["title"][batch.candidates[place, slot]], expected), expected)
                row = batch.sample_history[place, slot]
                history = batch.history[place, row][batch.history_mask[place, row]]
                expected_row = cohort.sample_history[sample]
                expected = cohort.news["title"][cohort.history[expected_row][cohort.history_mask[expected_row]]]
                assert torch.equal(news["title"][history], expected)
    assert sorted(seen) == list(range(12))


def trimmed(tokens: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    assert not tokens[:, like.shape[1] :].any()
    return tokens[:, : like.shape[1]]


def test_data_without_a_usable_click_gives_no_cohort(rows_store):
    store = rows_store({"train": (NEWS, [BehaviorRow("A", 0, ["N0"], ["N1", "N2"], [0, 0])])})
    with pytest.raises(UsageError, match="no cohort can be drawn"):
        source_of(store)


def test_drawing_costs_the_same_at_a_thousand_and_a_million_users(source):
    """Fifty clients out of a million may not cost more than out of a thousand (generous bound: machines are noisy)."""

    def seconds(clients: int) -> float:
        offsets = np.arange(clients + 1)
        source.samples = Samples(
            np.arange(clients, dtype=np.int32),
            Ragged(offsets, offsets[:-1]),
            np.zeros(clients, np.int32),
            np.zeros(clients, np.int64),
        )
        best = np.inf
        for round_ in range(200):
            start = time.perf_counter()
            source.cohort(source.of_clients(source.draw_clients(50, round_), round_))
            best = min(best, time.perf_counter() - start)
        return best

    assert seconds(1_000_000) < 2 * seconds(1_000)
