"""What a server that keeps all messages can and cannot compute of a single input."""

import numpy as np
import pytest

from fednews.aggregation.secagg.group import Group
from fednews.aggregation.secagg.keys import KeyPair
from fednews.aggregation.secagg.masks import add_mask, pair_mask_key, self_mask_key, subtract_mask
from fednews.aggregation.secagg.messages import HEAD, Kind, open_message
from fednews.aggregation.secagg.server import Server
from fednews.aggregation.secagg.shares import Opening
from tests.aggregation.secagg.cases import Execution, uniform


class Curious(Server):
    """Keeps every masked input."""

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self.kept = {}

    def _take_masked(self, sender: int, body: bytes) -> None:
        super()._take_masked(sender, body)
        self.kept[sender] = np.frombuffer(body, self.group.ring.dtype)

    def opened(self, owner: int) -> bytes:
        """The seed that the revealed shares of ``owner`` open."""
        parts = sorted(self._revealed[owner].items())[: self._graph.threshold]
        places = tuple(self._graph.holders(owner).index(holder) + 1 for holder, _ in parts)
        return Opening(places).open([part for _, part in parts])

    def without_pair_masks(self, owner: int, seed: bytes) -> np.ndarray:
        """The masked input of ``owner`` less its masks with all peers."""
        keys, rest = KeyPair(seed), self.kept[owner].copy()
        for peer in self._graph.neighbours(owner):
            key = pair_mask_key(keys.agree(self._public[peer][1]), self._transcript)
            (subtract_mask if owner < peer else add_mask)(rest, key)
        return rest

    def without_self_mask(self, vector: np.ndarray, seed: bytes) -> np.ndarray:
        rest = vector.copy()
        subtract_mask(rest, self_mask_key(seed, self._transcript))
        return rest


def constant_inputs(clients: int, length: int) -> np.ndarray:
    return np.full((clients, length), 5, np.uint32)


@pytest.mark.parametrize("clients", [2, 4])
def test_a_masked_input_is_uniform_along_the_vector(clients: int):
    inputs = constant_inputs(clients, 20_000)
    run = Execution(clients, clients, inputs=inputs, make_server=Curious)
    run.finish(run.messages(Kind.ADVERTISE))
    assert not uniform(inputs[0])
    assert all(uniform(run.server.kept[client]) for client in range(clients))
    for a in range(clients):
        for b in range(a):
            assert uniform(run.server.kept[a] - run.server.kept[b])


def test_a_masked_input_is_uniform_over_executions():
    seen = []
    for _ in range(60):
        run = Execution(2, 2, signed=False, inputs=constant_inputs(2, 4), make_server=Curious)
        run.finish(run.messages(Kind.ADVERTISE))
        seen.append(run.server.kept[0])
    assert uniform(np.stack(seen))


def test_the_seeds_that_open_a_sum_leave_each_survivors_input_uniform():
    run = Execution(5, 3, inputs=constant_inputs(5, 20_000), make_server=Curious)
    total = run.finish(run.messages(Kind.ADVERTISE))
    rests = [run.server.without_self_mask(run.server.kept[c], run.server.opened(c)) for c in range(5)]
    assert all(uniform(rest) for rest in rests)
    assert all(uniform(sum(rests) - rest) for rest in rests)
    np.testing.assert_array_equal(sum(rests), total)


class Late(Curious):
    """Says that client 4 dropped out although its input arrived; without signatures it gets away with that."""

    def _announce_survivors(self) -> dict[int, bytes]:
        self._alive.remove(4)
        self._sum -= self.kept[4]
        return super()._announce_survivors()


def test_an_input_that_comes_late_stays_hidden_by_its_self_mask():
    run = Execution(5, 3, signed=False, inputs=constant_inputs(5, 20_000), make_server=Late)
    own_seed = run.clients[4]._self_seed
    total = run.finish(run.messages(Kind.ADVERTISE))
    np.testing.assert_array_equal(total, run.expected({0, 1, 2, 3}))
    rest = run.server.without_pair_masks(4, run.server.opened(4))
    assert uniform(rest)
    np.testing.assert_array_equal(run.server.without_self_mask(rest, own_seed), run.inputs[4])


def test_shares_below_the_threshold_open_no_seed():
    run = Execution(5, 4, inputs=constant_inputs(5, 10), make_server=Curious)
    for message in list(run.messages(Kind.REVEAL).values())[:3]:
        run.server.receive(message)
    parts = run.server._revealed[0]
    assert Opening((1, 2, 3)).open([parts[holder] for holder in range(3)]) != run.clients[0]._self_seed


def test_shares_on_their_way_through_the_server_cannot_be_read_there():
    run = Execution(make_server=Curious)
    messages = run.messages(Kind.SHARES)
    secret = run.server._secrets[0]
    body = open_message(secret, messages[0], run.server._transcript)
    assert run.clients[0]._mask_seed not in body
    assert run.clients[0]._self_seed not in body
    boxes = {number: run.clients[number]._shares[number] for number in range(5)}
    assert all(part not in body for pair in boxes.values() for part in pair)


def test_no_message_holds_the_input_in_the_clear():
    inputs = constant_inputs(5, 64)
    run, seen = Execution(inputs=inputs), []
    messages = run.messages(Kind.ADVERTISE)
    while messages:
        seen += messages.values()
        messages = run.turn(messages)
    assert all(inputs[0].tobytes()[:16] not in message[HEAD.size :] for message in seen)
