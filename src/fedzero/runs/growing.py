"""Runs that grow: a finished run goes on to more rounds, with the updates and the model of a run of so many from the
start.

An entry `Extended` behind the end of the ledger has what changes; the start stays as it is. A run that is not finished
is first brought to the end that was planned.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import astuple, dataclass
from pathlib import Path

import msgspec

from fedzero.errors import FedzeroError
from fedzero.ledger import checkpoints, replay
from fedzero.ledger.folder import MODEL, PRIVACY, folder_of
from fedzero.ledger.outline import LedgerSummary
from fedzero.ledger.records import Extended
from fedzero.ledger.replay import LedgerView
from fedzero.ledger.store import Ledger, ledger_in
from fedzero.recipe import recipe as recipes
from fedzero.recipe.in_force import extension_to, in_force
from fedzero.recipe.recipe import Recipe
from fedzero.recipe.stopping import Stop
from fedzero.runs import recorded


@dataclass(frozen=True)
class Growth:
    """What a caller says of the fields that an extension changes; None: nothing, so they stay as they are."""

    rounds: int | None = None
    evaluate_every: int | None = None
    stop: Stop | None = None

    def __bool__(self) -> bool:
        return astuple(self) != (None, None, None)


UNCHANGED = Growth()
_CHANGED = "{} was changed by another process meanwhile: repeat the command"


def asked(folder: Path, recipe: Recipe, said: Growth = UNCHANGED) -> Growth:
    """What a recipe asks of the run in a folder; refused if it differs in anything that cannot grow.

    said: as options beside the recipe. A value of the recipe that the run was started with says nothing.
    """
    started, now = recorded.recipes_in(folder)
    grown = {name: getattr(recipe, name) for name in Growth.__annotations__}
    recorded.expect_same(folder, now, msgspec.structs.replace(recipe, **{name: getattr(now, name) for name in grown}))
    told = {name: value for name, value in vars(said).items() if value is not None}
    changed = {n: value for n, value in grown.items() if value not in (getattr(started, n), getattr(now, n))}
    return Growth(**(changed | told))


def completed(folder: Path, recipe: Recipe, said: Collection[str]) -> Recipe:
    """A recipe with the values of the run in the folder where nobody `said` one: a default tells no runs apart."""
    _, now = recorded.recipes_in(folder)
    unsaid = {"seed", "evaluate_every", "stop"}.difference(said)
    return msgspec.structs.replace(recipe, **{name: getattr(now, name) for name in unsaid})


def unfinished(folder: Path, growth: Growth) -> bool:
    """Whether the run has to reach the end that was planned before it grows; refuses what no run can do."""
    outline, recipe = _read(folder)
    return _extended(folder, outline, recipe, growth) is not None and outline.end is None


def finished(folder: Path, growth: Growth) -> bool:
    """Whether the run has ended, and with what is asked of it."""
    outline, recipe = _read(folder)
    return outline.end is not None and _extended(folder, outline, recipe, growth) is None


def extension(folder: Path, growth: Growth) -> Extended | None:
    """The entry by which the finished run in a folder goes on; None if nothing changes."""
    outline, recipe = _read(folder)
    wanted = _extended(folder, outline, recipe, growth)
    if wanted is None:
        return None
    if outline.end is not None and (reason := wanted.stop.reason(outline.evaluations)):
        raise FedzeroError(f"{folder} would at once end again: {reason}; give another `stop` as well")
    return extension_to(wanted, outline.done)


def _read(folder: Path) -> tuple[LedgerSummary, Recipe]:
    place = folder_of(folder)
    with ledger_in(place) as ledger:
        outline = replay.read_from(ledger, checkpoints.own(place, ledger)).outline
        return outline, in_force(ledger.start(), outline.extended)


def _extended(folder: Path, outline: LedgerSummary, recipe: Recipe, growth: Growth) -> Recipe | None:
    """The recipe that is to come into force; None if it is in force already."""
    changes = {name: value for name, value in vars(growth).items() if value is not None}
    wanted = msgspec.structs.replace(recipe, **changes)
    if wanted == recipe:
        return None
    if wanted.rounds < outline.done:
        raise FedzeroError(f"{folder} has made {outline.done} rounds, more than rounds = {wanted.rounds}: give more")
    if wanted.rounds < recipe.rounds:
        why = f"is planned for {recipe.rounds} rounds, and rounds = {wanted.rounds} would cut it short"
        raise FedzeroError(f"{folder} {why}: a run only grows")
    recipes.with_noise(wanted)  # refuses rounds that the privacy budget does not pay for
    early = outline.end is not None and outline.end.reason
    if wanted.rounds == recipe.rounds and not early:
        name = "stop" if wanted.evaluate_every == recipe.evaluate_every else "evaluate_every"
        there, here = (msgspec.json.encode(getattr(each, name)).decode() for each in (recipe, wanted))
        raise FedzeroError(
            f"{folder} holds a run of another recipe ({name} = {there} there and {here} here): it can change together "
            f"with more rounds than {recipe.rounds}, or choose another folder"
        )
    return wanted


def extend(ledger: Ledger, view: LedgerView, extended: Extended) -> LedgerView:
    """Put an extension on the ledger, and read it."""
    if view.end is None or view.outline.done != extended.round or extended.rounds < view.outline.planned:
        raise FedzeroError(_CHANGED.format(ledger.path.parent))
    ledger.append([extended], view.outline.seconds)
    return replay.read(ledger, view)


def expect_planned(folder: Path, view: LedgerView, recipe: Recipe) -> None:
    """Refuse a recipe that is no longer in force: the run was extended after it was read, and before it was claimed."""
    if view.outline.planned != recipe.rounds:
        raise FedzeroError(_CHANGED.format(folder))


def remove_superseded(folder: Path, view: LedgerView) -> None:
    """Remove the model of an end that was extended: a folder has a model if its run is finished."""
    if view.end is None and view.outline.extended is not None:
        (folder / MODEL).unlink(missing_ok=True)
        (folder / PRIVACY).unlink(missing_ok=True)
