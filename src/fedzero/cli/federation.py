"""Commands of a federation on real machines, but for that of a site."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedzero.cli import options
from fedzero.cli.common import (
    FEDERATIONS,
    app,
    environment_of,
    err,
    finish,
    growth_of,
    interruptible,
    print_json,
    say,
    show,
    tell,
    watch_of,
)
from fedzero.errors import FedzeroError

if TYPE_CHECKING:
    from fedzero.deploy.flare.epochs import WaitPolicy
    from fedzero.recipe.environment import Environment
    from fedzero.recipe.recipe import Recipe
    from fedzero.rounds.loop import Watch
    from fedzero.runs.growing import Growth
    from fedzero.runs.summary import Summary

Deadline = Annotated[float, typer.Option(min=0.1, help="Seconds a site may take for one exchange.")]
Minimum = Annotated[int, typer.Option(min=1, help="Sites that must have joined before the first round.")]
Patience = Annotated[float, typer.Option(min=0, help="Seconds to wait for sites that took part before.")]


@app.command(rich_help_panel=FEDERATIONS)
def federate(
    recipe: Annotated[str | None, options.argument(help="A recipe; leave it out to resume the run in OUT.")] = None,
    sites: Annotated[int, typer.Option(min=1, help="Number of sites; clients are assigned to them in turn.")] = 3,
    set_: options.Overrides = None,
    rounds: options.Rounds = None,
    seed: options.Seed = None,
    data: options.Data = None,
    out_: Annotated[Path | None, options.optional("--out", help="Folder; default runs/NAME.")] = None,
    secret: options.Secret = None,
    deadline: Deadline = 60.0,
    task: options.OwnTask = None,
    overwrite: options.Overwrite = False,
    report_to: options.ReportTo = None,
    as_json: options.AsJson = False,
) -> None:
    """Run a federation on this machine: server and sites as separate processes, with certificates and mutual TLS.

    With `--set engine.merge=false` a recipe gives the same ledger as with `fedzero run`. Without a recipe, --rounds
    extends the run in OUT.

    Example: fedzero federate demo --sites 3 --rounds 20
    """
    from fedzero.recipe import recipe as recipes

    loaded = None if recipe is None else recipes.load(recipe, set_, rounds=rounds, seed=seed)
    if loaded is None and out_ is None:
        raise FedzeroError("give a recipe, or with --out the folder of a run to resume")
    if loaded is not None and sites > loaded.federation.clients:
        clients = loaded.federation.clients
        raise FedzeroError(f"--sites {sites}: the recipe has {clients} clients, one for a site at least: use fewer")
    say("starting a federation on this machine; its first round takes a while")  # imports take seconds
    from fedzero.deploy.flare.epochs import WaitPolicy
    from fedzero.deploy.flare.launch import federate as carry_out
    from fedzero.deploy.site import tasks as site_tasks

    folder, places = out_ or Path("runs") / str(loaded and loaded.name), site_tasks.places_of(task or [])
    environment = environment_of(data, secret, site_tasks.loaded(places))
    policy = WaitPolicy(sites if loaded is not None else 1, deadline=deadline, report=say)
    with interruptible(folder, "federate --out"):
        watch = watch_of(folder, report_to, serving=True)
        said = growth_of(rounds)
        summary = carry_out(loaded, sites, folder, environment, watch, policy, overwrite, places, said)
    finish(summary, folder, as_json)


@app.command(rich_help_panel=FEDERATIONS)
def provision(
    project: Annotated[Path, options.argument(help="Folder of the project.")],
    site: Annotated[list[str] | None, options.repeated("--site", "Name of a site")] = None,
    host: Annotated[str | None, typer.Option(help="Host name of the server, as sites resolve it.")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port of the server; default 8002.")] = None,
) -> None:
    """Make certificates and a start kit for every machine. Run it again with more sites to add them.

    A kit that was moved to its site is not made again, unless its site is named: then with a key of its own.

    Example: fedzero provision hospital --host fl.example.org --site north --site south
    """
    from fedzero.deploy.flare import authority
    from fedzero.deploy.flare.project import kit_of
    from fedzero.deploy.flare.project import provision as make

    made = make(project, site or [], host, port)
    tell(f"server {made.host}:{made.port}; kits, one for each site:")
    for name in made.sites:
        kit = kit_of(project, name)
        tell(f"  {kit}" if kit.exists() else f"  {name}: not here any more; --site {name} makes another one")
        if name in (site or ()) and (count := authority.issued(project, name)) > 1:
            tell(f"    {name} has {count} certificates now, and each lets its owner in until it expires")
    tell(f"Here: fedzero serve {project} RECIPE. At a site, with its kit: fedzero join KIT")


@app.command(rich_help_panel=FEDERATIONS)
def serve(
    project: options.ProjectFolder,
    recipe: Annotated[
        str | None, options.argument(help="A recipe. Without one, and without --out: run what is submitted.")
    ] = None,
    set_: options.Overrides = None,
    rounds: options.Rounds = None,
    seed: options.Seed = None,
    data: options.Data = None,
    out_: Annotated[
        Path | None,
        options.optional("--out", help="Folder of the run, new or to be resumed; default PROJECT/runs/NAME."),
    ] = None,
    deadline: Deadline = 60.0,
    minimum: Minimum = 1,
    patience: Patience = 30.0,
    devices: Annotated[
        bool, typer.Option("--devices", help="Serve the run to devices, by a gateway in this process, and to no sites.")
    ] = False,
    task: options.OwnTask = None,
    overwrite: options.Overwrite = False,
    web: options.Web = False,
    web_at: options.WebAt = None,
    report_to: options.ReportTo = None,
    as_json: options.AsJson = False,
) -> None:
    """Serve a run to the sites of a project; sites may join, crash and rejoin while it runs.

    After a crash the same command resumes from the ledger. `fedzero watch` shows its progress elsewhere, `fedzero stop`
    stops it. Without a recipe it keeps running and processes what `fedzero submit` adds to its queue. With --rounds a
    run that is there is extended; sites that approve of recipes are asked for the one with these rounds.

    With --devices the clients are devices (docs/devices.md): the gateway is the recipe's `engine`, or one at its
    defaults. The project may be any folder, and needs no kits.

    Example: fedzero serve hospital recipe.toml --minimum 2
    """
    if devices:
        wanted, place = _for_devices(project, recipe, out_, set_, rounds, seed)
        shown, again = watch_of(place, report_to), f"serve {project} {recipe} --devices --out"
        how = environment_of(data, None), shown, overwrite, web_at or web, growth_of(rounds), again
        finish(_serve_devices(wanted, place, *how), place, as_json)
        return
    from fedzero.deploy.flare import address
    from fedzero.deploy.flare.project import Project

    found = Project.of(project)
    address.resolve(found.host)
    say(f"serving {project} at {found.host}:{found.port}")  # imports take seconds
    from fedzero.deploy.flare.epochs import WaitPolicy
    from fedzero.deploy.site import tasks as site_tasks
    from fedzero.recipe import recipe as recipes

    loaded = None if recipe is None else recipes.load(recipe, set_, rounds=rounds, seed=seed)
    environment = environment_of(data, None, site_tasks.loaded(site_tasks.places_of(task or [])))
    policy = WaitPolicy(minimum, patience, deadline, say)
    if loaded is None and out_ is None:
        if web or web_at:
            raise FedzeroError("--web shows one run: name a recipe or --out, or use `fedzero watch RUN --web`")
        if report_to:
            raise FedzeroError("--report-to tells of one run: name a recipe or --out")
        _serve_queue(project, environment, policy)
        return
    folder = out_ or project / "runs" / str(loaded and loaded.name)
    watch, said = watch_of(folder, report_to, serving=True), growth_of(rounds)
    summary = _serve_run(project, loaded, folder, environment, policy, overwrite, web_at or web, watch, said)
    finish(summary, folder, as_json)


def _for_devices(
    project: Path,
    recipe: str | None,
    out: Path | None,
    changes: Sequence[str] | None,
    rounds: int | None,
    seed: int | None,
) -> tuple[Recipe, Path]:
    """The recipe of a run whose clients are devices, and its folder."""
    from fedzero import plugins
    from fedzero.recipe import recipe as recipes

    if recipe is None:
        raise FedzeroError("--devices serves one run: name its recipe, which says how devices reach the gateway")
    found = recipes.load(recipe, changes, rounds=rounds, seed=seed)
    if plugins.tag_of(type(found.engine)) != "devices":
        found = recipes.with_engine(found, "devices")
    return found, out or project / "runs" / found.name


def _serve_devices(
    recipe: Recipe,
    folder: Path,
    environment: Environment,
    watch: Watch,
    overwrite: bool,
    web: bool | str,
    said: Growth,
    again: str,
) -> Summary:
    """One run with a gateway, new or resumed, with its page beside it."""
    from fedzero.ledger.folder import LEDGER
    from fedzero.runs import growing, session
    from fedzero.web import serving_if

    with interruptible(folder, again), serving_if(folder, web, say):
        if (folder / LEDGER).exists() and not overwrite:
            growth = growing.asked(folder, recipe, said)
            return session.resume(folder, environment, watch, True, recipe.engine, growth)
        return session.start(recipe, folder, environment, watch, overwrite)


def _serve_queue(project: Path, environment: Environment, policy: WaitPolicy) -> None:
    """What is submitted, one run after the other, until the server is stopped."""
    from fedzero.deploy.flare.launch import service_of
    from fedzero.deploy.server.queue import supervising
    from fedzero.deploy.server.supervisor import serve_queue
    from fedzero.runs.progress import watch_on

    with interruptible(project, "serve"), supervising(project) as playing, service_of(project, policy) as service:
        serve_queue(project, environment, lambda: watch_on(err, serving=True), service, show, playing)


def _serve_run(
    project: Path,
    recipe: Recipe | None,
    folder: Path,
    environment: Environment,
    policy: WaitPolicy,
    overwrite: bool,
    web: bool | str,
    watch: Watch,
    said: Growth,
) -> Summary:
    """One run, new or resumed, with its page beside it."""
    from fedzero.deploy.flare.launch import service_of
    from fedzero.deploy.server.conduct import run_at_sites
    from fedzero.deploy.server.queue import supervising
    from fedzero.web import serving_if

    resume = f"serve {project} --out"
    with interruptible(folder, resume), supervising(project) as playing, service_of(project, policy) as service:
        playing(folder)
        with serving_if(folder, web, say):
            return run_at_sites(recipe, folder, environment, watch, service, overwrite, said)


@app.command(rich_help_panel=FEDERATIONS)
def submit(
    project: options.ProjectFolder,
    recipe: options.RecipeName,
    set_: options.Overrides = None,
    rounds: options.Rounds = None,
    seed: options.Seed = None,
) -> None:
    """Add a recipe to the queue of a project's supervisor, which runs it in PROJECT/runs/NAME.

    Example: fedzero submit hospital recipe.toml --set name=second
    """
    from fedzero.deploy.flare.project import Project
    from fedzero.deploy.server import queue as submissions
    from fedzero.deploy.server.supervisor import check_name_free
    from fedzero.recipe import recipe as recipes

    Project.of(project)
    loaded = recipes.load(recipe, set_, rounds=rounds, seed=seed)
    check_name_free(project, loaded.name)
    submissions.submit(project, loaded)
    found = submissions.supervisor(project)
    how = f"process {found.pid} runs it" if found is not None else f"no server is running yet: fedzero serve {project}"
    tell(f"{loaded.name} is number {len(submissions.entries(project))} in the queue; {how}")


@app.command(rich_help_panel=FEDERATIONS)
def status(
    project: options.ProjectFolder,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show how a federation stands: its server, which sites are connected, the run that is played, and the queue.

    Example: fedzero status hospital
    """
    from fedzero.deploy.flare.status import status_of

    found = status_of(project)
    if as_json:
        print_json(found)
        return
    tell(f"server: {f'process {found.server}' if found.server else f'not running; fedzero serve {project} starts it'}")
    for word, there in (("connected", True), ("not connected", False)):
        if names := [site for site, connected in found.sites.items() if connected == there]:
            tell(f"{word}: {', '.join(names)}")
    if found.run is not None:
        at = "is starting" if found.run.rounds is None else f"round {found.run.round} of {found.run.rounds}"
        tell(f"run: {found.run.name}, {at}, in {found.run.folder}")
    tell(f"queue: {', '.join(found.queue) or 'empty'}")


@app.command(rich_help_panel=FEDERATIONS)
def stop(project: options.ProjectFolder) -> None:
    """Stop the supervisor of a project, as Ctrl-C would; its run can be resumed."""
    from fedzero.deploy.server import queue as submissions

    if not submissions.stop(project):
        raise FedzeroError(f"no server is running for {project}")
    tell("stopped; the same `fedzero serve` resumes from the ledger")
