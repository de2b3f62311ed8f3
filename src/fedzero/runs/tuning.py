"""Find a rate, or another number of a recipe, by short runs: successive halving (Jamieson and Talwalkar, 2016).

    n values play R/2^s rounds; the better half continues to twice as many rounds, until three of them play R rounds,
    together with the recipe's own value, so that no worse value is recommended. If the best value is the largest or
    the smallest one tried, the range is widened.

A run is judged by its training loss, the mean over the last quarter of its rounds: every round has one, on mini-batches
to which the model has not been fitted yet, and the test data stays unseen. Every trial is an ordinary run in a separate
folder, stopped after its rounds and resumed for more, so a search that was killed continues at the same point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from fedzero.callbacks import ignore
from fedzero.errors import FedzeroError
from fedzero.ledger.folder import LEDGER
from fedzero.ledger.outline import LedgerSummary
from fedzero.ledger.records import Round
from fedzero.ledger.store import ledger_in
from fedzero.methods.rules.auto_rate import SHARE, AutoRateState
from fedzero.model.schedules import SCHEDULES
from fedzero.recipe import recipe as recipes
from fedzero.recipe.engines import Engine, Wanted
from fedzero.recipe.environment import Environment
from fedzero.recipe.recipe import Recipe
from fedzero.runs import recorded
from fedzero.runs.progress import Silent
from fedzero.runs.several import go_on, placed

RATE = "algorithm.rate"
SPAN = 10.0
"""Without bounds, values from 1/SPAN to SPAN times the initial value are tried."""
SURVIVORS = 3
"""How many values play all rounds. Rates that are slightly too large look best in short runs: two would be too few."""
LEAST = 4
"""Rounds of the shortest run."""
WIDENINGS = 4
"""The most values that are tried beyond an edge."""
LEAST_STEP = 2.0
"""A value beyond an edge is larger or smaller by at least this factor."""
OWN = "recipe"
"""Stands for the unchanged recipe if its value is not a number."""

Value = float | str
Told = Callable[["Trial"], None]


class Trial(Struct, frozen=True, kw_only=True):
    """One value, and its result so far."""

    value: Value
    rounds: int
    loss: float | None
    """training loss over the last quarter of the rounds; None if it is not a number"""
    folder: str

    def __str__(self) -> str:
        return f"{self.value}, {self.rounds} rounds: training loss {loss_text(self.loss)}"


class Tuned(Struct, frozen=True, kw_only=True):
    """The result of a search: `best` is the value to set, `trials` are in order, best first."""

    key: str
    best: Value
    trials: tuple[Trial, ...]
    own: Value
    """the recipe's own value, which is among the trials; "recipe" if it is not a number"""
    note: str = ""
    """a caution about the best value; empty: smaller and larger ones are worse"""


def loss_text(loss: float | None) -> str:
    return "not finite" if loss is None else f"{loss:.4g}"


class Enough(Exception):
    """Ends a run at a round, from outside."""


class StopAfter(Silent):
    """A watch that ends a run after so many rounds."""

    def __init__(self, rounds: int):
        self.rounds, self.last = rounds, False

    def begin(self, recipe: Recipe, parameters: int, done: LedgerSummary) -> None:
        self.last = self.rounds == recipe.rounds
        if done.done >= self.rounds and not self.last:
            raise Enough

    def round(self, record: Round) -> None:
        if record.round + 1 == self.rounds and not self.last:
            raise Enough


def varied(recipe: Recipe, key: str, value: Value) -> Recipe:
    """The recipe with a different value of one key."""
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
    told: Told = ignore,
    engine: Wanted = None,
) -> Tuned:
    """Search for the best value of `key`. rounds: of the longest runs, default half of the recipe's.

    bounds: the initial range; the search goes beyond it if the best value is at an edge. engine: a cluster on which the
    runs are spread, each as one process.
    """
    if trials < 2:
        raise FedzeroError(f"--trials {trials}: a search compares two values at least")
    planned, recipe = recipe.rounds, shortened(recipe, rounds)
    longest, limits = recipe.rounds, limits_of(trials, recipe.rounds)
    recipe, folder, environment, spreading = placed(recipe, folder, environment, engine)
    own = _own(recipe, key)
    play = playing(lambda v: recipe if v == own else varied(recipe, key, v), folder, environment, spreading, told)

    first: list[Trial] = []
    if key == RATE and bounds is None and _takes_auto(recipe):
        first = play(["auto"], limits[0])
        bounds = _around(_found(Path(first[0].folder), environment))
    values: list[Value] = [*grid(bounds or _around(_present(recipe, key)), trials)]
    ratio = float(values[-1]) / float(values[0])
    begun = [own, *(v for v in values if _name(v) != _name(own))]
    first += play([v for v in begun if v not in {t.value for t in first}], limits[0])
    found = _widened(play, halved(play, first, limits[1:], own), ratio ** (1 / (trials - 1)))
    best = found[0]
    if best.loss is None:
        raise FedzeroError(f"no value of {key} gave a finite loss: give smaller ones with --from and --to")
    return Tuned(key=key, best=best.value, trials=tuple(found), own=own, note=_note(found, own, key, longest, planned))


def expect_losses(recipe: Recipe) -> None:
    """Refuse trials that cannot be judged."""
    if recipe.privacy:
        raise FedzeroError("[privacy] shows no training losses to judge trials by, and each would be a release")


def shortened(recipe: Recipe, rounds: int | None) -> Recipe:
    """The recipe of the longest runs, default half of its rounds, with an evaluation at the end."""
    expect_losses(recipe)
    longest = max(rounds or recipe.rounds // 2, LEAST)
    return msgspec.structs.replace(recipe, rounds=longest, evaluate_every=longest)


def limits_of(trials: int, longest: int) -> list[int]:
    """Rounds after which the worse half of so many values is left out; the last are those of the longest runs."""
    halvings = max(0, min(math.ceil(math.log2(trials)) - 1, int(math.log2(longest / LEAST))))
    return [longest >> (halvings - s) for s in range(halvings + 1)]


Play = Callable[[Iterable[Value], int], list[Trial]]
"""Plays a run with each of some values to so many rounds."""


def playing(
    recipe: Callable[[Value], Recipe], folder: Path, environment: Environment, spreading: Engine, told: Told
) -> Play:
    """Plays runs of the recipes that values stand for, each in a separate folder."""

    def play(values: Iterable[Value], limit: int) -> list[Trial]:
        calls = [(recipe(v), v, folder / _name(v), environment, limit) for v in values]
        return spreading.spread(_played, calls, folder, lambda number, trial: told(trial))

    return play


def halved(play: Play, first: Sequence[Trial], limits: Iterable[int], own: Value) -> list[Trial]:
    """All trials, best first. The recipe's own value plays all rounds in any case: the best value must beat it."""
    ended: list[Trial] = []
    alive = sorted(first, key=merit)
    for limit in limits:
        half = max(SURVIVORS, len(alive) // 2)
        on = [trial for place, trial in enumerate(alive) if place < half or trial.value == own]
        ended = [trial for trial in alive if trial not in on] + ended
        alive = sorted(play([trial.value for trial in on], limit), key=merit)
    # On equal losses the recipe's own value comes first.
    return [*sorted(alive, key=lambda trial: (merit(trial), trial.value != own)), *ended]


def _widened(play: Play, found: list[Trial], ratio: float) -> list[Trial]:
    """Try values beyond the edge as long as the best value is the largest or the smallest one tried."""
    step = max(ratio, LEAST_STEP)
    for _ in range(WIDENINGS):
        edge = _edge(found)
        if not edge:
            break
        best = found[0]
        beyond = float(f"{float(best.value) * step**edge:.2g}")
        try:
            (more,) = play([beyond], best.rounds)
        except FedzeroError:  # the recipe takes no such value
            break
        found = sorted([*found, more], key=lambda trial: (-trial.rounds, merit(trial)))
    return found


def _edge(found: Sequence[Trial]) -> int:
    """1 if the best value is the largest of all, −1 if it is the smallest, otherwise 0."""
    best = found[0].value
    numbers = [trial.value for trial in found if isinstance(trial.value, float)]
    if not isinstance(best, float) or best <= 0 or found[0].loss is None:
        return 0
    return int(best == max(numbers)) - int(best == min(numbers))


def _note(found: Sequence[Trial], own: Value, key: str, longest: int, planned: int) -> str:
    """Cautions about the best value, for people who want to use it."""
    edge, notes = _edge(found), []
    if edge:
        which, side, option = ("largest", "larger", "--to") if edge > 0 else ("smallest", "smaller", "--from")
        notes.append(f"the best value is the {which} that was tried; a {side} one may be better: give it with {option}")
    if key == RATE and 2 * longest < planned:
        notes.append(f"runs of {longest} rounds prefer rates that are too large for {planned}")
    if own == OWN != found[0].value and longest < planned:  # a schedule is made for all rounds
        notes.append(f"the recipe's own was compared over the first {longest} of its {planned} rounds only")
    return "; ".join(notes)


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
    found: AutoRateState | None = recorded.replayed(folder, environment, None).state.carry.of(AutoRateState)
    if found is None or not found.measured:
        raise FedzeroError("all slopes are 0, so no rate can be found: give --from and --to")
    return found.measured * SHARE


def _own(recipe: Recipe, key: str) -> Value:
    """The recipe's own value; `OWN` if it is neither a number nor "auto"."""
    value = _at(recipe, key)
    if value == "auto":
        return "auto"
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else OWN


def _at(recipe: Recipe, key: str) -> Any:
    value: Any = recipe
    for name in key.split("."):
        value = getattr(value, name, None)
    return value


def _present(recipe: Recipe, key: str) -> float:
    """The recipe's present number; the largest one of a schedule."""
    value = _at(recipe, key)
    if isinstance(value, SCHEDULES):
        value = max(value.at(round) for round in range(recipe.rounds))
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise FedzeroError(f"--key {key}: the recipe has no positive number there to begin with: give --from and --to")
    return float(value)


def _name(value: Value) -> str:
    """The name of a value's folder."""
    return value if isinstance(value, str) else f"{value:g}"


def _played(recipe: Recipe, value: Value, folder: Path, environment: Environment, limit: int) -> Trial:
    """Play a run to at least `limit` rounds, starting or resuming it if necessary."""
    started = (folder / LEDGER).exists()
    if started:
        recorded.recipe_in(folder, recipe)
    if not started or len(losses_of(folder)) < limit:
        with suppress(Enough):
            go_on(recipe, folder, environment, StopAfter(limit))
    return Trial(value=value, rounds=limit, loss=judged(losses_of(folder)[:limit]), folder=str(folder))


def losses_of(folder: Path) -> list[float | None]:
    with ledger_in(folder) as ledger:
        return [record.loss for record in ledger.rounds()]


def judged(losses: Sequence[float | None]) -> float | None:
    """The mean over the last quarter of the rounds; None if one of these rounds has no finite loss."""
    last = losses[-max(1, len(losses) // 4) :]
    known = [loss for loss in last if loss is not None and math.isfinite(loss)]
    return math.fsum(known) / len(known) if len(known) == len(last) and known else None


def merit(trial: Trial) -> float:
    return math.inf if trial.loss is None else trial.loss
