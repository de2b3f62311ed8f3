"""Terms of a site, as a person gives and reads them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fedzero import recipes as packaged
from fedzero.deploy.flare import project as kits
from fedzero.deploy.site.settings import Settings
from fedzero.deploy.site.terms import UNLIMITED, Terms, with_options
from fedzero.directions import Keys
from fedzero.errors import FedzeroError
from fedzero.recipe import recipe as recipes
from fedzero.recipe.plan import Plan


def test_the_hash_of_a_recipe(fedzero, tiny) -> None:
    found, other = (fedzero("recipe-hash", tiny, *more).out.strip() for more in ((), ("--rounds", "7")))
    assert found == recipes.hash_of(recipes.load(tiny))
    assert other == recipes.hash_of(recipes.load(tiny, rounds=7)) != found
    assert fedzero("recipe-hash", tiny, "--set", "about=words").out.strip() == found


def test_all_settings_are_explained(fedzero) -> None:
    shown = fedzero("list", "site").out
    for name in (*Settings.__struct_fields__, *Terms.__struct_fields__):
        assert name in shown
    assert "[terms]" in shown


def test_settings_are_read_as_they_were_written(tmp_path: Path) -> None:
    terms = Terms(methods=("decomfl",), private=False, approved=("ab" * 32,), queries_per_day=5)
    settings = Settings(files={"rows": "/srv/rows.csv"}, terms=terms)
    (tmp_path / "fedzero.toml").write_bytes(msgspec.toml.encode(settings))
    assert Settings.read(tmp_path / "fedzero.toml") == settings
    changed = settings.with_values(terms=msgspec.to_builtins(terms) | {"tasks": ["own"]})
    assert changed.terms == msgspec.structs.replace(terms, tasks=("own",)), "what was not given again stays"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--approve", "abc"], ["approved", "[0-9a-f]{64}"]),
        (["--term", "least_batch=none"], ["--term least_batch=none", "NAME=NUMBER"]),
        (["--term", "least_batch=0"], ["least_batch", ">= 1"]),
        (["--file", "/srv/rows.csv"], ["--file /srv/rows.csv", "NAME=PATH"]),
    ],
)
def test_what_makes_no_sense_shows_before_the_site_connects(tmp_path: Path, fedzero, options, words) -> None:
    pytest.importorskip("nvflare", reason="nvflare is not installed")
    kits.provision(tmp_path / "project", ["north"])
    kit = kits.kit_of(tmp_path / "project", "north")
    fedzero("join", kit, *options).refused(*words)
    assert not (kit / "local" / kits.SETTINGS).exists()


@pytest.mark.parametrize("path", sorted(Path(packaged.__file__).parent.glob("*.toml")), ids=lambda path: path.stem)
def test_packaged_recipes_are_within_the_default_limits(path: Path) -> None:
    """Also where one site has all their clients, in a day."""
    recipe, terms = recipes.load(path), Terms()
    terms.check(recipe, secret=False)
    plan = Plan(recipe.algorithm, recipe.federation, Keys.of_seed(recipe.seed), 159_010)
    terms.check_turn(plan.algorithm, plan.cost(0))
    turns = sum(plan.cost(round).queries for round in range(recipe.rounds)) * recipe.federation.cohort
    assert turns + recipe.rounds // recipe.evaluate_every + 2 <= terms.queries_per_day
    assert terms.projections_of(recipe.algorithm, plan.cost(0)) <= terms.projections


def test_a_line_says_what_a_server_can_do() -> None:
    one, two = "0" * 64, "1" * 64
    assert Terms(methods=("decomfl",), approved=(one,), queries_per_day=20_000).exposure() == (
        "the server can ask for at most 20,000 evaluations a day, each of at least 8 rows, in the recipe that you "
        "approved; it learns one number per evaluation"
    )
    assert "in 2 recipes that you approved" in Terms(approved=(one, two)).exposure()
    assert Terms(tasks=("own",), least_batch=1).exposure() == (
        "the server can ask for at most 100,000 evaluations a day, of single rows, too, in any recipe of the tasks own "
        "(--approve HASH: only in those that you approve); it learns one number per evaluation, with fedavg a whole "
        "update per turn"
    )
    assert "as many evaluations as it likes" in UNLIMITED.exposure()


def test_limits_are_given_by_name() -> None:
    assert with_options(["least_batch=1", "runs_kept=3"]) == {"least_batch": 1, "runs_kept": 3}
    for wrong in ("least_batch", "least_batch=-1", "methods=1", "nothing=1"):
        with pytest.raises(FedzeroError, match="write it as NAME=NUMBER, with one of queries_per_day, least_batch"):
            with_options([wrong])


def test_more_sites_than_clients_are_refused_before_anything_is_made(fedzero, tiny, tmp_path: Path) -> None:
    clients = recipes.load(tiny).federation.clients
    refused = fedzero("federate", tiny, "--sites", clients + 1, "--out", tmp_path / "run")
    refused.refused(f"--sites {clients + 1}", f"has {clients} clients")
    assert not (tmp_path / "run").exists()
