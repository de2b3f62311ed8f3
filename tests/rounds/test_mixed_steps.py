"""Steps made of replies to the questions of the last three rounds: replay, resume, verify, catch up, export."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from test_groups import MIXING, REFUSING

from fedzero.errors import FedzeroError
from fedzero.ledger import patch, replay
from fedzero.ledger.folder import LEDGER
from fedzero.ledger.records import Round
from fedzero.ledger.store import Ledger
from fedzero.methods.contract import MAX_ABS_COORDINATE
from fedzero.model.updates import Group, Seeded, Stepped, decode_update, pack
from fedzero.protocol.engine import Arrival
from fedzero.protocol.messages import decode_reply, encode_reply
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.setup import prepare
from fedzero.results.history import history
from fedzero.rounds.guard import Guard, size_of
from fedzero.rounds.schedule import StepSoFar, Synchronous, check_several_steps
from fedzero.runs.recorded import replayed, verified
from late import OLDEST, Late, Stopped, TakesWhatArrived, play, recipe_of, resume
from ledgers import rounds_of
from stops import StopAt

PLAIN = MIXING["plain"]
ALL = list(MIXING)


def updates_in(records: list[Round]) -> list[Any]:
    return [decode_update(record.update) for record in records if record.update is not None]


@pytest.mark.parametrize("name", ALL)
def test_a_run_of_late_replies_replays_and_verifies_and_clients_with_models_of_their_own_end_in_its_bits(
    name: str, tmp_path: Path
) -> None:
    """Their models follow what they are sent: a client that was away misses nothing."""
    run = play(recipe_of(MIXING[name]), tmp_path / "run", {})
    records = rounds_of(tmp_path / "run")
    own = play(recipe_of(MIXING[name], replicas=True), tmp_path / "own", {})
    assert rounds_of(tmp_path / "own") == records
    assert not any(record.refused for record in records)
    assert own.model_sha256 == run.model_sha256
    ages = Counter(u.round - g.asked for u in updates_in(records) if isinstance(u, Stepped) for g in u.groups)
    assert set(ages) == set(range(OLDEST + 1))
    assert sum(isinstance(u, Stepped) and len(u.groups) > 2 for u in updates_in(records)) > 2
    assert verified(tmp_path / "run", Environment()).end is not None
    end = replayed(tmp_path / "run", Environment(), None)
    assert end.identity.sha256.hex() == run.model_sha256
    for upto in (3, 8):
        then = replayed(tmp_path / "run", Environment(), upto)
        then.follow([u for u in updates_in(records) if u.round >= upto])
        assert then.digest() == end.digest()


@pytest.mark.parametrize("name", ["momentum", "average", "fedzo"])
def test_a_run_that_was_stopped_goes_on_to_the_same_ledger(name: str, tmp_path: Path) -> None:
    recipe = recipe_of(MIXING[name])
    whole = play(recipe, tmp_path / "whole", {})
    for at in (0, 5):
        folder, away = tmp_path / f"stopped-{at}", dict[tuple[int, int], Arrival]()
        with pytest.raises(Stopped):
            play(recipe, folder, away, StopAt(at, Stopped))
        assert resume(recipe, folder, away).ledger_head == whole.ledger_head


class DiesInRound(Late):
    """The process dies when some replies of round 5 have arrived, before the round is on disk."""

    died = False

    def receive(self, seconds: float) -> Any:
        found = Late.receive(self, seconds)
        if self.round == 5 and found and not DiesInRound.died:
            DiesInRound.died = True
            raise Stopped
        return found


def test_a_step_that_was_lost_is_made_again_of_the_same_replies(tmp_path: Path) -> None:
    whole = play(recipe_of(PLAIN), tmp_path / "whole", {})
    away: dict[tuple[int, int], Arrival] = {}
    with pytest.raises(Stopped):
        play(recipe_of(PLAIN), tmp_path / "run", away, engine=DiesInRound)
    assert resume(recipe_of(PLAIN), tmp_path / "run", away).ledger_head == whole.ledger_head


def test_who_was_asked_when_is_on_the_record_apart_from_what_counted(tmp_path: Path) -> None:
    play(recipe_of(PLAIN), tmp_path / "run", {})
    waiting: dict[int, int] = {}
    counted: Counter[int] = Counter()
    for record, update in zip(records := rounds_of(tmp_path / "run"), updates_in(records), strict=True):
        asked = record.cohort if record.asked is msgspec.UNSET else record.asked
        assert len(asked) == 3 or len(waiting) > 4
        assert not waiting.keys() & set(asked)
        waiting |= dict.fromkeys(asked, record.round)
        answered = {client: waiting.pop(client) for client in record.cohort}
        counted.update(record.cohort)
        assert all(record.round - round <= OLDEST for round in answered.values())
        parts = [record.round] if isinstance(update, Seeded) else [group.asked for group in update.groups]
        assert parts == sorted(set(answered.values()))
    parties = {party.name: party for party in history(tmp_path / "run").parties}
    assert {client: parties[f"client {client}"].turns for client in counted} == dict(counted)


def test_a_patch_of_mixed_steps_gives_the_model(tmp_path: Path) -> None:
    run = play(recipe_of(PLAIN), tmp_path / "run", {})
    setup = prepare(recipe_of(PLAIN), Environment())
    with closing(Ledger.open(tmp_path / "run" / LEDGER)) as ledger:
        view = replay.read(ledger)
        body = patch.export(ledger, view, msgspec.json.encode(PLAIN), 7, ("x",), setup.keys)
    found, here = patch.decode(body, "x.patch"), setup.replica()
    assert sum(isinstance(update, Stepped) for update in found.updates) > 5
    replay.fold(here, found.updates, len(found.updates))
    assert here.matches(found.result_identity) and here.identity.sha256.hex() == run.model_sha256


def asked_in(records: list[Round], round: int) -> set[tuple[int, int]]:
    found = records[round]
    return {(client, round) for client in (found.cohort if found.asked is msgspec.UNSET else found.asked)}


def test_who_does_not_answer_in_time_is_refused_and_asked_again(tmp_path: Path) -> None:
    play(recipe_of(PLAIN), tmp_path / "whole", {})
    lost = set(sorted(asked_in(rounds_of(tmp_path / "whole"), 2))[:2])
    play(recipe_of(PLAIN), tmp_path / "run", {}, lost=lost)
    records = rounds_of(tmp_path / "run")
    asked = {pair for record in records for pair in asked_in(records, record.round)}
    assert len(lost) == 2
    for client, round in lost:
        assert dict(records[round + OLDEST].refused) == {c: "did not answer" for c, _ in lost}
        assert client in records[round + OLDEST].cohort
        assert any((client, later) in asked for later in range(round + OLDEST + 1, 12))
    assert verified(tmp_path / "run", Environment()).end is not None


class Dishonest(Late):
    """What arrives late in round 6 was changed on the way."""

    change: Any = staticmethod(lambda reply: reply)

    def receive(self, seconds: float) -> Any:
        found = Late.receive(self, seconds)
        if self.round != 6:
            return found
        return [
            msgspec.structs.replace(each, data=encode_reply(self.change(decode_reply(each.data, 1 << 20))))
            if decode_reply(each.data, 1 << 20).round == 5
            else each
            for each in found
        ]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"round": 6}, "answered round 6, not round 5"),
        ({"round": 4}, "answered round 4, not round 5"),
        ({"digest": b"8" * 8}, "worked on model 3838383838383838, not "),
    ],
    ids=["a newer round", "an older round", "another model"],
)
def test_a_late_reply_is_held_to_its_own_question(changes: dict[str, Any], why: str, tmp_path: Path) -> None:
    class Changed(Dishonest):
        change = staticmethod(lambda reply: msgspec.structs.replace(reply, **changes))

    play(recipe_of(PLAIN), tmp_path / "run", {}, engine=Changed)
    refused = [text for record in rounds_of(tmp_path / "run") for _, text in record.refused]
    assert refused and all(text.startswith(why) for text in refused)
    assert verified(tmp_path / "run", Environment()).end is not None


def test_the_digests_of_the_last_models_are_made_again_from_the_ledger(tmp_path: Path) -> None:
    play(recipe_of(PLAIN), tmp_path / "run", {})
    models = {}
    for round in range(12):
        models[round] = replayed(tmp_path / "run", Environment(), round).digest()
    with closing(Ledger.open(tmp_path / "run" / LEDGER)) as ledger:
        view, here = replay.read(ledger), prepare(recipe_of(PLAIN), Environment()).replica()
        assert replay.recent(ledger, view, here, 3) == {round: models[round] for round in (9, 10, 11)}
    assert here.digest() == replayed(tmp_path / "run", Environment(), None).digest()


class AsksTwice(TakesWhatArrived):
    def ask(self, now: StepSoFar) -> tuple[int, ...]:
        return (0,) if 0 not in now.asked or now.step == 1 else ()


def test_nobody_is_asked_who_has_a_question(tmp_path: Path) -> None:

    with pytest.raises(FedzeroError, match="client 0 is asked in round 1, and has a question already"):
        play(recipe_of(PLAIN), tmp_path / "run", {}, lost={(0, 0)}, schedule=AsksTwice)


class AtWork(TakesWhatArrived):
    """Four clients are at work at any time; a step is made of two replies."""

    def ask(self, now: StepSoFar) -> tuple[int, ...]:
        return self.free(now)[: 4 - len(now.awaited)]

    def made(self, now: StepSoFar) -> bool:
        return len(now.replies) >= 2


class OneByOne(Late):
    """Replies arrive one after the other, the oldest first, whenever the server listens."""

    def receive(self, seconds: float) -> Any:
        due = [key for key in sorted(self.away, key=lambda key: key[::-1]) if key not in self.handed]
        self.handed += due[:1]
        return [self.away[key] for key in due[:1]]


def test_whoever_becomes_free_can_be_asked_before_the_step_is_made(tmp_path: Path) -> None:
    """As in a buffered server: the seam needs nothing else."""
    options: dict[str, Any] = {"engine": OneByOne, "schedule": AtWork}
    run = play(recipe_of(PLAIN), tmp_path / "run", {}, **options)
    records = rounds_of(tmp_path / "run")
    assert all(len(record.cohort) == 2 and not record.refused for record in records)
    assert sum(len(asked_in(records, record.round)) for record in records) >= 2 * len(records)
    ages = {u.round - group.asked for u in updates_in(records) if isinstance(u, Stepped) for group in u.groups}
    assert max(ages) == 2
    assert verified(tmp_path / "run", Environment()).end is not None
    own = play(recipe_of(PLAIN, replicas=True), tmp_path / "own", {}, **options)
    assert (own.model_sha256, rounds_of(tmp_path / "own")) == (run.model_sha256, records)


@dataclass(frozen=True)
class WhoIsThere(Synchronous):
    """Those who happen to be there are asked, and all of them are waited for."""

    def ask(self, now: StepSoFar) -> tuple[int, ...]:
        return () if now.asked else tuple(c for c in range(7) if (c * now.step) % 3 != 1)


def test_a_cohort_that_depends_on_who_is_there_is_an_input_that_the_record_keeps(tmp_path: Path) -> None:
    """Resumed, replayed and verified by what is on the ledger; nobody draws it again."""
    run = play(recipe_of(PLAIN), tmp_path / "run", {}, engine=Prompt, schedule=WhoIsThere)
    records = rounds_of(tmp_path / "run")
    assert [record.cohort for record in records[:2]] == [tuple(range(7)), (0, 2, 3, 5, 6)]
    assert all(record.asked is msgspec.UNSET for record in records)
    assert all(isinstance(update, Seeded) for update in updates_in(records))
    assert verified(tmp_path / "run", Environment()).end is not None
    assert replayed(tmp_path / "run", Environment(), None).identity.sha256.hex() == run.model_sha256
    folder = tmp_path / "stopped"
    with pytest.raises(Stopped):
        play(recipe_of(PLAIN), folder, {}, StopAt(5, Stopped), engine=Prompt, schedule=WhoIsThere)
    assert resume(recipe_of(PLAIN), folder, {}, engine=Prompt, schedule=WhoIsThere).ledger_head == run.ledger_head


class Prompt(Late):
    """Everybody answers at once."""

    def receive(self, seconds: float) -> Any:
        due = [key for key in self.away if key not in self.handed]
        self.handed += due
        return [self.away[key] for key in due]


FILTERED = [("median", {"kind": "median"}), ("residual", {"kind": "top-k", "fraction": 0.5, "feedback": True})]


@pytest.mark.parametrize("name", REFUSING)
def test_methods_that_cannot_say_why_before_a_run(name: str) -> None:
    table, why = REFUSING[name]
    options = {"dzopa": {"cohort": 7}, "zone-s": {"cohort": 1}}.get(name, {})
    plan = prepare(recipe_of({"kind": name} | table, **options), Environment()).plan
    with pytest.raises(FedzeroError, match=f"steps of several rounds do not work with {name} here: .*{why}"):
        check_several_steps(plan, True, False)


@pytest.mark.parametrize(
    ("options", "why"),
    [({"sync": True}, "sync = true"), ({"replacement": True}, "asks a client twice"), ({}, None)],
    ids=["sync", "replacement", "none"],
)
def test_federations_that_cannot_say_why(options: dict[str, Any], why: str | None) -> None:
    plan = prepare(recipe_of(PLAIN, **options), Environment()).plan
    if why is None:
        check_several_steps(plan, True, False)
        for server_model, metered, reason in ((False, False, "without a model"), (True, True, "black boxes")):
            with pytest.raises(FedzeroError, match=reason):
                check_several_steps(plan, server_model, metered)
        return
    with pytest.raises(FedzeroError, match=why):
        check_several_steps(plan, True, False)


@pytest.mark.parametrize(("why", "link"), FILTERED)
def test_filters_that_cannot_say_why(why: str, link: dict[str, Any]) -> None:
    table = msgspec.to_builtins(recipe_of(PLAIN)) | {"filters": [link]}

    plan = prepare(recipes.decode(table), Environment()).plan
    with pytest.raises(FedzeroError, match={"median": "'median' compares", "residual": "feedback = true"}[why]):
        check_several_steps(plan, True, False)


def test_the_synchronous_schedule_asks_a_cohort_once_and_waits_for_it() -> None:
    schedule = Synchronous(prepare(recipe_of(PLAIN), Environment()).plan.cohort)
    cohort = schedule.ask(StepSoFar(4))
    asked = dict.fromkeys(cohort, 4)
    assert len(cohort) == 3 and schedule.ask(StepSoFar(4, asked)) == ()
    assert not schedule.made(StepSoFar(4, asked, {cohort[0]: 4}, cohort[1:])) and schedule.made(StepSoFar(4, asked))
    assert schedule.oldest == 0 and schedule.discount(0) == 1.0


def test_steps_that_would_make_the_model_infinite_are_not_admitted() -> None:
    setup = prepare(recipe_of(PLAIN | {"rate": 100.0}), Environment())
    guard, state = Guard(setup.algorithm, setup.keys), setup.replica().state
    small, huge = (pack(np.full(6, value, np.float32)) for value in (1.0, 3e38))
    assert guard.admits(state, Stepped(3, (Group(2, small), Group(3, small))))
    assert not guard.admits(state, Stepped(3, (Group(2, small), Group(3, huge))))
    assert size_of(Stepped(3, (Group(2, small), Group(3, small))), setup.algorithm) == MAX_ABS_COORDINATE * 12
