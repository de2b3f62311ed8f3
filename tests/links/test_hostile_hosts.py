"""Hosts of a gathering that answer whatever they like, and servers that ask whatever they like: the round is lost at
most, never the run; and a host gives one answer to one question."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from harness import recipe_of
from masks import Masks

from fedzero import plugins
from fedzero.engines.gathering import Hosting
from fedzero.errors import FedzeroError, Refused
from fedzero.ledger.answers import Answers
from fedzero.links import Chain, Gathering, Total
from fedzero.links.contract import Contribution, Replies
from fedzero.links.gathering import AtHost, AtServer, HostContext, ServerContext
from fedzero.methods import DeComFL
from fedzero.model.updates import pack
from fedzero.protocol.messages import Phase, Reply, encode_reply
from fedzero.recipe import recipe as recipes
from fedzero.testing.trial import Trial, trial

encode = msgspec.msgpack.encode
ROW = pack(np.ones(4, np.float32))
Answered = Mapping[str, bytes | Exception]


class Trusting(Gathering, tag="test-trusting"):
    """Believes what hosts say."""

    hides_replies = False

    def at_host(self, mine: Mapping[int, Contribution], host: HostContext) -> AtHost:
        yield encode({client: pack(each.values) for client, each in mine.items()})

    def at_server(self, hosts: Mapping[str, tuple[int, ...]], server: ServerContext) -> AtServer:
        answers = yield dict.fromkeys(hosts, b"")
        found = [msgspec.msgpack.decode(a, type=dict[int, bytes]) for a in answers.values() if isinstance(a, bytes)]
        return Replies({client: np.frombuffer(data, "<f4") for of in found for client, data in of.items()}, {})


class MadeUp(Gathering, tag="test-made-up"):
    """Leaves a sum that follows from no answer."""

    value: float
    weight: float = 4.0

    def at_host(self, mine: Mapping[int, Contribution], host: HostContext) -> AtHost:
        yield b""

    def at_server(self, hosts: Mapping[str, tuple[int, ...]], server: ServerContext) -> AtServer:
        yield dict.fromkeys(hosts, b"")
        return Total(np.full(server.numbers, self.value), self.weight, (0, 1, 2, 3), 0.5)


@pytest.fixture(autouse=True)
def known() -> None:
    for kind in (Masks, Trusting, MadeUp, Failing):
        plugins.register(kind)


class Spoiled:
    """Clients of which host 1 answers a phase with other bytes."""

    def __init__(self, inner: Any, phase: int, data: bytes):
        self.inner, self._phase, self._data = inner, phase, data

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def phase(self, asked: int, exchange: int, phase: int, bodies: Mapping[str, bytes]) -> Answered:
        found = self.inner.phase(asked, exchange, phase, bodies)
        return {**found, "client 1": self._data} if phase == self._phase else found


def run_of(folder: Path, gathering: Gathering) -> Trial:
    table = msgspec.to_builtins(recipe_of(DeComFL(rate=2e-3, directions=4), clients=4, cohort=4))
    return trial(folder, recipes.decode(table | {"gathering": msgspec.to_builtins(gathering)}))


NOT_READ = "the gathering could not read what hosts answered"
ANSWERS: dict[str, tuple[Gathering, int, bytes, str]] = {
    "no sum": (Masks(), 1, b"", NOT_READ),
    "a part of a number": (Masks(), 1, b"abc", NOT_READ),
    "fewer numbers": (Masks(), 1, bytes(16), NOT_READ),
    "no msgpack": (Trusting(), 0, b"\xc1", NOT_READ),
    "nested": (Trusting(), 0, b"\x91" * 4000, NOT_READ),
    "a client that there is not": (Trusting(), 0, encode({99: ROW}), "a reply of client 99, which was not asked"),
    "a negative client": (Trusting(), 0, encode({-1: ROW}), "a reply of client -1, which was not asked"),
    "one number for all": (Trusting(), 0, encode({1: ROW[:4]}), "of client 1 of shape (1,), where 4 were expected"),
    "twice as many": (Trusting(), 0, encode({1: 2 * ROW}), "of client 1 of shape (8,), where 4 were expected"),
    "NaN": (Trusting(), 0, encode({1: pack(np.full(4, np.nan, np.float32))}), "of client 1 that the gathering left"),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_what_a_host_answers_costs_a_round_and_not_the_run(tmp_path: Path, case: str) -> None:
    gathering, phase, data, why = ANSWERS[case]
    run = run_of(tmp_path, gathering)
    honest, run.engine = run.engine, Spoiled(run.engine, phase, data)
    run.play(1)
    run.engine = honest
    run.play(1)
    first, second = run.records
    assert first.update is None and len(first.refused) == 4
    assert all(why in said for _, said in first.refused), first.refused
    assert second.update is not None and not second.refused
    assert run.replayed().digest() == run.replica.digest()


@pytest.mark.parametrize(("value", "weight"), [(1e308, 4.0), (1.0, 1e-300), (1.0, float("inf")), (1.0, -1.0)])
def test_a_sum_whose_mean_is_no_number(tmp_path: Path, value: float, weight: float) -> None:
    """Finite in float64, and not in float32."""
    run, made_up = run_of(tmp_path, MadeUp(value=1.0)), MadeUp(value=1.0)
    msgspec.structs.force_setattr(made_up, "value", value)
    msgspec.structs.force_setattr(made_up, "weight", weight)
    object.__setattr__(run.server.plan, "chain", replace(run.setup.chain, gathering=made_up))
    run.play(1)
    assert run.records[0].update is None and len(run.records[0].refused) == 4


# ---- a host


class Failing(Gathering, tag="test-failing"):
    """Fails at a body that it does not like."""

    def at_host(self, mine: Mapping[int, Contribution], host: HostContext) -> AtHost:
        drawn = host.entropy(8)
        body = yield host.opening + drawn
        if body == b"bad":
            raise ValueError(body)
        yield body + drawn


class Host:
    """A host's process over a folder that it may share with another one."""

    def __init__(self, folder: Path, entropy: Callable[[int], bytes]):
        gathering = Failing()
        self.hosting = Hosting(Chain(gathering=gathering), gathering, Answers(folder), entropy)
        self.reply = encode_reply(Reply(0, 0, b"8" * 8, ROW, ROW[:4], 1))

    def ask(self, phase: int, body: bytes) -> bytes | Exception:
        return self.hosting.answers({0: Phase(0, 0, phase, body)}, lambda host: {0: self.reply}, 4)[0]


def test_two_processes_of_a_host_give_one_answer_to_one_question(tmp_path: Path) -> None:
    """Both look before either has written. What the slower one played with its own randomness leaves in no phase."""
    one, two = Host(tmp_path, lambda n: b"1" * n), Host(tmp_path, lambda n: b"2" * n)
    before = two.hosting._before

    def late(host: int, order: Phase) -> bytes | None:
        found = before(host, order)
        two.hosting._before = before
        assert isinstance(one.ask(0, b"opening"), bytes)
        return found

    two.hosting._before = late
    with pytest.raises(FedzeroError, match="by another question"):
        two.ask(0, b"another opening")
    again = two.ask(1, b"next")
    assert again == one.ask(1, b"next")
    drawn = one.ask(0, b"opening")
    assert isinstance(again, bytes) and isinstance(drawn, bytes)
    assert again == b"next" + drawn.removeprefix(b"opening"), "of the randomness of the answer that left"


def test_a_phase_that_failed_is_played_again_from_those_before_it(tmp_path: Path) -> None:
    host = Host(tmp_path, lambda n: b"1" * n)
    first = host.ask(0, b"opening")
    assert isinstance(first, bytes)
    with pytest.raises(ValueError, match="bad"):
        host.ask(1, b"bad")
    second = host.ask(1, b"good")
    assert isinstance(second, bytes) and second.startswith(b"good")
    refused = host.ask(1, b"other")
    assert isinstance(refused, Refused)
