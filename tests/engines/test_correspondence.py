"""Orders and answers over a connection that loses, doubles, delays and reorders; hosts over pipes that are killed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from fedzero import plugins
from fedzero.engines.local import Local
from fedzero.engines.remote import Remote
from fedzero.engines.remote import pipe as pipes
from fedzero.engines.remote.correspondence import RELIABLE, Correspondence, Heard, Obedient
from fedzero.engines.remote.engine import RemoteClients
from fedzero.engines.remote.pipe import Pipe
from fedzero.engines.remote.transport import Gone, Link, News, NoAnswer, Pending, Program, Report, Transport, Waiting
from fedzero.errors import Invalid, Refused
from fedzero.ledger.store import Ledger
from fedzero.methods.decomfl import DeComFL
from fedzero.protocol.engine import Interrupted, Joined, Left, Undelivered
from fedzero.recipe.environment import Environment
from fedzero.runs import recorded, session
from fedzero.runs.progress import Silent
from fedzero.testing.trial import recipe_of

METHOD = DeComFL(rate=2e-3, directions=4)


class Scripted:
    """What was sent, and what is heard next."""

    resend = 0.01

    def __init__(self, hosts: Collection[str] = ("a", "b")):
        self.hosts, self.sent, self.heard = hosts, list[tuple[str, bytes]](), list[Heard]()

    def begin(self) -> Collection[str]:
        return self.hosts

    def send(self, host: str, message: bytes) -> None:
        self.sent.append((host, message))

    def receive(self, seconds: float) -> Sequence[Heard]:
        heard, self.heard = self.heard, []
        return heard

    def answers(self, body: bytes, host: str = "a", order: int = -1) -> None:
        """To an order that was sent to a host, by its place."""
        number = [message[:8] for to, message in self.sent if to == host][order]
        self.heard.append((host, number + body))


@pytest.fixture
def asking() -> tuple[Scripted, Correspondence]:
    connection = Scripted()
    link = Correspondence(connection)
    assert link.begin() == ["a", "b"]
    return connection, link


def test_what_comes_twice_too_late_or_out_of_order_counts_once(asking) -> None:
    connection, link = asking
    first = link.ask({"a": b"1"}, 60.0, 10, lambda: True)
    assert [(host, type(answer)) for host, answer in first] == [("a", Pending)]
    connection.answers(b"late")
    connection.answers(b"late")
    found = list(link.late())
    assert found == [("a", b"late")], "once"
    asked = link.ask({"a": b"2", "b": b"3"}, 60.0, 10, lambda: connection.answers(b"B") or connection.answers(b"B"))
    assert next(asked) == ("a", b"B")
    connection.answers(b"C", "b")
    connection.answers(b"D", "b")
    assert list(asked) == [("b", b"C")]
    assert list(link.late()) == []


def test_an_answer_too_long_and_a_host_that_is_gone(asking) -> None:
    connection, link = asking

    def scripted() -> bool:
        if len(connection.sent) == 2:
            connection.answers(bytes(11))
            connection.heard.append(("b", Gone("left")))
            connection.sent.append(("", b""))
        return False

    found = dict(link.ask({"a": b"1", "b": b"2"}, 60.0, 10, scripted))
    assert isinstance(found["a"], Refused) and "sent 11 bytes" in str(found["a"])
    assert isinstance(found["b"], Gone)
    connection.heard.append(("a", Gone("left")))
    found = dict(link.ask({"a": b"1", "b": b"2"}, 60.0, 10))
    assert isinstance(found["b"], Undelivered) and isinstance(found["a"], Gone)
    with pytest.raises(Interrupted, match="no host is left"):
        list(link.ask({"a": b"1"}, 60.0, 10))


def test_silence_ends_and_what_may_be_lost_is_sent_again(asking) -> None:
    connection, link = asking
    *waiting, (host, silence) = link.ask({"a": b"1"}, 0.35, 10)
    assert {type(each) for _, each in waiting} == {Waiting}
    assert (host, type(silence)) == ("a", NoAnswer)
    assert len(connection.sent) > 2
    assert len(set(connection.sent)) == 1


def test_a_host_that_comes_back_is_news_and_its_old_order_is_not_answered(asking) -> None:
    connection, link = asking
    connection.heard.append(("a", News()))
    found = list(link.ask({"a": b"1"}, 60.0, 10))
    assert [type(answer) for _, answer in found] == [Gone, News]
    assert link.admit() == ["a"]
    assert link.admit() == []


def test_two_orders_to_one_host_are_open_at_the_same_time_and_each_has_its_own_answer(asking) -> None:
    connection, link = asking
    connection.resend = RELIABLE
    first, second = (link.ask({"a": order}, 60.0, 10) for order in (b"1", b"2"))
    assert [type(next(asked)[1]) for asked in (first, second)] == [Waiting, Waiting]
    connection.answers(b"second", order=1)
    connection.answers(b"first", order=0)
    assert list(second) == [("a", b"second")]
    assert list(first) == [("a", b"first")]


def test_an_order_is_answered_with_the_same_bytes_and_an_older_one_not_at_all() -> None:
    count = Counter[bytes]()

    def answer(order: bytes) -> bytes:
        count[order] += 1
        return order * 2

    obey, one, two = Obedient(answer), (1).to_bytes(8, "big"), (2).to_bytes(8, "big")
    assert obey(one + b"x") == obey(one + b"x") == one + b"xx"
    three = (3).to_bytes(8, "big")
    assert obey(three + b"y") == three + b"yy"
    assert obey(one + b"x") == one + b"xx", "its answer may have been lost while the next was worked on"
    assert obey(two + b"z") is None
    assert set(count.values()) == {1}
    for number in (4, 5):
        assert obey(number.to_bytes(8, "big") + bytes(1 << 20)) is not None
    assert obey(one + b"x") is None, "what is kept is limited"


# ---- runs


class Bad:
    """Hosts in this process, behind a network that loses, doubles, delays and reorders messages, both ways."""

    resend = 0.0

    def __init__(self, program: Program):
        self.random, self.program = random.Random(7), program
        self.waiting: list[Heard] = []

    def begin(self) -> Collection[str]:
        names = ("a", "b", "c")
        self.made = {name: self.program(name) for name in names}
        self.hosts = {name: Obedient(made.answer) for name, made in self.made.items()}
        return names

    def send(self, host: str, message: bytes) -> None:
        for _ in range(self.random.choice((0, 1, 1, 2))):
            if (answer := self.hosts[host](message)) is not None:
                self.waiting += [(host, answer)] * self.random.choice((0, 1, 1, 2))

    def receive(self, seconds: float) -> Sequence[Heard]:
        self.random.shuffle(self.waiting)
        cut = self.random.randrange(len(self.waiting) + 1)
        found, self.waiting = self.waiting[:cut], self.waiting[cut:]
        return found


class BadNetwork(Transport, tag="bad-network"):
    @contextmanager
    def open(self, program: Program, report: Report) -> Iterator[Link]:
        yield Correspondence(Bad(program))


def test_a_bad_network_gives_the_ledger_of_one_process(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(plugins._registered["transports"], "bad-network", plugins.Plugin(BadNetwork, "", ""))
    recipe = msgspec.structs.replace(recipe_of(METHOD), rounds=8, engine=Local(merge=False, device="cpu"))
    here = session.start(recipe, tmp_path / "here", Environment(), Silent())
    engine = Remote(transport="bad-network", merge=False, device="cpu")
    recipe = msgspec.structs.replace(recipe, engine=engine)
    there = session.start(recipe, tmp_path / "there", Environment(), Silent())
    assert (there.ledger_head, there.model_digest) == (here.ledger_head, here.model_digest)


def test_a_host_that_is_killed_has_left_and_is_brought_back(tmp_path: Path, monkeypatch) -> None:
    events, made, honest = [], [], RemoteClients.receive
    monkeypatch.setattr(pipes.Pipes, "__init__", _noting(pipes.Pipes.__init__, made))

    def receive(self, seconds):
        found = honest(self, seconds)
        events.extend(event for event in found if isinstance(event, Joined | Left))
        return found

    monkeypatch.setattr(RemoteClients, "receive", receive)

    class Killing(Silent):
        def round(self, record) -> None:
            if record.round == 2:
                process = made[0].processes["host-1"]
                os.kill(process.pid, signal.SIGKILL)
                process.join()
            if events and isinstance(events[-1], Left):  # a busy machine takes its time to start a process
                time.sleep(0.3)

    recipe = recipe_of(METHOD, rounds=200)
    engine = Remote.over(Pipe(), merge=False, device="cpu")
    recipe = msgspec.structs.replace(recipe, engine=engine, evaluate_every=100)
    found = session.start(recipe, tmp_path / "run", Environment(), Killing())
    ledger = Ledger.open(tmp_path / "run" / "ledger.db")
    refused = [dict(record.refused) for record in ledger.rounds(0, 200)]
    ledger.close()
    assert any(refused), "its clients are left out meanwhile"
    assert all("host-1" in why for each in refused for why in each.values())
    assert not refused[-1], "and take part again"
    assert [(type(event), event.host) for event in events][2:] == [(Left, "host-1"), (Joined, "host-1")]
    assert recorded.replayed(tmp_path / "run", Environment(), None).digest().hex() == found.model_digest


def _noting(honest, made):
    def init(self, *arguments) -> None:
        honest(self, *arguments)
        made.append(self)

    return init


def test_a_transport_that_there_is_not() -> None:
    with pytest.raises(Invalid, match="there is no transport 'pip'; did you mean pipe"):
        Remote(transport="pip")
    with pytest.raises(Invalid, match="hosts"):
        Remote(transport={"kind": "pipe", "hosts": 0})
