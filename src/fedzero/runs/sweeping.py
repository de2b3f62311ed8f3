"""Several runs of recipes that differ in some settings, each in a folder: one after the other, or on a cluster.

A run that has ended is kept, and one that was stopped goes on: the same call continues a sweep that was killed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from fedzero.callbacks import ignore
from fedzero.ledger.folder import LEDGER
from fedzero.ledger.store import Ledger
from fedzero.recipe import recipe as recipes
from fedzero.recipe.engines import Wanted, chosen, local
from fedzero.recipe.environment import Environment
from fedzero.recipe.recipe import Recipe
from fedzero.runs import recorded, session
from fedzero.runs.progress import Silent
from fedzero.runs.summary import Summary, summary


def sweep(
    planned: Mapping[str, Recipe],
    folder: Path,
    environment: Environment,
    told: Callable[[str, Summary], None] = ignore,
    engine: Wanted = None,
) -> dict[str, Summary]:
    """Make all runs that are missing. planned: recipes by the name of their folder inside `folder`. engine: a cluster
    on which the runs are spread, each as one process; default: one after the other, each on its recipe's engine."""
    names, cluster = list(planned), local()
    if engine is not None and planned:
        cluster = chosen(planned[names[0]].engine, engine)
        folder, environment = folder.resolve(), replace(environment, replaying=ignore)
        planned = {name: recipes.as_recorded(recipe) for name, recipe in planned.items()}
    for name, recipe in planned.items():  # before the first run, which may take hours
        if (folder / name / LEDGER).exists():
            recorded.recipe_in(folder / name, recipe)
    calls = [(recipe, folder / name, environment) for name, recipe in planned.items()]
    found = cluster.spread(_made, calls, folder, lambda number, totals: told(names[number], totals))
    return dict(zip(names, found, strict=True))


def _made(recipe: Recipe, folder: Path, environment: Environment) -> Summary:
    if not (folder / LEDGER).exists():
        return session.start(recipe, folder, environment, Silent())
    with closing(Ledger.open(folder / LEDGER)) as ledger:
        totals = summary(ledger)
    return totals if totals.complete else session.resume(folder, environment, Silent(), trusted=True)
