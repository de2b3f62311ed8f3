"""A run from recipe to model, and back from a ledger: start, resume, replay, verify.

The folder of a run holds `ledger.db` and, when it is finished, `model.safetensors`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from fedzero.directions import VERSION, Keys
from fedzero.directions.ahead import compiling
from fedzero.engines.local import LocalEngine
from fedzero.errors import FedzeroError
from fedzero.ledger import checkpoints, replay
from fedzero.ledger.checkpoints import Checkpoint
from fedzero.ledger.query_log import LedgerLog, Meter
from fedzero.ledger.records import Record, Shown, Start, sha256_of
from fedzero.ledger.replay import LedgerView
from fedzero.ledger.store import Claim, Ledger, Tampered, Unwritable
from fedzero.lines import LONGEST_SAID, printable
from fedzero.links import Chain
from fedzero.methods.contract import Method, Observer, unobserved
from fedzero.model import files, fixed
from fedzero.model.checkpoint import load_model, room, save_base, save_model
from fedzero.model.device import device_of, thread_count, threads
from fedzero.model.params import Params
from fedzero.model.schedules import Count
from fedzero.protocol.attacks import altering
from fedzero.protocol.engine import Engine, Interrupted
from fedzero.protocol.replica import Replica
from fedzero.recipe import coalitions, thread_counts, trust
from fedzero.recipe import recipe as recipes
from fedzero.recipe.engines import Local, Wanted, recorded
from fedzero.recipe.environment import Environment as Environment
from fedzero.recipe.environment import data_folder as data_folder
from fedzero.recipe.recipe import Recipe
from fedzero.recipe.secret import keys_of as keys_of
from fedzero.recipe.secret import secret_of as secret_of
from fedzero.runs.summary import Summary as Summary
from fedzero.runs.summary import summary as summary
from fedzero.rounds.loop import Watch, play
from fedzero.rounds.server import Plan, Server
from fedzero.runs.keeper import Keeper
from fedzero.tasks.contract import BASE, FIXED, BuildContext, Phase, Problem, unheard

LEDGER, MODEL = "ledger.db", "model.safetensors"
MOST_NUMBERS = 1 << 30
"""float32 numbers of one message: msgpack has 32 bits for a length."""
MOST_QUERIES = 1 << 32
"""evaluations of one turn: a thousand a second would take seven weeks"""


@dataclass(frozen=True)
class Setup:
    """A recipe made concrete."""

    recipe: Recipe
    keys: Keys
    problem: Problem
    replaying: replay.Progress = replay.unseen

    @property
    def algorithm(self) -> Method:
        return self.recipe.algorithm

    @property
    def chain(self) -> Chain:
        return chain_of(self.recipe)

    @property
    def plan(self) -> Plan:
        return plan_of(self.recipe, self.keys, self.problem.params.size)

    def replica(self) -> Replica:
        """A replica of the base model; it takes the problem's own parameters, so there is one at a time."""
        return Replica(self.algorithm, self.problem.params, self.keys, self.recipe.federation.clients)

    @property
    def start(self) -> Start:
        base = self.problem.params.identity
        return Start(
            recipe=recipes.canonical(self.recipe),
            base=base.digest,
            parameters=self.problem.params.size,
            directions=VERSION,
            secret=self.keys.secret,
            facts=dict(self.problem.facts),
            needs=self.recipe.needs,
            base_sha256=sha256_of(base),
        )


def plan_of(recipe: Recipe, keys: Keys, size: int) -> Plan:
    return Plan(recipe.algorithm, recipe.federation, keys, size, chain_of(recipe), recipe.task.least_loss)


def chain_of(recipe: Recipe) -> Chain:
    return Chain(recipe.filters, recipe.algorithm.coder)


def prepare(
    recipe: Recipe, environment: Environment, phase: Phase = unheard, keys: Keys | None = None, foreign: bool = False
) -> Setup:
    """Build task and base model. What is wrong with a recipe shows here, before anything is written.

    phase: is told what is going on. keys: of a run that has begun, or begins elsewhere. foreign: see `BuildContext`.
    """
    phase(f"building the task: {recipe.task.label}")
    keys = keys or keys_of(recipe, environment.secret)
    device, own = device_of(recipe.engine.device), environment
    place = BuildContext(
        *(keys, device, own.data, own.functions, own.folder, phase, own.trusted, own.files, own.model, foreign)
    )
    problem = recipe.task.build(recipe.federation.clients, place)
    if recipe.base is not None:
        path = place.path(recipe.base, "base")
        try:
            problem.params.load(load_model(Path(path)))
        except FedzeroError as error:
            raise FedzeroError(f"base = {recipe.base!r}: {error}") from error
    setup = Setup(recipe, keys, problem, environment.replaying)
    wire, method = setup.plan.wire(0), recipe.algorithm.name
    if wire.first_order and problem.metered is not None:
        raise FedzeroError(
            f"algorithm.kind = {method!r} needs gradients, which task.kind = 'black-box' does not have: "
            "choose a zeroth-order method, such as 'fedzo'"
        )
    if wire.delivery == "snapshot":
        why = f"{method} sends the model to clients"
        recipe.federation.expect(why, private=False, server_model=True, sync=False, pull_after=None)
    _check_size(setup)
    if recipe.engine.attack is not None:
        recipe.engine.attack.check(method, wire.comparable)
    setup.chain.check(method, wire.comparable, recipe.federation.cohort, wire.self_correcting, wire.whole)
    return setup


def _check_size(setup: Setup) -> None:
    """Refuse turns that no client can make, before there is a ledger of them."""
    fields = msgspec.structs.asdict(setup.algorithm).values()
    changes = [round for field in fields if isinstance(field, Count) for round, _ in field.then]
    wires = [setup.plan.wire(round) for round in {0, setup.recipe.rounds - 1, *changes}]
    numbers, queries = max(max(wire.replies) for wire in wires), max(wire.queries for wire in wires)
    most = MOST_NUMBERS * (32 if setup.chain.codes else 1)  # a coder needs a bit for a number at least
    if numbers >= most or queries >= MOST_QUERIES:
        raise FedzeroError(
            f"algorithm.kind = {setup.algorithm.name!r}: a turn would take {queries:,} evaluations and a reply of "
            f"{numbers:,} numbers; the limits are {MOST_QUERIES:,} and {most:,}: lower algorithm.directions or "
            "algorithm.local_steps, or train fewer parameters"
        )


def folder_of(path: Path) -> Path:
    """The folder of a run, also where its ledger was named instead."""
    return path.parent if path.name == LEDGER else path


def reopen(
    folder: Path, environment: Environment, writable: bool = False, phase: Phase = unheard
) -> tuple[Ledger, Setup]:
    """A ledger and the set-up it was made with. Nothing is touched before everything is known to fit.

    The one place where the recipe of a ledger becomes a task, so the one that asks whose it is: what a foreign one
    names is not imported, run or fetched, and it is not opened to be gone on with (`writable`) if it names code.
    """
    path = folder_of(folder) / LEDGER
    ledger = Ledger.open(path)
    try:
        start = ledger.start()
        if start.directions != VERSION:
            raise FedzeroError(f"the run uses direction stream {start.directions}, this release has stream {VERSION}")
        recipe = recipes.from_canonical(start.recipe, start.needs)
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
            _check_facts(start.facts, setup.problem.facts)
    except BaseException:
        ledger.close()
        raise
    if writable:
        ledger.close()
        ledger = Ledger.open(path, writable=True)
        if start.secret is not None:
            ledger.hide()
    return ledger, setup


def _check_facts(then: Mapping[str, str], now: Mapping[str, str]) -> None:
    for name in sorted(then.keys() | now.keys()):
        if name == fixed.FACT and name not in then:  # releases before 0.2.1 did not write it
            continue
        if then.get(name) != now.get(name):
            what, before, here = (printable(text, LONGEST_SAID) for text in (name, *_values(name, then, now)))
            raise FedzeroError(f"this run was started with {what}: {before}; here it is {here}")


def _values(name: str, *facts: Mapping[str, str]) -> list[str]:
    return [each.get(name, "none") for each in facts]


def start(
    recipe: Recipe,
    folder: Path,
    environment: Environment,
    watch: Watch,
    overwrite: bool = False,
    observe: Observer = unobserved,
) -> Summary:
    """Run a recipe into a folder; the summary of what came out."""
    if (folder / LEDGER).exists() and not overwrite:
        raise FedzeroError(
            f"{folder} already holds a run: `fedzero resume {folder}` continues it, --overwrite replaces it, "
            "--out chooses another folder"
        )
    files.expect_folder(folder, str(folder))
    environment = replace(environment, folder=folder)
    stream = getattr(recipe.algorithm, "stream", None)
    with ending(watch), compiling(device_of(recipe.engine.device), stream, watch.phase) as compiled:
        setup = prepare(recipe, environment, watch.phase)
        for line in coalitions.warnings(recipe):
            watch.warn(line)
        setup.problem.ready()
        compiled()
        watch.phase("digest of the base model")
        base, first = setup.problem if setup.problem.keep_base else None, setup.start
        if recipe.engine.merge:
            first = msgspec.structs.replace(first, threads=thread_count())
        with assembled(setup, environment, watch, observe) as how:
            ledger = create(folder, first, overwrite, base)
            trust.note(first.recipe, recipe.task, environment.functions)
            return drive(how, ledger, folder, watch)


@contextmanager
def ending(watch: Watch) -> Iterator[None]:
    """What fails before a run begins ends its watch, too."""
    try:
        yield
    except BaseException:
        watch.end()
        raise


def create(folder: Path, first: Start, overwrite: bool = False, base: Problem | None = None) -> Ledger:
    """The ledger of a new run, and beside it what `base` begins with, which its recipe does not make."""
    path, made = folder / LEDGER, not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FedzeroError(f"{folder} cannot be made ({error.strerror}): choose another folder") from error
    claim = Claim(folder)
    if path.exists() and not overwrite:  # somebody was quicker
        claim.release()
        raise FedzeroError(f"{folder} already holds a run: --out chooses another folder")
    try:
        replaced = [folder / MODEL, folder / checkpoints.FILE]
        if base is not None:
            save_base(base.params, folder / BASE)
        if base is not None and base.fixed is not None and base.fixed.size <= fixed.LARGEST:
            base.fixed.save(folder / FIXED)
        else:
            replaced.append(folder / FIXED)
        return Ledger.create(path, first, claim, replaced=replaced)
    except Unwritable:
        if made:
            for name in (BASE, FIXED):
                (folder / name).unlink(missing_ok=True)
            folder.rmdir()
        raise


def resume(
    folder: Path, environment: Environment, watch: Watch, trusted: bool = False, engine: Wanted = None
) -> Summary:
    """Continue a run from its ledger; ends in the same bits as if it had never stopped.

    trusted: whoever resumes it knows what programs, modules and services its ledger names. engine: another one than
    the local one.
    """
    with ending(watch):
        environment = replace(environment, vouched=environment.vouched or trusted)
        ledger, setup = reopen(folder, environment, writable=True, phase=watch.phase)
        if setup.problem.incomplete:
            ledger.close()
            raise FedzeroError(setup.problem.incomplete)
        setup = replace(setup, recipe=recipes.with_engine(setup.recipe, engine))
        if doubt := thread_counts.doubt(ledger.start(), setup.recipe, setup.problem.params):
            watch.warn(doubt)
        with ExitStack() as stack:
            try:
                how = stack.enter_context(assembled(setup, replace(environment, folder=folder_of(folder)), watch))
            except BaseException:
                ledger.close()
                raise
            return drive(how, ledger, folder_of(folder), watch)


@dataclass(frozen=True)
class Assembly:
    """What differs between a run whose clients are in this process and one whose clients are at sites.

    setup: None on a server without a model, which builds nothing. engine: made with a replica of the base model.
    attach: is told of server, ledger and replica once they stand where the ledger ends.
    """

    recipe: Recipe
    plan: Plan
    setup: Setup | None
    engine: Callable[[Replica | None], Engine]
    attach: Callable[[Any, Server, LedgerView, Replica | None], None]
    interrupted: Callable[[Interrupted], None] = lambda reason: None


@contextmanager
def assembled(
    setup: Setup, environment: Environment, watch: Watch, observe: Observer = unobserved
) -> Iterator[Assembly]:
    """The assembly that the recipe's engine asks for; what it started is ended."""
    if isinstance(setup.recipe.engine, Local):
        yield local(setup, observe)
        return
    from fedzero.engines.ray.assembly import on_cluster  # which builds set-ups of its own, and needs an extra

    if observe is not unobserved:
        raise FedzeroError("local steps can be observed in one process only: use the local engine")
    with on_cluster(setup, environment, watch) as how:
        yield how


def local(setup: Setup, observe: Observer = unobserved) -> Assembly:
    """All clients in this process; `observe` is told of their local steps."""

    def engine(replica: Replica | None) -> LocalEngine:
        assert replica is not None
        return local_engine(setup, replica, observe)

    def attach(engine: LocalEngine, server: Server, view: LedgerView, replica: Replica | None) -> None:
        engine.recall(lambda client: server.ledger.memory(client, server.tracker.turns))  # before clients are made
        if engine.replicas and not view.outline.dense:
            engine.rejoin(server.tracker.known.tolist(), list(replay.updates_of(server.ledger, view)))

    return Assembly(setup.recipe, setup.plan, setup, engine, attach)


def local_engine(setup: Setup, replica: Replica, observe: Observer = unobserved) -> LocalEngine:
    how, problem, shards, alter = recorded(setup.recipe.engine), setup.problem, setup.problem.shards, None
    if how.attack is not None:
        shards = how.attack.data(shards, how.attack.who(setup.keys, shards.clients))
        alter = altering(
            *(how.attack, lambda r: setup.plan.wire(r).replies, setup.keys, shards.clients, setup.chain),
            setup.plan.outcome,
        )
    return LocalEngine(
        *(replica, problem.objective, shards, how.merge, how.replicas, setup.chain, observe, problem.measure, alter)
    )


def drive(how: Assembly, ledger: Ledger, folder: Path, watch: Watch) -> Summary:
    """A run from where its ledger stands to its end; the summary of what came out."""
    try:
        recipe, began = how.recipe, time.perf_counter()
        kept = _checkpoint(how, ledger, folder)
        view = replay.read_from(ledger, kept)
        if how.setup is not None and view.end is None:  # a finished run asks for nothing
            how.setup.problem.ready()
        replica = None if how.setup is None else how.setup.replica()
        engine = how.engine(replica)
        watch.phase("")  # folding again has a display of its own
        if how.setup is not None and replica is not None:
            replay.rebuild(ledger, view, replica, None, how.setup.replaying, kept)
        held = replica if recipe.federation.server_model else None
        server = Server(how.plan, held, ledger, view, _meter(how.setup, ledger, view))
        how.attach(engine, server, view, replica)

        def seconds() -> float:
            return view.outline.seconds + time.perf_counter() - began

        def pictures(after: int) -> list[Record]:
            if how.setup is None or replica is None or how.setup.problem.pictures is None:
                return []
            return [Shown(after, how.setup.problem.pictures(replica.state.params))]

        keeper = Keeper(folder, ledger, view, replica, recipe.evaluate_every, kept)
        with threads(thread_counts.used(recipe, ledger.start())):
            play(recipe, view.outline, server, engine, watch, seconds, pictures, how.interrupted, keeper)
        if replica is not None:
            save_model(replica.state.params, folder / MODEL)
        checkpoints.remove(folder)  # a finished run is not resumed
        return summary(ledger, keeper.view)
    finally:
        watch.end()
        ledger.close()


def _checkpoint(how: Assembly, ledger: Ledger, folder: Path) -> Checkpoint | None:
    """Where to resume from. Of a run with a log of queries everything is read, because a budget is counted by it."""
    metered = how.setup is not None and how.setup.problem.metered is not None
    return None if metered else checkpoints.own(folder, ledger)


def _meter(setup: Setup | None, ledger: Ledger, view: LedgerView) -> Meter | None:
    """The log of queries of a run that has one, found intact: a budget is counted by it."""
    metered = None if setup is None else setup.problem.metered
    if setup is None or metered is None or view.end is not None:
        return None
    replay.check_queries(ledger, view)
    log = LedgerLog(ledger, setup.recipe.federation.clients)
    metered.attach(log)
    return Meter(log, metered.unable)


def recipe_in(folder: Path, wanted: Recipe | None = None) -> Recipe:
    """The recipe of the run in a folder; `wanted`: refuse any other, words about the run aside."""
    start = _start_in(folder)
    found = recipes.from_canonical(start.recipe, start.needs)
    wanted = None if wanted is None else recipes.as_recorded(wanted)
    if wanted is not None and wanted != msgspec.structs.replace(found, title=wanted.title, about=wanted.about):
        before, now = (msgspec.json.decode(recipes.canonical(each)) for each in (found, wanted))
        raise FedzeroError(
            f"{folder} holds a run of another recipe ({_difference(before, now)}): choose another folder, or "
            "replace it with --overwrite"
        )
    return found


def _start_in(folder: Path) -> Start:
    with closing(Ledger.open(folder_of(folder) / LEDGER)) as ledger:
        return ledger.start()


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
    try:
        view = replay.read(ledger)
        if upto is not None and not 0 <= upto <= view.outline.done:
            raise FedzeroError(f"--round {upto}: this ledger has rounds 0 to {view.outline.done}")
        replica = setup.replica()
        replay.rebuild(ledger, view, replica, upto, setup.replaying)
        return replica
    finally:
        ledger.close()


def verified(folder: Path, environment: Environment) -> replay.LedgerView:
    """Check ledger, updates and model file; raises `Tampered` with the first bad round."""
    folder = folder_of(folder)
    ledger = Ledger.open(folder / LEDGER)
    try:
        replay.verify(ledger, None)  # the chain first: a damaged recipe must not be obeyed
    finally:
        ledger.close()
    ledger, setup = reopen(folder, environment)
    try:
        replica = setup.replica()
        view = replay.verify(ledger, replica, setup.replaying, checkpoints.found(folder, ledger))
    finally:
        ledger.close()
    model = folder / MODEL
    if model.exists():
        if view.end is None:
            raise Tampered(
                view.outline.done, f"{model} is that of a finished run, but the ledger has no end: it was truncated"
            )
        try:
            tensors = load_model(model, room(replica.state.params))
            found = Params({name: tensors.pop(name) for name in replica.state.params.names if name in tensors})
        except FedzeroError as error:
            raise Tampered(view.end.round, str(error)) from error
        if tensors or found.identity != replica.identity:  # also where an old ledger has no SHA-256
            raise Tampered(view.end.round, f"{model} is not the model of this run")
    return view
