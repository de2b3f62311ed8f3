"""Every recipe in the package decodes, and runs: two rounds, with less of everything."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedzero import plugins
from fedzero.errors import FedzeroError
from fedzero.methods import FZooS
from fedzero.methods.contract import Scale
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import recorded, session
from fedzero.runs.progress import Silent
from fedzero.tasks.classify import Fashion, ImageTask
from fedzero.tasks.language.task import Language

LESS: dict[str, dict[str, Any]] = {
    "task": {"batch": 4, "training": 64, "testing": 16},
    "algorithm": {"directions": 2, "local_steps": 2},
    "engine": {"device": "cpu"},
}
"""What to make smaller, where a recipe has it."""
FEW = {"transfer": "{count=100}", "active": "{initial=6, a_step=2, candidates=6, around=4, around_candidates=8}"}
"""Of surrogates: random features, and queries."""
SHARED = Path(__file__).parents[3] / "shared" / "data"


class Quiet(Silent):
    pass


def data_folder() -> Path | None:
    named = os.environ.get("FEDZERO_DATA")
    return Path(named) if named else SHARED if SHARED.is_dir() else None


def overrides_for(recipe: recipes.Recipe) -> list[str]:
    smaller = [
        f"{table}.{name}={value}"
        for table, values in LESS.items()
        for name, value in values.items()
        if getattr(getattr(recipe, table), name, 1) != 1
    ]
    if isinstance(recipe.algorithm, FZooS):
        smaller += [f"algorithm.{name}={value}" for name, value in FEW.items()]
    if isinstance(recipe.task, ImageTask):
        smaller.append("task.full=false")
    if isinstance(recipe.task, Fashion):
        smaller.append("task.model=small")  # the large one has tests of its own
    sampled = 3 < recipe.federation.cohort < recipe.federation.clients
    return ["rounds=2", "evaluate_every=2", *smaller, *(["federation.cohort=3"] if sampled else [])]


@pytest.mark.parametrize("name", plugins.recipes())
def test_decodes_as_it_is(name) -> None:
    recipe = recipes.load(name)
    assert recipe.name == name
    assert recipe.about
    assert recipes.from_canonical(recipes.canonical(recipe)) == recipe
    assert recipes.decode(msgspec.to_builtins(recipe)) == recipe


def unlike() -> list[str]:
    """One recipe for every combination of task, method and filters: others differ from it in numbers and data."""
    found: dict[Any, str] = {}
    for name in plugins.recipes():
        recipe = recipes.load(name)
        data = getattr(recipe.task, "dataset", getattr(recipe.task, "measure", None))
        parts = type(recipe.task), type(recipe.algorithm), tuple(link.name for link in recipe.filters), data
        found.setdefault(parts, name)
    return list(found.values())


@pytest.fixture
def poor_victims(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models under attack learn from a few hundred images: from all of them takes ten minutes, on a machine that has
    not done it before. They have tests of their own."""

    def fit_little(module: Any, x: Any, y: Any, how: Any) -> None:
        trained.fit(module, x[:600], y[:600], replace(how, epochs=2, batch=min(how.batch, 50)))

    if find_spec("fedzero_papers") is None:
        return
    trained = import_module("fedzero_papers.tasks.trained")
    monkeypatch.setenv("FEDZERO_CACHE", str(tmp_path_factory.getbasetemp() / "poor-victims"))
    for name in ("universal_attack", "image_attack", "metric"):
        monkeypatch.setattr(f"fedzero_papers.tasks.{name}.fit", fit_little)


@pytest.mark.parametrize("name", unlike())
def test_runs(tmp_path: Path, name, request: pytest.FixtureRequest, poor_victims: None) -> None:
    packaged = recipes.load(name)
    task, overrides = packaged.task, overrides_for(packaged)
    if isinstance(task, Language):
        overrides.append(f'task.model="{request.getfixturevalue("small_model")("smollm", 1024)}"')
    recipe, data = recipes.load(name, overrides), data_folder()
    assert type(recipe.algorithm) is type(packaged.algorithm)
    environment = Environment(data)
    try:
        found = session.start(recipe, tmp_path / "run", environment, Quiet())
    except FedzeroError as missing:
        if "--data" not in str(missing):
            raise
        pytest.skip(f"neither in the package nor in a data folder: {missing}")
    assert (found.complete, found.rounds, found.refused) == (True, 2, 0)
    turns = recipe.rounds * recipe.federation.cohort
    cost = recipe.algorithm.cost(0, Scale(found.parameters, recipe.federation.clients))
    assert 0 < found.queries <= turns * cost.queries + recipe.federation.clients * cost.first_queries
    assert recorded.replayed(tmp_path / "run", environment, None).digest().hex() == found.model_digest
