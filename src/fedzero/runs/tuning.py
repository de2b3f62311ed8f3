"""Find a rate, or another number of a recipe, by short runs: successive halving (Jamieson and Talwalkar, 2016).

    n values play R/2^s rounds; the better half goes on to twice as many rounds, until three of them play R rounds

A run is judged by its training loss, the mean over the last quarter of its rounds: every round has it, on mini-batches
that the model has not been fitted to yet, and the test data stays unseen. Every trial is an ordinary run in a folder of
its own, stopped after its rounds and resumed for more, so a search that was killed goes on where it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from fedzero.algorithms.pacing import SHARE, Pace
from fedzero.errors import FedzeroError
from fedzero.ledger import replay
from fedzero.ledger.outline import Outline
from fedzero.ledger.records import Round
from fedzero.ledger.store import Ledger
from fedzero.runs import recipe as recipes
from fedzero.runs import session
from fedzero.runs.engines import Ray, Wanted, chosen
from fedzero.runs.progress import Silent
from fedzero.runs.recipe import Recipe
from fedzero.runs.session import LEDGER, Environment

RATE = "algorithm.rate"
SPAN = 10.0
"""Without bounds, values from 1/SPAN to SPAN times what the search begins with are tried."""
SURVIVORS = 3
"""Values that play all rounds. Rates that are a little too large look best in short runs, so two would be too few."""
LEAST = 4
"""Rounds of the shortest run."""

Value = float | str
Told = Callable[["Trial"], None]


class Trial(Struct, frozen=True, kw_only=True):
    """One value, and how far it came."""

    value: Value
    rounds: int
    loss: float | None
    """training loss over the last quarter of the rounds; None if it is not a number"""
    folder: str


class Tuned(Struct, frozen=True, kw_only=True):
    """What a search found: `best` is the value to set, `trials` are in order, best first."""

    key: str
    best: Value
    trials: tuple[Trial, ...]


class _Enough(Exception):
    """Ends a run at a round, from outside."""


class _Stop(Silent):
    """Looks on until a run has so many rounds."""

    def __init__(self, rounds: int):
        self.rounds, self.last = rounds, False
        """last: the run ends there anyway"""

    def begin(self, recipe: Recipe, parameters: int, done: Outline) -> None:
        self.last = self.rounds == recipe.rounds

    def round(self, record: Round) -> None:
        if record.round + 1 == self.rounds and not self.last:
            raise _Enough


def varied(recipe: Recipe, key: str, value: Value) -> Recipe:
    """The recipe with another value of one key."""
    table: dict[str, Any] = msgspec.json.decode(recipes.canonical(recipe))
    recipes.override(table, f"{key}={value}")
    return recipes.decode(table, f"--key {key}")


def tune(
    recipe: Recipe,
    folder: Path,
    environment: Environment,
    key: str = RATE,
    trials: int = 8,
    rounds: int | None = None,
    bounds: tuple[float, float] | None = None,
    told: Told = lambda trial: None,
    engine: Wanted = None,
) -> Tuned:
    """Search for the value of `key`; `rounds`: of the longest runs, default half of the recipe's. engine: a cluster to
    spread the runs over, each of which is then one process."""
    if trials < 2:
        raise FedzeroError(f"--trials {trials}: a search compares two values at least")
    longest = max(rounds or recipe.rounds // 2, LEAST)
    halvings = max(0, min(math.ceil(math.log2(trials)) - 1, int(math.log2(longest / LEAST))))
    limits = [longest >> (halvings - s) for s in range(halvings + 1)]
    recipe = msgspec.structs.replace(recipe, rounds=longest, evaluate_every=longest)
    root, cluster = folder, None if engine is None else chosen(recipe.engine, engine)
    if isinstance(cluster, Ray):
        root, environment = folder.resolve(), replace(environment, replaying=replay.unseen)
        recipe = recipes.as_recorded(recipe)

    def played(values: Iterable[Value], limit: int) -> list[Trial]:
        places = {value: root / (value if isinstance(value, str) else f"{value:g}") for value in values}
        calls = [(varied(recipe, key, value), value, place, environment, limit) for value, place in places.items()]
        if isinstance(cluster, Ray):
            from fedzero.runs.cluster.spread import spread  # needs an extra

            return spread(_played, calls, folder, cluster, lambda number, trial: told(trial))
        trials = []
        for call in calls:
            trials.append(_played(*call))
            told(trials[-1])
        return trials

    first: list[Trial] = []
    if key == RATE and bounds is None and _takes_auto(recipe):
        first = played(["auto"], limits[0])
        bounds = _around(_found(Path(first[0].folder), environment))
    first += played(grid(bounds or _around(_present(recipe, key)), trials), limits[0])
    ended: list[Trial] = []
    alive = sorted(first, key=_merit)
    for limit in limits[1:]:
        half = max(SURVIVORS, len(alive) // 2)
        ended, alive = alive[half:] + ended, alive[:half]
        alive = sorted(played([trial.value for trial in alive], limit), key=_merit)
    if alive[0].loss is None:
        raise FedzeroError(f"no value of {key} gave a finite loss: give smaller ones with --from and --to")
    return Tuned(key=key, best=alive[0].value, trials=(*alive, *ended))


def grid(bounds: tuple[float, float], count: int) -> list[float]:
    """`count` values from low to high in equal ratios, two digits each."""
    low, high = bounds
    if not 0 < low < high:
        raise FedzeroError(f"--from {low:g} --to {high:g}: give two positive numbers, the smaller one first")
    return sorted({float(f"{value:.2g}") for value in np.geomspace(low, high, count)})


def _around(centre: float) -> tuple[float, float]:
    return centre / SPAN, centre * SPAN


def _takes_auto(recipe: Recipe) -> bool:
    try:
        varied(recipe, RATE, "auto")
    except FedzeroError:
        return False
    return True


def _found(folder: Path, environment: Environment) -> float:
    """The rate that a run with `rate = "auto"` has found so far."""
    pace = session.replayed(folder, environment, None).state.carry
    if not isinstance(pace, Pace) or not pace.measured:
        raise FedzeroError("all slopes are 0, so no rate can be found: give --from and --to")
    return pace.measured * SHARE


def _present(recipe: Recipe, key: str) -> float:
    """The value that the recipe has now, if it is a number."""
    value: Any = msgspec.to_builtins(recipe)
    for name in key.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise FedzeroError(f"--key {key}: the recipe has no positive number there to begin with: give --from and --to")
    return float(value)


def _played(recipe: Recipe, value: Value, folder: Path, environment: Environment, limit: int) -> Trial:
    """A run with at least `limit` rounds, begun or resumed if need be."""
    started = (folder / LEDGER).exists()
    if started:
        session.recipe_in(folder, recipe)
    done = _losses(folder) if started else []
    if len(done) < limit:
        try:
            if started:
                session.resume(folder, environment, _Stop(limit), trusted=True)
            else:
                session.start(recipe, folder, environment, _Stop(limit))
        except _Enough:
            pass
        done = _losses(folder)
    return Trial(value=value, rounds=limit, loss=_judged(done[:limit]), folder=str(folder))


def _losses(folder: Path) -> list[float | None]:
    ledger = Ledger.open(folder / LEDGER)
    try:
        return [record.loss for record in ledger.rounds()]
    finally:
        ledger.close()


def _judged(losses: Sequence[float | None]) -> float | None:
    """The mean over the last quarter of the rounds; a round that everybody's answer was refused in spoils it."""
    last = losses[-max(1, len(losses) // 4) :]
    known = [loss for loss in last if loss is not None and math.isfinite(loss)]
    return math.fsum(known) / len(known) if len(known) == len(last) and known else None


def _merit(trial: Trial) -> float:
    return math.inf if trial.loss is None else trial.loss
