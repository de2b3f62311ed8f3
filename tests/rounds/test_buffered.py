"""Buffered steps on a simulated clock: what they are made of, and what is left of a run that was killed."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from test_groups import MIXING

from fedzero.engines.simulated import SimulatedClients
from fedzero.engines.simulated_time import times_of
from fedzero.errors import FedzeroError
from fedzero.ledger.database import Tampered
from fedzero.ledger.outline import LedgerSummary
from fedzero.ledger.records import Round, Start, TimedRound
from fedzero.methods.contract.schedule_config import BufferedConfig, Halving, Power
from fedzero.model.updates import Stepped, decode_update, unpack
from fedzero.protocol.engine import Event
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.recipe import Recipe
from fedzero.recipe.setup import prepare
from fedzero.report.data import page_data
from fedzero.report.units import human_seconds
from fedzero.results import export
from fedzero.results.history import history
from fedzero.rounds.buffered import Others, schedule_of
from fedzero.rounds.schedule import StepSoFar
from fedzero.runs import session
from fedzero.runs.growing import Growth
from fedzero.runs.progress import Ages, Silent, Totals
from fedzero.runs.recorded import replayed, verified
from fedzero.runs.summary import Summary
from ledgers import rounds_of
from stops import StopAt

PLAIN = MIXING["plain"]
SPREAD = {"spread": 1.0, "jitter": 0.3}
MIXED = {"kind": "buffered", "buffer": 3, "at_work": 5, "oldest": 4}


def recipe_of(
    schedule: dict[str, Any] | None = None,
    clock: dict[str, Any] | None = SPREAD,
    method: dict[str, Any] = PLAIN,
    replicas: bool = False,
    rounds: int = 12,
    **federation: Any,
) -> Recipe:
    table: dict[str, Any] = {
        "name": "buffered",
        "rounds": rounds,
        "seed": 3,
        "evaluate_every": 4,
        "algorithm": method,
        "task": {"kind": "quadratic", "dimension": 12, "noise": 0.1},
        "federation": {"clients": 9, "cohort": 4, "bound": 0} | federation,
        "engine": {"merge": False, "device": "cpu", "replicas": replicas},
    }
    table["federation"] |= {} if schedule is None else {"schedule": schedule}
    return recipes.decode(table | ({} if clock is None else {"clock": clock}))


def untimed(record: TimedRound) -> Round:
    return Round(**{name: getattr(record, name) for name in Round.__struct_fields__})


def timed_rounds(folder: Path) -> list[TimedRound]:
    records = rounds_of(folder)
    assert all(isinstance(record, TimedRound) for record in records)
    return records  # type: ignore[return-value]


def play(recipe: Recipe, folder: Path, watch: Silent | None = None) -> Summary:
    return session.start(recipe, folder, Environment(), watch or Silent())


def asked_in(record: Round) -> Sequence[int]:
    return record.cohort if record.asked is msgspec.UNSET else record.asked


def ages_in(records: list[Round]) -> list[int]:
    updates = [decode_update(record.update) for record in records if record.update is not None]
    return [u.round - g.asked for u in updates if isinstance(u, Stepped) for g in u.groups]


def test_with_equal_speeds_and_all_places_in_the_buffer_steps_are_synchronous_rounds(tmp_path: Path) -> None:
    """The same records and the same model; the heads differ, because the recipe is on the ledger."""
    plain = play(recipe_of(None, None), tmp_path / "plain")
    waits = play(recipe_of(None, {"turn": 1.0}), tmp_path / "waits")
    buffered = play(recipe_of({"kind": "buffered", "buffer": 4}, None), tmp_path / "buffered")
    assert rounds_of(tmp_path / "buffered") == rounds_of(tmp_path / "waits")
    assert [record.time for record in timed_rounds(tmp_path / "waits")] == [float(r + 1) for r in range(12)]
    without = [untimed(record) for record in timed_rounds(tmp_path / "buffered")]
    assert without == rounds_of(tmp_path / "plain")
    assert plain.model_sha256 == waits.model_sha256 == buffered.model_sha256


@pytest.mark.parametrize("name", ["plain", "momentum", "fedzo", "pool"])
def test_a_buffered_run_replays_and_verifies_and_clients_with_models_of_their_own_end_in_its_bits(
    name: str, tmp_path: Path
) -> None:
    run = play(recipe_of(MIXED, method=MIXING[name]), tmp_path / "run")
    records = rounds_of(tmp_path / "run")
    own = play(recipe_of(MIXED, method=MIXING[name], replicas=True), tmp_path / "own")
    assert rounds_of(tmp_path / "own") == records and own.model_sha256 == run.model_sha256
    assert max(ages_in(records)) >= 2
    assert verified(tmp_path / "run", Environment()).end is not None
    assert replayed(tmp_path / "run", Environment(), None).identity.sha256.hex() == run.model_sha256


def test_steps_are_those_of_a_queue_of_events(tmp_path: Path) -> None:
    """Whose reports are in which step follows from when they were asked and how long they take, and nothing else."""
    recipe = recipe_of(MIXED, {"spread": 1.0}, rounds=30)
    play(recipe, tmp_path / "run")
    speeds = times_of(recipe.clock, prepare(recipe, Environment()).keys, 9).seconds
    assert np.std(np.log(speeds)) > 0.4
    records, waiting = rounds_of(tmp_path / "run"), dict[int, tuple[float, int]]()
    for record in records:
        times = record.asked_at if record.asked_at else [math.nan] * len(asked_in(record))
        for client, at in zip(asked_in(record), times, strict=True):
            assert client not in waiting
            waiting[client] = (at + speeds[client], record.round)
        in_time = sorted(waiting, key=lambda client: waiting[client][0])
        if not any(math.isnan(at) for at in times):
            counted = [c for c in record.cohort if c not in dict(record.refused)]
            assert set(counted) == set(in_time[:3]) and record.time == waiting[in_time[2]][0]
        for client in record.cohort:
            del waiting[client]
        assert len(waiting) <= 5
    assert len(records) == 30


def test_a_report_counts_by_its_age_and_a_step_is_divided_by_the_buffer(tmp_path: Path) -> None:
    """Each group is (1/K) Σ w(τ) g over the reports of its round, where w is the recipe's."""
    runs = {"power": {}, "flat": {"weight": {"kind": "power", "exponent": 0.0}}}
    first: dict[str, Any] = {}
    for name, weight in runs.items():
        play(recipe_of(MIXED | weight, method=PLAIN | {"rate": 1e-12}), tmp_path / name)
        first[name] = rounds_of(tmp_path / name)
    compared = 0
    for one, other in zip(first["power"], first["flat"], strict=True):
        groups, flat = decode_update(one.update), decode_update(other.update)
        assert (one.cohort, one.time) == (other.cohort, other.time)
        for a, b in zip(groups.groups, flat.groups, strict=True) if isinstance(groups, Stepped) else ():
            weight = (1 + one.round - a.asked) ** -0.5
            assert unpack(a.scalars) == pytest.approx(weight * unpack(b.scalars), rel=2e-3, abs=1e-4)
            compared += 1
    assert compared > 10
    assert Halving(steps=2.0).weight(4) == 0.25 and Power().weight(3) == 0.5 and Power().weight(0) == 1.0


class Dies(Exception):
    """The process dies."""


def killed(recipe: Recipe, folder: Path, at: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Play a run whose process dies when it receives for the `at`-th time; False: it ended before."""
    received = [0]
    receive = SimulatedClients.receive_until

    def dying(self: SimulatedClients, time: float) -> Sequence[Event]:
        received[0] += 1
        if received[0] == at:
            raise Dies
        return receive(self, time)

    monkeypatch.setattr(SimulatedClients, "receive_until", dying)
    try:
        play(recipe, folder)
    except Dies:
        return True
    finally:
        monkeypatch.setattr(SimulatedClients, "receive_until", receive)
    return False


FULL = MIXED | {"longest": 0.5, "least": 1, "lease": 1.5}
STORMY = SPREAD | {"dropout": 0.1, "day": 6.0, "awake": 0.6, "down": 900.0, "lines": 0.5}


@pytest.mark.parametrize(
    ("schedule", "clock", "method", "points"),
    [
        (MIXED, SPREAD, "plain", range(1, 36, 6)),
        (FULL, STORMY, "momentum", range(2, 45, 9)),
        (MIXED | {"at_work": 6}, {"turn": 1.0}, "fedzo", (3, 5, 9)),
        ({"kind": "synchronous", "extra": 2, "deadline": 1.2}, STORMY, "plain", (4, 17)),
    ],
    ids=["plain", "all settings", "equal speeds", "over-selection"],
)
def test_a_run_that_is_killed_anywhere_ends_in_the_same_ledger(
    schedule: dict[str, Any],
    clock: dict[str, Any],
    method: str,
    points: Sequence[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = recipe_of(schedule, clock, MIXING[method])
    whole = play(recipe, tmp_path / "whole")
    died = 0
    for at in points:
        folder = tmp_path / str(at)
        died += killed(recipe, folder, at, monkeypatch)
        assert session.resume(folder, Environment(), Silent()).ledger_head == whole.ledger_head
    assert died == len(points)


@pytest.mark.slow
def test_a_run_that_is_killed_at_a_hundred_points_ends_in_the_same_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every event of two runs of thirty steps."""
    died = 0
    for schedule, clock in ((MIXED, SPREAD), (FULL, STORMY)):
        recipe = recipe_of(schedule, clock, rounds=30)
        folder = tmp_path / str(died)
        whole = play(recipe, folder / "whole")
        for at in range(1, 200):
            if not killed(recipe, folder / str(at), at, monkeypatch):
                break
            died += 1
            assert session.resume(folder / str(at), Environment(), Silent()).ledger_head == whole.ledger_head
    assert died > 150


def test_a_run_that_is_stopped_between_steps_goes_on_with_the_same_clock(tmp_path: Path) -> None:
    recipe = recipe_of(MIXED)
    whole = play(recipe, tmp_path / "whole")
    for at in (0, 6):
        with pytest.raises(Dies):
            play(recipe, tmp_path / str(at), StopAt(at, Dies))
        assert session.resume(tmp_path / str(at), Environment(), Silent()).ledger_head == whole.ledger_head


def test_who_is_too_slow_is_refused_by_name_and_may_be_asked_again(tmp_path: Path) -> None:
    play(recipe_of(MIXED | {"oldest": 1}, {"spread": 1.5}, rounds=40), tmp_path / "run")
    records = rounds_of(tmp_path / "run")
    refused = [client for record in records for client, why in record.refused if why == "did not answer"]
    assert refused and max(ages_in(records)) <= 1
    client, first = refused[0], next(r.round for r in records if refused[0] in dict(r.refused))
    assert any(client in asked_in(record) for record in records[first + 1 :])


def test_a_step_that_time_ends_is_divided_by_the_buffer(tmp_path: Path) -> None:
    """With a rate of almost nothing the reports are those of the full buffer's members; the sum is of fewer of them."""
    schedule = {"kind": "buffered", "buffer": 4, "longest": 1.0, "least": 1}
    play(recipe_of(schedule, {"spread": 1.0}, rounds=1), tmp_path / "run")
    record = rounds_of(tmp_path / "run")[0]
    counted, share = record.cohort, len(record.cohort) / 4
    assert 1 <= len(counted) < 4 and record.time == 1.0
    alone = play(recipe_of(None, None, rounds=1), tmp_path / "alone")
    assert alone.rounds == 1
    setup = prepare(recipe_of(None, None), Environment())
    assert set(counted) < set(setup.plan.cohort(0))
    update = decode_update(record.update)
    assert isinstance(update, Stepped) and [group.asked for group in update.groups] == [0]
    whole = recipe_of({"kind": "buffered", "buffer": len(counted), "at_work": 4}, {"spread": 1.0}, rounds=1)
    play(whole, tmp_path / "fewer")
    undivided = unpack(decode_update(rounds_of(tmp_path / "fewer")[0].update).scalars)
    assert rounds_of(tmp_path / "fewer")[0].cohort == counted
    assert unpack(update.groups[0].scalars) == pytest.approx(share * undivided, rel=1e-6)


def test_a_lease_frees_the_place_and_the_late_report_counts(tmp_path: Path) -> None:
    play(recipe_of(MIXED | {"at_work": 3, "lease": 1.0}, {"spread": 1.0}, rounds=30), tmp_path / "leased")
    play(recipe_of(MIXED | {"at_work": 3}, {"spread": 1.0}, rounds=30), tmp_path / "held")
    open_at_once = {}
    for name in ("leased", "held"):
        waiting, most, late = dict[int, float](), 0, 0
        for record in timed_rounds(tmp_path / name):
            times = record.asked_at or [math.nan] * len(asked_in(record))
            waiting |= dict(zip(asked_in(record), times, strict=True))
            late += sum(record.time - waiting[c] > 1.0 for c in record.cohort if c not in dict(record.refused))
            for client in record.cohort:
                del waiting[client]
            most = max(most, len(waiting))
        open_at_once[name] = most, late
    assert open_at_once["held"][0] <= 3 < open_at_once["leased"][0]
    assert open_at_once["leased"][1] > 0


def test_over_selection_takes_the_first_and_a_deadline_takes_who_is_there(tmp_path: Path) -> None:
    speeds = times_of(recipe_of().clock, prepare(recipe_of(), Environment()).keys, 9).seconds
    play(recipe_of({"kind": "synchronous", "extra": 2}, {"spread": 1.0}), tmp_path / "extra")
    before = 0.0
    for record in timed_rounds(tmp_path / "extra"):
        out = dict(record.refused)
        assert set(out.values()) == {"was not waited for"} and len(record.cohort) == 6 and len(out) == 2
        assert record.time - before == pytest.approx(max(speeds[c] for c in record.cohort if c not in out))
        assert max(speeds[c] for c in record.cohort if c not in out) <= min(speeds[c] for c in out)
        before = record.time
    play(recipe_of({"kind": "synchronous", "deadline": 0.8}, {"spread": 1.0}), tmp_path / "deadline")
    times = np.diff([0.0, *(record.time for record in timed_rounds(tmp_path / "deadline"))])
    assert (times >= 0.8 - 1e-9).any() and any(record.refused for record in timed_rounds(tmp_path / "deadline"))
    for record in timed_rounds(tmp_path / "deadline"):
        assert len(record.cohort) > len(record.refused)


def test_clients_are_asked_when_it_is_day_where_they_are(tmp_path: Path) -> None:
    recipe = recipe_of(MIXED, {"day": 8.0, "awake": 0.4, "turn": 0.5}, rounds=25)
    times = times_of(recipe.clock, prepare(recipe, Environment()).keys, 9)
    play(recipe, tmp_path / "run")
    asked = [
        (client, at)
        for record in timed_rounds(tmp_path / "run")
        for client, at in zip(record.asked or (), record.asked_at, strict=True)
    ]
    assert len({client for client, _ in asked}) > 3
    assert all(client in (times.present(at) or ()) for client, at in asked)


@pytest.mark.parametrize(
    ("schedule", "options", "why"),
    [
        ({"kind": "buffered", "buffer": 10}, {}, "schedule.buffer = 10 exceeds federation.clients = 9"),
        ({"kind": "buffered", "buffer": 2}, {"bound": 1.5}, "takes 3 replies, and schedule allows 2"),
        ({"kind": "buffered", "buffer": 4, "least": 2}, {}, "give schedule.longest, too"),
        ({"kind": "buffered", "buffer": 4, "least": 5, "longest": 1.0}, {}, "least = 5 exceeds schedule.buffer = 4"),
        ({"kind": "buffered", "buffer": 4}, {"replacement": True}, "set federation.replacement = false"),
        ({"kind": "synchronous", "extra": 6}, {}, "would ask 10 of 9 clients"),
        ({"kind": "buffered", "buffer": 4, "oldest": 0}, {}, "oldest"),
    ],
)
def test_schedules_that_cannot_be_served_say_why(schedule: dict[str, Any], options: dict[str, Any], why: str) -> None:
    with pytest.raises(FedzeroError, match=why):
        recipe_of(schedule, **options)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"method": {"kind": "hiso", "rate": 0.01}}, "its directions are scaled by the state"),
        ({"sync": True}, "federation.sync = true"),
        ({"server_model": False}, "a server without a model"),
    ],
    ids=["hiso", "sync", "no model"],
)
def test_what_needs_one_round_is_refused_before_anything_is_written(
    change: dict[str, Any], why: str, tmp_path: Path
) -> None:
    with pytest.raises(FedzeroError, match=why):
        play(recipe_of(MIXED, **change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_engines_without_simulated_time_are_refused_by_name(tmp_path: Path) -> None:
    for recipe in (recipe_of(MIXED, None), recipe_of(None, {"spread": 1.0})):
        with pytest.raises(FedzeroError, match=r"works with engine.kind = 'local', .* not with 'ray'"):
            play(recipes.with_engine(recipe, "ray"), tmp_path / "run")
    table = msgspec.to_builtins(recipe_of(MIXED)) | {"sampling": "private"}
    with pytest.raises(FedzeroError, match=r"federation.schedule shows who answered when, which sampling hides"):
        recipes.decode(table)
    table = msgspec.to_builtins(recipe_of(MIXED))
    table["engine"] |= {"attack": {"kind": "sign-flip"}}
    with pytest.raises(FedzeroError, match=r"engine.attack knows the replies of a whole cohort"):
        recipes.decode(table)


def test_a_recipe_without_a_schedule_has_the_bytes_it_had() -> None:
    text = recipes.canonical(recipe_of(None, None)).decode()
    assert "schedule" not in text and "clock" not in text
    some = recipe_of(MIXED | {"weight": {"kind": "halving", "steps": 2.0}})
    assert recipes.from_canonical(recipes.canonical(some)) == some
    assert recipes.decode(msgspec.to_builtins(some)) == some


def test_who_is_free_needs_no_list_of_everybody() -> None:
    without = [0, 3, 4, 9]
    assert [Others(10, without)[place] for place in range(6)] == [1, 2, 5, 6, 7, 8]
    assert list(Others(5, []))[:5] == [0, 1, 2, 3, 4]


def test_the_next_client_follows_from_the_step_and_the_number_of_asks_in_it() -> None:
    recipe = recipe_of(MIXED)
    plan = prepare(recipe, Environment()).plan
    schedule = schedule_of(plan)
    assert schedule is not None and isinstance(recipe.federation.schedule, BufferedConfig)
    asked = {0: 1, 1: 1, 2: 2, 3: 2, 5: 0}
    now = StepSoFar(2, asked, {c: r for c, r in asked.items() if c != 3}, {3: None})
    assert schedule.ask(now) == schedule.ask(now) and len(schedule.ask(now)) == 1
    assert not set(schedule.ask(now)) & asked.keys()
    assert schedule.ask(StepSoFar(2, asked, asked, {})) == ()
    assert schedule.ask(StepSoFar(2, asked, {}, {0: None, 1: None, 3: None})) == ()
    several = {schedule.ask(StepSoFar(step, {8: step}, {8: step}, ())) for step in range(40)}
    assert len(several) > 20


def test_simulated_time_is_on_the_page_in_exports_in_callbacks_and_on_the_live_line(tmp_path: Path) -> None:
    play(recipe_of(MIXED), tmp_path / "run")
    play(recipe_of(None, None), tmp_path / "plain")
    records = rounds_of(tmp_path / "run")
    rows = export.rows(tmp_path / "run")
    assert [row.time for row in rows] == [msgspec.UNSET, *(record.time for record in records)]
    assert "time" in export.as_csv(rows).splitlines()[0].split(",")
    assert "time" not in export.as_csv(export.rows(tmp_path / "plain")).splitlines()[0].split(",")
    found = history(tmp_path / "run")
    assert [point.time for point in found.points] == [0.0, *(records[r].time for r in (3, 7, 11))]
    data = page_data([found], None, False)
    assert {"id": "time", "name": "simulated time"} in data["axes"]
    assert all(axis["id"] != "time" for axis in page_data([history(tmp_path / "plain")], None, False)["axes"])
    totals, ages = Totals(recipe_of(MIXED), LedgerSummary()), Ages()
    for record in records:
        totals.add(record)
    said = " ".join(text for _, text in totals.parts())
    assert f"{human_seconds(records[-1].time)} simulated" in said and "age " in said
    flat = [age for record in records for age in [ages.mean(record)]]
    assert flat[0] == 0.0 and max(flat) > 0.5


FORGED = {
    "time goes back": ({"time": 0.5}, "its simulated time is 0.5, after 1"),
    "not a number": ({"time": math.nan}, "its simulated time is nan"),
    "no time": ({}, "it does not say when it was made"),
    "asked later": ({"asked": (1,), "asked_at": (3.0,)}, "asked before the step began, or after it was made"),
    "other times": ({"asked": (1, 2), "asked_at": (1.5,)}, "more or fewer times than clients"),
}


@pytest.mark.parametrize("name", FORGED)
def test_times_that_no_run_can_have_written_are_refused(name: str) -> None:
    change, why = FORGED[name]
    start = Start(recipes.canonical(recipe_of(MIXED)), b"0" * 8, 12, 1, None)
    first = TimedRound(0, (1, 2), None, False, 0, 0, 0, None, time=1.0)
    outline = LedgerSummary()
    for record in (start, first):
        outline.note(record, b"", 0.0)
    good = TimedRound(1, (1,), None, False, 0, 0, 0, None, time=2.0)
    with pytest.raises(Tampered, match=re.escape(why)):
        outline.note(msgspec.structs.replace(good, **change) if change else untimed(good), b"", 0.0)


def test_a_finished_run_that_is_extended_goes_on_with_its_open_questions(tmp_path: Path) -> None:
    whole = play(recipe_of(MIXED, rounds=12), tmp_path / "whole")
    play(recipe_of(MIXED, rounds=8), tmp_path / "short")
    longer = session.resume(tmp_path / "short", Environment(), Silent(), growth=Growth(rounds=12))
    assert rounds_of(tmp_path / "short") == rounds_of(tmp_path / "whole")
    assert longer.model_sha256 == whole.model_sha256
