"""Limits of directions that hold whatever the bytes of the model are, and whatever a run is called."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_hostile_server import asked, prepare, recipe_for, site_with, turn
from test_orders_out_of_place import order, reply, update, why, work

import fedzero
from fedzero.deploy.site import allowance
from fedzero.deploy.site.asked import Limits
from fedzero.deploy.site.journal import Drawn, Journal
from fedzero.deploy.site.terms import Terms
from fedzero.engines.remote.messages import Prepared
from fedzero.ledger.answers import Answered, Place
from fedzero.methods import DeComFL
from fedzero.model.schedules import Count
from fedzero.runs.spending.data_sets import OTHERS, data_set
from fedzero.tasks.own import Own


def task_of(seed: int, shift: int = 0):
    torch.manual_seed(seed)
    x, y = torch.randn(16, 8), torch.randint(0, 2, (16,))
    module = torch.nn.Linear(8, 2)
    return fedzero.site_task(module, (x + shift, y), loss=torch.nn.functional.cross_entropy)


@pytest.fixture
def clinics(tmp_path: Path, monkeypatch):
    """Two data sets of a site, by the names that recipes have for them."""
    monkeypatch.syspath_prepend(str(tmp_path))
    lines = "from test_directions_by_data_set import task_of\nnorth = task_of(1)\nsouth = task_of(2, 3)\n"
    name = f"wards_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(lines)
    return {"north": f"{name}:north", "south": f"{name}:south"}


def begun(folder: Path, tasks, name: str = "north", run: str = "run", terms: Terms | None = None, **options):
    site = site_with(folder, terms=terms or Terms(), tasks=tasks)
    recipe = recipe_for(task=Own(name=name, batch=8), **options)
    assert isinstance(answer := asked(site, prepare(recipe, run=run)), Prepared), answer
    return site


def nudged(round: int, client: int = 0) -> bytes:
    """A turn at a model that no turn was at before."""
    return order(round, work(round, [update(round - 1, 1e-3)] if round else []), client=client)


def test_a_run_is_limited_at_whatever_models(tmp_path: Path, clinics, capsys) -> None:
    terms = Terms(directions_per_run=6, directions_per_day=0)
    site = begun(tmp_path, clinics, terms=terms)
    given = [reply(site, nudged(round)) for round in range(3)]
    assert reply(site, nudged(2)) == given[2], "the same again costs nothing"
    said = why(site, nudged(3))
    assert "directions_per_run = 6, and this run asked about 6 directions of this data, and this is 2 more" in said
    assert "`fedzero join KIT --term directions_per_run=8`" in said
    site.leave()
    again = begun(tmp_path, clinics, terms=terms)
    assert "directions_per_run = 6" in why(again, nudged(3)), "also in another process"
    assert "directions_per_run = 6" in why(again, nudged(3, client=1)), "client 1 has the same rows"


def test_a_day_is_limited_by_data_set_over_runs_and_recipes(tmp_path: Path, clinics, capsys) -> None:
    terms = Terms(directions_per_day=6)
    for number, options in enumerate(({}, {"seed": 9}, {"algorithm": DeComFL(rate=1e-4, directions=2)})):
        site = begun(tmp_path, clinics, run=f"run {number}", terms=terms, **options)
        reply(site, turn(0, 0))
        site.leave()
    site = begun(tmp_path, clinics, run="another", terms=terms, seed=4)
    assert "directions_per_day = 6, and runs in 24 hours asked about 6 directions of this data" in why(site, turn(0, 0))
    site.leave()
    other = begun(tmp_path, clinics, "south", terms=terms)
    assert reply(other, turn(0, 0)), "another data set"


def test_hours_and_clocks(tmp_path: Path) -> None:
    """A day later all is forgotten; a clock that was ahead locks for no more than a day; runs are still known."""
    journal, hour = Journal(tmp_path, "run"), allowance.HOUR

    def ask(round: int, now: float, client: int = 0) -> bool:
        place, limits = Place(round, client), Limits(b"data", now, 0, 10)
        drawn = Drawn(b"model", client, b"%d" % round, 5, 0, client, 5)
        return not journal.record([(place, Answered(b"q", b"h", b"a%d" % round))], [drawn], False, limits)

    assert ask(0, 1000 * hour)
    assert ask(1, 1000 * hour)
    assert not ask(2, 1000 * hour)
    assert ask(2, 1000 * hour, client=1), "other rows"
    assert not ask(3, 1024.9 * hour)
    assert ask(3, 1025 * hour)
    assert ask(4, 1025 * hour)
    assert not ask(5, 900 * hour), "spent in the future: counts as now"
    assert ask(5, 925 * hour)
    assert journal.asked(b"data", 925 * hour).of_run(0) == 25
    journal.forget(["run"])
    assert journal.asked(b"data", 925 * hour).of_run(0) == 5, "the last day counts for runs that are forgotten"


def test_two_processes_count_together(tmp_path: Path) -> None:
    one, other = Journal(tmp_path, "one"), Journal(tmp_path, "other")
    limits = Limits(b"data", 0.0, 0, 8)
    found = [
        journal.record([(Place(0, 0), Answered(b"q", b"h", b"a"))], [Drawn(b"m", 0, b"d", 5, 0, 0, 5)], False, limits)
        for journal in (one, other)
    ]
    assert [list(refused.values()) for refused in found] == [[], ["was asked too much meanwhile"]]


def test_the_content_of_a_data_set(tmp_path: Path) -> None:
    """Not the recipe: neither clients nor batches; of tasks that do not say it, all count together."""
    built = [task_of(1).build(clients, batch).shards for clients, batch in ((2, 8), (3, 4))]
    assert data_set(built[0]) == data_set(built[1]) != data_set(task_of(2).build(2, 8).shards)
    assert data_set(object()) == OTHERS


def test_schedules_count_what_a_round_asks(tmp_path: Path, clinics) -> None:
    growing = DeComFL(rate=1e-3, directions=Count(start=2, then=((40, 200),)))
    site = begun(tmp_path, clinics, algorithm=growing)
    reply(site, turn(0, 0))
    journal, now = site.run._journal, site.run._allowance.now()
    assert journal.asked(site.run.data, now).of_run(0) == site.run.agreement.cost(0).queries < 10
