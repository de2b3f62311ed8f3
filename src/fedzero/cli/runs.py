"""Commands about one run: start, resume, watch, replay, verify, report, export."""

from __future__ import annotations

import secrets
import threading
from pathlib import Path
from typing import Annotated

import typer

from fedzero.cli.common import (
    AsJson,
    Data,
    Engine,
    Folder,
    Overrides,
    Overwrite,
    RecipeName,
    ReportTo,
    Rounds,
    Secret,
    Seed,
    Trust,
    Web,
    WebAt,
    app,
    environment_of,
    err,
    expect_file,
    finish,
    interruptible,
    out,
    say,
    tell,
    terminable,
    watch_of,
)
from fedzero.errors import FedzeroError
from fedzero.lines import print_line

PANEL = "Runs"


@app.command(rich_help_panel=PANEL)
def run(
    recipe: RecipeName,
    set_: Overrides = None,
    rounds: Rounds = None,
    seed: Seed = None,
    engine: Engine = None,
    data: Data = None,
    out_: Annotated[
        Path | None, typer.Option("--out", help="Folder for ledger and model; default runs/NAME.", show_default=False)
    ] = None,
    secret: Secret = None,
    overwrite: Overwrite = False,
    web: Web = False,
    web_at: WebAt = None,
    report_to: ReportTo = None,
    as_json: AsJson = False,
) -> None:
    """Run a recipe: writes OUT/ledger.db round by round and OUT/model.safetensors at the end.

    Example: fedzero run demo --set algorithm.directions=20 --rounds 100 --out runs/first
    """
    from fedzero.recipe import recipe as recipes
    from fedzero.runs import session
    from fedzero.web import serving_if

    loaded = recipes.load(recipe, set_, engine, rounds=rounds, seed=seed)
    folder = out_ or Path("runs") / loaded.name
    watch = watch_of(folder, report_to, loaded.report)
    with interruptible(folder), serving_if(folder, web_at or web, say):
        summary = session.start(loaded, folder, environment_of(data, secret), watch, overwrite)
    finish(summary, folder, as_json)


@app.command(rich_help_panel=PANEL)
def resume(
    folder: Folder,
    engine: Engine = None,
    data: Data = None,
    secret: Secret = None,
    trust: Trust = False,
    report_to: ReportTo = None,
    as_json: AsJson = False,
) -> None:
    """Resume a run that was stopped or killed; the final model is the same, bit for bit.

    It is computed with as many threads as the run was started with. A ledger that you did not start yourself and that
    names programs, modules or services is resumed with --trust only.
    """
    from fedzero.runs import session

    watch = watch_of(folder, report_to)
    with interruptible(folder):
        summary = session.resume(folder, environment_of(data, secret), watch, trust, engine)
    finish(summary, folder, as_json)


@app.command("recipe-hash", rich_help_panel=PANEL)
def recipe_hash(recipe: RecipeName, set_: Overrides = None, rounds: Rounds = None, seed: Seed = None) -> None:
    """Print the hash of a recipe, by which a site approves of it: fedzero join KIT --approve HASH."""
    from fedzero.recipe import recipe as recipes

    print(recipes.hash_of(recipes.load(recipe, set_, rounds=rounds, seed=seed)))


@app.command(rich_help_panel=PANEL)
def secret(file: Annotated[Path, typer.Argument(help="The file to write.", show_default=False)]) -> None:
    """Write a new secret for the clients of a private run: random characters in a file that only you can read."""
    from fedzero.model import files

    if file.exists():
        raise FedzeroError(f"{file} exists: runs may have been started with it; choose another name")
    files.write(file, secrets.token_hex(32) + "\n", private=True)
    tell(f"secret: {file}; give it to the clients over a channel you trust, and never to the server")


@app.command(rich_help_panel=PANEL)
def watch(
    folder: Folder,
    once: Annotated[bool, typer.Option("--once", help="Print the current state and exit.")] = False,
    web: Web = False,
    web_at: WebAt = None,
) -> None:
    """Show the progress of a run of another process; only reads the ledger.

    With --web as a page in a browser, until Ctrl-C. It goes on if the run is stopped and resumed.
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
    folder: Folder,
    out_: Annotated[Path, typer.Option("--out", help="The model to write (safetensors).")],
    round_: Annotated[
        int | None, typer.Option("--round", help="The model before this round; default: the last.", show_default=False)
    ] = None,
    data: Data = None,
    secret: Secret = None,
    trust: Trust = False,
) -> None:
    """Rebuild the model of any round from the ledger."""
    from fedzero.model import checkpoint as weights
    from fedzero.runs import recorded

    replica = recorded.replayed(folder, environment_of(data, secret, trust=trust), round_)
    weights.save_model(replica.state.params, out_)
    tell(f"model before round {replica.round}: {replica.identity} → {out_}")


@app.command(rich_help_panel=PANEL)
def verify(folder: Folder, data: Data = None, secret: Secret = None, trust: Trust = False) -> None:
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
        list[Path], typer.Argument(help="Folders of runs; several are compared with each other.", show_default=False)
    ],
    out_: Annotated[Path, typer.Option("--out", help="The page to write.")] = Path("report.html"),
) -> None:
    """W    from fedzero.runs import recorded
    rite one self-contained HTML page about a run or a comparison of runs."""
    from fedzero.report import page
    from fedzero.report.differences import told_apart
    from fedzero.report.tables import terminal_table
    from fedzero.results.history import history

    expect_file(out_)
    histories = [history(folder) for folder in folders]
    page.write(histories, out_)
    out.print(terminal_table(told_apart(histories)))
    tell(f"report: {out_}")


@app.command(rich_help_panel=PANEL)
def export(
    folder: Folder,
    as_json: Annotated[bool, typer.Option("--json/--csv", help="An array of objects, or a table.")] = False,
    out_: Annotated[
        Path | None, typer.Option("--out", help="The file to write; default: standard output.", show_default=False)
    ] = None,
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
