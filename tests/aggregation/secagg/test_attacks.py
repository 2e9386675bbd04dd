"""Messages that nobody honest sends, and servers and clients that deviate from the protocol."""

from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fednews.aggregation.secagg.client import Client
from fednews.aggregation.secagg.errors import MessageRefused, TooFewClients
from fednews.aggregation.secagg.graph import Sparse
from fednews.aggregation.secagg.messages import BOX, HEAD, SHARE, Kind, pack_flags, records
from fednews.aggregation.secagg.protocol import execute
from fednews.aggregation.secagg.server import Server
from tests.aggregation.secagg.cases import Execution

UP = (Kind.ADVERTISE, Kind.SHARES, Kind.MASKED_INPUT, Kind.CONFIRMATION, Kind.REVEAL)
DOWN = (Kind.KEYS, Kind.INBOX, Kind.SURVIVORS, Kind.CONFIRMATIONS)


def flipped(message: bytes, byte: int) -> bytes:
    changed = bytearray(message)
    changed[byte] ^= 1
    return bytes(changed)


def places(message: bytes) -> list[int]:
    """A byte of every field of the head, and a few of what follows."""
    return [0, 1, 9, 13, 17, HEAD.size, len(message) // 2, len(message) - 17, len(message) - 1]


@pytest.mark.parametrize("kind", UP)
def test_the_server_refuses_a_message_with_any_changed_bit_and_takes_the_right_one_after(kind: Kind):
    run = Execution()
    messages = run.messages(kind)
    for place in places(messages[2]):
        with pytest.raises(MessageRefused):
            run.server.receive(flipped(messages[2], place))
    np.testing.assert_array_equal(run.finish(messages), run.expected())


@pytest.mark.parametrize("kind", DOWN)
def test_a_client_refuses_a_message_with_any_changed_bit_and_has_then_left(kind: Kind):
    for place in places(Execution().messages(kind)[2]):
        run = Execution()
        message = run.messages(kind)[2]
        with pytest.raises(MessageRefused):
            run.clients[2].answer(flipped(message, place))
        with pytest.raises(MessageRefused, match="left the round"):
            run.clients[2].answer(message)


@pytest.mark.parametrize("cut", [0, 5, HEAD.size, HEAD.size + 20, -1])
def test_messages_that_are_cut_short_are_refused(cut: int):
    for kind in (Kind.ADVERTISE, Kind.SHARES, Kind.MASKED_INPUT):
        run = Execution()
        message = run.messages(kind)[0]
        with pytest.raises(MessageRefused):
            run.server.receive(message[:cut])
    run = Execution()
    message = run.messages(Kind.KEYS)[0]
    with pytest.raises(MessageRefused):
        run.clients[0].answer(message[:cut])


@pytest.mark.parametrize("kind", UP)
def test_the_server_refuses_a_message_that_it_has_had(kind: Kind):
    run = Execution()
    messages = run.messages(kind)
    run.server.receive(messages[1])
    with pytest.raises(MessageRefused, match=r"sent its \w+ before"):
        run.server.receive(messages[1])
    del messages[1]
    following = run.turn(messages)
    with pytest.raises(MessageRefused, match=r"out of order|over"):
        run.server.receive(messages[0])
    np.testing.assert_array_equal(run.finish(following), run.expected())


@pytest.mark.parametrize("kind", DOWN)
def test_a_client_answers_no_message_twice(kind: Kind):
    run = Execution()
    messages = run.messages(kind)
    run.turn(messages)
    with pytest.raises(MessageRefused, match=r"out of order|left the round"):
        run.clients[0].answer(messages[0])


@pytest.mark.parametrize("round_", [3, 4])
def test_messages_of_another_execution_are_refused_in_the_same_and_in_another_round(round_: int):
    match = "replayed" if round_ == 4 else "another key"
    for kind in (*UP, *DOWN):
        run, other = Execution(), Execution(round_=round_)
        run.messages(kind)
        message = other.messages(kind)[1]
        with pytest.raises(MessageRefused, match=match):
            (run.server.receive if kind in UP else run.clients[1].answer)(message)


def test_messages_out_of_order_are_refused():
    runs = {kind: Execution() for kind in (*UP, *DOWN)}
    messages = {kind: run.messages(kind) for kind, run in runs.items()}
    for at, run in runs.items():
        for kind in DOWN if at in DOWN else UP:
            if kind != at:
                with pytest.raises(MessageRefused, match=r"out of order|left"):
                    (run.server.receive if at in UP else run.clients[0].answer)(messages[kind][0])


def test_a_message_for_one_client_is_refused_by_another():
    run = Execution()
    messages = run.messages(Kind.INBOX)
    with pytest.raises(MessageRefused, match="not from the server to client 1"):
        run.clients[1].answer(messages[0])
    readdressed = messages[0][: HEAD.size - 1] + b"\x02" + messages[0][HEAD.size :]
    with pytest.raises(MessageRefused, match="another key"):
        run.clients[2].answer(readdressed)


def test_a_client_with_a_wrong_server_key_is_refused():
    run, other = Execution(), Execution()
    stranger = Client(0, run.group, other.server.public_key, run.inputs[0], run.identities[0])
    with pytest.raises(MessageRefused, match="another key"):
        run.server.receive(stranger.advertise())


def test_a_public_key_without_a_secret_is_refused():
    run = Execution()
    message = run.clients[0].advertise()
    with pytest.raises(MessageRefused, match="unusable"):
        run.server.receive(message[: HEAD.size] + bytes(32) + message[HEAD.size + 32 :])


def test_a_client_with_another_identity_is_refused():
    run = Execution()
    run.identities[0] = Ed25519PrivateKey.generate()
    with pytest.raises(MessageRefused, match="signature"):
        run.server.receive(run.client(0).advertise())


class OtherKeys(Server):
    """Puts a mask key of its own in place of client 1's, for everybody else."""

    def _publish_keys(self) -> dict[int, bytes]:
        honest = super()._publish_keys()
        self._public[1] = (self._public[1][0], self._keys.public, *self._public[1][2:])
        return super()._publish_keys() | {1: honest[1]}


def test_a_server_that_exchanges_a_peers_key_is_refused():
    run = Execution(make_server=OtherKeys)
    messages = run.messages(Kind.KEYS)
    with pytest.raises(MessageRefused, match="signature"):
        run.clients[0].answer(messages[0])


def test_clients_that_were_told_different_keys_cannot_open_each_others_shares():
    run = Execution(signed=False, make_server=OtherKeys)
    messages = run.messages(Kind.KEYS)
    answers = run.turn(messages)
    assert set(answers) == set(messages)
    with pytest.raises(MessageRefused, match="another key"):
        run.server.receive(answers[1])


class KeysLeftOut(Server):
    def _publish_keys(self) -> dict[int, bytes]:
        everybody = sorted(self._alive)
        self._alive.remove(0)
        return dict.fromkeys(everybody, super()._publish_keys()[1])


class KeysTwice(Server):
    def _publish_keys(self) -> dict[int, bytes]:
        self._public[1] = self._public[2]
        return super()._publish_keys()


class KeysOfAStranger(Server):
    def _publish_keys(self) -> dict[int, bytes]:
        stranger = self.group.clients
        bodies = super()._publish_keys()
        return {c: b + self.group.keys_layout.pack(stranger, *self._public[c]) for c, b in bodies.items()}


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize(
    ("liar", "match"), [(KeysLeftOut, "left out"), (KeysTwice, "twice"), (KeysOfAStranger, "not in the group")]
)
def test_a_server_that_lists_wrong_keys_is_refused(signed: bool, liar: type[Server], match: str):
    run = Execution(signed=signed, make_server=liar)
    with pytest.raises(MessageRefused, match=match):
        run.clients[0].answer(run.messages(Kind.KEYS)[0])


class SwapsBoxes(Server):
    def _inbox(self, client: int) -> list[bytes]:
        (first, a), (second, b), *others = (next(records(box, BOX)) for box in super()._inbox(client))
        return [BOX.pack(first, b), BOX.pack(second, a), *(BOX.pack(*other) for other in others)]


class RepeatsBox(Server):
    def _inbox(self, client: int) -> list[bytes]:
        return super()._inbox(client)[:1] * 2


class KeepsBoxes(Server):
    def _inbox(self, client: int) -> list[bytes]:
        return super()._inbox(client)[:1]


@pytest.mark.parametrize(
    ("liar", "error"), [(SwapsBoxes, MessageRefused), (RepeatsBox, MessageRefused), (KeepsBoxes, TooFewClients)]
)
def test_a_server_that_tampers_with_shares_is_refused(liar: type[Server], error: type[Exception]):
    run = Execution(make_server=liar)
    with pytest.raises(error):
        run.turn(run.messages(Kind.INBOX))


class Liar(Server):
    """Tells some clients that others dropped out, and pretends that everybody confirmed what each was told."""

    lies: dict[int, set[int]] = {}  # noqa: RUF012

    def _announce_survivors(self) -> dict[int, bytes]:
        bodies = super()._announce_survivors()
        for client, dropped in self.lies.items():
            bodies[client] = pack_flags([m in self._survivors - dropped for m in self._graph.members])
        return bodies

    def _take_confirmation(self, sender: int, body: bytes) -> None:
        self._signatures[sender] = body


def liar(lies: dict[int, set[int]]) -> type[Server]:
    return type("Liar", (Liar,), {"lies": lies})


@pytest.mark.parametrize("sparse", [None, Sparse(0.05, 0.05)])
def test_a_server_that_tells_clients_different_survivors_gets_no_share(sparse: Sparse | None):
    run = Execution(20, 14, sparse=sparse, make_server=liar({client: {3} for client in range(10, 20)}))
    confirmations = run.messages(Kind.CONFIRMATIONS)
    assert len(confirmations) == 20
    for number, message in confirmations.items():
        with pytest.raises(MessageRefused, match="signature"):
            run.clients[number].answer(message)


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize(
    ("dropped", "error", "match"),
    [({0}, MessageRefused, "client 0 dropped out after it sent"), ({1, 2, 3}, TooFewClients, "2 clients are left")],
)
def test_a_server_that_lies_to_one_client_is_refused(signed: bool, dropped: set, error: type[Exception], match: str):
    run = Execution(signed=signed, make_server=liar({0: dropped}))
    with pytest.raises(error, match=match):
        run.clients[0].answer(run.messages(Kind.SURVIVORS)[0])


class InventsSurvivors(Server):
    def _announce_survivors(self) -> dict[int, bytes]:
        bodies = super()._announce_survivors()
        return dict.fromkeys(bodies, pack_flags([True] * len(self._graph.members)))


@pytest.mark.parametrize("signed", [True, False])
def test_a_survivor_that_shared_nothing_is_refused(signed: bool):
    run = Execution(signed=signed, make_server=InventsSurvivors)
    shares = run.messages(Kind.SHARES)
    del shares[4]
    survivors = run.turn(run.turn(run.turn(shares)))
    with pytest.raises(MessageRefused, match="client 4 survived, who shared no seeds"):
        run.clients[0].answer(survivors[0])


class TooFewConfirmations(Server):
    def _pass_confirmations(self) -> dict[int, bytes]:
        return {client: body[:-68] for client, body in super()._pass_confirmations().items()}


class RepeatsConfirmation(Server):
    def _pass_confirmations(self) -> dict[int, bytes]:
        return {client: body[:68] * 3 for client, body in super()._pass_confirmations().items()}


@pytest.mark.parametrize(
    ("cheat", "error"), [(TooFewConfirmations, TooFewClients), (RepeatsConfirmation, MessageRefused)]
)
def test_a_client_wants_confirmations_of_enough_different_clients(cheat: type[Server], error: type[Exception]):
    run = Execution(make_server=cheat)
    with pytest.raises(error):
        run.clients[0].answer(run.messages(Kind.CONFIRMATIONS)[0])


@pytest.mark.parametrize("signed", [True, False])
def test_a_client_reveals_one_of_each_peers_two_shares_and_never_the_other(signed: bool):
    run = Execution(signed=signed)
    shares = {}
    messages = run.messages(Kind.MASKED_INPUT)
    for number, client in enumerate(run.clients):
        shares[number] = dict(client._shares)
    del messages[4]
    kept = run.turn(messages)
    last = run.turn(run.turn(run.turn(kept))) if signed else run.turn(kept)
    for number, message in last.items():
        run.server.receive(message)
        for owner in range(5):
            assert run.server._revealed[owner][number] == shares[number][owner][0 if owner == 4 else 1]
        assert not run.clients[number]._shares
        with pytest.raises(MessageRefused, match="left the round"):
            run.clients[number].answer(kept[number])


class WrongShare(Client):
    """Client 1 changes the share of one owner."""

    owner = 0

    def _reveal(self) -> tuple[Kind, bytes]:
        kind, body = super()._reveal()
        parts = dict(records(body, SHARE))
        if self.number == 1:
            parts[self.owner] = flipped(parts[self.owner], 7)
        return kind, b"".join(SHARE.pack(*part) for part in parts.items())


@pytest.mark.parametrize(("owner", "match"), [(0, "client 0's self mask"), (4, "client 4's mask key")])
def test_a_wrong_share_is_noticed_and_its_owner_named(owner: int, match: str):
    run = Execution(make_client=type("Wrong", (WrongShare,), {"owner": owner}))
    with pytest.raises(MessageRefused, match=match):
        execute(run.server, run.clients, {4: Kind.MASKED_INPUT})


class Bad(Client):
    """Client 1 answers with something of its own."""

    kind = Kind.SHARES

    def _change(self, kind: Kind, body: bytes) -> tuple[Kind, bytes]:
        return (kind, bytes(body)[:-52]) if self.number == 1 and kind == self.kind else (kind, body)

    def _share_seeds(self, body: bytes) -> tuple[Kind, bytes]:
        return self._change(*super()._share_seeds(body))

    def _mask_input(self, body: bytes) -> tuple[Kind, bytes]:
        return self._change(*super()._mask_input(body))

    def _note_survivors(self, body: bytes) -> tuple[Kind, bytes]:
        return self._change(*super()._note_survivors(body))

    def _reveal(self) -> tuple[Kind, bytes]:
        kind, body = super()._reveal()
        return (kind, body[: 2 * SHARE.size]) if self.number == 1 and kind == self.kind else (kind, body)


@pytest.mark.parametrize("kind", UP[1:])
def test_an_answer_of_another_form_counts_as_none(kind: Kind):
    inputs = np.random.default_rng(0).integers(0, 2**32, (5, 40), np.uint32)
    run = Execution(inputs=inputs, make_client=type("Bad", (Bad,), {"kind": kind}))
    messages = run.messages(kind)
    with pytest.raises(MessageRefused):
        run.server.receive(messages.pop(1))
    members = {0, 2, 3, 4} if kind <= Kind.MASKED_INPUT else None
    np.testing.assert_array_equal(run.finish(messages), run.expected(members))


def test_a_client_that_signs_disagrees_with_a_group_without_signatures():
    run, signing = Execution(signed=False), Execution()
    run.clients[0].group = signing.group
    run.clients[0]._identity = signing.identities[0]
    with pytest.raises(MessageRefused, match="did not advertise exactly its public keys"):
        run.server.receive(run.clients[0].advertise())


def test_groups_that_differ_in_their_round_do_not_work_together():
    run = Execution()
    run.clients[0].group = replace(run.group, round=4)
    with pytest.raises(MessageRefused, match="round 4 was replayed in round 3"):
        run.server.receive(run.clients[0].advertise())
