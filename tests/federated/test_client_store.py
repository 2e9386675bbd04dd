"""What clients keep: exact, restored whole, and paid for by those alone who take part."""

import os
import resource

import pytest
import torch

from fednews.errors import FednewsError
from fednews.federated.client_store import ClientStore

CPU = torch.device("cpu")


@pytest.fixture
def default():
    return {
        "layer.weight": torch.arange(6.0).view(2, 3),
        "layer.bias": torch.tensor([7.0, 8.0]),
        "rate": torch.tensor(9.0),
    }


def values(clients, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"layer.weight": (2, 3), "layer.bias": (2,), "rate": ()}
    return {name: torch.randn(len(clients), *shape, generator=generator) for name, shape in shapes.items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_clients_without_a_row_read_the_default(default):
    store = ClientStore(default)
    read = store.read(torch.tensor([5, 10**12]))
    assert same(read, {name: torch.stack([value, value]) for name, value in default.items()})
    other = {name: value + 1 for name, value in default.items()}
    assert same(store.read(torch.tensor([5]), other), {name: value[None] for name, value in other.items()})
    assert store.read_one(5, CPU) == {}
    assert len(store) == 0


def test_what_was_written_last_is_read_in_any_order_beside_clients_without_a_row(default):
    store = ClientStore(default)
    store.write(torch.tensor([8, 2]), values([8, 2]))
    store.write(torch.tensor([2, 10**12]), new := values([2, 10**12], seed=1))
    read = store.read(torch.tensor([10**12, 4, 2]))
    expected = {name: torch.stack([value[1], default[name], value[0]]) for name, value in new.items()}
    assert same(read, expected)
    assert same(store.read_one(8, CPU), {name: value[0] for name, value in values([8, 2]).items()})
    assert len(store) == 3
    assert 8 in store
    assert 4 not in store


def test_what_is_read_can_be_changed_without_changing_the_store(default):
    store = ClientStore(default)
    store.write(torch.tensor([1]), values([1]))
    for client in (1, 2):
        before = store.read(torch.tensor([client]))
        for value in store.read(torch.tensor([client])).values():
            value.zero_()
        assert same(store.read(torch.tensor([client])), before)
    store.state_dict()["values"].zero_()
    assert same(store.read(torch.tensor([1])), values([1]))


def test_values_are_written_in_single_precision_and_read_in_the_defaults_type(default):
    double = {name: value.double() for name, value in default.items()}
    store = ClientStore(double)
    written = {name: value.double() + 1e-12 for name, value in values([3]).items()}
    store.write(torch.tensor([3]), written)
    assert same(store.read(torch.tensor([3])), {name: value.float().double() for name, value in written.items()})


def test_values_are_single_whatever_torchs_default_type_is(default):
    """Lightning's ``64-true`` changes it."""
    store, written = ClientStore(default), values([1])
    torch.set_default_dtype(torch.float64)
    try:
        store.write(torch.tensor([1]), written)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(value, written[name]) for name, value in store.read(torch.tensor([1])).items())


def test_the_file_is_as_long_as_the_rows_in_use_and_lies_where_it_was_told_to(default, tmp_path):
    store = ClientStore(default, folder=tmp_path)
    store.write(torch.tensor([10**9, 5, 7]), values([10**9, 5, 7]))
    store.write(torch.tensor([5]), values([5], seed=2))
    store.state_dict()
    assert os.fstat(store._file.fileno()).st_size == 3 * 9 * 4
    assert os.readlink(f"/proc/self/fd/{store._file.fileno()}").startswith(str(tmp_path))
    assert list(tmp_path.iterdir()) == [], "the file has no name that a killed process would leave behind"


def test_a_restored_store_equals_the_one_that_was_saved(default, tmp_path):
    store = ClientStore(default)
    store.write(torch.tensor([8, 2, 5]), values([8, 2, 5]))
    torch.save(store.state_dict(), tmp_path / "state.pt")
    store.write(torch.tensor([2, 6]), values([2, 6], seed=1))  # after the checkpoint
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert state["clients"].tolist() == [8, 2, 5]
    assert state["values"].shape == (3, 9)

    restored = ClientStore(default)
    restored.write(torch.tensor([1, 2, 3, 4]), values([1, 2, 3, 4], seed=3))
    restored.load_state_dict(state)
    assert len(restored) == 3
    assert same(restored.read(torch.tensor([8, 2, 5])), values([8, 2, 5]))
    assert same(restored.read(torch.tensor([1])), {name: value[None] for name, value in default.items()})
    for part in (restored, store):
        part.write(torch.tensor([2, 6]), values([2, 6], seed=1))
    assert same(restored.state_dict(), store.state_dict())


def test_an_empty_store_is_saved_and_restored(default):
    restored = ClientStore(default)
    restored.write(torch.tensor([1]), values([1]))
    restored.load_state_dict(ClientStore(default).state_dict())
    assert len(restored) == 0
    assert restored.read_one(1, CPU) == {}


def test_a_state_of_other_tensors_is_refused(default):
    with pytest.raises(FednewsError, match="keeps 6 numbers for each client, not 9"):
        ClientStore(default).load_state_dict(ClientStore({"layer.weight": default["layer.weight"]}).state_dict())


def test_a_file_that_cannot_grow_is_one_clear_error():
    store = ClientStore({"weight": torch.zeros(1000)})
    store.write(torch.tensor([0, 1]), {"weight": torch.ones(2, 1000)})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        store.write(torch.tensor([2]), {"weight": torch.ones(1, 1000)})
        with pytest.raises(FednewsError, match=r"cannot keep 3 clients' parameters .*; set TMPDIR"):
            store.read(torch.tensor([2]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_rows_whose_writing_has_only_begun_are_read_and_saved_as_written(default):
    store = ClientStore(default)
    for seed in range(20):
        store.write(torch.tensor([seed % 3, 3]), new := values([0, 3], seed))
        assert same(store.read(torch.tensor([seed % 3, 3])), new)
    store.write(torch.tensor([7]), new := values([7]))
    last = store.state_dict()["values"][-1]
    assert torch.equal(last, torch.cat([value.flatten() for value in new.values()]))
