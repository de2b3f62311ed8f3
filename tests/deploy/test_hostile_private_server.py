"""A server that wants to know more of a site than [privacy] of its recipe says. Orders are bytes from outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness import recipe_of
from slopes import Private, Slopes
from test_directions_by_data_set import clinics
from test_hostile_server import asked, prepare, refused, site_with, turn

from entropy import given_entropy
from fedzero import plugins
from fedzero.deploy.site.promised import WHOLE_SITE
from fedzero.deploy.site.site import Site
from fedzero.deploy.site.terms import Terms
from fedzero.engines.remote.messages import (
    Deliver,
    Exchange,
    Measure,
    Phase,
    Phased,
    Prepare,
    Prepared,
    PrepareExtended,
    Recover,
    Replies,
    encode,
)
from fedzero.gatherings.messages import Opening
from fedzero.gatherings.messages import encode as encoded
from fedzero.methods import DeComFL
from fedzero.model.updates import Seeded, encode_update
from fedzero.protocol.messages import decode_reply, encode_close, encode_work
from fedzero.recipe import recipe as recipes
from fedzero.runs.spending.budget import Budget
from fedzero.runs.spending.charges import Policy
from fedzero.tasks.own import Own

__all__ = ["clinics"]

ROUNDS = 5
ROWS = {"unit": "example", "clip": 1.0, "population": 32, "probability": 0.25}


def private_recipe(task: Any = None, hosts: int = 2, rounds: int = ROUNDS, **privacy: Any) -> recipes.Recipe:
    """Four clients at two sites; this one has the first two."""
    method = DeComFL(rate=1e-3, directions=2)
    table = msgspec.to_builtins(recipe_of(method, clients=4, cohort=2, bound=0.0, **({"task": task} if task else {})))
    noise = {} if "epsilon" in privacy else {"sigma": 1.0}
    return recipes.decode(table | {"rounds": rounds, "privacy": {"hosts": hosts} | noise | privacy})


def solved(**privacy: Any) -> recipes.Recipe:
    return recipes.with_noise(private_recipe(**privacy))


def changed(recipe: recipes.Recipe, **privacy: Any) -> bytes:
    """The bytes of a recipe with other values, as a server may send them; None: without the key."""
    table = msgspec.json.decode(recipes.canonical(recipe))
    table["privacy"] = {k: v for k, v in (table["privacy"] | privacy).items() if v is not None}
    return msgspec.json.encode(table)


def ready(folder: Path, recipe: Any, **settings: Any) -> Site:
    site = site_with(folder, **settings)
    assert isinstance(answer := asked(site, prepare(recipe)), Prepared), answer
    return site


def whole(site: Site, round: int = 0, clients: tuple[int, ...] = (0, 1)) -> Replies:
    answer = asked(site, turn(round, *clients))
    assert isinstance(answer, Replies) and not answer.failed, answer
    return answer


# ---- the recipe


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"sigma": None}, "the server has not solved it"),
        ({"sigma": 0.5}, r"privacy.epsilon = 2 is less than the "),
        ({"hosts": None}, "sites draw their own units"),
        ({"epsilon": 0.5}, r"privacy.epsilon = 0.5 is less than the 2"),
        ({"probability": 0.9}, r"is less than the "),
        ({"delta": 1e-9}, r"is less than the "),
        ({"delta": 0.05}, "too large for 4 units"),
        ({"population": 2}, "privacy.population = 2, and there are 4 clients"),
    ],
)
def test_a_promise_is_computed_again(tmp_path: Path, change: dict[str, Any], why: str, capsys: Any) -> None:
    recipe = solved(epsilon=2.0, delta=1e-3, population=4, noise="local")
    site = site_with(tmp_path)
    assert isinstance(asked(site, prepare(recipe)), Prepared)
    assert why in refused(site_with(tmp_path / "other"), prepare(changed(recipe, **change)))


def test_a_recipe_that_no_accountant_can_hold_is_refused_at_once(tmp_path: Path, capsys: Any) -> None:
    recipe = private_recipe(rounds=10**8, sigma=0.2, epsilon=1.0)
    assert "rounds with privacy.sigma = 0.2 may spend" in refused(site_with(tmp_path), prepare(recipe))


def test_a_server_does_not_count_units(tmp_path: Path, slopes: Any, capsys: Any) -> None:
    """It chooses the population, and hears the same of a site with more units and of one with fewer."""
    for population, more in ((12, False), (11, True)):
        recipe = private_recipe(Slopes(dimension=6, rows=3), **UNITS["examples"] | {"population": population})
        ready(tmp_path, recipe)
        assert ("there are 12 units here" in capsys.readouterr().err) == more, "the people at the site hear it"
    told = refused(site_with(tmp_path, privacy=Policy(units=12)), prepare(recipe))
    assert "privacy.units = 12, more than privacy.population" in told


def test_one_row_less_takes_no_other_row_with_it(tmp_path: Path, slopes: Any, capsys: Any) -> None:
    """A least number of rows is none for units that are bounded one by one: the sum would change by all of them."""
    slopes.private = Private({0: [1.0] * 3, 1: [1.0] * 3})
    recipe = private_recipe(Slopes(dimension=6, rows=3), **UNITS["examples"] | {"probability": 1.0})
    site = ready(tmp_path, recipe, terms=Terms(least_batch=4))
    whole(site)
    assert site.run is not None
    kept = site.run._journal.of_exchange(0, 0)
    assert all(decode_reply(data, 1000).values.strip(b"\0") for data in kept.values())


@pytest.mark.parametrize("kind", [{"probability": 1.0}, {"noise": "local"}])
def test_more_rounds_than_the_noise_pays_for_are_refused(tmp_path: Path, kind: dict[str, Any], capsys: Any) -> None:
    recipe = solved(epsilon=2.0, delta=1e-3, **kind)
    site = ready(tmp_path, recipe)

    def extended(rounds: int) -> bytes:
        place = "run", recipes.canonical(recipe), (0, 1), {}, None
        return encode(PrepareExtended(*place, rounds, recipe.evaluate_every, b"{}"))

    assert isinstance(asked(site, extended(ROUNDS)), Prepared)
    assert f"that {ROUNDS + 1} rounds with" in refused(site, extended(ROUNDS + 1))
    assert "before it was prepared" in refused(site, turn(0, 0, 1)), "nothing is left of a run that was refused"


def test_more_rounds_than_the_site_allows_are_refused_though_the_recipe_names_no_budget(
    tmp_path: Path, capsys: Any
) -> None:
    site = ready(tmp_path, private_recipe(), privacy=Policy(epsilon=30.0, delta=1e-3))
    for round in range(2):
        whole(site, round)
    place = "run", recipes.canonical(private_recipe()), (0, 1), {}, None
    order = encode(PrepareExtended(*place, 100, 5, b"{}"))
    assert "privacy.epsilon = 30 (delta = 0.001) for this data, and with 98 more" in refused(site, order)


def test_a_site_on_an_engine_that_keeps_nothing_takes_no_part(tmp_path: Path, capsys: Any) -> None:
    assert "the site's own process" in refused(site_with(tmp_path, engine="local"), prepare(private_recipe()))


def test_rows_that_two_clients_have_would_count_twice(tmp_path: Path, clinics: Any, capsys: Any) -> None:
    """A site with one data set has one client."""
    recipe, site = private_recipe(Own(name="north", batch=8), **ROWS), site_with(tmp_path, tasks=clinics)
    assert "clients 0 and 1 have the same rows here" in refused(site, prepare(recipe))
    assert isinstance(asked(site, prepare(recipe, clients=(1,))), Prepared)


def test_an_approval_is_of_the_budget_and_not_of_the_noise(tmp_path: Path, capsys: Any) -> None:
    asking = private_recipe(epsilon=2.0, delta=1e-3, probability=1.0)
    recipe = recipes.with_noise(asking)
    assert recipes.approval_of(asking) == recipes.approval_of(recipe) != recipes.hash_of(recipe)
    terms = Terms(approved=(recipes.approval_of(asking),))
    ready(tmp_path, recipe, terms=terms)
    other = solved(epsilon=2.5, delta=1e-3, probability=1.0)
    assert "do not approve" in refused(site_with(tmp_path, terms=terms), prepare(other))
    assert recipes.approval_of(private_recipe(sigma=2.0)) != recipes.approval_of(private_recipe(sigma=1.0))


# ---- who takes part


def test_a_server_does_not_choose_who_takes_part(tmp_path: Path, capsys: Any) -> None:
    site = ready(tmp_path, private_recipe())
    assert "was asked without client 1" in refused(site, turn(0, 0))
    assert "client 3 is not at this site" in refused(site, turn(0, 0, 1, 3))
    whole(site)
    assert "was asked without client 0" in refused(site, turn(0, 1)), "nor asks again about a part of them"


def test_clients_of_a_run_stay_where_they_are(tmp_path: Path, capsys: Any) -> None:
    """Or a server would ask about one set of clients in one round, and about another in the next."""
    site = ready(tmp_path, private_recipe())
    assert "was assigned other clients before" in refused(site, prepare(private_recipe(), clients=(0,)))
    assert "was assigned other clients before" in refused(site, prepare(private_recipe(), clients=(0, 1, 2)))
    assert isinstance(asked(site, prepare(private_recipe(), clients=(0,), run="another")), Prepared)


def test_a_member_of_a_committee_is_asked_for_all_of_its_clients(tmp_path: Path, capsys: Any) -> None:
    recipe = private_recipe(hosts=4, noise="distributed", sum="secure")
    site = ready(tmp_path, recipe)
    whole(site)
    order = encode(Phase(0, 0, 0, encoded(Opening("north", (0,)))))
    assert "asked for some of its clients" in refused(site, order)
    assert isinstance(asked(site, encode(Phase(0, 0, 0, encoded(Opening("north", (0, 1)))))), Phased)


# ---- the same question twice, another question


def test_a_turn_is_answered_once_and_again_by_the_same_bytes(tmp_path: Path, capsys: Any) -> None:
    site = ready(tmp_path, private_recipe(noise="local"))
    before, phase = whole(site, 1).replies, encode(Phase(1, 0, 0, b""))
    noisy = asked(site, phase)
    assert isinstance(noisy, Phased)
    site.leave()
    again = ready(tmp_path, private_recipe(noise="local"))
    assert whole(again, 1).replies == before and asked(again, phase) == noisy
    assert "with another body" in refused(again, encode(Phase(1, 0, 0, b"x")))
    moved = encode_work(1, 0, [encode_update(Seeded(0, b"\0\0\0\0\0\0\0\0"))])
    answer = asked(again, encode(Exchange(1, 0, {0: moved, 1: moved})))
    assert isinstance(answer, Replies) and not answer.replies
    assert all("by another question" in why for why in answer.failed.values())
    assert again.run is not None and again.run.budget is not None
    assert again.run.budget.totals()[0].attempts == 1


def test_no_answer_about_a_round_of_which_the_first_was_forgotten(tmp_path: Path, capsys: Any) -> None:
    """A server that starts enough runs gets the answers of a run removed, but not a second draw of its noise."""
    terms = Terms(runs_kept=1)
    site = ready(tmp_path, private_recipe(noise="local"), terms=terms)
    whole(site)
    for number in range(3):
        assert isinstance(asked(site, prepare(private_recipe(), run=f"another {number}")), Prepared)
    assert "has not kept what it answered" in refused(site, prepare(private_recipe(noise="local")))


def test_what_is_kept_of_a_round_is_not_what_was_sent_of_it(tmp_path: Path) -> None:
    """The whole replies and the coins are on the disk, before the replies leave without their numbers."""
    site = ready(tmp_path, private_recipe())
    whole(site)
    assert site.run is not None
    journal = site.run._journal
    kept = journal.of_exchange(0, 0)
    assert kept.keys() == {0, 1} and all(decode_reply(data, 1000).values for data in kept.values())
    roots = "SELECT count(*) FROM answers WHERE client < ? AND length(answer) = 32"
    assert journal._one(roots, -(1 << 39)) == (2,)
    assert journal.notes(WHOLE_SITE).keys() == {"clients"}


# ---- orders that would show data


@pytest.mark.parametrize(
    ("order", "why"),
    [
        (Measure((), 0), "a model that the server has itself"),
        (Deliver({0: encode_close(0, encode_update(Seeded(0, b"\0\0\0\0\0\0\0\0")))}), "which federation.sync = false"),
        (
            Exchange(ROUNDS, 0, {0: encode_work(ROUNDS, 0, []), 1: encode_work(ROUNDS, 0, [])}),
            "the recipe has 5 rounds",
        ),
        (Exchange(0, 1, {0: encode_work(0, 1, []), 1: encode_work(0, 1, [])}), "of a round that has 1"),
        (Phase(0, 0, 0, b""), "has no reply of exchange 0 of round 0"),
        (Phase(0, 1, 0, b""), "a phase of exchange 1"),
    ],
)
def test_orders_that_no_round_has(tmp_path: Path, order: Any, why: str, capsys: Any) -> None:
    assert why in refused(ready(tmp_path, private_recipe()), encode(order))


def test_a_round_is_paid_for_before_its_coins_are_thrown(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """Where the budget is at its end no coin is thrown and nothing is evaluated."""
    site = ready(tmp_path, private_recipe(), privacy=Policy(epsilon=30.0))
    spent = Budget.reserve

    def beyond(self: Any, charge: Any, round: int, question: bytes) -> None:
        self.policy = Policy(epsilon=1e-3 + self.totals()[0].epsilon) if self.totals() else self.policy
        spent(self, charge, round, question)

    monkeypatch.setattr(Budget, "reserve", beyond)
    whole(site, 0)
    answer = asked(site, turn(1, 0, 1))
    assert isinstance(answer, Replies) and not answer.replies
    assert all("for this data" in why for why in answer.failed.values())
    assert site.run is not None
    assert site.run._journal._one("SELECT count(*) FROM answers WHERE round = 1") == (0,)


# ---- replies that look alike


@pytest.fixture
def slopes() -> Any:
    plugins.register(Slopes)
    before = Slopes.private
    yield Slopes
    Slopes.private = before


UNITS = {"clients": {"probability": 0.5}, "examples": {**ROWS, "population": 12, "probability": 0.5}}


@pytest.mark.parametrize("unit", UNITS)
def test_replies_are_the_same_for_clients_that_take_part_that_do_not_and_that_fail(
    tmp_path: Path, slopes: Any, unit: str, monkeypatch: Any, capsys: Any
) -> None:
    recipe = private_recipe(Slopes(dimension=6, rows=3), **UNITS[unit])
    seen = {}
    for name, private in {
        "ones": Private(),
        "large": Private({0: [64.0] * 3, 1: [32.0] * 3}, shift=8.0),
        "nan": Private({0: [float("nan")] * 3}),
    }.items():
        Slopes.private = private
        with given_entropy(coins=name.encode()):
            site = ready(tmp_path / name, recipe)
        seen[name] = [whole(site, round).replies for round in range(4)]
    with given_entropy(coins=b"failing"):  # of which some take part
        site = ready(tmp_path / "failing", recipe)
    monkeypatch.setattr(type(site.run.setup.problem.objective), "row_losses", lambda *_: 1 / 0)
    seen["failing"] = [whole(site, round).replies for round in range(4)]
    with given_entropy(coins=b"few"):
        few = ready(tmp_path / "few", recipe, terms=Terms(least_batch=4))
    monkeypatch.setattr(type(few.run.setup.problem.shards), "rows", lambda self, client: 3, raising=False)
    seen["few"] = [whole(few, round).replies for round in range(4)]
    first = seen.pop("ones")
    assert all(each == first for each in seen.values())
    assert len({data for replies in first for data in replies.values()}) == 4, "one for each round"
    found = decode_reply(first[0][0], 1000)
    assert (found.values, found.loss, found.memory) == (b"", b"", b"")
    said = capsys.readouterr().err
    assert ("has fewer rows" in said) == ("ZeroDivisionError" in said) == (unit == "clients"), "the site is told"


def test_a_turn_takes_as_long_as_the_site_says(tmp_path: Path, monkeypatch: Any) -> None:
    from fedzero.deploy.site import run

    slept: list[float] = []
    monkeypatch.setattr(run.time, "sleep", slept.append)
    whole(ready(tmp_path, private_recipe(), privacy=Policy(seconds=900.0)))
    assert len(slept) == 1 and 800 < slept[0] <= 900


def test_a_run_is_told_by_its_bytes(tmp_path: Path) -> None:
    """`Recover` brings any model; it asks nothing about data."""
    site = ready(tmp_path, private_recipe())
    assert asked(site, encode(Recover(True, (encode_update(Seeded(0, b"\0\0\0\0\0\0\0\0")),)))) is not None
    assert isinstance(Prepare("run", b"", ()), Prepare)
