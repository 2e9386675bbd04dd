import numpy as np
import pytest

from fednews.data.ragged import Ragged, Strings

ROWS = [[1, 2, 3], [], [4], [5, 6, 7, 8]]


@pytest.fixture
def ragged() -> Ragged:
    return Ragged.from_rows(ROWS, np.int32)


def as_lists(ragged: Ragged) -> list[list[int]]:
    return [row.tolist() for row in ragged]


def test_rows_come_back(ragged):
    assert as_lists(ragged) == ROWS
    assert ragged.lengths().tolist() == [3, 0, 1, 4]
    assert ragged.lengths(np.array([3, 1])).tolist() == [4, 0]


@pytest.mark.parametrize("rows", [[], [3, 0], [1], [0, 0, 2, 1]])
def test_take_equals_indexing_one_by_one(ragged, rows):
    assert as_lists(ragged.take(np.array(rows, int))) == [ROWS[row] for row in rows]


@pytest.mark.parametrize("limit", [0, 1, 2, 9])
def test_cutting_keeps_the_first_or_the_last(ragged, limit):
    assert as_lists(ragged.first(limit)) == [row[:limit] for row in ROWS]
    assert as_lists(ragged.last(limit)) == [row[len(row) - min(limit, len(row)) :] for row in ROWS]


def test_padding_stands_on_the_side_asked_for(ragged):
    right, mask = ragged.take(np.array([2, 0])).padded(fill=-1)
    assert right.tolist() == [[4, -1, -1], [1, 2, 3]]
    assert mask.tolist() == [[True, False, False], [True] * 3]
    left, mask = ragged.take(np.array([2, 0])).padded(fill=-1, side="left")
    assert left.tolist() == [[-1, -1, 4], [1, 2, 3]]
    assert mask.tolist() == [[False, False, True], [True] * 3]


def test_only_empty_rows_still_give_a_column(ragged):
    dense, mask = ragged.take(np.array([1, 1])).padded()
    assert dense.shape == mask.shape == (2, 1)
    assert not mask.any()


def test_texts_survive_as_bytes():
    texts = ["", "Trondheim får “snø”", "tab\tinside", "None"]
    assert list(Strings.from_texts(texts)) == texts
