"""Limits of a site against recipes that are made to get past them, each within what its fields may say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from harness import recipe_of
from hypothesis import given, settings
from hypothesis import strategies as st
from test_hostile_server import asked, clinic, language, prepare, recipe_for, refused, site_with, turn
from test_orders_out_of_place import reply, why

from fedzero.deploy.site.journal import Drawn, Journal
from fedzero.deploy.site.terms import Terms
from fedzero.engines.remote.messages import Prepared
from fedzero.ledger import answers as journals
from fedzero.ledger.answers import Answered, Place
from fedzero.methods import DeComFL, ResponseSurface
from fedzero.model.schedules import Count
from fedzero.tasks.partition import Mix
from fedzero.tasks.quadratic import Quadratic

__all__ = ["clinic"]

# ---- directions at one model


@pytest.mark.parametrize(
    "others",
    [
        [{"algorithm": DeComFL(rate=1e-3, directions=P)} for P in range(1, 10)],
        [{"algorithm": DeComFL(rate=1e-3, directions=2, radius=10.0**-k)} for k in range(1, 10)],
        [{"task": Quadratic(dimension=50, noise=0.1 + k)} for k in range(9)],
    ],
    ids=["more directions", "other points", "other batches"],
)
def test_recipes_of_the_same_seed_have_directions_of_their_own(tmp_path: Path, others, capsys) -> None:
    """45 directions where ten were allowed: those of the same seed and round were taken for the same."""
    site, most = site_with(tmp_path, terms=Terms(projections=10)), 0
    for number, options in enumerate(others):
        assert isinstance(asked(site, prepare(recipe_for(**options), run=f"run {number}")), Prepared)
        found = asked(site, turn(0, 0))
        most += 0 if found.failed else options.get("algorithm", DeComFL(rate=1e-3, directions=2)).directions
    assert 5 <= most <= 10


def test_turns_at_a_model_of_unknown_making_are_never_the_same(tmp_path: Path, capsys) -> None:
    terms = Terms(projections=6)
    for number in range(3):
        site = site_with(tmp_path, terms=terms)
        asked(site, prepare(recipe_for(), run=f"run {number}"))
        site.run.replica.history = journals.UNKNOWN
        reply(site, turn(0, 0))
        site.leave()
    asked(site := site_with(tmp_path, terms=terms), prepare(recipe_for(), run="last"))
    assert "projections = 6" in why(site, turn(0, 0))


def test_two_processes_at_once_are_asked_no_more_than_one(tmp_path: Path, monkeypatch, capsys) -> None:
    """Both look at what was asked before, and then both work."""
    one, other = (site_with(tmp_path, terms=Terms(projections=2)) for _ in range(2))
    for site, seed in ((one, 1), (other, 2)):
        asked(site, prepare(recipe_for(seed=seed), run=f"run {seed}"))
    found = {}

    def meanwhile(journal, model, client, drawn, look=Journal.directions):
        before = look(journal, model, client, drawn)
        if "other" not in found:
            found["other"] = None
            found["other"] = asked(other, turn(0, 0))
        return before

    monkeypatch.setattr(Journal, "directions", meanwhile)
    assert why(one, turn(0, 0)) == "was asked too much meanwhile"
    assert list(found["other"].replies) == [0]


def test_turns_are_not_forgotten_for_a_few_thousand_others(tmp_path: Path) -> None:
    """4,097 turns at other models, some 12,000 evaluations, had the first one forgotten: 2,000 directions more."""
    journal = Journal(tmp_path, "run")
    answered = Answered(b"q", b"h", b"a")
    journal.record([(Place(0, 0), answered)], [Drawn(b"first", 0, b"x", 2000)])
    journal.record([(Place(1, 0), answered)], [Drawn(b"%d" % k, 0, b"x", 1) for k in range(50_000)])
    assert journal.directions(b"first", 0, b"y") == 2000


# ---- turns that grow


def test_a_turn_that_grows_with_the_rounds_is_refused_when_it_has_grown(tmp_path: Path, capsys) -> None:
    """Its evaluations were looked at before the first round only."""
    growing = ResponseSurface(points=Count(2, ((1, 50_000),)))
    site = site_with(tmp_path)
    asked(site, prepare(recipe_of(growing, clients=2, cohort=2, task=Quadratic(dimension=2), bound=0)))
    assert reply(site, turn(0, 0))
    assert "most_directions = 256, and a turn takes 50,000 evaluations" in why(site, turn(1, 0))


# ---- rows of an evaluation


ROWS = "name,diagnosis\n" + "Ada,0\n" * 15 + "Eve,1\n"


def table(folder: Path, **fields):
    (folder / "rows.csv").write_text(ROWS)
    return prepare(language(folder, "rows", batch=8, **fields), clients=(0,))


def with_rows(folder: Path):
    declared = {"rows": str(folder / "rows.csv"), "theirs": str(folder / "model")}
    return site_with(folder, files=declared)


def test_shares_of_labels_make_no_evaluation_of_a_single_row(clinic: Path, capsys) -> None:
    """One row of sixteen had a weight of 1 − 1e-12 in every batch of eight, and its loss was sent."""
    site = with_rows(clinic)
    heavy = language(clinic, "rows", batch=8, balanced={"0": 1e-12, "1": 1.0})
    (clinic / "rows.csv").write_text(ROWS * 1 + ROWS.split("\n", 1)[1] * 3)
    answer = asked(site, prepare(heavy))
    assert isinstance(answer, Prepared), answer
    for client in (0, 1):
        assert "least_batch = 8, and client" in asked(site, turn(0, client)).failed[client]


def test_an_evaluation_of_the_model_is_of_more_than_one_row_too(clinic: Path, capsys) -> None:
    said = refused(with_rows(clinic), table(clinic, testing=1))
    assert "its terms have least_batch = 8, and task.testing = 1: " in said


@given(
    counts=st.lists(st.integers(0, 30), min_size=2, max_size=4).filter(any),
    shares=st.lists(st.sampled_from([1e-12, 0.01, 0.5, 1.0, 3.0]), min_size=4, max_size=4),
    size=st.integers(1, 40),
    seed=st.integers(0, 9),
)
@settings(max_examples=150, deadline=None)
def test_no_row_of_a_batch_weighs_more_than_is_said(counts, shares, size, seed) -> None:
    from fedzero.directions import Keys
    from fedzero.oracles import ALL_DATA
    from fedzero.tasks.partition import drawn

    labels = np.repeat(np.arange(len(counts)), counts)
    wanted = np.array(shares[: len(counts)])
    mix, part = Mix(labels, wanted / wanted.sum()), np.arange(len(labels))
    rows = mix.rows(part, size)
    for round in range(4):
        for step in (0, ALL_DATA):
            chosen = drawn(part, size, Keys.of_seed(seed), round, step, 0, mix)
            weights = mix.weights(chosen)
            heaviest = 1 / len(chosen) if weights is None else weights.max()
            assert rows <= 1 / heaviest + 1e-6
    if len(set(shares[: len(counts)])) == 1 and len(set(counts)) == 1:
        assert rows >= min(size, len(part)) // 2, "where labels are even, it is about the size of the batch"


# ---- long runs


def test_an_order_does_not_look_through_all_answers(tmp_path: Path, monkeypatch) -> None:
    """Of 300,000 answers: an order of a client that had not answered took 70 ms, and an answer above the limit 100."""
    many = 60_000
    monkeypatch.setattr(journals, "MOST_BYTES", 27 * many)
    journal, answered = Journal(tmp_path, "run"), Answered(b"q" * 32, b"h" * 32, b"a" * 27)
    rows = [("run", round, 0, 0, answered.question, answered.history, answered.answer) for round in range(many)]
    journal._db.executemany("INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?, ?)", rows[:10])
    with journal._transaction():
        journal._db.executemany("INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?, ?)", rows[10:])
    journal.close()
    journal = Journal(tmp_path, "run")
    steps = list[int]()
    journal._db.set_progress_handler(lambda: steps.append(1), 100)  # of SQLite's machine: the same on every computer
    for client in range(1, 201):
        journal.over(client)
    journal._db.set_progress_handler(None, 0)
    assert len(steps) <= 200, "100 steps for an order, where 60,000 answers would be at least so many"
    counted = []
    monkeypatch.setattr(Journal, "_counted", lambda self: counted.append(self._size) or self._size)
    for round in range(many, many + 50):
        journal.record([(Place(round, 0), answered)])
    assert len(counted) == 1, "a part is dropped at once"
    assert journal.size <= journals.MOST_BYTES
    assert journal.over(1) >= many // 4, "what was dropped is over for everybody"
