"""`kill -9` at any instant of a run with black boxes: no known value is asked for twice, no budget is overspent.

Children come from a fork server that has fedzero loaded. Each kills itself: in the middle of a call, at a statement of
the database, or between rounds (see blackbox_child.py). What is left is gone on with by a fresh process.
"""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import blackbox_child
import pytest
from blackbox_child import CLIENTS, ROUNDS, TURN, Death

TOGETHER = {"together": True}
SAME = ("x", "value", "model", "rounds", "reason", "refused")


@dataclass(frozen=True)
class Run:
    """A run in a folder that processes begin, die in, and go on with."""

    server: Any
    folder: Path
    options: dict[str, Any]

    def process(self, death: Death = Death()) -> Any:  # noqa: B008  (frozen)
        arguments = (str(self.folder), death, self.options, str(self.folder) + ".json")
        process = self.server.Process(target=blackbox_child.go, args=arguments, daemon=True)
        process.start()
        return process

    def code(self, death: Death = Death()) -> int:  # noqa: B008
        process = self.process(death)
        process.join(60)
        assert process.exitcode is not None, "a process hangs"
        return process.exitcode

    def finish(self) -> dict[str, Any]:
        assert self.code() == 0
        found: dict[str, Any] = json.loads(Path(str(self.folder) + ".json").read_text())
        return found

    def calls(self) -> list[Counter[str]]:
        """Every call that the boxes really got, by client and point."""
        files = [self.folder / f"calls-{client}" for client in range(CLIENTS)]
        return [Counter(file.read_text().split() if file.exists() else ()) for file in files]

    def log(self) -> list[dict[str, Any]]:
        if not (self.folder / "run" / "ledger.db").exists():
            return []
        with closing(sqlite3.connect(self.folder / "run" / "ledger.db")) as db:
            db.row_factory = sqlite3.Row
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'queries'").fetchall():
                return []
            return [dict(row) for row in db.execute("SELECT * FROM queries")]


@pytest.fixture(scope="module")
def right(warm_server, tmp_path_factory) -> dict[str, Any]:
    """What comes out if nobody dies."""
    return Run(warm_server, tmp_path_factory.mktemp("undisturbed") / "a", TOGETHER).finish()


def points(log: list[dict[str, Any]]) -> list[Counter[str]]:
    """How often each point is in the log, by client; comparable with `calls`."""
    return [Counter(row["digest"].hex() for row in log if row["client"] == client) for client in range(CLIENTS)]


def survives(run: Run, death: Death, right: dict[str, Any]) -> bool:
    """Die, look, go on, compare; whether attempts were lost."""
    assert run.code(death) == -signal.SIGKILL
    log, calls = run.log(), run.calls()
    lost = sum(row["state"] == "reserved" for row in log)
    assert all(made <= written for made, written in zip(calls, points(log), strict=True)), "called before written down"
    found = run.finish()
    after, whole = run.calls(), run.log()
    for client in range(CLIENTS):
        fresh = points(whole)[client] - points(log)[client]
        assert after[client] - calls[client] == fresh, "what was called is not what was reserved since"
    answered = [(row["client"], row["round"], row["ordinal"]) for row in whole if row["state"] == "done"]
    assert len(answered) == len(set(answered)), "a value that was there was asked for again"
    assert {name: found[name] for name in SAME} == {name: right[name] for name in SAME}
    assert (found["head"] == right["head"]) == (lost == 0)
    assert found["queries"] == right["queries"] + lost
    assert sum(map(Counter.total, after)) <= found["queries"]
    return lost > 0


@pytest.mark.parametrize("client", range(CLIENTS))
@pytest.mark.parametrize("call", [0, 1, 2, TURN + 1, ROUNDS * TURN - 1])
def test_killed_during_a_call(warm_server, right, tmp_path, client, call):
    """The attempt is lost, and paid for; its value is the same the second time."""
    assert survives(Run(warm_server, tmp_path / "a", TOGETHER), Death(call=(client, call)), right)


@pytest.mark.parametrize("when", ["before", pytest.param("after", marks=pytest.mark.slow)])
def test_killed_at_statements_of_the_database(warm_server, right, tmp_path, when):
    """Between reserving and calling, between value and log, between log and round, and everywhere else."""
    steps, lost = random.Random(when).sample(range(right["steps"]), 40), []
    while len(lost) < 12 or {True, False} != set(lost):  # two threads: which statement comes when is theirs to say
        assert steps, "no statement is between an attempt and its value, or all are"
        n = steps.pop()
        lost.append(survives(Run(warm_server, tmp_path / str(n), TOGETHER), Death(statement=(n, when)), right))


@pytest.mark.parametrize(("evaluate", "together"), [("query", True), ("query", False), ("ends", True)])
def test_killed_during_an_evaluation_that_queries(warm_server, tmp_path, evaluate, together):
    """Before the first round and after the last; and in the first round, which asks at the same point again."""
    options = {"evaluate": evaluate, "together": together}
    right = Run(warm_server, tmp_path / "right", options).finish()
    for call in (0, 1, 1 + ROUNDS * TURN):
        assert survives(Run(warm_server, tmp_path / str(call), options), Death(call=(1, call)), right)


@pytest.mark.parametrize("round", [0, ROUNDS - 2])
def test_killed_between_rounds(warm_server, right, tmp_path, round):
    """Nothing is lost: the same ledger, to the last link."""
    assert not survives(Run(warm_server, tmp_path / "a", TOGETHER), Death(round=round), right)


def test_killed_from_outside_again_and_again(warm_server, right, tmp_path):
    """The parent shoots, a few calls and any fraction of one after a process began: no fast machine gets away."""
    run, choose, pause = Run(warm_server, tmp_path / "a", TOGETHER), random.Random(7), 0.02
    for _ in range(6):
        before = sum(map(Counter.total, run.calls()))
        process = run.process(Death(pause=pause))
        deadline, more = time.monotonic() + 300, choose.randint(1, 3)
        while sum(map(Counter.total, run.calls())) < before + more:
            assert time.monotonic() < deadline and process.is_alive()
            time.sleep(0.001)
        time.sleep(choose.uniform(0, pause))
        process.kill()
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
    found = run.finish()
    assert {name: found[name] for name in SAME} == {name: right[name] for name in SAME}
    log = run.log()
    assert sum(row["state"] == "done" for row in log) == CLIENTS * ROUNDS * TURN
    assert all(made <= written for made, written in zip(run.calls(), points(log), strict=True))


@pytest.mark.parametrize("spare", [0, 1, 4])
def test_a_budget_is_never_overspent_however_often_the_process_dies(warm_server, tmp_path, spare):
    """Die in every second call until nothing is left to die for."""
    budget = ROUNDS * TURN + spare
    run, deaths = Run(warm_server, tmp_path / "a", {"budget": budget}), 0
    while deaths < 30:
        code = run.code(Death(call=(deaths % CLIENTS, 1)))
        if code == 0:
            break
        assert code == -signal.SIGKILL
        deaths += 1
        for client, calls in enumerate(run.calls()):
            spent = sum(row["client"] == client and row["state"] != "unused" for row in run.log())
            assert calls.total() <= spent <= budget
    assert 3 <= deaths < 30
    found = run.finish()  # resumed after its end: nothing new
    assert found["reason"]
    assert found["rounds"] < ROUNDS + 1
    assert all(calls.total() <= budget for calls in run.calls())
    assert found["queries"] <= CLIENTS * budget
    assert found == run.finish()


def test_who_has_paid_for_a_round_before_the_crash_does_not_pay_again(warm_server, tmp_path):
    """Budgets are just enough. In the last round client 0 has its values when client 1 dies: 0 counts, 1 is broke."""
    run = Run(warm_server, tmp_path / "a", {"budget": ROUNDS * TURN, "together": False})
    assert run.code(Death(call=(1, ROUNDS * TURN - 1))) == -signal.SIGKILL
    found = run.finish()
    assert (found["rounds"], found["reason"]) == (ROUNDS, "")
    assert found["refused"][:-1] == [[]] * (ROUNDS - 1)
    assert found["refused"][-1] == [[1, "sat out: 2 of its budget of 12 queries are left and a turn takes 3"]]
    assert [calls.total() for calls in run.calls()] == [ROUNDS * TURN] * 2


def test_resume_after_the_end_asks_nothing(warm_server, right, tmp_path):
    run = Run(warm_server, tmp_path / "a", TOGETHER)
    first = run.finish()
    calls, log = run.calls(), run.log()
    assert {**run.finish(), "steps": 0} == {**first, "steps": 0}
    assert (run.calls(), run.log()) == (calls, log)


@pytest.mark.parametrize("which", ["value", "digest"])
def test_a_value_in_the_log_is_used_and_that_of_another_point_is_not(warm_server, tmp_path, which):
    """Forge a row of the interrupted round: a value is believed if the point fits; if it does not, the box is asked,
    and both attempts stay on record."""
    run = Run(warm_server, tmp_path / "a", {"together": False})
    assert run.code(Death(call=(1, TURN))) == -signal.SIGKILL  # in round 1, when client 0 was through with it
    change = "value = 1234.5, point = NULL" + (", digest = zeroblob(16)" if which == "digest" else "")
    with closing(sqlite3.connect(run.folder / "run" / "ledger.db", isolation_level=None)) as db:
        forged = db.execute(
            f"UPDATE queries SET {change} WHERE round = 1 AND client = 0 AND ordinal = 1 AND state = 'done'"
        )
        assert forged.rowcount == 1
    before = run.calls()[0].total()
    run.finish()
    rows = [row for row in run.log() if (row["round"], row["client"], row["ordinal"]) == (1, 0, 1)]
    assert rows[0]["value"] == 1234.5
    again = [row["state"] for row in rows[1:]]
    assert again == ([] if which == "value" else ["done"])
    assert run.calls()[0].total() == before + len(again) + (ROUNDS - 2) * TURN
