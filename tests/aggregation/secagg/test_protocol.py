"""Secure sums against plain sums, with clients dropping out at every stage."""

import numpy as np
import pytest

from fednews.aggregation.secagg.errors import MessageRefused, TooFewClients
from fednews.aggregation.secagg.graph import Sparse
from fednews.aggregation.secagg.messages import Kind
from fednews.aggregation.secagg.protocol import SecureSum, execute
from fednews.aggregation.secagg.ring import Ring
from fednews.errors import UsageError
from tests.aggregation.secagg.cases import Execution

STAGES = (Kind.ADVERTISE, Kind.SHARES, Kind.MASKED_INPUT, Kind.CONFIRMATION, Kind.REVEAL)


def inputs_of(silent_from: dict[int, Kind], clients: int) -> set[int]:
    """Whose input arrived."""
    return {client for client in range(clients) if silent_from.get(client, Kind.BOX) > Kind.MASKED_INPUT}


def check(run: Execution, silent_from: dict[int, Kind]) -> None:
    total, _ = execute(run.server, run.clients, silent_from)
    np.testing.assert_array_equal(total, run.expected(inputs_of(silent_from, len(run.clients))))


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("dropped", [(), (3,), (0, 6)])
def test_the_sum_is_that_of_the_inputs_that_arrived(signed: bool, stage: Kind, dropped: tuple[int, ...]):
    check(Execution(7, 5, signed), dict.fromkeys(dropped, stage))


@pytest.mark.parametrize("signed", [True, False])
def test_clients_may_drop_out_at_every_stage_of_one_execution(signed: bool):
    check(Execution(11, 6, signed), dict(zip((8, 2, 10, 0, 5), STAGES, strict=True)))


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("stage", STAGES)
def test_below_the_threshold_the_round_is_aborted(signed: bool, stage: Kind):
    if stage == Kind.CONFIRMATION and not signed:
        stage = Kind.REVEAL
    run = Execution(7, 5, signed)
    with pytest.raises(TooFewClients, match=f"after {stage.name}: 4 of 7 clients are left and 5 are needed"):
        execute(run.server, run.clients, dict.fromkeys((1, 2, 6), stage))
    with pytest.raises(MessageRefused, match="cannot be opened"):
        run.server.total()
    with pytest.raises(MessageRefused, match="over"):
        run.server.receive(run.client(0).advertise())


@pytest.mark.parametrize(("clients", "bits"), [(2, 8), (3, 16), (14, 32), (12, 64)])
def test_sparse_and_full_graphs_give_the_plain_sum_in_every_ring(clients: int, bits: int):
    ring = Ring(bits)
    vectors = np.random.default_rng(bits).integers(0, 2**bits, (clients, 4), np.uint64).astype(ring.dtype)
    expected = vectors.sum(axis=0, dtype=ring.dtype)
    for sparse in (None, Sparse(0.1, 0.1)):
        total, _ = SecureSum(sparse=sparse).sum(list(vectors), ring, 0)
        np.testing.assert_array_equal(total, expected)


@pytest.mark.parametrize("stage", STAGES)
def test_the_sparse_graph_recovers_clients_that_drop_out(stage: Kind):
    run = Execution(20, 14, stage == Kind.CONFIRMATION, Sparse(0.05, 0.1))
    assert run.group.graph(tuple(range(20)), b"").degree < 15
    check(run, dict.fromkeys((4, 17), stage))


def test_the_sparse_graph_aborts_where_a_neighbourhood_is_lost():
    run = Execution(30, 16, sparse=Sparse(0.05, 0.05))
    messages = run.messages(Kind.MASKED_INPUT)
    lost = run.server._graph.neighbours(0)
    for number in messages.keys() - lost:
        run.server.receive(messages[number])
    with pytest.raises(TooFewClients, match="holders of client"):
        run.finish(run.server.close())


@pytest.mark.parametrize("sparse", [None, Sparse(0.1, 0.1)])
@pytest.mark.parametrize("signatures", [True, False])
@pytest.mark.parametrize(("clients", "bits"), [(2, 32), (9, 8), (13, 64)])
def test_the_simulation_equals_the_protocol_in_sum_and_bytes(
    sparse: Sparse | None, signatures: bool, clients: int, bits: int
):
    ring = Ring(bits)
    vectors = list(np.random.default_rng(1).integers(0, 2**bits, (clients, 33), np.uint64).astype(ring.dtype))
    real, cost = SecureSum(sparse=sparse, signatures=signatures).sum(vectors, ring, 5)
    simulated, calculated = SecureSum(sparse=sparse, signatures=signatures, simulate=True).sum(vectors, ring, 5)
    np.testing.assert_array_equal(simulated, real)
    assert (calculated.up, calculated.down) == (cost.up, cost.down)
    names = {name for name in cost.metrics("x") if "bytes" in name}
    assert names == calculated.metrics("x").keys()
    assert cost.client_seconds > 0 < cost.server_seconds


def test_masked_inputs_are_most_of_the_bytes_of_long_vectors():
    ring, vectors = Ring(32), [np.zeros(100_000, np.uint32)] * 10
    _, cost = SecureSum(simulate=True).sum(vectors, ring, 0)
    assert 4e6 < cost.up[Kind.MASKED_INPUT] < cost.up.total() < 4.02e6
    assert cost.down.total() < 1e5


@pytest.mark.parametrize("simulate", [True, False])
def test_a_group_below_the_smallest_is_not_summed(simulate: bool):
    vectors = [np.zeros(3, np.uint32)] * 4
    with pytest.raises(TooFewClients, match="round 8 has 4 clients"):
        SecureSum(min_clients=5, simulate=simulate).sum(vectors, Ring(32), 8)
    with pytest.raises(TooFewClients, match="1 clients"):
        SecureSum(simulate=simulate).sum(vectors[:1], Ring(32), 8)


@pytest.mark.parametrize("settings", [{"threshold": 0.5}, {"threshold": 1.01}, {"min_clients": 1}])
def test_settings_out_of_range_are_refused(settings: dict):
    with pytest.raises(UsageError, match=next(iter(settings))):
        SecureSum(**settings)


def test_an_input_of_another_shape_or_type_is_refused():
    run = Execution()
    for inputs in (run.inputs[:, :-1], run.inputs.astype(np.int64)):
        run.inputs = inputs
        with pytest.raises(ValueError, match="input is"):
            run.client(0)
