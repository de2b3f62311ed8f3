"""A run from recipe to model, and back from a ledger: start, resume, replay, verify.

The folder of a run holds `ledger.db` and, when it is finished, `model.safetensors`.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from fedzero import recipe as recipes
from fedzero.algorithms import Algorithm
from fedzero.algorithms.contract import Scale
from fedzero.devices import device_of, threads
from fedzero.directions import VERSION, Keys
from fedzero.engines.local import LocalEngine
from fedzero.errors import FedzeroError
from fedzero.federation import Books, Server
from fedzero.filters import Chain
from fedzero.ledger import queries, replay
from fedzero.ledger.queries import LedgerLog
from fedzero.ledger.records import Record, Shown, Start
from fedzero.ledger.store import Claim, Ledger, Tampered
from fedzero.oracles import Pictured
from fedzero.oracles.blackbox import Metered
from fedzero.playing import Watch, play
from fedzero.recipe import Recipe
from fedzero.replica import Replica
from fedzero.tasks import Place, Problem
from fedzero.weights import load_model, save_model

LEDGER, MODEL = "ledger.db", "model.safetensors"


@dataclass(frozen=True)
class Surroundings:
    """What a run needs from where it is made and a recipe must not contain: data folder, secret, functions by name,
    and who looks on while rounds of a ledger are folded again."""

    data: Path | None = None
    secret: bytes | None = None
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    replaying: replay.Progress = replay.unseen


def secret_of(key: bytes | None) -> bytes | None:
    """What a person gave as the clients' secret, as a key."""
    return hashlib.sha256(key).digest() if key is not None and len(key) > 64 else key


def data_folder(path: str | Path | None) -> Path | None:
    if path is not None and not Path(path).is_dir():
        raise FedzeroError(f"--data {path}: no such folder")
    return None if path is None else Path(path)


@dataclass(frozen=True)
class Setup:
    """A recipe made concrete."""

    recipe: Recipe
    algorithm: Algorithm
    keys: Keys
    problem: Problem
    replaying: replay.Progress = replay.unseen

    @property
    def chain(self) -> Chain:
        return Chain(self.recipe.filters)

    def replica(self) -> Replica:
        """A replica of the base model; it takes the problem's own parameters, so there is one at a time."""
        return Replica(self.algorithm, self.problem.params, self.keys, self.recipe.federation.clients)

    @property
    def start(self) -> Start:
        return Start(
            recipe=recipes.canonical(self.recipe),
            base=self.problem.params.digest(),
            parameters=self.problem.params.size,
            directions=VERSION,
            secret=self.keys.secret,
            facts=dict(self.problem.facts),
        )


def prepare(recipe: Recipe, around: Surroundings) -> Setup:
    """Build task and base model. What is wrong with a recipe shows here, before anything is written."""
    private = recipe.federation.private
    if private and not around.secret:
        raise FedzeroError("federation.private = true needs the clients' secret: FEDZERO_SECRET or --secret FILE")
    keys = Keys.of_seed(recipe.seed, around.secret if private else None)
    place = Place(keys, device_of(recipe.engine.device), around.data, around.functions)
    problem = recipe.task.build(recipe.federation.clients, place)
    if recipe.base is not None:
        try:
            problem.params.load(load_model(Path(recipe.base)))
        except FedzeroError as error:
            raise FedzeroError(f"base = {recipe.base!r}: {error}") from error
    if recipe.algorithm.first_order and isinstance(problem.objective, Metered):
        raise FedzeroError(
            f"algorithm.kind = {recipe.algorithm.name!r} needs gradients, and task.kind = 'black-box' has none: "
            "choose a zeroth-order method, such as 'fedzo'"
        )
    setup = Setup(recipe, recipe.algorithm, keys, problem, around.replaying)
    scale = Scale(problem.params.size, recipe.federation.clients)
    method = recipe.algorithm
    setup.chain.check(method.name, method.addable(scale), recipe.federation.cohort, method.makes_up(scale))
    return setup


def folder_of(path: Path) -> Path:
    """The folder of a run, also where its ledger was named instead."""
    return path.parent if path.name == LEDGER else path


def reopen(folder: Path, around: Surroundings, writable: bool = False) -> tuple[Ledger, Setup]:
    """A ledger and the set-up it was made with. Nothing is touched before everything is known to fit."""
    path = folder_of(folder) / LEDGER
    ledger = Ledger.open(path)
    try:
        start = ledger.start()
        if start.directions != VERSION:
            raise FedzeroError(f"the run uses direction stream {start.directions}; this release makes stream {VERSION}")
        recipe = recipes.from_canonical(start.recipe)
        if not writable:  # reading a ledger needs no particular device: the bits are the same on all
            recipe = msgspec.structs.replace(recipe, engine=msgspec.structs.replace(recipe.engine, device="auto"))
        setup = prepare(recipe, around)
        if setup.keys.secret != start.secret:
            raise FedzeroError("the secret is not the one this run was started with")
        replay.check_base(ledger, setup.problem.params)
        _check_facts(start.facts, setup.problem.facts)
    except BaseException:
        ledger.close()
        raise
    if writable:
        ledger.close()
        ledger = Ledger.open(path, writable=True)
    return ledger, setup


def _check_facts(then: Mapping[str, str], now: Mapping[str, str]) -> None:
    for name in sorted(then.keys() | now.keys()):
        if then.get(name) != now.get(name):
            raise FedzeroError(
                f"this run was started with {name}: {then.get(name, 'none')}; here it is {now.get(name, 'none')}"
            )


def start(recipe: Recipe, folder: Path, around: Surroundings, watch: Watch, overwrite: bool = False) -> dict[str, Any]:
    """Run a recipe into a folder; the summary of what came out."""
    if (folder / LEDGER).exists() and not overwrite:
        raise FedzeroError(
            f"{folder} already holds a run: `fedzero resume {folder}` continues it, --overwrite starts anew, "
            "--out chooses another folder"
        )
    setup = prepare(recipe, around)
    if isinstance(setup.problem.objective, Metered):
        setup.problem.objective.ready()
    return _drive(setup, create(folder, setup.start, overwrite), folder, watch)


def create(folder: Path, first: Start, overwrite: bool = False) -> Ledger:
    """The ledger of a new run."""
    path = folder / LEDGER
    folder.mkdir(parents=True, exist_ok=True)
    claim = Claim(folder)
    if path.exists() and not overwrite:  # somebody was quicker
        claim.release()
        raise FedzeroError(f"{folder} already holds a run: --out chooses another folder")
    for leftover in (path, folder / MODEL, *folder.glob(f"{LEDGER}-*")):
        leftover.unlink(missing_ok=True)
    return Ledger.create(path, first, claim)


def resume(folder: Path, around: Surroundings, watch: Watch) -> dict[str, Any]:
    """Continue a run from its ledger; ends in the same bits as if it had never stopped."""
    ledger, setup = reopen(folder, around, writable=True)
    return _drive(setup, ledger, folder_of(folder), watch)


def _drive(setup: Setup, ledger: Ledger, folder: Path, watch: Watch) -> dict[str, Any]:
    try:
        recipe, began = setup.recipe, time.perf_counter()
        story = replay.read(ledger)
        replica = setup.replica()
        engine = LocalEngine(
            replica,
            setup.problem.objective,
            setup.problem.shards,
            recipe.engine.merge,
            recipe.engine.replicas,
            setup.chain,
        )
        replay.rebuild(ledger, story, replica, progress=setup.replaying)
        books = books_of(story, setup.recipe)
        if recipe.engine.replicas and not story.dense:
            engine.rejoin(books.known, list(replay.updates_of(ledger, story)))
        engine.recall(ledger.memories(story.remembered))
        log = _log(setup, ledger, story) if story.end is None else None
        server = Server(
            setup.algorithm,
            recipe.federation,
            setup.keys,
            setup.problem.params.size,
            replica if setup.algorithm.server_model else None,
            ledger,
            books,
            story.saved.round if story.saved is not None else 0,
            setup.chain,
            log,
        )

        def seconds() -> float:
            return story.seconds + time.perf_counter() - began

        with threads(None if recipe.engine.merge else 1):
            play(recipe, story, server, engine, watch, seconds, partial(pictures_of, setup, replica))
        save_model(replica.state.params, folder / MODEL)
        return summary(ledger)
    finally:
        watch.end()
        ledger.close()


def pictures_of(setup: Setup, replica: Replica, after: int) -> list[Record]:
    """What came out, where it can be looked at."""
    if isinstance(objective := setup.problem.objective, Pictured):
        return [Shown(after, objective.pictures(replica.state.params))]
    return []


def _log(setup: Setup, ledger: Ledger, story: replay.Story) -> LedgerLog | None:
    """The log of queries of a run that has one, found intact: a budget is counted by it."""
    objective = setup.problem.objective
    if not isinstance(objective, Metered):
        return None
    objective.ready()
    replay.check_queries(ledger, story)
    log = LedgerLog(ledger)
    objective.attach(log)
    return log


def books_of(story: replay.Story, recipe: Recipe) -> Books:
    """The server's books after the rounds of a ledger."""
    books = Books.empty(recipe.federation.clients)
    for record in story.rounds:
        books.note(record, recipe.algorithm.sync)
    books.prune(len(story.rounds), recipe.algorithm.pull_after)
    return books


def summary(ledger: Ledger) -> dict[str, Any]:
    """The totals of a run, as `--json` prints them."""
    story, first = replay.read(ledger), ledger.start()
    recipe = recipes.from_canonical(first.recipe)
    rounds, last = story.rounds, story.evaluations[-1] if story.evaluations else None
    up, down = sum(r.bytes_up for r in rounds), sum(r.bytes_down for r in rounds)
    turns = sum(len(set(r.cohort)) for r in rounds)
    return {
        "name": recipe.name,
        "algorithm": recipe.algorithm.name,
        "rounds": len(rounds),
        "parameters": first.parameters,
        "clients": recipe.federation.clients,
        "final_loss": last.metrics.loss if last is not None and math.isfinite(last.metrics.loss) else None,
        "final_accuracy": None if last is None else last.metrics.accuracy,
        "bytes_up_per_client": up / recipe.federation.clients,
        "bytes_down_per_client": down / recipe.federation.clients,
        "bytes_up_per_turn": up / turns if turns else 0.0,
        "bytes_down_per_turn": down / turns if turns else 0.0,
        "queries": sum(r.queries for r in rounds),
        "attempts": queries.spent(ledger),
        "refused": sum(len(r.refused) for r in rounds),
        "seconds": round(story.seconds, 3),
        "complete": story.end is not None,
        "reason": "" if story.end is None else story.end.reason,
        "ledger_head": ledger.head.hex(),
        "model_digest": (model.model if (model := story.end or last) is not None else first.base).hex(),
    }


def replayed(folder: Path, around: Surroundings, upto: int | None) -> Replica:
    """The model before round `upto` (default: after the last), rebuilt from the ledger alone."""
    ledger, setup = reopen(folder, around)
    try:
        story = replay.read(ledger)
        if upto is not None and not 0 <= upto <= len(story.rounds):
            raise FedzeroError(f"--round {upto}: this ledger has rounds 0 to {len(story.rounds)}")
        replica = setup.replica()
        replay.rebuild(ledger, story, replica, upto, setup.replaying)
        return replica
    finally:
        ledger.close()


def verified(folder: Path, around: Surroundings) -> replay.Story:
    """Check ledger, updates and model file; raises `Tampered` with the first bad round."""
    folder = folder_of(folder)
    ledger = Ledger.open(folder / LEDGER)
    try:
        replay.verify(ledger, None)  # the chain first: a damaged recipe must not be obeyed
    finally:
        ledger.close()
    ledger, setup = reopen(folder, around)
    try:
        replica = setup.replica()
        story = replay.verify(ledger, replica, setup.replaying)
    finally:
        ledger.close()
    model = folder / MODEL
    if model.exists():
        if story.end is None:
            raise Tampered(len(story.rounds), f"{model} is finished but the ledger is not: it was cut off")
        try:
            replica.state.params.load(load_model(model))
        except FedzeroError as error:
            raise Tampered(story.end.round, str(error)) from error
        if replica.digest() != story.end.model:
            raise Tampered(story.end.round, f"{model} is not the model of this run")
    return story
