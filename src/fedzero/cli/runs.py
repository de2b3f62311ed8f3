"""Commands about one run: start, resume, watch, replay, verify, report, export."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedzero.cli import options
from fedzero.cli.common import (
    app,
    environment_of,
    err,
    expect_file,
    finish,
    growth_of,
    interruptible,
    out,
    print_json,
    say,
    tell,
    terminable,
    watch_of,
)
from fedzero.errors import FedzeroError
from fedzero.lines import print_line

if TYPE_CHECKING:
    from fedzero.recipe.environment import Environment
    from fedzero.recipe.recipe import Recipe

PANEL = "Runs"
EXIST = ("resume", "overwrite", "error")


@app.command(rich_help_panel=PANEL)
def run(
    recipe: options.RecipeName,
    set_: options.Overrides = None,
    rounds: options.Rounds = None,
    seed: options.Seed = None,
    engine: options.Engine = None,
    data: options.Data = None,
    out_: Annotated[
        Path | None, options.optional("--out", help="Folder for ledger and model; default runs/NAME.")
    ] = None,
    secret: options.Secret = None,
    journal: options.Journal = None,
    exist: options.Exist = "error",
    overwrite: options.Overwrite = False,
    web: options.Web = False,
    web_at: options.WebAt = None,
    report_to: options.ReportTo = None,
    as_json: options.AsJson = False,
    seeds: Annotated[
        str | None, options.optional(metavar="0,1,2|0..4", help="A run for each seed, in folders of OUT.")
    ] = None,
    dry_run: Annotated[
        bool, options.optional("--dry-run", help="Make two rounds, keep nothing, and print what the whole run takes.")
    ] = False,
) -> None:
    """Run a recipe: writes OUT/ledger.db round by round and OUT/model.safetensors at the end.

    With --exist resume a run of the same recipe that is already in OUT is continued, and extended to --rounds.

    Several values with commas, --set A.B=1e-3,3e-3, are as many runs, in folders of OUT; runs that have ended are kept.

    Example: fedzero run demo --set algorithm.directions=20 --rounds 100 --out runs/first
    """
    from fedzero.runs import grids

    single, grid = grids.split(set_ or ())
    if grid or seeds is not None:
        from fedzero.cli.sweeping import sweep_recipe

        if overwrite or exist == "overwrite":
            raise FedzeroError("--overwrite is for one run: a sweep keeps the runs that have ended")
        if seed is not None and seeds is not None:
            raise FedzeroError("--seed and --seeds: choose one")
        if dry_run:
            raise FedzeroError("--dry-run is for one run: leave out --seeds and lists of values")
        numbers, environment = {"rounds": rounds, "seed": seed}, environment_of(data, secret, journal=journal)
        sweep_recipe(recipe, single, grid, seeds, numbers, engine, out_, environment, web_at or web, as_json)
        return
    from fedzero.ledger.folder import LEDGER
    from fedzero.recipe import recipe as recipes
    from fedzero.runs import growing, session
    from fedzero.web import serving_if

    if exist not in EXIST:
        raise FedzeroError(f"--exist {exist}: use one of {', '.join(EXIST)}")
    loaded = recipes.load(recipe, set_, engine, rounds=rounds, seed=seed)
    if dry_run:
        _dry(loaded, environment_of(data, secret, journal=journal), as_json)
        return
    folder, environment = out_ or Path("runs") / loaded.name, environment_of(data, secret, journal=journal)
    watch = watch_of(folder, report_to, loaded.report)
    with interruptible(folder), serving_if(folder, web_at or web, say):
        if exist == "resume" and not overwrite and (folder / LEDGER).exists():
            said = {
                *recipes.read(recipes.find(recipe)),
                *(each.partition("=")[0].partition(".")[0] for each in set_ or ()),
            }
            loaded = growing.completed(folder, loaded, said if seed is None else {*said, "seed"})
            growth = growing.asked(folder, loaded, growth_of(rounds))
            summary = session.resume(folder, environment, watch, True, loaded.engine, growth)
        else:
            summary = session.start(loaded, folder, environment, watch, overwrite or exist == "overwrite")
    finish(summary, folder, as_json)


def _dry(recipe: Recipe, environment: Environment, as_json: bool) -> None:
    """What a run of the recipe takes, by two rounds of it."""
    from fedzero import plugins
    from fedzero.runs import session
    from fedzero.runs.estimate import estimated

    if plugins.tag_of(type(recipe.engine)) == "devices":
        raise FedzeroError(
            "--dry-run makes two rounds by itself, and the clients of this recipe are devices: leave it out"
        )
    found = estimated(lambda place, watch: session.start(recipe, place, environment, watch))
    (print_json if as_json else print)(found)


@app.command(rich_help_panel=PANEL)
def resume(
    folder: options.Folder,
    engine: options.Engine = None,
    data: options.Data = None,
    secret: options.Secret = None,
    trust: options.Trust = False,
    journal: options.Journal = None,
    rounds: options.Rounds = None,
    evaluate_every: options.EvaluateEvery = None,
    stop: options.StopAt = None,
    report_to: options.ReportTo = None,
    as_json: options.AsJson = False,
) -> None:
    """Resume a run that was stopped or killed; the final model is the same, bit for bit.

    With --rounds the run is extended: it ends as a run of so many rounds would. --evaluate-every and --stop hold from
    there on; a run that ended early goes on with another --stop.

    It is computed with as many threads as the run was started with. A ledger that you did not start yourself and that
    names programs, modules or services is resumed with --trust only.

    Example: fedzero resume runs/first --rounds 200
    """
    from fedzero.runs import session

    watch = watch_of(folder, report_to)
    with interruptible(folder):
        growth = growth_of(rounds, evaluate_every, stop)
        summary = session.resume(folder, environment_of(data, secret, journal=journal), watch, trust, engine, growth)
    finish(summary, folder, as_json)


@app.command("recipe-hash", rich_help_panel=PANEL)
def recipe_hash(
    recipe: options.RecipeName, set_: options.Overrides = None, rounds: options.Rounds = None, seed: options.Seed = None
) -> None:
    """Print the hash of a recipe, by which a site approves of it: fedzero join KIT --approve HASH."""
    from fedzero.recipe import recipe as recipes

    print(recipes.approval_of(recipes.load(recipe, set_, rounds=rounds, seed=seed)))


@app.command(rich_help_panel=PANEL)
def secret(file: Annotated[Path, options.argument(help="The file to write.")]) -> None:
    """Write a new secret for the clients of a private run: random characters in a file that only you can read."""
    import secrets

    from fedzero.model import files

    if file.exists():
        raise FedzeroError(f"{file} exists: runs may have been started with it; choose another name")
    files.write(file, secrets.token_hex(32) + "\n", private=True)
    tell(f"secret: {file}; give it to the clients over a channel you trust, and never to the server")


@app.command(rich_help_panel=PANEL)
def watch(
    folder: options.Folder,
    once: Annotated[bool, typer.Option("--once", help="Print the current state and exit.")] = False,
    web: options.Web = False,
    web_at: options.WebAt = None,
) -> None:
    """Show the progress of a run of another process; only reads the ledger.

    With --web as a page in a browser, until Ctrl-C. It goes on if the run is stopped and resumed. Of a folder of runs,
    such as a sweep makes, the page compares them.
    """
    from fedzero.runs.progress import follow, watch_on
    from fedzero.web import serving_if

    try:
        with terminable(), serving_if(folder, web_at or web, tell):
            if web or web_at:
                threading.Event().wait()
            follow(folder, watch_on(err), once)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


@app.command(rich_help_panel=PANEL)
def replay(
    folder: options.Folder,
    out_: Annotated[Path, typer.Option("--out", help="The model to write (safetensors).")],
    round_: Annotated[
        int | None, options.optional("--round", help="The model before this round; default: the last.")
    ] = None,
    best: Annotated[
        str | None, options.optional("--best", metavar="METRIC", help="The model with the best value of a metric.")
    ] = None,
    mode: Annotated[
        str | None, options.optional("--mode", metavar="min|max", help="Which is better, if its name does not say.")
    ] = None,
    data: options.Data = None,
    secret: options.Secret = None,
    trust: options.Trust = False,
) -> None:
    """Rebuild the model of any round from the ledger, or that of the best evaluation.

    Example: fedzero replay runs/first --best accuracy --out best.safetensors
    """
    from fedzero.model import checkpoint as weights
    from fedzero.runs import recorded

    if best is not None and round_ is not None:
        raise FedzeroError("--round and --best: choose one")
    if best is not None:
        found = recorded.best_in(folder, best, mode)  # type: ignore[arg-type]
        tell(f"best {best}: after {found.round} rounds")
        round_ = found.round
    replica = recorded.replayed(folder, environment_of(data, secret, trust=trust), round_)
    weights.save_model(replica.state.params, out_)
    tell(f"model before round {replica.round}: {replica.identity} → {out_}")


@app.command(rich_help_panel=PANEL)
def verify(
    folder: options.Folder, data: options.Data = None, secret: options.Secret = None, trust: options.Trust = False
) -> None:
    """Check a run: hash chain, updates, digests, model file. Exit status 1 and the first bad round on any change.

    Nothing is evaluated, so no function or program that the ledger names is imported or run.
    """
    from fedzero.ledger.store import Tampered
    from fedzero.runs import recorded

    try:
        view = recorded.verified(folder, environment_of(data, secret, trust=trust))
    except Tampered as error:
        print_line(err, str(error), head="not intact: ")
        raise typer.Exit(1) from error
    end = "unfinished" if view.end is None else "ended early" if view.end.reason else "complete"
    tell(f"intact: {view.outline.done} rounds, {end}, chain head {view.outline.chain.hex()[:16]}")
    if view.only_sums:
        tell(
            "the base model was compared by its 64-bit sum only, because fedzero 0.2.0 or before began this run: that "
            "finds accidents, not a model that somebody made to have the same sum"
        )


@app.command(rich_help_panel=PANEL)
def report(
    folders: Annotated[
        list[Path], options.argument(help="Folders of runs, or of folders of runs, which are compared.")
    ],
    out_: Annotated[Path, typer.Option("--out", help="The page to write.")] = Path("report.html"),
) -> None:
    """Write one self-contained HTML page about a run or a comparison of runs."""
    from fedzero.report import page
    from fedzero.report.differences import told_apart
    from fedzero.report.tables import terminal_table
    from fedzero.results.folders import all_runs
    from fedzero.results.history import history

    expect_file(out_)
    histories = [history(folder) for folder in all_runs(folders)]
    page.write(histories, out_)
    out.print(terminal_table(told_apart(histories)))
    tell(f"report: {out_}")


@app.command(rich_help_panel=PANEL)
def export(
    folder: options.Folder,
    as_json: Annotated[bool, typer.Option("--json/--csv", help="An array of objects, or a table.")] = False,
    out_: Annotated[Path | None, options.optional("--out", help="The file to write; default: standard output.")] = None,
) -> None:
    """Write a run's curves as data: seconds, queries, bytes per client, losses, accuracy and what else was measured.

    A row for each round. Columns of evaluations are empty where there was none.

    Example: fedzero export runs/first --csv --out first.csv
    """
    from fedzero.model import files
    from fedzero.results.export import as_csv, rows
    from fedzero.results.export import as_json as json_of

    found = rows(folder)
    text = json_of(found) if as_json else as_csv(found)
    if out_ is None:
        print(text, end="")
        return
    expect_file(out_)
    files.write(out_, text)
    tell(f"{len(found)} rows: {out_}")
