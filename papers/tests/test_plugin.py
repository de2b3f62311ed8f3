"""The papers as a plugin: found by their entry points, named in ledgers, made of public names only."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

import fedzero_papers
from fedzero import plugins
from fedzero.ledger.folder import LEDGER
from fedzero.ledger.store import Ledger
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import recorded, session
from fedzero.runs.progress import Silent

PAPERS = Path(__file__).parents[1]
PROJECT = tomllib.loads((PAPERS / "pyproject.toml").read_text())["project"]
NEEDS = {"fedzero-papers": PROJECT["version"]}
TASKS = PROJECT["entry-points"]["fedzero.tasks"]
RECIPES = sorted(path.stem for path in (Path(fedzero_papers.__file__).parent / "recipes").glob("*.toml"))


def started(folder: Path) -> Ledger:
    overrides = ["rounds=2", "task.dimension=8", "algorithm.directions=2", "algorithm.local_steps=1"]
    session.start(recipes.load("e5-fedzo", overrides), folder, Environment(), Silent())
    return Ledger.open(folder / LEDGER)


def test_the_ledger_says_what_it_needs(tmp_path):
    ledger = started(tmp_path)
    assert ledger.start().needs == NEEDS == {"fedzero-papers": "0.2.0"}
    ledger.close()
    assert recorded.recipe_in(tmp_path).needs == NEEDS
    assert recorded.verified(tmp_path, Environment()).end is not None


def test_a_run_with_tasks_of_the_core_needs_nothing_else(tmp_path, tiny):
    session.start(recipes.load(tiny, ["rounds=1"]), tmp_path, Environment(), Silent())
    ledger = Ledger.open(tmp_path / LEDGER)
    assert ledger.start().needs == {}
    ledger.close()


def test_every_task_is_found_by_its_tag_and_comes_from_here():
    known = plugins.kinds("tasks")
    for tag, place in TASKS.items():
        assert known[tag].origin == "fedzero-papers 0.2.0"
        assert f"{known[tag].type.__module__}:{known[tag].type.__name__}" == place


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_load(name):
    recipe = recipes.load(name)
    assert recipe.name == name
    assert recipe.about
    assert recipe.needs == (NEEDS if recipe.task.__struct_config__.tag in TASKS else {})


def test_the_command_has_a_place_of_its_own(fedzero):
    text = " ".join(fedzero("--help").out.split())
    assert "Experiments" in text
    assert "reproduce Reproduce an experiment of a paper" in text


def test_reproduce_takes_names_as_papers_write_them(fedzero, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    summary = fedzero("reproduce", "E9", "--quick", "--json").json
    assert summary["experiment"] == "e9"
    assert (tmp_path / "runs/reproduce/e9-quick/e9.md").read_text().startswith("# E9: ZOFedHT, table I")


@pytest.mark.parametrize("name", ["e8-zofedht", "metric"])
def test_the_list_shows_recipes_and_tasks(fedzero, name):
    assert fedzero("list", name).code == 0
    assert name in fedzero("list").out


def private(path: Path) -> list[str]:
    """Names with an underscore that a module takes from fedzero."""
    tree, found = ast.parse(path.read_text()), []
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fedzero":
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            found += [name for name in names if name.startswith("_")]
            modules |= {alias.asname or alias.name for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            found += [node.attr] if node.attr.startswith("_") else []
    return found


def test_nothing_private_is_used():
    sources = [*(PAPERS / "src").rglob("*.py"), *(PAPERS / "data").glob("*.py")]
    assert {path.name: private(path) for path in sources if private(path)} == {}


def test_what_the_check_of_private_names_sees(tmp_path):
    (tmp_path / "a.py").write_text(
        "from fedzero._x import a\nfrom fedzero.runs import session\nfrom fedzero.y import _b\nsession._c()\n"
    )
    assert private(tmp_path / "a.py") == ["_x", "_b", "_c"]
