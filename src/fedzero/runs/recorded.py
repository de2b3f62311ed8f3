"""Recorded runs: the recipe of a ledger made concrete again, the model of any round, the check of a whole ledger."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from fedzero.callbacks import ignore
from fedzero.directions import VERSION
from fedzero.errors import FedzeroError
from fedzero.ledger import checkpoints, replay
from fedzero.ledger.best import Mode, best
from fedzero.ledger.folder import LEDGER, MODEL, folder_of
from fedzero.ledger.records import Evaluation, Extended
from fedzero.ledger.store import Ledger, Tampered, closed_on_failure, ledger_in
from fedzero.lines import LONGEST_SAID, printable
from fedzero.model import fixed
from fedzero.model.checkpoint import load_model, room
from fedzero.model.params import Params
from fedzero.protocol.replica import Replica
from fedzero.recipe import recipe as recipes
from fedzero.recipe import trust
from fedzero.recipe.environment import Environment as Environment
from fedzero.recipe.environment import data_folder as data_folder
from fedzero.recipe.in_force import extended_by, in_force
from fedzero.recipe.recipe import Recipe
from fedzero.recipe.secret import keys_of as keys_of
from fedzero.recipe.secret import secret_of as secret_of
from fedzero.recipe.setup import Setup, prepare
from fedzero.runs.summary import Summary as Summary
from fedzero.runs.summary import summary as summary
from fedzero.tasks.contract import DEALT_OUT, Phase


def reopen(
    folder: Path,
    environment: Environment,
    writable: bool = False,
    phase: Phase = ignore,
    extended: Extended | None = None,
) -> tuple[Ledger, Setup]:
    """A ledger, and the set-up with which it goes on. Nothing is changed before everything is known to fit. extended:
    an extension that is not on the ledger yet.

    This is the only place where the recipe of a ledger becomes a task, so ownership is checked here: code and services
    that a foreign recipe names are not imported, run or fetched, and a foreign run that names code cannot be continued
    (`writable`).
    """
    path = folder_of(folder) / LEDGER
    with closed_on_failure(Ledger.open(path)) as ledger:
        start = ledger.start()
        if start.directions != VERSION:
            raise FedzeroError(f"the run uses direction stream {start.directions}, this release has stream {VERSION}")
        recipe = in_force(start, extended or ledger.extended())
        if not writable:  # reading a ledger needs no particular device: the bits are the same on all
            recipe = msgspec.structs.replace(recipe, engine=msgspec.structs.replace(recipe.engine, device="auto"))
        foreign = trust.is_foreign(start, environment)
        if foreign and writable:
            trust.expect_nothing_named(recipe.task, environment.functions)
        keys = keys_of(recipe, environment.secret, start.secret, start.recipe)
        setup = prepare(recipe, replace(environment, folder=path.parent), phase, keys, foreign)
        if setup.keys.secret != start.secret:
            raise FedzeroError("the secret is not the one this run was started with")
        replay.check_base(ledger, setup.problem.params)
        if not setup.problem.incomplete:
            _check_facts(start.facts, setup.start.facts)
    if writable:
        ledger.close()
        ledger = Ledger.open(path, writable=True)
        with closed_on_failure(ledger):
            if start.secret is not None:
                ledger.hide()
    return ledger, setup


LATER = (fixed.FACT, DEALT_OUT)
"""Facts that runs of earlier releases do not have."""


def _check_facts(then: Mapping[str, str], now: Mapping[str, str]) -> None:
    for name in sorted(then.keys() | now.keys()):
        if name in LATER and name not in then:
            continue
        if then.get(name) != now.get(name):
            what, before, here = (printable(text, LONGEST_SAID) for text in (name, *_values(name, then, now)))
            raise FedzeroError(f"this run was started with {what}: {before}; here it is {here}")


def _values(name: str, *facts: Mapping[str, str]) -> list[str]:
    return [each.get(name, "none") for each in facts]


def recipe_in(folder: Path, wanted: Recipe | None = None) -> Recipe:
    """The recipe in force of the run in a folder. wanted: refuse a run of a different recipe."""
    _, found = recipes_in(folder)
    if wanted is not None:
        expect_same(folder, found, wanted)
    return found


def recipes_in(folder: Path) -> tuple[Recipe, Recipe]:
    """The recipe with which the run in a folder was started, and the one in force."""
    with ledger_in(folder) as ledger:
        start, extended = ledger.start(), ledger.extended()
    started = recipes.from_canonical(start.recipe, start.needs)
    return started, extended_by(started, extended)


def expect_same(folder: Path, found: Recipe, wanted: Recipe) -> None:
    """Refuse a run of a different recipe; title and about may differ."""
    wanted = recipes.as_recorded(wanted)
    if wanted.privacy and found.privacy:  # what was not given was found when the run began
        sigma, hosts = wanted.privacy.sigma or found.privacy.sigma, wanted.privacy.hosts or found.privacy.hosts
        privacy = msgspec.structs.replace(wanted.privacy, sigma=sigma, hosts=hosts)
        wanted = msgspec.structs.replace(wanted, privacy=privacy)
    if wanted != msgspec.structs.replace(found, title=wanted.title, about=wanted.about):
        before, now = (msgspec.json.decode(recipes.canonical(each)) for each in (found, wanted))
        raise FedzeroError(
            f"{folder} holds a run of another recipe ({_difference(before, now)}): choose another folder, or "
            "replace it (--overwrite, exist = 'overwrite')"
        )


def _difference(before: Any, now: Any, path: str = "") -> str:
    """The first field in which two recipes differ, and its values."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted((before.keys() | now.keys()) - {"title", "about"}):
            if before.get(key) != now.get(key):
                return _difference(before.get(key), now.get(key), f"{path}.{key}" if path else key)
    return f"{path} = {before!r} there and {now!r} here"


def replayed(folder: Path, environment: Environment, upto: int | None) -> Replica:
    """The model before round `upto` (default: after the last), rebuilt from the ledger alone."""
    ledger, setup = reopen(folder, environment)
    with closing(ledger):
        view = replay.read(ledger)
        if upto is not None and not 0 <= upto <= view.outline.done:
            raise FedzeroError(f"round {upto}: this ledger has rounds 0 to {view.outline.done}")
        replica = setup.replica()
        replay.rebuild(ledger, view, replica, upto, setup.replaying)
        return replica


def best_in(folder: Path, metric: str | None = None, mode: Mode | None = None) -> Evaluation:
    """The best evaluation of the run in a folder; see `best`."""
    with ledger_in(folder) as ledger:
        return best(replay.read(ledger).evaluations, metric, mode)


def verified(folder: Path, environment: Environment) -> replay.LedgerView:
    """Check ledger, updates and model file; raises `Tampered` with the first bad round."""
    folder = folder_of(folder)
    with ledger_in(folder) as ledger:
        replay.verify(ledger, None)  # check the chain first: a damaged recipe must not be obeyed
    ledger, setup = reopen(folder, environment)
    with closing(ledger):
        replica = setup.replica()
        view = replay.verify(ledger, replica, setup.replaying, checkpoints.found(folder, ledger))
    if (folder / MODEL).exists():
        _check_model(folder / MODEL, view, replica)
    return view


def _check_model(model: Path, view: replay.LedgerView, replica: Replica) -> None:
    """The model file is that of the end; where the run was extended, it may be left over from the end before."""
    end = view.end or view.outline.ended
    if end is None:
        raise Tampered(
            view.outline.done, f"{model} is that of a finished run, but the ledger has no end: it was truncated"
        )
    try:
        tensors = load_model(model, room(replica.state.params))
        found = Params({name: tensors.pop(name) for name in replica.state.params.names if name in tensors})
    except FedzeroError as error:
        raise Tampered(end.round, str(error)) from error
    # The replica, since an old ledger has no SHA-256.
    right = found.matches(end.identity) if view.end is None else found.identity == replica.identity
    if tensors or not right:
        raise Tampered(end.round, f"{model} is not the model of this run")
