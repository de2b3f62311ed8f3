"""A run from its recipe, or from the end of its ledger, to the end of the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from fedzero import plugins
from fedzero.callbacks import ignore
from fedzero.directions.ahead import compiling
from fedzero.errors import FedzeroError
from fedzero.ledger import answers, checkpoints, replay, traffic
from fedzero.ledger.checkpoints import Checkpoint
from fedzero.ledger.durable import parts_of
from fedzero.ledger.folder import DEVICES, LEDGER, MODEL, PRIVACY, folder_of
from fedzero.ledger.query_log import LedgerLog, Meter
from fedzero.ledger.records import Extended, Record, Said, Shown, Start
from fedzero.ledger.replay import LedgerView
from fedzero.ledger.store import Claim, Ledger, Unwritable, closed_on_failure
from fedzero.methods.contract import Observer
from fedzero.model import files, fixed
from fedzero.model.checkpoint import save_base, save_model
from fedzero.model.device import device_of, thread_count, threads
from fedzero.protocol.engine import Clients, Tied, Timed
from fedzero.protocol.replica import Replica
from fedzero.recipe import coalitions, thread_counts, trust
from fedzero.recipe import recipe as recipes
from fedzero.recipe.engines import Wanted
from fedzero.recipe.environment import Environment as Environment
from fedzero.recipe.environment import data_folder as data_folder
from fedzero.recipe.recipe import Recipe
from fedzero.recipe.secret import keys_of as keys_of
from fedzero.recipe.secret import secret_of as secret_of
from fedzero.recipe.setup import Setup, prepare
from fedzero.recipe.view import RunView
from fedzero.rounds.buffered import schedule_of
from fedzero.rounds.loop import Watch, run_rounds
from fedzero.rounds.past import PastRounds
from fedzero.rounds.present import Attended, Present
from fedzero.rounds.reopened import OpenQuestions
from fedzero.rounds.schedule import Schedule
from fedzero.rounds.server import Server
from fedzero.runs import growing, statement
from fedzero.runs.checkpointer import Checkpointer
from fedzero.runs.clocked import expect_clock, oldest_of, on_clock
from fedzero.runs.growing import UNCHANGED, Growth
from fedzero.runs.recorded import reopen
from fedzero.runs.spending import here
from fedzero.runs.summary import Summary as Summary
from fedzero.runs.summary import summary as summary
from fedzero.tasks.contract import BASE, FIXED, Problem


@dataclass(frozen=True)
class Opened:
    """A run whose clients are ready. past: gets the server once this has reached the end of the ledger."""

    run: RunView
    clients: Clients
    past: PastRounds
    tied: Callable[[Tied], None] = lambda reason: None


@contextmanager
def opened(
    setup: Setup, environment: Environment, watch: Watch, observe: Observer = ignore, oldest: int = 0
) -> Iterator[Opened]:
    """Open the recipe's engine for a run; everything that the engine started ends with the block. oldest: of the
    schedule."""
    only, engine = getattr(setup.problem.shards, "engine", ""), plugins.tag_of(type(setup.recipe.engine))
    if only not in ("", engine):
        raise FedzeroError(
            f"clients of this task have their data elsewhere: use engine.kind = {only!r} (not {engine!r}), "
            "also to resume the run"
        )
    expect_clock(setup)
    oldest = oldest or oldest_of(setup.recipe.federation)
    past = PastRounds()
    seen = setup.recipe, setup.plan, past, setup, setup.replica(), environment, watch.phase, watch.warn, observe, oldest
    run = RunView(*seen)
    with setup.recipe.engine.open(run) as clients:
        yield Opened(run, on_clock(clients, setup, oldest), past)


def start(
    recipe: Recipe,
    folder: Path,
    environment: Environment,
    watch: Watch,
    overwrite: bool = False,
    observe: Observer = ignore,
) -> Summary:
    """Run a recipe into a folder; returns the summary."""
    if (folder / LEDGER).exists() and not overwrite:
        raise FedzeroError(
            f"{folder} already holds a run: `fedzero resume {folder}` continues it, --overwrite replaces it, "
            "--out chooses another folder"
        )
    files.expect_folder(folder, str(folder))
    environment, recipe = replace(environment, folder=folder), recipes.with_noise(recipe)
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
        if overwrite and (folder / LEDGER).exists():  # places are those of one run
            for path in parts_of(folder / DEVICES):
                path.unlink(missing_ok=True)
        note = here.note_for(environment)
        with here.counted(setup, folder, note) as reserve, opened(setup, environment, watch, observe) as found:
            with closed_on_failure(create(folder, first, overwrite, base, note)) as ledger:
                trust.note(first.recipe, recipe.task, environment.functions)
            return run_to_end(found, ledger, folder, watch, reserve=reserve)


@contextmanager
def ending(watch: Watch) -> Iterator[None]:
    """End the watch if the block fails."""
    try:
        yield
    except BaseException:
        watch.end()
        raise


def create(
    folder: Path, first: Start, overwrite: bool = False, base: Problem | None = None, note: here.Note | None = None
) -> Ledger:
    """Create the ledger of a new run. base: a problem whose base model is stored next to the ledger, because its recipe
    cannot make it again. note: where the run's privacy is counted."""
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
        stale = (MODEL, PRIVACY, checkpoints.FILE, traffic.FILE)
        replaced = [*(folder / name for name in stale), *answers.files_of(folder)]
        if base is not None:
            save_base(base.params, folder / BASE)
        here.write(note, folder)
        if note is None:
            replaced.append(folder / here.NOTE)
        if base is not None and base.fixed is not None and base.fixed.size <= fixed.LARGEST:
            base.fixed.save(folder / FIXED)
        else:
            replaced.append(folder / FIXED)
        return Ledger.create(path, first, claim, replaced=replaced)
    except BaseException as error:
        claim.release()
        if made and isinstance(error, Unwritable):
            for name in (BASE, FIXED, here.NOTE):
                (folder / name).unlink(missing_ok=True)
            folder.rmdir()
        raise


def resume(
    folder: Path,
    environment: Environment,
    watch: Watch,
    trusted: bool = False,
    engine: Wanted = None,
    growth: Growth = UNCHANGED,
) -> Summary:
    """Continue a run from its ledger; it ends with the same bits as if it had never stopped.

    trusted: the caller trusts the programs, modules and services that the ledger names. engine: an engine other than
    the local one. growth: extend the run.
    """
    environment = replace(environment, vouched=environment.vouched or trusted)
    if growth and growing.unfinished(folder, growth):
        _resume(folder, environment, watch, engine)
    return _resume(folder, environment, watch, engine, growing.extension(folder, growth) if growth else None)


def _resume(
    folder: Path, environment: Environment, watch: Watch, engine: Wanted, extended: Extended | None = None
) -> Summary:
    with ending(watch):
        ledger, setup = reopen(folder, environment, writable=True, phase=watch.phase, extended=extended)
        with ExitStack() as stack:
            with closed_on_failure(ledger):
                if setup.problem.incomplete:
                    raise FedzeroError(setup.problem.incomplete)
                setup = replace(setup, recipe=recipes.with_engine(setup.recipe, engine))
                if doubt := thread_counts.doubt(ledger.start(), setup.recipe, setup.problem.params):
                    watch.warn(doubt)
                place, done = folder_of(folder), ledger.done
                note = here.note_for(environment, place, done)
                reserve = stack.enter_context(here.counted(setup, place, note, done))
                found = stack.enter_context(opened(setup, replace(environment, folder=place), watch))
            return run_to_end(found, ledger, place, watch, extended=extended, reserve=reserve)


def run_to_end(
    found: Opened,
    ledger: Ledger,
    folder: Path,
    watch: Watch,
    schedule: Schedule | None = None,
    extended: Extended | None = None,
    reserve: Callable[[int], None] = ignore,
) -> Summary:
    """Play a run from the end of its ledger to its end, or until the watch pauses it; returns the summary. schedule:
    None for the synchronous one. extended: an extension, which is put on the ledger first. reserve: is told a round
    before anybody is asked."""
    try:
        recipe, setup, replica = found.run.recipe, found.run.setup, found.run.replica
        began = time.perf_counter()
        kept = _checkpoint(setup, ledger, folder)
        view = replay.read_from(ledger, kept)
        if setup is not None and (view.end is None or extended is not None):  # a finished run makes no evaluations
            setup.problem.ready()
        if extended is not None:
            view = growing.extend(ledger, view, extended)
        growing.expect_planned(folder, view, recipe)
        growing.remove_superseded(folder, view)
        watch.phase("")  # replaying has its own display
        schedule = schedule or _schedule(found, folder)
        held = replica if recipe.federation.server_model else None
        server = Server(found.run.plan, held, ledger, view, _meter(setup, ledger, view), schedule, reserve=reserve)
        found.past.attach(server)
        if setup is not None and replica is not None:
            _catch_up(server, found.clients, replica, view, setup.replaying, kept)

        def seconds() -> float:
            return view.outline.seconds + time.perf_counter() - began

        def pictures(after: int) -> list[Record]:
            if setup is None or replica is None or setup.problem.pictures is None:
                return []
            return [Shown(after, setup.problem.pictures(replica.state.params))]

        def samples(after: int) -> list[Record]:
            if setup is None or replica is None or setup.problem.samples is None:
                return []
            return [Said(after, tuple(setup.problem.samples(replica.state.params)))]

        checkpointer = Checkpointer(folder, ledger, view, replica, recipe.evaluate_every, kept)
        with threads(thread_counts.used(recipe, ledger.start())):
            ended = run_rounds(
                recipe, view.outline, server, found.clients, watch, seconds, pictures, found.tied, checkpointer, samples
            )
        if ended:
            _finish(replica, folder)
            statement.write(ledger, folder, checkpointer.view)
        return summary(ledger, checkpointer.view)
    finally:
        try:
            watch.end()
        finally:
            ledger.close()


def _schedule(found: Opened, folder: Path) -> Schedule | None:
    """The schedule that the recipe or the engine asks for; None: the synchronous one."""
    if isinstance(found.clients, Attended):
        return Present(found.run.plan, found.clients, folder)
    if isinstance(found.clients, Timed):
        return schedule_of(found.run.plan, found.clients.present)
    return None


def _catch_up(
    server: Server,
    clients: Clients,
    replica: Replica,
    view: LedgerView,
    replaying: replay.Progress,
    kept: Checkpoint | None,
) -> None:
    """Bring the model to the end of the ledger. On the way questions that are open are asked again, where clients share
    the model."""
    ledger, oldest = server.ledger, server.schedule.oldest
    if isinstance(clients, Timed):
        clients.set_time(view.outline.time or 0.0)
    if not oldest:
        replay.rebuild(ledger, view, replica, None, replaying, kept)
        return
    questions = OpenQuestions(ledger, view, oldest)

    def ask(round: int) -> None:
        questions.ask(round, server, clients)

    server.admission.models |= replay.recent(ledger, view, replica, oldest, replaying, kept, ask)


def _finish(replica: Replica | None, folder: Path) -> None:
    """Write the model, and remove what a finished run does not need, since it is not resumed."""
    if replica is not None:
        save_model(replica.state.params, folder / MODEL)
    checkpoints.remove(folder)
    for path in answers.files_of(folder):
        path.unlink(missing_ok=True)


def _checkpoint(setup: Setup | None, ledger: Ledger, folder: Path) -> Checkpoint | None:
    """The checkpoint from which to resume. A run with a log of queries reads its whole ledger, to count its budget."""
    metered = setup is not None and setup.problem.metered is not None
    return None if metered else checkpoints.own(folder, ledger)


def _meter(setup: Setup | None, ledger: Ledger, view: LedgerView) -> Meter | None:
    """The log of queries of a run that has one, after a check: its budget is counted from the log."""
    metered = None if setup is None else setup.problem.metered
    if setup is None or metered is None or view.end is not None:
        return None
    replay.check_queries(ledger, view)
    log = LedgerLog(ledger, setup.recipe.federation.clients)
    metered.attach(log)
    return Meter(log, metered.unable)
