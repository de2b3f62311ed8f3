"""Sessions of devices and their gateway, frame by frame, without sockets: who is let in, what is refused by name."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from fedzero_client import packing, signing
from fedzero_client.errors import Broken, ClientError
from fedzero_client.session import Session as Device
from fedzero_client.session import Ticket
from fedzero_client.store import Store
from fedzero_client.turn import Rows

from devices.fleet import data_of, made, recipe_of
from fedzero.engines.devices import hub as hubs
from fedzero.engines.devices import messages as m
from fedzero.engines.devices import plan as plans
from fedzero.engines.devices import session as sessions
from fedzero.engines.devices import statements
from fedzero.engines.devices.codes import Code
from fedzero.engines.devices.hub import Came, Caught, Declined, Hub, HubEvent, Said, Went
from fedzero.engines.devices.registry import Registry
from fedzero.engines.devices.session import Asked, Session, State
from fedzero.errors import FedzeroError
from fedzero.protocol.messages import decode_reply, encode_work
from fedzero.recipe.recipe import Recipe
from fuzz.mutating import mutated

PLACES = 3


class House:
    """A hub, and devices that speak to it. clock: seconds, for limits of frames. recipe: None for the usual one."""

    def __init__(self, folder: Path, recipe: Recipe | None = None):
        self.folder = folder
        setup = made(recipe or recipe_of(folder), folder)
        self.registry = Registry(folder)
        self.hub = Hub(self.registry, plans.encode(plans.plan_of(setup)), PLACES, 20, 100)
        self.ticket = self.registry.ticket(PLACES + 1)
        self.now = 0.0

    def session(self) -> Session:
        found = Session(self.hub, lambda: self.now)
        self.hub.waiting[found] = self.now, "here"
        self.hub._addresses["here"] += 1
        return found

    def device(self, name: str = "one", ticket: bytes | None = None, **given_by_owner: Any) -> Device:
        given = Ticket("http://here", self.hub.run, ticket or self.ticket, self.hub.signer.fingerprint)
        return Device(given, Store(self.folder / name), Rows(*data_of(0)), **given_by_owner)

    def joined(self, device: Device) -> Session:
        """A session of the device that goes on until nobody has anything to say."""
        session = self.session()
        for frame in device.begin():
            session.receive(frame)
        self.talk(session, device)
        return session

    def talk(self, session: Session, device: Device) -> list[bytes]:
        said = []
        while frames := session.take():
            said += frames
            for frame in frames:
                for answer in device.receive(frame):
                    session.receive(answer)
        return said

    def events(self) -> list[HubEvent]:
        found = []
        while not self.hub.events.empty():
            found.append(self.hub.events.get())
        return found

    def fresh(self, place: int) -> None:
        """The device of a place begins from the first model."""
        self.hub.update(place, [m.encode(m.UpdatesBody(True, (), b"", 0))])

    def ready(self, device: Device) -> Session:
        """A device that is ready for round 0."""
        session = self.joined(device)
        self.fresh(session.place)
        self.talk(session, device)
        self.events()
        return session


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    found = House(tmp_path)
    yield found
    found.registry.close()


def order(round: int = 0, limit: int = 4096) -> Asked:
    return Asked(round, 0, 0, m.encode(m.OrderBody(encode_work(round, 0, []), b"")), limit)


def refusals(session: Session) -> list[int]:
    frames = [m.decode_gateway(data) for data in session.take()]
    return [frame.code for frame in frames if isinstance(frame, m.Error)]


def test_a_device_enrols_proves_who_it_is_catches_up_and_answers(house: House) -> None:
    device = house.device()
    session = house.joined(device)
    assert session.state is State.OPEN and house.events() == [Came(0, None)]
    house.fresh(0)
    house.talk(session, device)
    (caught,) = house.events()
    assert isinstance(caught, Caught) and caught.round == 0
    house.hub.deliver({0: order()})
    house.talk(session, device)
    (said,) = house.events()
    assert isinstance(said, Said)
    assert decode_reply(said.body, 4096).digest == caught.digest


def test_places_are_given_once_and_the_same_key_comes_back_to_its_own(house: House) -> None:
    devices = [house.device(name) for name in ("a", "b", "c")]
    assert [house.joined(each).place for each in devices] == [0, 1, 2]
    with pytest.raises(ClientError, match="there is no place 4"):
        house.joined(house.device("d"))
    for each in devices:
        each.store.close()
    again = house.device("b", house.registry.ticket(1))
    assert house.joined(again).place == 1 and again.public == devices[1].public
    again.place = None  # it enrols again, with the key that it has
    assert house.joined(again).place == 1


def _expired(house: House) -> bytes:
    return house.registry.ticket(5, hours=-1)


def _used_up(house: House) -> bytes:
    ticket = house.registry.ticket(1)
    house.joined(house.device("first", ticket))
    return ticket


def _withdrawn(house: House) -> bytes:
    ticket = house.registry.ticket(5)
    house.registry.revoke_ticket(sha256(ticket).hexdigest()[:8])
    return ticket


@pytest.mark.parametrize(
    ("made_by", "why"),
    [
        (lambda house: os.urandom(16), "not one of this run"),
        (_expired, "expired"),
        (_used_up, "as many as it may"),
        (_withdrawn, "withdrawn"),
    ],
)
def test_tickets_that_admit_nobody(house: House, made_by: Callable[[House], bytes], why: str) -> None:
    with pytest.raises(ClientError, match=why):
        house.joined(house.device("other", made_by(house)))


def test_a_withdrawn_place_is_shut_out_at_once_and_for_good(house: House) -> None:
    device = house.device()
    session = house.joined(device)
    Registry(house.folder).revoke_place(0)  # as a command does, in another connection
    house.hub.sweep(house.now)
    assert refusals(session) == [Code.REVOKED] and session.state is State.OVER
    with pytest.raises(ClientError, match="withdrawn"):
        house.joined(device)


def test_a_gateway_that_is_not_the_tickets_is_refused_by_the_device(house: House, tmp_path: Path) -> None:
    device = house.device()
    other = Ticket("http://here", house.hub.run, house.ticket, bytes(16))
    device.ticket = other
    with pytest.raises(ClientError, match="the gateway says: the signature"):
        house.joined(device)  # the device's own statement names the other gateway


def test_wrong_keys_replayed_proofs_and_other_places(house: House) -> None:
    device, thief = house.device(), house.device("thief")
    house.joined(device)
    thief.place, thief.gateway = 0, device.gateway  # it says that it is the other one
    with pytest.raises(ClientError, match="not of the key of place 0"):
        house.joined(thief)
    hello = m.Hello(1, house.hub.run, 0, bytes(16), b"", None)
    session = house.session()
    session.receive(m.encode(hello))
    challenge = m.decode_gateway(session.take()[0])
    assert isinstance(challenge, m.Challenge)
    proof = signing.sign(device.seed, statements.proof(house.hub.run, 0, challenge.nonce, bytes(16), None))
    replayed = house.session()
    replayed.receive(m.encode(hello))
    replayed.take()
    replayed.receive(m.encode(m.Proof(proof)))
    assert refusals(replayed) == [Code.SIGNATURE]
    session.receive(m.encode(m.Proof(proof)))
    assert session.state is State.OPEN


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"\xc1", Code.MALFORMED),
        (b"", Code.MALFORMED),
        (b"\x91\x63", Code.MALFORMED),
        (m.encode(m.Beat()) + b"\0", Code.MALFORMED),
        (m.encode(m.Beat()), Code.UNEXPECTED),
        (m.encode(m.Proof(bytes(64))), Code.UNEXPECTED),
        (m.encode(m.Answer(0, 0, 0, b"", bytes(64))), Code.UNEXPECTED),
        (m.encode(m.Hello(2, bytes(16), 0, bytes(16), b"", None)), Code.VERSION),
        (m.encode(m.Hello(1, bytes(16), 0, bytes(16), b"", None)), Code.RUN),
        (m.encode(m.Enrol(0, bytes(16), 1, bytes(32), bytes(64))), Code.VERSION),
        (m.encode(m.Enrol(1, bytes(16), 1, bytes(32), bytes(64))), Code.SIGNATURE),
        (m.encode(m.Enrol(1, bytes(16), 9, bytes(32), bytes(64))), Code.SIGNATURE),
        (bytes(m.SMALL + 1), Code.LARGE),
    ],
)
def test_what_a_new_session_refuses_by_name(house: House, frame: bytes, code: Code) -> None:
    session = house.session()
    session.receive(frame)
    assert refusals(session) == [code] and session.state is State.OVER
    assert house.hub.events.empty()


def test_a_place_that_nobody_has(house: House) -> None:
    session = house.session()
    session.receive(m.encode(m.Hello(1, house.hub.run, 2, bytes(16), b"", None)))
    assert refusals(session) == [Code.PLACE]


def test_answers_of_others_replayed_answers_and_second_answers(house: House) -> None:
    one, two = house.device("one"), house.device("two")
    first, second = house.ready(one), house.ready(two)
    house.hub.deliver({0: order(), 1: order()})
    house.talk(first, one)
    (said,) = house.events()
    answer = house.hub.before(0)
    assert answer is not None and said == Said(0, 0, 0, answer.body)
    first.receive(m.encode(answer))  # the same bytes again do no harm
    assert refusals(first) == [] and house.events() == []
    first.receive(m.encode(m.Answer(0, 0, 0, b"other", answer.signature)))
    assert refusals(first) == [Code.CONFLICT] and first.state is State.OPEN
    first.receive(m.encode(m.Answer(5, 0, 0, answer.body, answer.signature)))
    assert refusals(first) == [Code.STALE]
    second.take()
    second.receive(m.encode(answer))  # of place 0, in the session of place 1
    assert refusals(second) == [Code.SIGNATURE] and second.state is State.OVER
    assert house.events() == [Went(1, False)]
    assert house.hub.asked(1) is not None  # the order stays open for whoever has the place


def test_an_answer_of_an_earlier_order_does_not_count_for_the_next(house: House) -> None:
    device = house.device()
    session = house.ready(device)
    house.hub.deliver({0: order()})
    house.talk(session, device)
    before = house.hub.before(0)
    assert before is not None
    house.hub.deliver({0: order(1)})
    session.take()
    session.receive(m.encode(m.Answer(1, 0, 0, before.body, before.signature)))
    assert refusals(session) == [Code.SIGNATURE]


def test_the_same_order_gets_the_same_bytes_after_a_crash_of_either_side(house: House) -> None:
    device = house.device()
    session = house.ready(device)
    house.hub.deliver({0: order()})
    house.talk(session, device)
    before = house.hub.before(0)
    house.events()
    device.store.close()  # killed, and begun again: all that is left is on disk
    again = house.device()
    house.hub._before.clear()  # the server was killed as well
    session = house.joined(again)
    house.hub.deliver({0: order()})
    house.talk(session, again)
    assert house.hub.before(0) == before and again.answered == 0


def test_another_order_under_the_same_number_is_refused_by_the_device(house: House) -> None:
    device = house.device()
    session = house.ready(device)
    house.hub.deliver({0: order()})
    house.talk(session, device)
    house.events()
    other = Asked(0, 0, 0, m.encode(m.OrderBody(encode_work(0, 0, []), bytes(16))), 4096)
    house.hub.deliver({0: other})
    house.talk(session, device)
    (declined,) = house.events()
    assert declined == Declined(0, 0, 1, "another order under the same number")


def test_an_order_that_the_gateway_has_not_signed_is_refused(house: House) -> None:
    device = house.device()
    house.ready(device)
    asked = order()
    for statement_of in (bytes(64), house.hub.signer.sign(1, b"something else")):
        (answer,) = device.receive(m.encode(m.Order(0, 0, 0, asked.body, statement_of)))
        assert packing.unpack(answer)[4] == 2
    for frame in (m.Updates(m.encode(m.UpdatesBody(True, (), b"", 0)), bytes(64)), m.Finish(3, "", bytes(64))):
        with pytest.raises(Broken, match="not of the gateway"):
            device.receive(m.encode(frame))


def test_an_order_for_another_place_is_refused(house: House) -> None:
    one, two = house.device("one"), house.device("two")
    house.ready(one)
    second = house.ready(two)
    second.order(order())
    (data,) = second.take()
    (answer,) = one.receive(data)
    assert packing.unpack(answer)[4] == 2


def test_a_checkpoint_goes_on_where_it_broke_off(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    device = house.device()
    session = house.ready(device)
    assert device.model is not None
    content = np.arange(device.model.length // 4, dtype="<f4").tobytes()
    device.model.load(content, 7)
    digest = device.model.digest()
    device.model.begin()
    hashed = sha256(content).digest()
    body = m.encode(m.CheckpointBody(7, hashed, len(content), digest))
    monkeypatch.setattr(hubs, "PIECE", 100)
    house.hub.offer(0, body, hashed, content)
    (offer,) = session.take()
    (fetch,) = device.receive(offer)
    session.receive(fetch)
    (piece,) = session.take()
    (fetch,) = device.receive(piece)
    assert packing.unpack(fetch) == [7, hashed, 100]
    (fetch,) = device.receive(offer)  # offered again
    assert packing.unpack(fetch) == [7, hashed, 100]
    session.receive(fetch)
    house.talk(session, device)
    assert house.events() == [Caught(0, 7, digest)]
    session.receive(m.encode(m.Fetch(bytes(32), 0)))
    assert refusals(session) == [Code.STALE] and session.state is State.OPEN


def test_too_many_frames_too_large_frames_and_a_reader_that_does_not_read(house: House) -> None:
    device = house.device()
    session = house.ready(device)
    for _ in range(sessions.BURST + 1):
        session.receive(m.encode(m.Beat()))
    assert Code.RATE in refusals(session) and session.state is State.OPEN
    house.now += 10
    house.hub.deliver({0: order(limit=100)})
    session.take()
    session.receive(bytes(m.SMALL + 101))
    assert refusals(session) == [Code.LARGE] and session.state is State.OVER
    session = house.joined(device)
    for _ in range(sessions.MOST_FRAMES + 1):
        session.order(order())
    assert session.state is State.OVER


def test_the_newer_session_of_a_device_counts(house: House) -> None:
    device = house.device()
    old = house.ready(device)
    new = house.joined(device)
    assert refusals(old) == [Code.REPLACED] and new.state is State.OPEN
    assert house.hub.here == {0: new} and house.events() == [Came(0, 0)]


def test_sessions_that_do_not_begin_are_ended_and_a_class_behind_one_address_is_let_in(house: House) -> None:
    many = [house.hub.session("10.0.0.1") for _ in range(600)]
    house.hub.sweep(time.monotonic() + 60)
    assert all(each.state is State.OVER for each in many) and not house.hub.waiting and not house.hub._addresses
    first, other = house.hub.session("10.0.0.1"), house.hub.session("10.0.0.2")
    for _ in range(hubs.MOST_OF_ADDRESS):
        house.hub.session("10.0.0.1")
    assert first.state is State.OVER and other.state is State.NEW  # whoever waits for the longest time makes way
    for number in range(hubs.MOST_WAITING):
        house.hub.session(f"10.0.{number % 8}.3")
    assert other.state is State.NEW and len(house.hub.waiting) == hubs.MOST_WAITING


def test_a_device_with_a_key_on_p256(house: House) -> None:
    secret, run = ec.generate_private_key(ec.SECP256R1()), house.hub.run
    key = secret.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)

    def sign(message: bytes) -> bytes:
        r, s = utils.decode_dss_signature(secret.sign(message, ec.ECDSA(hashes.SHA256())))
        return r.to_bytes(32, "big") + s.to_bytes(32, "big")

    session, print_ = house.session(), house.hub.signer.fingerprint
    statement = statements.enrol(run, house.ticket, print_, 2, key)
    session.receive(m.encode(m.Enrol(1, house.ticket, 2, key, sign(statement))))
    (enrolled,) = map(m.decode_gateway, session.take())
    assert isinstance(enrolled, m.Enrolled)
    r, s = (int.from_bytes(half, "big") for half in (enrolled.signature[:32], enrolled.signature[32:]))
    gateway = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), enrolled.p256)
    statement = statements.enrolled(run, enrolled.place, house.ticket, key)
    gateway.verify(utils.encode_dss_signature(r, s), statement, ec.ECDSA(hashes.SHA256()))
    session.receive(m.encode(m.Hello(1, run, enrolled.place, bytes(16), b"", None)))
    (challenge,) = map(m.decode_gateway, session.take())
    assert isinstance(challenge, m.Challenge)
    session.receive(m.encode(m.Proof(sign(statements.proof(run, 0, challenge.nonce, bytes(16), None)))))
    assert session.state is State.OPEN


def test_whatever_bytes_come_a_session_ends_in_words(house: House) -> None:
    """Frames of a whole session, changed at random: neither side raises anything but what it declares."""
    device = house.device()
    session = house.ready(device)
    house.hub.deliver({0: order()})
    (sent,) = session.take()
    (answer,) = device.receive(sent)
    frames = [*device.begin(), answer, m.encode(m.Ready(1, bytes(8))), m.encode(m.Fetch(bytes(32), 0))]
    for case in mutated(frames, 1500, seed=3):
        if session.state is State.OVER:
            session = house.session()
        house.now += 1
        session.receive(case)
        session.take()
    missed = m.encode(m.UpdatesBody(True, (), b"", 0))
    others = [sent, m.encode(m.Updates(missed, bytes(64))), m.encode(m.Wait(1, "")), m.encode(m.Piece(0, b"x"))]
    for case in mutated([*others, m.encode(m.Error(9, "stale"))], 300, seed=4):
        with suppress(Broken, ClientError):
            device.receive(case)


def test_places_in_a_file_that_somebody_prepared_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "devices.db").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FedzeroError):
        Registry(tmp_path / "link")
    assert not (tmp_path / "elsewhere").exists()
    with closing(Registry(tmp_path / "own")) as registry:
        registry._db.execute("CREATE TRIGGER t AFTER INSERT ON places BEGIN DELETE FROM tickets; END")
    with pytest.raises(FedzeroError, match="views or triggers"):
        Registry(tmp_path / "own")
