"""What a site makes in a day, whatever its clock does."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedzero.deploy.site.allowance import DAY, HOUR, SPENT, Allowance, Clock, Spent, at, wait, with_queries

MOST = 10
NOON = 20_000.5 * DAY


class Machine:
    """A machine whose clock can be set; its processes begin and end."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path, most: int = MOST):
        self.most = most
        self.wall, self.real, self.folder = NOON, 1000.0, folder
        patch.setattr(time, "time", lambda: self.wall)
        patch.setattr(time, "monotonic", lambda: self.real)
        self.granted: list[tuple[float, int, int]] = []
        """real time, process, queries"""
        self.process = -1
        self.restart()

    def restart(self, killed: bool = True) -> None:
        if not killed:
            self.allowance.close()
        self.process += 1
        self.allowance = Allowance(self.most, self.folder, Clock())

    def passes(self, seconds: float) -> None:
        self.wall, self.real = self.wall + seconds, self.real + seconds

    def ask(self, queries: int) -> bool:
        unpaid = self.allowance.spend({"client": queries})
        if not unpaid:
            self.granted.append((self.real, self.process, queries))
        return not unpaid

    def most_in_a_day(self, process: int | None = None) -> int:
        found = [(t, q) for t, p, q in self.granted if process in (None, p)]
        return max((sum(q for t, q in found if first <= t < first + DAY) for first, _ in found), default=0)


MANY = 1000
"""of which a part is written down ahead"""
HAPPENS = st.one_of(
    st.tuples(st.just("ask"), st.integers(1, MOST)),
    st.tuples(st.just("passes"), st.floats(0, 2 * DAY)),
    st.tuples(st.just("is set"), st.sampled_from([-1e9, -40 * DAY, -DAY, -HOUR, HOUR, DAY, 40 * DAY, 1e9])),
    st.tuples(st.just("restarts"), st.booleans()),
)


@given(st.lists(HAPPENS, max_size=40), st.sampled_from([1, MANY // MOST]))
@settings(max_examples=100, deadline=None)
def test_no_process_makes_more_in_a_day_and_none_is_locked_for_longer(happenings, times) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        machine, set_clock, most = Machine(patch, Path(folder), MOST * times), False, MOST * times
        for what, value in happenings:
            if what == "ask":
                machine.ask(max(1, value * times // 12))
            elif what == "passes":
                machine.passes(value)
            elif what == "restarts":
                machine.restart(value)
            else:
                machine.wall, set_clock = max(0.0, machine.wall + value), True
        for process in range(machine.process + 1):
            assert machine.most_in_a_day(process) <= most
        if not set_clock:
            assert machine.most_in_a_day() <= most, "over restarts, too"
        machine.restart()
        machine.ask(1)
        machine.passes(DAY + HOUR + 1)  # times are sums of floats: not to the last microsecond
        assert machine.ask(most), "what counts is of at most 25 hours ago"


def test_a_clock_that_was_ahead_for_a_while_locks_nothing(tmp_path: Path, monkeypatch) -> None:
    """0.2.0 said until 2051 that nothing was left."""
    machine = Machine(monkeypatch, tmp_path)
    machine.wall += 1e9
    machine.restart()
    assert machine.ask(MOST)
    machine.wall -= 1e9
    for _ in range(5):  # each of them would begin the day anew, if what is in the future stayed there
        machine.restart()
        assert not machine.ask(1)
        machine.passes(5 * HOUR + 1)
    machine.restart()
    assert machine.ask(MOST)


def test_a_clock_that_is_set_forward_grants_nothing_in_the_same_process(tmp_path: Path, monkeypatch) -> None:
    machine = Machine(monkeypatch, tmp_path)
    assert machine.ask(MOST)
    machine.wall += 3 * DAY
    assert not machine.ask(1)


def test_what_was_written_ahead_is_given_back(tmp_path: Path, monkeypatch) -> None:
    machine = Machine(monkeypatch, tmp_path, MANY)
    file = tmp_path / SPENT
    assert machine.ask(1)
    written = file.read_bytes()
    assert all(machine.ask(1) for _ in range(10))
    assert file.read_bytes() == written, "ten queries ahead"
    assert machine.ask(1)
    machine.restart(killed=False)
    assert msgspec.json.decode(file.read_bytes(), type=Spent).total == 12
    assert machine.ask(MANY - 12), "to the last one"
    assert not machine.ask(1)


def test_what_0_2_0_wrote_is_read(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / SPENT).write_bytes(msgspec.json.encode({"day": 20_000, "queries": 9}))
    machine = Machine(monkeypatch, tmp_path)
    assert not machine.ask(2)
    assert machine.ask(1)
    machine.passes(2 * DAY)
    assert machine.ask(MOST)


def test_an_order_is_paid_for_in_parts(tmp_path: Path, monkeypatch) -> None:
    machine = Machine(monkeypatch, tmp_path)
    unpaid = machine.allowance.spend({1: 6, 2: 6, 3: 4})
    assert list(unpaid) == [2]
    assert "queries_per_day = 10, of which 4 are left, and this takes 6: it takes part again in about 25 h" in unpaid[2]
    assert "the site can allow more, `fedzero join KIT --queries-per-day 11`" in machine.allowance.spend({1: 11})[1]


def test_no_limit_writes_nothing(tmp_path: Path) -> None:
    assert Allowance(0, tmp_path, Clock()).spend({1: 10**9}) == {}
    assert not list(tmp_path.iterdir())


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 5)), max_size=30), st.integers(0, 60 * HOUR))
def test_what_counts_is_no_longer_than_the_hours_of_a_day(hours, now) -> None:
    spent = at(Spent(tuple(hours)), now)
    assert len(spent.hours) <= 26
    assert at(spent, now) == spent
    assert spent.total <= sum(queries for _, queries in hours)
    assert with_queries(spent, 3, now).total == spent.total + 3
    until = wait(spent, 1, spent.total, now) if spent.total else 0.0
    assert at(spent, now + until).total < spent.total or not spent.total
