import torch

from fednews.streams import Streams


def test_a_draw_depends_on_seed_purpose_and_counters_only():
    first = Streams(1).numpy("cohort", 5).random(4)
    Streams(1).numpy("cohort", 4).random(100)
    assert (Streams(1).numpy("cohort", 5).random(4) == first).all()
    for other in (Streams(2).numpy("cohort", 5), Streams(1).numpy("noise", 5), Streams(1).numpy("cohort", 6)):
        assert (other.random(4) != first).all()


def test_torch_streams_use_more_than_32_bits_of_seed():
    seeds = {Streams(0).integer("mask", client) for client in range(1000)}
    assert len(seeds) == 1000
    assert max(seeds) > 2**40
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_global_torch_draws_are_named_inside_and_untouched_outside():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with Streams(0).torch_global("dropout", 1):
        inside = torch.rand(2)
    assert torch.equal(torch.rand(2), expected)
    with Streams(0).torch_global("dropout", 1):
        assert torch.equal(torch.rand(2), inside)
