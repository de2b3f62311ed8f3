"""Questions of several rounds that are open at the same time, in every engine of this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedzero.engines import local
from fedzero.engines.local import Local
from fedzero.engines.remote import Remote
from fedzero.engines.remote.pipe import Pipe
from fedzero.errors import FedzeroError
from fedzero.model.updates import Stepped, decode_update
from fedzero.protocol.altered import Altered
from fedzero.protocol.engine import FOREVER, Arrival, Joined
from fedzero.protocol.outstanding import Outstanding, may_count
from fedzero.recipe import recipe as recipes
from fedzero.recipe.engines import Engine
from fedzero.recipe.environment import Environment
from fedzero.recipe.setup import prepare
from fedzero.rounds.schedule import StepSoFar
from fedzero.runs import session
from fedzero.runs.progress import Silent
from fedzero.runs.recorded import verified
from fedzero.runs.summary import Summary
from late import OLDEST, TakesWhatArrived, recipe_of
from ledgers import rounds_of


@pytest.mark.parametrize(
    ("place", "now", "oldest", "counts"),
    [
        ((3, 0), (3, 0), 0, True),
        ((3, 0), (3, 1), 0, False),
        ((3, 1), (3, 0), 2, False),
        ((3, 0), (4, 0), 0, False),
        ((3, 0), (5, 0), 2, True),
        ((3, 0), (6, 0), 2, False),
        ((6, 0), (5, 0), 2, False),
    ],
)
def test_which_questions_stay_open(place: Any, now: Any, oldest: int, counts: bool) -> None:
    assert may_count(*place, *now, oldest) == counts


def test_a_client_that_is_asked_again_is_awaited_once() -> None:
    found = Outstanding[None](oldest=2)
    first = found.add(0, 0, {1: b"", 2: b""}, None)
    second = found.add(1, 0, {2: b"", 3: b""}, None)
    assert (set(first.awaited), set(second.awaited)) == ({1}, {2, 3})
    assert first.arrived(Arrival(2, b"")) is None
    assert second.arrived(Arrival(2, b"")) == Arrival(2, b"", asked=1)
    assert second.arrived(Arrival(2, b"")) is None
    found.expire(3)
    assert found.batches == [second]


class AtWork(TakesWhatArrived):
    """Four clients are at work at any time; a step is made of the first two replies."""

    def ask(self, now: StepSoFar) -> tuple[int, ...]:
        return self.free(now)[: 4 - len(now.awaited)]

    def made(self, now: StepSoFar) -> bool:
        return len(now.replies) >= 2


def play(recipe: recipes.Recipe, folder: Path) -> Summary:
    setup, environment = prepare(recipe, Environment()), Environment(folder=folder)
    with session.opened(setup, environment, Silent(), oldest=OLDEST) as found:
        ledger = session.create(folder, setup.start)
        return session.run_to_end(found, ledger, folder, Silent(), AtWork(setup.plan))


def with_engine(engine: Engine) -> recipes.Recipe:
    return recipes.with_engine(recipe_of({"kind": "decomfl", "rate": 1e-2, "directions": 4}), engine)


ENGINES: Mapping[str, Engine] = {
    "local": Local(merge=False, device="cpu"),
    "replicas": Local(merge=False, device="cpu", replicas=True),
    "hosts": Remote.over(Pipe(hosts=3), merge=False, device="cpu"),
}


@pytest.mark.parametrize("name", ENGINES)
def test_clients_that_are_at_work_when_a_step_is_made_answer_the_question_they_were_asked(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model moves on meanwhile; nobody is refused, and replay gives the same bits."""
    monkeypatch.setattr(local, "PIECE", 0)  # one reply at a time
    run = play(with_engine(ENGINES[name]), tmp_path / "run")
    records = rounds_of(tmp_path / "run")
    assert not any(record.refused for record in records)
    updates = [decode_update(record.update) for record in records if record.update is not None]
    ages = {u.round - group.asked for u in updates if isinstance(u, Stepped) for group in u.groups}
    assert len(updates) == 12 and max(ages) >= 1
    assert verified(tmp_path / "run", Environment()).end is not None
    if name == "replicas":
        assert play(with_engine(ENGINES["local"]), tmp_path / "shared").model_sha256 == run.model_sha256


class LateByFour(AtWork):
    """Of an engine that hands in everything, however old."""


@contextmanager
def serving(oldest: int, engine: Engine = ENGINES["local"], folder: Path = Path()) -> Iterator[Any]:
    setup = prepare(with_engine(engine), Environment())
    with session.opened(setup, Environment(), Silent(), oldest=oldest) as found:
        server = session.Server(setup.plan, found.run.replica, session.create(folder, setup.start))
        found.past.attach(server)
        yield found.clients, server
        server.ledger.close()


def test_attackers_see_the_replies_of_an_exchange_apart_from_those_of_others(tmp_path: Path) -> None:
    seen = []

    def alter(round: int, exchange: int, arrivals: Any) -> Any:
        seen.append((round, sorted(each.client for each in arrivals)))
        return arrivals

    with serving(1, folder=tmp_path) as (clients, server):
        altered = Altered(clients, alter, oldest=1)
        for round, who in ((0, (0, 1)), (1, (2, 3))):
            sending = server.delivery.instructions(round, who)
            altered.send(round, 0, sending.messages, sending.which)
        events = []
        while found := altered.receive(FOREVER):
            events += found
    assert seen == [(0, [0, 1]), (1, [2, 3])]
    assert {event.client: event.asked for event in events} == {0: 0, 1: 0, 2: 1, 3: 1}


class OneAtATime(Pipe, tag="one-at-a-time"):
    """A link that carries one question at a time, as FLARE's does."""

    @contextmanager
    def open(self, program: Any, report: Any) -> Iterator[Any]:
        with Pipe.open(self, program, report) as link:
            link.several = False
            yield link


def test_a_link_for_one_question_refuses_the_second_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedzero import plugins

    monkeypatch.setitem(plugins._registered["transports"], "one-at-a-time", plugins.Plugin(OneAtATime, "", ""))
    engine = Remote(transport="one-at-a-time", merge=False, device="cpu")
    with serving(1, engine, tmp_path) as (clients, server):
        first, second = server.delivery.instructions(0, (0, 1)), server.delivery.instructions(1, (2, 3))
        clients.send(0, 0, first.messages, first.which)
        with pytest.raises(FedzeroError, match="clients 0, 1 still work on round 0, and this transport carries one"):
            clients.send(1, 0, second.messages, second.which)
        found = []
        while events := clients.receive(FOREVER):
            found += events
        assert sorted(e.client for e in found if not isinstance(e, Joined)) == [0, 1]


class HandsInLate:
    """The inner clients' replies, and one that is sent again three rounds later."""

    def __init__(self, inner: Any):
        self.inner, self.old, self.round = inner, [], 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def send(self, asked: int, *rest: Any) -> None:
        self.round = asked
        self.inner.send(asked, *rest)

    def receive(self, seconds: float) -> Any:
        found = self.inner.receive(seconds)
        if self.round == 1 and not self.old:
            self.old = [found[0]]
        if self.round == 4 and found and self.old[0] is not None:
            found, self.old = [self.old[0], *found], [None]
        return found


@pytest.mark.parametrize("clients", [3, 7], ids=["asked again", "not asked"])
def test_a_reply_that_is_too_old_is_refused_by_name_and_ends_no_other_turn(clients: int, tmp_path: Path) -> None:
    recipe = recipe_of({"kind": "decomfl", "rate": 1e-2, "directions": 4}, clients=clients, cohort=3)
    setup, environment = prepare(recipe, Environment()), Environment(folder=tmp_path)
    with session.opened(setup, environment, Silent()) as found:
        late = HandsInLate(found.clients)
        ledger = session.create(tmp_path, setup.start)
        session.run_to_end(session.Opened(found.run, late, found.past), ledger, tmp_path, Silent())
    records = rounds_of(tmp_path)
    assert late.old == [None]
    assert all(len(record.cohort) == 3 for record in records)
    refused = [(record.round, dict(record.refused)) for record in records if record.refused]
    if clients == 3:  # its new reply counts, and the record names who does not
        assert refused == []
    else:
        ((round, found_there),) = refused
        (why,) = found_there.values()
        assert (round, why) == (4, "answered round 1 in a later round: too late to count")
