"""A search over several fields at once: of a recipe, or of whatever a function runs.

Values by key make a grid, whose settings are halved as in `tuning`; or an optuna study proposes settings (`studies`).
Either way a run is judged by its training loss, the mean over the last quarter of its rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from fedzero.callbacks import ignore
from fedzero.errors import FedzeroError
from fedzero.recipe import recipe as recipes
from fedzero.recipe.engines import Wanted
from fedzero.recipe.environment import Environment
from fedzero.recipe.recipe import Recipe
from fedzero.runs import recorded, tuning
from fedzero.runs.grids import Setting
from fedzero.runs.several import go_on, placed
from fedzero.runs.tuning import OWN, Enough, Play, StopAfter, Told, Trial, Tuned, Value

Made = Callable[[Setting, Path, StopAfter], object]
"""Makes, or resumes, the run of a setting in a folder; the watch ends it."""


class Tried(Struct, frozen=True, kw_only=True):
    """One setting, and its result so far."""

    setting: dict[str, Any]
    rounds: int
    loss: float | None
    """training loss over the last quarter of the rounds; None if it is not a number"""
    folder: str


class Found(Struct, frozen=True, kw_only=True):
    """The result of a search: `best` has the values to set (none: the recipe as it is), `trials` are best first."""

    best: dict[str, Any]
    trials: tuple[Tried, ...]
    note: str = ""


def with_setting(recipe: Recipe, setting: Setting) -> Recipe:
    """The recipe with other values of some keys."""
    table: dict[str, Any] = msgspec.json.decode(recipes.canonical(recipe))
    for key, value in setting.items():
        recipes.put(table, key, value, "search")
    return recipes.decode(table, f"the recipe with {setting}")


def search_recipe(
    recipe: Recipe,
    settings: Mapping[str, Setting],
    rounds: int | None,
    folder: Path,
    environment: Environment,
    told: Told = ignore,
    engine: Wanted = None,
) -> Found:
    """Halve settings of a recipe, by the names of their folders. The recipe as it is plays all rounds, too, and is
    recommended unless a setting is better. rounds: of the longest runs, default half of the recipe's."""
    recipe, folder, environment, spreading = placed(tuning.shortened(recipe, rounds), folder, environment, engine)
    planned: dict[Value, Recipe] = {name: with_setting(recipe, setting) for name, setting in settings.items()}
    own = next((name for name, each in planned.items() if each == recipe), OWN)
    play = tuning.playing(({OWN: recipe} | planned).__getitem__, folder, environment, spreading, told)
    return _searched(play, ({OWN: {}} if own == OWN else {}) | dict(settings), recipe.rounds, own)


def search_runs(made: Made, settings: Mapping[str, Setting], rounds: int, folder: Path, told: Told = ignore) -> Found:
    """Halve settings of runs that somebody makes in this process."""

    def play(values: Iterable[Value], limit: int) -> list[Trial]:
        found = []
        for name in map(str, values):
            found.append(play_until(made, settings[name], folder / name, StopAfter(limit), name))
            told(found[-1])
        return found

    return _searched(play, settings, max(rounds, tuning.LEAST))


def play_until(made: Made, setting: Setting, folder: Path, watch: StopAfter, name: str) -> Trial:
    """Make or resume a run until its watch ends it; also one that has its rounds, to see that it is that run."""
    with suppress(Enough):
        made(setting, folder, watch)
    tuning.expect_losses(recorded.recipe_in(folder))
    done = tuning.losses_of(folder)
    loss = tuning.judged(done[: watch.rounds])
    return Trial(value=name, rounds=min(len(done), watch.rounds), loss=loss, folder=str(folder))


def make_recipe(recipe: Recipe, environment: Environment) -> Made:
    """Runs of a recipe, as somebody's."""

    def made(setting: Setting, folder: Path, watch: StopAfter) -> None:
        go_on(with_setting(recipe, setting), folder, environment, watch)

    return made


def _searched(play: Play, settings: Mapping[str, Setting], longest: int, own: Value = OWN) -> Found:
    limits = tuning.limits_of(max(2, len(settings)), longest)
    found = tuning.halved(play, play(settings, limits[0]), limits[1:], own)
    return found_of(found, settings)


def found_of(trials: list[Trial], settings: Mapping[str, Setting], note: str = "") -> Found:
    """trials: best first."""
    if not trials or trials[0].loss is None:
        raise FedzeroError("no setting gave a finite loss: give smaller rates")
    tried = [Tried(setting=dict(settings[str(t.value)]), rounds=t.rounds, loss=t.loss, folder=t.folder) for t in trials]
    return Found(best=tried[0].setting, trials=tuple(tried), note=note)


def of_one(found: Tuned) -> Found:
    """The result of a search in one field."""

    def setting(value: Value) -> Setting:
        return {} if value == OWN else {found.key: value}

    trials = [Tried(setting=setting(t.value), rounds=t.rounds, loss=t.loss, folder=t.folder) for t in found.trials]
    return Found(best=setting(found.best), trials=tuple(trials), note=found.note)
