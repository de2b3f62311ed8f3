"""Several runs of recipes that differ in some settings, each in a folder: one after the other, or on a cluster.

A run that has ended is kept, and one that was stopped goes on: the same call continues a sweep that was killed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from fedzero.callbacks import ignore
from fedzero.ledger.folder import LEDGER
from fedzero.recipe.engines import Wanted
from fedzero.recipe.environment import Environment
from fedzero.recipe.recipe import Recipe
from fedzero.runs import recorded
from fedzero.runs.progress import Silent
from fedzero.runs.several import go_on, placed
from fedzero.runs.summary import Summary, summary_of


def sweep(
    planned: Mapping[str, Recipe],
    folder: Path,
    environment: Environment,
    told: Callable[[str], None] = ignore,
    engine: Wanted = None,
) -> dict[str, Summary]:
    """Make all runs that are missing. planned: recipes by the name of their folder inside `folder`. engine: a cluster
    on which the runs are spread, each as one process; default: one after the other, each on its recipe's engine. told:
    what came of each.
    """
    names, calls = list(planned), []
    for name, each in planned.items():
        recipe, place, around, spreading = placed(each, folder, environment, engine)
        calls.append((recipe, place / name, around))
    for recipe, place, _ in calls:  # before the first run, which may take hours
        if (place / LEDGER).exists():
            recorded.recipe_in(place, recipe)
    found = spreading.spread(_made, calls, folder, lambda number, totals: told(_line(names[number], totals)))
    return dict(zip(names, found, strict=True))


def _line(name: str, totals: Summary) -> str:
    loss = "no loss" if totals.final_loss is None else f"loss {totals.final_loss:.4g}"
    return f"{name}: {totals.rounds} rounds, {loss}"


def _made(recipe: Recipe, folder: Path, environment: Environment) -> Summary:
    if (folder / LEDGER).exists() and (totals := summary_of(folder)).complete:
        return totals
    return go_on(recipe, folder, environment, Silent())
