import numpy as np
import pytest

from fednews.data.impressions import Impressions
from fednews.data.tables import BehaviorRow, NewsRow

NEWS = [NewsRow(f"N{i}", "c", "s", "title") for i in range(8)]
DEV = [
    BehaviorRow("A", 0, ["N0", "N1", "N2"], ["N3", "N4"], [1, 0]),
    BehaviorRow("B", 1, [], ["N6", "N7", "N0"], [0, 1, 0]),
    BehaviorRow("A", 2, ["N0", "N1", "N2"], ["N5"], [1]),
]


@pytest.fixture
def make(rows_store):
    """Makes the impressions of the dev split; only A has a training sample."""
    store = rows_store({"train": (NEWS, [DEV[0]]), "dev": ([], [*DEV])})
    return lambda *settings, **more: Impressions(store.splits["dev"], store.samples, *settings, **more)


def test_a_batch_encodes_each_users_history_once_and_keeps_rows_aligned(make):
    batch = make(history_length=2, batch_size=10).batch(np.arange(3))
    assert len(batch.history) == 2
    for impression, row in enumerate(DEV):
        kept = batch.impression_history[impression]
        assert batch.history[kept][batch.history_mask[kept]].tolist() == [int(n[1:]) for n in row.history[-2:]]
        part = slice(batch.offsets[impression], batch.offsets[impression + 1])
        assert batch.candidates[part].tolist() == [int(n[1:]) for n in row.candidates]
        assert batch.labels[part].tolist() == list(row.labels)


def test_a_user_is_known_by_the_training_samples(make):
    assert make(2, 10).batch(np.arange(3)).user.tolist() == [1, 0], "A is the first client, B has no sample"


def test_shares_cover_every_impression_once(make):
    rows = [set(make(5, 1, share=(rank, 2)).rows) for rank in range(2)]
    assert rows[0] | rows[1] == {0, 1, 2}
    assert not rows[0] & rows[1]


def test_news_lists_what_is_shown_and_what_is_in_kept_history(make):
    assert make(1, 10).news().tolist() == [0, 2, 3, 4, 5, 6, 7]


def test_batches_are_as_many_as_announced(make):
    for size in (1, 2, 3, 4):
        impressions = make(5, size)
        assert len(list(impressions)) == len(impressions)
