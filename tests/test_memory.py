"""What rounds free is there for the next ones, and what existed before them is not searched for garbage."""

import gc
import platform
import resource

import pytest
import torch

from fednews.memory import steady_memory


def test_objects_are_frozen_in_the_block_however_it_ends():
    frozen = []

    def fail():
        frozen.append(gc.get_freeze_count())
        raise KeyError

    with pytest.raises(KeyError), steady_memory():
        fail()
    assert frozen[0] > 10_000
    assert gc.get_freeze_count() == 0


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_freed_memory_is_used_again_without_new_pages():
    def faults():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(10):
            [torch.zeros(5 * 2**20) for _ in range(5)]  # 20 MB, 5,120 pages each
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    with steady_memory():
        faults()
        assert faults() < 5_120
