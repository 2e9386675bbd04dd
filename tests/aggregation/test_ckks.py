import dataclasses

import numpy as np
import pytest
import tenseal
import torch

from fednews.aggregation.ckks import CKKS, SLOTS
from fednews.aggregation.paillier import Paillier
from fednews.aggregation.plain import plain_sum
from fednews.aggregation.updates import ClientUpdates
from fednews.errors import FednewsError
from fednews.privacy.unprotected import unprotected
from tests.aggregation.encrypted_cases import LIKE, check_sum, client_updates, encrypted_sum


@pytest.fixture(scope="module")
def ckks() -> CKKS:
    return CKKS()


@pytest.mark.parametrize("clients", [1, 2, 7])
def test_the_sum_is_that_of_the_rounded_updates(ckks: CKKS, clients: int):
    check_sum(ckks, clients)


@pytest.mark.parametrize("bits", [1, 8, 30])
def test_the_step_is_that_of_the_setting(bits: int):
    check_sum(CKKS(fraction_bits=bits), 3)


def test_many_clients_and_several_ciphertexts_equal_the_plain_sum(ckks: CKKS):
    like = {"a": torch.zeros(2 * SLOTS + 5), "b": torch.zeros(4)}
    generator = torch.Generator().manual_seed(0)
    updates = {name: torch.randn(40, *value.shape, generator=generator) for name, value in like.items()}
    updates["a"][:, ::2] *= 1e-6
    weights = torch.rand(40, generator=generator) * 10
    part = ClientUpdates(torch.arange(40), updates, weights, weights, torch.ones(40, dtype=torch.int64))
    sums, plain = encrypted_sum(ckks, [part], like), plain_sum([part], like)
    for name in like:
        torch.testing.assert_close(sums.total[name], plain.total[name], rtol=0, atol=1e-4)
    assert sums.samples == 40


def test_both_schemes_give_the_same_sum(ckks: CKKS):
    part = client_updates(5)
    both = (encrypted_sum(scheme, [part]) for scheme in (ckks, Paillier(key_bits=512, threads=1)))
    for a, b in zip(*(sums.tensors() for sums in both), strict=True):
        assert torch.equal(a, b)


def test_nothing_sums_to_zeros_without_cost(ckks: CKKS):
    ckks.metrics()
    assert not any(value.any() for value in encrypted_sum(ckks, []).tensors())
    assert not any(ckks.metrics().values())


def test_zero_updates_sum_to_exact_zeros(ckks: CKKS):
    part = client_updates(3)
    part = dataclasses.replace(part, updates={n: torch.zeros_like(u) for n, u in part.updates.items()})
    assert not any(value.any() for value in encrypted_sum(ckks, [part]).total.values())


def test_noise_is_far_below_half_a_step(ckks: CKKS):
    client = ckks.make_client(ckks.key_holder.public)
    opened = tenseal.ckks_vector_from(ckks.key_holder._context, client.encrypt(np.zeros(SLOTS, np.int64))[0]).decrypt()
    assert 0 < np.abs(opened).max() < 2.0**-24 / 2 / 1000


def test_an_update_beyond_the_bound_is_refused(ckks: CKKS):
    part = client_updates(2)
    part.updates["b"][1] = 1e6
    with pytest.raises(FednewsError, match=r"raise the aggregation's bound"):
        encrypted_sum(ckks, [part])


def test_a_sum_too_large_for_the_step_is_refused():
    wide = CKKS(fraction_bits=40, bound=2.0**20)
    part = client_updates(2)
    part.updates["a"].fill_(9e5)
    part.weights.fill_(1.0)
    with pytest.raises(FednewsError, match="lower the aggregation's fraction_bits"):
        encrypted_sum(wide, [part])


def test_the_server_holds_no_secret(ckks: CKKS):
    public = ckks.key_holder.public
    server, client = ckks.make_server(public), ckks.make_client(public)
    server.add(client.encrypt(np.array([1, 2, 3])))
    for context in (server._context, client._context, tenseal.context_from(public)):
        assert context.is_public()
        assert not context.has_secret_key()
    with pytest.raises(ValueError, match="secret_key"):
        server._sums[0].decrypt()
    assert ckks.key_holder._context.has_secret_key()


def test_equal_values_never_look_equal(ckks: CKKS):
    client = ckks.make_client(ckks.key_holder.public)
    values = np.zeros(3 * SLOTS, np.int64)
    assert len({*client.encrypt(values), *client.encrypt(values)}) == 6


def test_keys_are_made_once(ckks: CKKS):
    before = ckks.key_holder.public
    encrypted_sum(ckks, [client_updates(1)])
    assert ckks.key_holder.public == before


def test_cost_counts_ciphertexts_and_is_reset(ckks: CKKS):
    ckks.metrics()
    encrypted_sum(ckks, [client_updates(3)], LIKE)
    costs = ckks.metrics()
    assert costs["aggregation_bytes_up"] == pytest.approx(3 * costs["aggregation_bytes_down"], rel=0.05)
    assert all(value > 0 for value in costs.values())
    assert not any(ckks.metrics().values())


def test_the_ledger_says_that_the_server_sees_sums(ckks: CKKS):
    entry = unprotected("model update", 5, "no noise", ("every update",))
    covered = ckks.covers(entry)
    assert covered.view == "central"
    assert any("colludes" in seen for seen in covered.server_sees)
    assert dataclasses.replace(covered, view=entry.view, server_sees=entry.server_sees) == entry
