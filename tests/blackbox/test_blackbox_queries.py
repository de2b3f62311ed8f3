"""Reserve, call, write down, try again: what is written when, how often a box is really called, and what it costs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedzero.directions import Keys
from fedzero.oracles.blackbox import Bounds, CommandBox, Conditions, MemoryLog, Query, QueryFailed, queries
from fedzero.oracles.blackbox.contract import digest_of
from fedzero.oracles.blackbox.objective import BlackBoxes
from fedzero.oracles.blackbox.queries import OpenBox, Request, query

POINTS = np.arange(8.0).reshape(4, 2)


class Diary(MemoryLog):
    """A log that remembers every transaction, and what had been called by then."""

    def __init__(self, calls: list[float]):
        super().__init__()
        self.calls, self.pages = calls, []

    def write(self, rows):
        super().write(rows)
        self.pages.append((len(self.calls), [(row.ordinal, row.attempt, row.state, row.value) for row in rows]))


class Function:
    """f(x) = x_0, but as `moods` say for the first calls at each point: an exception to raise or a value to give."""

    def __init__(self, moods=(), meeting: threading.Barrier | None = None):
        self.moods, self.meeting, self.calls, self.at_once, self.most = moods, meeting, [], 0, 0
        self.counts: Counter[float] = Counter()
        self.lock = threading.Lock()

    def __call__(self, points, timeout, cancellation):
        with self.lock:
            at = float(points[0][0])
            self.calls.append(at)
            mood = self.moods[self.counts[at]] if self.counts[at] < len(self.moods) else None
            self.counts[at] += 1
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        if self.meeting is not None:
            self.meeting.wait(60)
        with self.lock:
            self.at_once -= 1
        if isinstance(mood, Exception):
            raise mood
        return points[:, 0] if mood is None else mood


def wanted(function, client=0, round=0, first=0, points=POINTS, whole=False) -> Request:
    return Request(client, round, first, points, OpenBox(function, "test", whole))


def one(function, log=None, **conditions):
    (given,) = query([wanted(function)], log or MemoryLog(), Conditions(**{"backoff": 0.0} | conditions))
    return given


def test_reserved_before_any_call_and_written_before_the_next():
    f = Function()
    log = Diary(f.calls)
    assert one(f, log).tolist() == [0.0, 2.0, 4.0, 6.0]
    reserve, *values = log.pages
    assert reserve == (0, [(i, 0, "reserved", None) for i in range(4)])  # one transaction, before the first call
    assert values == [(i + 1, [(i, 0, "done", 2.0 * i)]) for i in range(4)]  # each before the next call
    assert log.spent(0) == 4


def test_a_whole_box_is_written_in_one_transaction():
    f = Function()
    log = Diary(f.calls)
    (given,) = query([wanted(f, whole=True)], log, Conditions())
    assert given.tolist() == [0.0, 2.0, 4.0, 6.0]
    assert f.calls == [0.0]
    assert [len(rows) for _, rows in log.pages] == [4, 4]
    assert log.spent(0) == 4  # queries are points, however they are batched


@pytest.mark.parametrize("bad", [ValueError("boom"), np.array(["x"]), np.zeros(3), np.array([None])])
@pytest.mark.parametrize("retries", [0, 1, 3])
def test_retried_as_often_as_configured(bad, retries):
    f = Function([bad] * 100)
    log = MemoryLog()
    failure = one(f, log, retries=retries)
    assert isinstance(failure, QueryFailed)
    assert f"in {retries + 1} attempt" in str(failure)
    assert f.calls == [0.0] * (retries + 1)  # of the first point only: the others would be in vain
    assert log.spent(0) == retries + 1  # so they were given back
    assert [row.state for row in log.begun(0, 0)] == ["failed"] * (retries + 1) + ["unused"] * 3


def gapped(function, log, points=POINTS, whole=False, **conditions):
    request = replace(wanted(function, points=points, whole=whole), gaps=True)
    (given,) = query([request], log, Conditions(**{"backoff": 0.0, "retries": 1} | conditions))
    return given.tolist()


class Region(Function):
    """x_0, but `there` (a value, or an exception) where x_0 is in a set."""

    def __init__(self, there, *where: float):
        super().__init__()
        self.there, self.where = there, where

    def __call__(self, points, timeout, cancellation):
        values = super().__call__(points, timeout, cancellation)
        inside = np.isin(points[:, 0], self.where)
        if isinstance(self.there, Exception) and inside.any():
            raise self.there
        return values if isinstance(self.there, Exception) else np.where(inside, self.there, values)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("workers", [1, 4])
def test_a_point_without_a_value_is_asked_once(bad, workers):
    """Not retried, not under another number of the same request, and in no later round."""
    f, log = Region(bad, 0.0), MemoryLog()
    twice = np.concatenate([POINTS[:1], POINTS])
    assert gapped(f, log, twice, workers=workers) == [np.inf, np.inf, 2.0, 4.0, 6.0]
    assert sorted(f.calls) == [0.0, 2.0, 4.0, 6.0]
    assert log.spent(0) == 4
    assert [row.state for row in log.begun(0, 0)] == ["absent", "unused", "done", "done", "done"]
    later = replace(wanted(f, round=1, points=twice), gaps=True)
    assert query([later], log, Conditions())[0].tolist() == [np.inf, np.inf, 2.0, 4.0, 6.0]
    assert f.calls.count(0.0) == 1
    failure = query([wanted(f, round=2)], log, Conditions())[0]  # of a method that needs all values
    assert isinstance(failure, QueryFailed)
    assert "not a finite number" in str(failure)
    assert f.calls.count(0.0) == 1


def test_a_batched_box_may_have_values_at_some_points():
    log = MemoryLog()
    assert gapped(Region(np.inf, 4.0), log, whole=True) == [0.0, 2.0, np.inf, 6.0]
    assert [row.state for row in log.begun(0, 0)] == ["done", "done", "absent", "done"]


@pytest.mark.parametrize("workers", [1, 3])
def test_where_gaps_are_allowed_a_point_that_fails_does_not_take_the_others_with_it(workers):
    log = MemoryLog()
    given = gapped(Region(ValueError("boom"), 2.0), log, workers=workers)
    assert np.isnan(given[1])
    assert [given[i] for i in (0, 2, 3)] == [0.0, 4.0, 6.0]
    assert [row.state for row in log.tried(0, 0, 1)] == ["failed", "failed"]
    assert log.spent(0) == 5


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_box_that_is_down_is_not_asked_at_every_point(workers):
    f, log = Function([ValueError("boom")] * 100), MemoryLog()
    points = np.arange(20.0)[:, None]
    assert np.isnan(gapped(f, log, points, workers=workers)).all()
    assert log.spent(0) == len(f.calls) <= 2 * (3 + workers)


def test_retries_that_cannot_be_paid_leave_gaps():
    f, log = Region(ValueError("boom"), 2.0), MemoryLog()
    given = gapped(f, log, budget=4, retries=5)
    assert np.isnan(given[1])
    assert [given[i] for i in (0, 2, 3)] == [0.0, 4.0, 6.0]
    assert log.spent(0) == 4


@pytest.mark.parametrize("whole", [False, True])
def test_a_retry_that_works(whole):
    f = Function([ValueError("boom"), ValueError("boom")])
    log = MemoryLog()
    (given,) = query([wanted(f, whole=whole)], log, Conditions(retries=2, backoff=0.0))
    assert given.tolist() == [0.0, 2.0, 4.0, 6.0]
    assert log.spent(0) == 12
    assert len(f.calls) == (3 if whole else 12)


def test_the_pause_before_a_retry_doubles(monkeypatch):
    began, calls, pauses, attempt = time.monotonic(), [], [], queries.Attempt

    def noting(rows, not_before=0.0, **how):
        pauses.append(not_before - time.monotonic())
        return attempt(rows, not_before, **how)

    monkeypatch.setattr(queries, "Attempt", noting)

    def f(points, timeout, cancellation):
        calls.append(time.monotonic() - began)
        raise ValueError

    one(f, retries=2, backoff=0.1)
    first, second = np.diff(calls)
    assert first >= 0.1
    assert second >= 0.2
    assert max(pauses) <= 0.2


def test_clients_do_not_fail_each_other():
    good, bad = Function(), Function([ValueError("boom")] * 9)
    given = query([wanted(good, 0), wanted(bad, 1), wanted(good, 2)], MemoryLog(), Conditions(backoff=0.0))
    assert given[0].tolist() == given[2].tolist() == [0.0, 2.0, 4.0, 6.0]
    assert "client 1" in str(given[1])
    assert "boom" in str(given[1])


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_workers_are_how_many_points_are_out_at_once(workers):
    f = Function(meeting=threading.Barrier(workers))  # a call ends when as many are under way
    assert one(f, workers=workers).tolist() == [0.0, 2.0, 4.0, 6.0]
    assert f.most == workers


def test_clients_work_at_the_same_time_and_the_log_is_written_by_one_thread():
    barrier, writers = threading.Barrier(3), set()

    class Log(MemoryLog):
        def write(self, rows):
            writers.add(threading.current_thread())
            super().write(rows)

    def f(points, timeout, cancellation):
        barrier.wait(10)  # nobody gets past it alone
        return points[:, 0]

    given = query([wanted(f, client) for client in range(3)], Log(), Conditions(timeout=20, retries=0))
    assert [values.tolist() for values in given] == [[0.0, 2.0, 4.0, 6.0]] * 3
    assert writers == {threading.current_thread()}


# ---- budget


@pytest.mark.parametrize("budget", range(9))
def test_never_more_calls_than_the_budget(budget):
    f = Function([ValueError("boom")])  # every point takes two
    log = MemoryLog()
    given = one(f, log, budget=budget)
    assert len(f.calls) == log.spent(0) <= budget
    if budget == 8:
        assert given.tolist() == [0.0, 2.0, 4.0, 6.0]
    else:
        assert f"budget of {budget} queries is spent" in str(given)
    if budget < 4:
        assert f.calls == []  # not even begun


@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.parametrize("spent", range(8))
def test_a_turn_is_begun_only_if_the_budget_is_enough_for_all_of_it(spent, kept):
    """Attempts of the round itself, begun before a crash, are part of the turn."""
    boxes = BlackBoxes((), Bounds.of(0.0, 1.0, 2), Keys.of_seed(1), Conditions(budget=7, kept=kept), {})
    boxes.log.write([Query(0, 4, i, 0, b"", "done", 1.0) for i in range(spent)])
    assert (0 in boxes.unable(5, {0: 3})) == (spent + 3 + kept > 7)
    assert boxes.unable(4, {0: 3, 1: 7 - kept}) == {}
    assert [*boxes.unable(4, {1: 8 - kept})] == [1]


# ---- what an earlier process left behind


def left_behind(*rows: Query) -> MemoryLog:
    log = MemoryLog()
    log.write(rows)
    return log


def row(i: int, attempt: int = 0, state="done", value=None, point=None, cause="") -> Query:
    point = POINTS[i] if point is None else point
    return Query(
        0, 0, i, attempt, digest_of(point), state, value, cause, point.tobytes() if value is not None else None
    )


def test_what_is_in_the_log_is_not_asked_again():
    f = Function()
    log = left_behind(row(0, value=70.0), row(2, value=90.0), row(3, state="reserved"))
    assert one(f, log).tolist() == [70.0, 2.0, 90.0, 6.0]
    assert f.calls == [2.0, 6.0]
    assert log.spent(0) == 5
    assert [(r.attempt, r.state) for r in log.tried(0, 0, 3)] == [(0, "reserved"), (1, "done")]


def test_a_value_of_another_point_is_no_answer():
    """One bit of one coordinate is enough. The row stays, paid for, and the query is made."""
    other = POINTS[0].copy()
    other[1] = np.nextafter(other[1], 9)
    f = Function()
    log = left_behind(row(0, value=70.0, point=other))
    assert one(f, log).tolist() == [0.0, 2.0, 4.0, 6.0]
    assert [(r.attempt, r.value) for r in log.tried(0, 0, 0)] == [(0, 70.0), (1, 0.0)]
    assert log.spent(0) == 5


def test_lost_attempts_are_paid_for_but_do_not_count_as_failures():
    f = Function([ValueError("boom")])
    log = left_behind(row(0, 0, "reserved"), row(0, 1, "failed", cause="x"), row(0, 2, "reserved"))
    assert one(f, log, retries=2).tolist() == [0.0, 2.0, 4.0, 6.0]
    assert log.spent(0) == 3 + 2 * 4
    with_less = left_behind(row(0, 0, "reserved"), row(0, 1, "failed", cause="x"), row(0, 2, "reserved"))
    assert "in 2 attempts" in str(one(Function([ValueError("boom")]), with_less, retries=1))


def test_an_ask_that_failed_for_good_fails_again_without_a_call_and_in_the_same_words():
    f, log = Function([ValueError("boom")] * 3), MemoryLog()
    failure = one(f, log)
    again = Function()
    assert str(one(again, log)) == str(failure)
    assert again.calls == []


def test_an_ask_that_ran_out_of_budget_does_so_again_in_the_same_words():
    f, log = Function([ValueError("boom")] * 3), MemoryLog()
    failure = one(f, log, budget=5)
    assert "budget" in str(failure)
    assert str(one(Function(), log, budget=5)) == str(failure)


def test_the_same_point_in_another_round_is_another_query():
    f, log = Function(), MemoryLog()
    for round in range(2):
        query([wanted(f, round=round)], log, Conditions())
    assert len(f.calls) == log.spent(0) == 8


def test_an_interrupted_ask_leaves_nothing_running(tmp_path):
    """Ctrl-C while a program works: it is stopped."""
    note = tmp_path / "pid"
    box = CommandBox(argv=("/bin/sh", "-c", f"echo $$ > {note}; exec sleep 60"))
    opened = OpenBox(box.open({}), box.label, False)

    def interrupt():
        while not note.exists() or not note.read_text():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        query([replace(wanted(None), box=opened)], MemoryLog(), Conditions(timeout=30))
    pid, deadline = int(note.read_text()), time.monotonic() + 300
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return
        except OSError:
            return
        time.sleep(0.02)
    raise AssertionError("still running")
