"""What existed before training is not searched for garbage while it lasts."""

import gc

import pytest

from fednews.heap import frozen_heap


def test_objects_are_frozen_in_the_block_however_it_ends():
    frozen = []

    def fail():
        frozen.append(gc.get_freeze_count())
        raise KeyError

    with pytest.raises(KeyError), frozen_heap():
        fail()
    assert frozen[0] > 10_000
    assert gc.get_freeze_count() == 0
