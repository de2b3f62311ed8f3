"""Several runs in folders of one, for a sweep or a search: in this process, or spread over a cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedzero.callbacks import ignore
from fedzero.ledger.folder import LEDGER
from fedzero.recipe import recipe as recipes
from fedzero.recipe.engines import Engine, Wanted, chosen, local
from fedzero.recipe.environment import Environment
from fedzero.recipe.recipe import Recipe
from fedzero.rounds.loop import Watch
from fedzero.runs import recorded, session
from fedzero.runs.summary import Summary


def placed(
    recipe: Recipe, folder: Path, environment: Environment, engine: Wanted
) -> tuple[Recipe, Path, Environment, Engine]:
    """What runs are made of, and the engine that spreads them: a cluster, each as one process, or, where None is
    wanted, this process, each on its recipe's engine."""
    if engine is None:
        return recipe, folder, environment, local()
    cluster = chosen(recipe.engine, engine)
    return recipes.as_recorded(recipe), folder.resolve(), replace(environment, replaying=ignore), cluster


def go_on(recipe: Recipe, folder: Path, environment: Environment, watch: Watch) -> Summary:
    """Start a run, or resume it where the folder holds it."""
    if not (folder / LEDGER).exists():
        return session.start(recipe, folder, environment, watch)
    recorded.recipe_in(folder, recipe)
    return session.resume(folder, environment, watch, trusted=True)
