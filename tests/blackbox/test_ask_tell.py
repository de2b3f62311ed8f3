"""Ask and tell: many processes, killed at any instant; no value is lost, none counts twice."""

from __future__ import annotations

import pickle
import random
import signal
import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import ask_tell_child
import numpy as np
import pytest
from ask_tell_child import DIRECTIONS, POINTS, ROUNDS, SURROGATE, f, optimiser
from blackbox_child import Death

import fedzero
from fedzero.errors import FedzeroError
from fedzero.ledger import told as table
from fedzero.ledger.folder import LEDGER
from fedzero.recipe.environment import Environment
from fedzero.results.outcome import Result
from fedzero.runs import recorded

PROCESSES, PARTIES = 8, 2


def finish(mine: fedzero.Optimiser) -> Result:
    """Alone, to the end."""
    while not mine.finished:
        for point in mine.ask(100):
            mine.tell(point, f(point.x, point.party))
    return mine.result()


def head(folder: Path) -> bytes:
    return recorded.verified(folder, Environment()).entries[-1].chain


def rows(path: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(query).fetchall()


@pytest.fixture(scope="module")
def right(tmp_path_factory) -> Result:
    """What comes out if nobody dies and one process does everything."""
    return finish(optimiser(tmp_path_factory.mktemp("alone") / "run", parties=PARTIES))


def check(folder: Path, right: Result) -> None:
    """Every value is there once, and the ledger is that of an undisturbed run, to the last link."""
    result = optimiser(folder, parties=PARTIES).result()
    assert (result.value, result.queries, result.complete) == (right.value, PARTIES * POINTS, True)
    assert (result.x == right.x).all()
    assert head(folder) == head(right.folder)
    told = rows(folder / "told.db", "SELECT client, round, ordinal, point, value FROM points")
    assert len(told) == PARTIES * POINTS
    for client, _, _, point, value in told:
        assert value == f(np.frombuffer(point), client)
    logged = rows(folder / LEDGER, "SELECT client, round, ordinal, value FROM queries WHERE state = 'done'")
    assert sorted(logged) == sorted((c, r, o, value) for c, r, o, _, value in told)


def test_eight_processes_any_of_which_is_killed(warm_server, right, tmp_path):
    folder, choose, kills = tmp_path / "run", random.Random(3), 0

    def start() -> Any:
        process = warm_server.Process(
            target=ask_tell_child.work, args=(str(folder), PARTIES, Death(), 0.01), daemon=True
        )
        process.start()
        return process

    workers, deadline = [start() for _ in range(PROCESSES)], time.monotonic() + 300
    while any(process.is_alive() for process in workers):
        assert time.monotonic() < deadline, "nobody gets on"
        time.sleep(choose.uniform(0.02, 0.15))
        victim = choose.randrange(PROCESSES)
        if kills < 20 and workers[victim].is_alive():
            workers[victim].kill()
            workers[victim].join(300)
            kills += workers[victim].exitcode == -signal.SIGKILL
            workers[victim] = start()
    assert [process.exitcode for process in workers] == [0] * PROCESSES
    assert kills >= 10
    check(folder, right)
    again = Counter((folder / "evaluated").read_text().split())
    assert len(again) == PARTIES * POINTS  # what a killed process held was handed out again


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_statements_of_the_databases(warm_server, right, tmp_path, when):
    """Between asking and telling, within either, while the run is played on: another process goes on."""
    folder, died = tmp_path / "run", 0
    for statement in (30, 41, 67, 120, 131, 260):
        death = Death(statement=(statement, when))
        process = warm_server.Process(target=ask_tell_child.work, args=(str(folder), PARTIES, death), daemon=True)
        process.start()
        process.join(300)
        died += process.exitcode == -signal.SIGKILL
    assert died >= 4
    time.sleep(0.5)  # until leases of the dead have ended
    finish(optimiser(folder, parties=PARTIES))
    check(folder, right)


def test_a_surrogate_asks_the_same_points_in_every_process(warm_server, tmp_path):
    """It computes points from earlier values, several times a round, with however many threads a process has."""
    alone = finish(optimiser(tmp_path / "alone", algorithm=SURROGATE, rounds=2))
    for threads in (1, 2, 3, 1, 2):
        process = warm_server.Process(
            target=ask_tell_child.a_few, args=(str(tmp_path / "run"), threads, 2), daemon=True
        )
        process.start()
        process.join(300)
        assert process.exitcode == 0
    together = optimiser(tmp_path / "run", algorithm=SURROGATE, rounds=2)
    assert together.finished
    assert (together.result().x == alone.x).all()
    assert head(tmp_path / "run") == head(tmp_path / "alone")
    assert (
        together.result().queries == alone.queries == len(rows(tmp_path / "run" / "told.db", "SELECT id FROM points"))
    )


def test_it_is_the_same_run_as_that_of_functions_that_are_called(tmp_path):
    told = finish(optimiser(tmp_path / "told"))
    called = fedzero.minimise(
        [lambda x: f(x, 0)],
        (-1, 1),
        dimension=4,
        rounds=ROUNDS,
        algorithm=fedzero.FedZO(rate=0.01, directions=DIRECTIONS),
        out=tmp_path / "called",
    )
    assert (told.x == called.x).all()
    assert (told.value, told.start_value, told.history) == (called.value, called.start_value, called.history)
    assert told.value == pytest.approx(f(told.x, 0), rel=1e-12)
    assert not told.estimated


def test_points_are_held_by_one_and_come_back_after_their_lease(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(table.time, "time", lambda: now[0])
    one, other = (optimiser(tmp_path / "run", evaluate="log", lease=1.0) for _ in range(2))
    first, second = one.ask(5), other.ask(99)
    assert (len(first), len(second)) == (5, DIRECTIONS - 4)
    assert not {point.id for point in first} & {point.id for point in second}
    assert one.ask() == other.ask() == []
    for point in second:
        one.tell(point, f(point.x, 0))  # told through another than asked
    now[0] += 1.0
    again = other.ask(99)
    assert [point.id for point in again] == [point.id for point in first]
    assert all((a.x == b.x).all() for a, b in zip(again, first, strict=True))


def test_the_first_value_counts(tmp_path):
    mine = optimiser(tmp_path / "run")
    (point,) = mine.ask(9)  # the evaluation at the start
    mine.tell(point, 2.5)
    mine.tell(point, 2.5)
    pickle.loads(pickle.dumps(mine)).tell(point.id, np.float32(2.5))
    with pytest.raises(FedzeroError, match=r"told 2.5 before and 2.0 now: the first counts"):
        mine.tell(point, 2.0)
    with pytest.raises(FedzeroError, match=r"told 2.5 before and failed now"):
        mine.tell_failed(point)
    for bad, words in ((float("nan"), "not a finite number"), ("good", "no number"), ([1, 2], "shape")):
        with pytest.raises(FedzeroError, match=words):
            mine.tell(point, bad)
    with pytest.raises(FedzeroError, match="no point 77"):
        mine.tell(77, 1.0)
    finish(mine)
    assert mine.result().start_value == 2.5
    assert mine.ask() == []


def test_parties_are_asked_apart_and_the_run_waits_for_all(tmp_path):
    mine = optimiser(tmp_path / "run", parties=3, evaluate="log", lease=60)
    points = [mine.ask(99, party) for party in range(3)]
    assert [{point.party for point in each} for each in points] == [{0}, {1}, {2}]
    for point in points[0] + points[1]:
        mine.tell(point, f(point.x, point.party))
    assert mine.ask(99) == []
    assert (mine.result().rounds, mine.result().value, mine.finished) == (0, None, False)
    for point in points[2]:
        mine.tell(point, f(point.x, point.party))
    assert {point.party for point in mine.ask(99)} == {0, 1, 2}
    assert mine.result().rounds == 1


def test_a_point_that_fails_is_asked_again_and_then_its_party_sits_out(tmp_path):
    mine, failures = optimiser(tmp_path / "run", parties=2, retries=1, rounds=2, evaluate="log"), 0
    while not mine.finished:
        for point in mine.ask(99):
            if point.party == 1 and point.x[0] == 0.0 and mine.result().rounds == 0:
                mine.tell_failed(point, "no licence")
                failures += 1
            else:
                mine.tell(point, f(point.x, point.party))
    view = recorded.verified(tmp_path / "run", Environment())
    assert failures == 2
    ((client, why),) = view.rounds[0].refused
    assert (client, view.rounds[1].refused) == (1, ())
    assert why == "failed: box told of client 1 gave no value in 2 attempts: no licence"


def test_a_budget_ends_it(tmp_path):
    result = finish(optimiser(tmp_path / "run", budget=2 * (DIRECTIONS + 1) + 3))
    assert (result.rounds, result.queries, result.estimated) == (2, 2 * (DIRECTIONS + 1) + 2, False)
    assert "no client can pay for round 2" in result.reason


def test_other_recipes_and_bad_input_are_refused(tmp_path, fedzero):
    mine = optimiser(tmp_path / "run")
    with pytest.raises(FedzeroError, match=r"seed = \d+ there and 99 here"):
        optimiser(tmp_path / "run", seed=99)
    with pytest.raises(FedzeroError, match="count = 0 is not valid"):
        mine.ask(0)
    with pytest.raises(FedzeroError, match="of 1 parties"):
        mine.ask(party=1)
    for options in ({"parties": 0}, {"lease": 0}, {"start": [5] * 4}):
        with pytest.raises(FedzeroError):
            optimiser(tmp_path / "bad", **options)
    assert not (tmp_path / "bad").exists()
    (tmp_path / "file").touch()
    with pytest.raises(FedzeroError, match="is a file: name a folder"):
        optimiser(tmp_path / "file")
    fedzero("resume", tmp_path / "run").refused("fedzero.Optimiser")
    assert fedzero("verify", tmp_path / "run").code == 0
    assert fedzero("report", tmp_path / "run", "--out", tmp_path / "page.html").code == 0


def test_somebody_may_read_while_others_tell(tmp_path):
    mine = optimiser(tmp_path / "run")
    with closing(sqlite3.connect(tmp_path / "run" / LEDGER)) as reader:
        reader.execute("SELECT count(*) FROM entries").fetchall()
        for point in mine.ask(9):
            mine.tell(point, f(point.x, 0))
        assert len(mine.ask(99)) == DIRECTIONS + 1
        assert reader.execute("SELECT count(*) FROM entries").fetchall() == [(3,)]
    finish(mine)
