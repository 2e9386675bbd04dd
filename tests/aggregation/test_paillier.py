import dataclasses

import numpy as np
import phe
import pytest
import torch

from fednews.aggregation.paillier import Paillier
from fednews.errors import FednewsError, UsageError
from fednews.privacy.unprotected import unprotected
from tests.aggregation.encrypted_cases import LIKE, check_sum, client_updates, encrypted_sum, split


@pytest.fixture(scope="module")
def small() -> Paillier:
    return Paillier(key_bits=512, max_clients=8, threads=1)


@pytest.mark.parametrize("clients", [1, 2, 7])
def test_the_sum_is_that_of_the_rounded_updates(small: Paillier, clients: int):
    check_sum(small, clients)


@pytest.mark.parametrize("bits", [1, 8, 30])
def test_the_step_is_that_of_the_setting(bits: int):
    check_sum(Paillier(key_bits=512, fraction_bits=bits, max_clients=8, threads=2), 3)


def test_the_default_key_has_2048_bits_and_sums_alike():
    full = Paillier(threads=1)
    check_sum(full, 2)
    assert len(full.key_holder.public) == 256


def test_nothing_sums_to_zeros_without_cost(small: Paillier):
    small.metrics()
    sums = encrypted_sum(small, [])
    assert not any(value.any() for value in sums.tensors())
    assert not any(small.metrics().values())


def test_parts_may_be_empty(small: Paillier):
    part = client_updates(3)
    empty = split(client_updates(1), 1)[0]
    empty = dataclasses.replace(
        empty,
        clients=empty.clients[:0],
        updates={name: update[:0] for name, update in empty.updates.items()},
        weights=empty.weights[:0],
        loss=empty.loss[:0],
        samples=empty.samples[:0],
    )
    with_empty, without = encrypted_sum(small, [empty, part, empty]), encrypted_sum(small, [part])
    for a, b in zip(with_empty.tensors(), without.tensors(), strict=True):
        assert torch.equal(a, b)


def test_zero_updates_sum_to_exact_zeros(small: Paillier):
    part = client_updates(3)
    part = dataclasses.replace(part, updates={n: torch.zeros_like(u) for n, u in part.updates.items()})
    assert not any(value.any() for value in encrypted_sum(small, [part]).total.values())


def test_the_extreme_values_of_all_clients_do_not_run_over():
    tight = Paillier(key_bits=512, fraction_bits=4, bound=2.0, max_clients=4, threads=1)
    most = tight.fixed.limit
    for fields in (np.full(20, most), np.full(20, -most), np.resize([most, -most], 20)):
        server = tight.make_server(tight.key_holder.public)
        for _ in range(4):
            server.add(tight.make_client(tight.key_holder.public).encrypt(fields))
        np.testing.assert_array_equal(tight.key_holder.open(server.total(), 20), 4 * fields)


def test_an_update_beyond_the_bound_is_refused(small: Paillier):
    part = client_updates(2)
    part.updates["b"][1] = -1e4
    with pytest.raises(FednewsError, match=r"raise the aggregation's bound"):
        encrypted_sum(small, [part])


def test_more_clients_than_the_fields_have_room_for_are_refused():
    with pytest.raises(FednewsError, match=r"more than max_clients=2 clients"):
        encrypted_sum(Paillier(key_bits=512, max_clients=2, threads=1), [client_updates(3)])


@pytest.mark.parametrize("settings", [{"fraction_bits": 50}, {"key_bits": 32}, {"key_bits": 1001}, {"max_clients": 0}])
def test_settings_that_leave_no_room_are_refused(settings: dict):
    with pytest.raises(UsageError):
        Paillier(**settings)


def test_sums_over_clients_are_no_upload(small: Paillier):
    part = client_updates(1)
    with pytest.raises(ValueError, match="every client's own update"):
        encrypted_sum(small, [dataclasses.replace(part, clients=part.clients[:0])])


def test_the_server_holds_no_secret(small: Paillier):
    public = small.key_holder.public
    server, client = small.make_server(public), small.make_client(public)
    server.add(client.encrypt(np.array([1, 2, 3])))
    held = [*vars(server).values(), *vars(server._key).values(), *vars(client).values()]
    assert not any(isinstance(value, phe.PaillierPrivateKey) for value in held)
    secret = small.key_holder._secret
    assert int.from_bytes(public, "big") == secret.p * secret.q
    assert not {secret.p, secret.q} & {value for value in vars(server._key).values() if isinstance(value, int)}


def test_equal_values_never_look_equal(small: Paillier):
    client = small.make_client(small.key_holder.public)
    values = np.zeros(3 * small.packing.slots, np.int64)
    assert len({*client.encrypt(values), *client.encrypt(values)}) == 6


def test_keys_are_made_once(small: Paillier):
    before = small.key_holder.public
    encrypted_sum(small, [client_updates(1)])
    assert small.key_holder.public == before


def test_cost_counts_ciphertexts_and_is_reset(small: Paillier):
    small.metrics()
    encrypted_sum(small, [client_updates(3)])
    costs = small.metrics()
    numbers = sum(value.numel() for value in LIKE.values()) + 3 * 3  # three scalars of three limbs
    ciphertext = 2 * 512 / 8
    assert costs["aggregation_bytes_down"] == -(-numbers // small.packing.slots) * ciphertext
    assert costs["aggregation_bytes_up"] == 3 * costs["aggregation_bytes_down"]
    assert all(costs[f"{name}_seconds"] > 0 for name in ("encryption", "aggregation", "decryption"))
    assert not any(small.metrics().values())


def test_the_ledger_says_that_the_server_sees_sums(small: Paillier):
    entry = unprotected("model update", 5, "no noise", ("every update",))
    covered = small.covers(entry)
    assert covered.view == "central"
    assert "every update" not in covered.server_sees
    assert any("colludes" in seen for seen in covered.server_sees)
    assert dataclasses.replace(covered, view=entry.view, server_sees=entry.server_sees) == entry
