"""Commands of a federation on real machines."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.text import Text

from fedzero.cli.common import (
    AsJson,
    Data,
    Overrides,
    Overwrite,
    ProjectFolder,
    RecipeName,
    Rounds,
    Secret,
    Seed,
    Web,
    WebAt,
    app,
    environment_of,
    err,
    finish,
    interruptible,
    say,
    show,
    tell,
    terminable,
)
from fedzero.errors import FedzeroError
from fedzero.lines import printable

if TYPE_CHECKING:
    from fedzero.deploy.site.settings import Settings

SAY_EVERY = 60.0
"""Seconds between two lines of a site that works."""
PANEL = "Federations of several machines"

OwnTask = Annotated[
    list[str] | None,
    typer.Option(
        "--task",
        metavar="[NAME=]MODULE:ATTRIBUTE",
        help="A task of your own package, by the name that recipes have for it; may be repeated.",
    ),
]
Deadline = Annotated[float, typer.Option(min=0.1, help="Seconds a site may take for one exchange.")]
Minimum = Annotated[int, typer.Option(min=1, help="Sites that must have joined before the first round.")]
Patience = Annotated[float, typer.Option(min=0, help="Seconds to wait for sites that took part before.")]


@app.command(rich_help_panel=PANEL)
def federate(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe; leave it out to resume the run in OUT.", show_default=False)
    ] = None,
    sites: Annotated[int, typer.Option(min=1, help="Number of sites; clients are assigned to them in turn.")] = 3,
    set_: Overrides = None,
    rounds: Rounds = None,
    seed: Seed = None,
    data: Data = None,
    out_: Annotated[Path | None, typer.Option("--out", help="Folder; default runs/NAME.", show_default=False)] = None,
    secret: Secret = None,
    deadline: Deadline = 60.0,
    task: OwnTask = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Run a federation on this machine: server and sites as separate processes, with certificates and mutual TLS.

    With `--set engine.merge=false` a recipe gives the same ledger as with `fedzero run`.

    Example: fedzero federate demo --sites 3 --rounds 20
    """
    say("starting a federation on this machine; its first round takes a while")  # imports take seconds
    from fedzero.deploy.flare.epochs import WaitPolicy
    from fedzero.deploy.flare.launch import federate as carry_out
    from fedzero.deploy.site import tasks as site_tasks
    from fedzero.recipe import recipe as recipes
    from fedzero.runs.progress import watch_on

    loaded = None if recipe is None else recipes.load(recipe, set_, rounds=rounds, seed=seed)
    if loaded is None and out_ is None:
        raise FedzeroError("give a recipe, or with --out the folder of a run to resume")
    folder, places = out_ or Path("runs") / str(loaded and loaded.name), site_tasks.places_of(task or [])
    environment = environment_of(data, secret, site_tasks.loaded(places))
    policy = WaitPolicy(sites if loaded is not None else 1, deadline=deadline, report=say)
    with interruptible(folder, "federate --out"):
        watch = watch_on(err, serving=True)
        summary = carry_out(loaded, sites, folder, environment, watch, policy, overwrite, places)
    finish(summary, folder, as_json)


@app.command(rich_help_panel=PANEL)
def provision(
    project: Annotated[Path, typer.Argument(help="Folder of the project.", show_default=False)],
    site: Annotated[list[str] | None, typer.Option("--site", help="Name of a site; may be repeated.")] = None,
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


@app.command(rich_help_panel=PANEL)
def serve(
    project: ProjectFolder,
    recipe: Annotated[
        str | None,
        typer.Argument(help="A recipe. Without one, and without --out: run what is submitted.", show_default=False),
    ] = None,
    set_: Overrides = None,
    rounds: Rounds = None,
    seed: Seed = None,
    data: Data = None,
    out_: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder of the run, new or to be resumed; default PROJECT/runs/NAME.", show_default=False
        ),
    ] = None,
    deadline: Deadline = 60.0,
    minimum: Minimum = 1,
    patience: Patience = 30.0,
    task: OwnTask = None,
    overwrite: Overwrite = False,
    web: Web = False,
    web_at: WebAt = None,
    as_json: AsJson = False,
) -> None:
    """Serve a run to the sites of a project; sites may join, crash and rejoin while it runs.

    After a crash the same command resumes from the ledger. `fedzero watch` shows its progress elsewhere, `fedzero stop`
    stops it. Without a recipe it keeps running and processes what `fedzero submit` adds to its queue.

    Example: fedzero serve hospital recipe.toml --minimum 2
    """
    from fedzero.deploy.flare import address
    from fedzero.deploy.flare.project import Project

    found = Project.of(project)
    address.resolve(found.host)
    say(f"serving {project} at {found.host}:{found.port}")  # imports take seconds
    from fedzero.deploy.flare.epochs import WaitPolicy
    from fedzero.deploy.flare.launch import service_of
    from fedzero.deploy.server.conduct import conduct
    from fedzero.deploy.server.queue import supervising
    from fedzero.deploy.server.supervisor import serve_queue
    from fedzero.deploy.site import tasks as site_tasks
    from fedzero.recipe import recipe as recipes
    from fedzero.runs.progress import watch_on
    from fedzero.web import beside

    loaded = None if recipe is None else recipes.load(recipe, set_, rounds=rounds, seed=seed)
    environment = environment_of(data, None, site_tasks.loaded(site_tasks.places_of(task or [])))
    policy = WaitPolicy(minimum, patience, deadline, say)
    if loaded is None and out_ is None:
        if web or web_at:
            raise FedzeroError("--web shows one run: name a recipe or --out, or use `fedzero watch RUN --web`")
        with interruptible(project, "serve"), supervising(project) as playing, service_of(project, policy) as service:
            serve_queue(project, environment, lambda: watch_on(err, serving=True), service, show, playing)
        return
    folder = out_ or project / "runs" / str(loaded and loaded.name)
    resume = f"serve {project} --out"
    with interruptible(folder, resume), supervising(project) as playing, service_of(project, policy) as service:
        playing(folder)
        with beside(folder, web_at or web, say):
            summary = conduct(loaded, folder, environment, watch_on(err, serving=True), service, overwrite)
    finish(summary, folder, as_json)


@app.command(rich_help_panel=PANEL)
def submit(
    project: ProjectFolder, recipe: RecipeName, set_: Overrides = None, rounds: Rounds = None, seed: Seed = None
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


@app.command(rich_help_panel=PANEL)
def status(
    project: ProjectFolder, as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False
) -> None:
    """Show how a federation stands: its server, which sites are connected, the run that is played, and the queue.

    Example: fedzero status hospital
    """
    from fedzero.deploy.flare.status import status_of

    found = status_of(project)
    if as_json:
        print(msgspec.json.encode(found).decode())
        return
    tell(f"server: {f'process {found.server}' if found.server else f'not running; fedzero serve {project} starts it'}")
    for word, there in (("connected", True), ("not connected", False)):
        if names := [site for site, connected in found.sites.items() if connected == there]:
            tell(f"{word}: {', '.join(names)}")
    if found.run is not None:
        at = "is starting" if found.run.rounds is None else f"round {found.run.round} of {found.run.rounds}"
        tell(f"run: {found.run.name}, {at}, in {found.run.folder}")
    tell(f"queue: {', '.join(found.queue) or 'empty'}")


@app.command(rich_help_panel=PANEL)
def stop(project: ProjectFolder) -> None:
    """Stop the supervisor of a project, as Ctrl-C would; its run can be resumed."""
    from fedzero.deploy.server import queue as submissions

    if not submissions.stop(project):
        raise FedzeroError(f"no server is running for {project}")
    tell("stopped; the same `fedzero serve` resumes from the ledger")


@app.command(rich_help_panel=PANEL)
def join(
    kit: Annotated[Path, typer.Argument(help="This site's kit.", show_default=False)],
    data: Data = None,
    model: Annotated[str | None, typer.Option(help="Path of the model at this site.", show_default=False)] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or auto.", show_default=False)] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; default: all.", show_default=False)] = None,
    secret: Secret = None,
    task: OwnTask = None,
    file: Annotated[
        list[str] | None,
        typer.Option(
            "--file",
            metavar="NAME=PATH",
            help="A file or folder that recipes may name (rows, a model, …), and where it is; may be repeated.",
        ),
    ] = None,
    only_method: Annotated[
        list[str] | None, typer.Option("--only-method", help="Serve this method and no other; may be repeated.")
    ] = None,
    only_task: Annotated[
        list[str] | None, typer.Option("--only-task", help="Serve this kind of task and no other; may be repeated.")
    ] = None,
    private: Annotated[
        bool | None,
        typer.Option(
            "--private/--no-private",
            help="Serve private runs only, or open ones as well; default: private ones where there is a secret.",
            show_default=False,
        ),
    ] = None,
    approve: Annotated[
        list[str] | None,
        typer.Option("--approve", metavar="HASH", help="Serve recipes with this hash only; may be repeated."),
    ] = None,
    queries_per_day: Annotated[
        int | None, typer.Option(min=0, help="Evaluations in 24 hours at most, over all runs.", show_default=False)
    ] = None,
    term: Annotated[
        list[str] | None,
        typer.Option("--term", metavar="NAME=NUMBER", help="A limit, such as least_batch=16; may be repeated."),
    ] = None,
    forget: Annotated[
        list[str] | None,
        typer.Option(
            "--forget", metavar="NAME", help="A stored setting, by its name in --show, or all; may be repeated."
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Show what is stored, and do not join.")] = False,
) -> None:
    """Join a federation as a site, until Ctrl-C. Options given here are stored in KIT/local/fedzero.toml.

    All of them are checked first. --show prints what is stored; --forget NAME removes a stored setting.

    A recipe names only what the site has declared with --task, --file and --model. What else the site insists on are
    its terms: --only-method, --only-task, --private, --approve, --queries-per-day, --term. `fedzero list site` explains
    them.

    Examples: fedzero join kits/north --data /srv/data

    fedzero join kits/north --task hospital.radiology:task

    fedzero join kits/north --approve HASH, which `fedzero recipe-hash RECIPE` prints
    """
    from fedzero.deploy.flare.launch import configure, server_of, settings_of
    from fedzero.deploy.flare.launch import join as carry_out
    from fedzero.deploy.site import tasks as site_tasks
    from fedzero.deploy.site.terms import with_options

    settings = settings_of(kit)
    if forget:
        settings = settings.without(forget)
    places = {"data": data, "secret": secret}
    given: dict[str, Any] = {name: str(path.resolve()) for name, path in places.items() if path is not None}
    values = {"device": device, "threads": threads}
    given |= {name: value for name, value in values.items() if value is not None}
    if model is not None:
        given["model"] = _place_of("--model", model)
    if task:
        given["tasks"] = site_tasks.places_of(task)
    if file:
        given["files"] = dict(map(_declared, file))
    terms: dict[str, Any] = {"methods": only_method, "tasks": only_task, "private": private, "approved": approve}
    terms |= {"queries_per_day": queries_per_day, **with_options(term or [])}
    if chosen := {name: value for name, value in terms.items() if value is not None}:
        given["terms"] = msgspec.to_builtins(settings.terms) | chosen
    if given or not show:
        settings = _checked(settings, given, kit)
    if given or forget:
        configure(kit, settings)
    if show:
        _print_settings(kit, settings)
    else:
        server_of(kit)  # what is wrong with the kit comes before what it lets a server do
    say(settings.terms.exposure())
    if show:
        return
    try:
        with terminable(), SiteLine() as line:
            carry_out(kit, say, show=line.show)
    except KeyboardInterrupt:
        say("left the federation; the same command rejoins it")
        raise typer.Exit(130) from None


def _checked(settings: Settings, given: dict[str, Any], kit: Path) -> Settings:
    """What is stored and what is given now; what was stored may have become wrong."""
    from fedzero.deploy.flare.project import SETTINGS

    found = settings.with_values(**given)
    try:
        found.check()
    except FedzeroError as error:
        place = kit / "local" / SETTINGS
        advice = f" ({place} has what was stored before; --forget NAME removes it)" if place.exists() else ""
        raise FedzeroError(f"{error}{advice}") from None
    return found


def _print_settings(kit: Path, settings: Settings) -> None:
    from fedzero.deploy.flare.project import SETTINGS

    tell(f"{kit / 'local' / SETTINGS}:")
    tell(msgspec.toml.encode(settings).decode().strip() or "nothing is stored: all settings are as by default")


def _declared(option: str) -> tuple[str, str]:
    """Name and place of what `--file` gives; a place that is no path here is taken as it is (the name of a model)."""
    name, equals, place = option.partition("=")
    if not (name and equals and place):
        raise FedzeroError(f"--file {option}: write it as NAME=PATH, with the name that recipes have for it")
    return name, _place_of(f"--file {name}", place)


def _place_of(option: str, place: str) -> str:
    """A path of this machine in full; or, where nothing is there, the name of a model, which is no path."""
    path = Path(place).expanduser()
    if path.exists():
        return str(path.resolve())
    if path.is_absolute() or place.startswith((".", "~")):
        raise FedzeroError(f"{option}: there is no file or folder {place}")
    return place


class SiteLine:
    """What a site is doing: a live line in a terminal, and a line that stays whenever it does something else."""

    def __init__(self) -> None:
        self._status = err.status("") if err.is_terminal else None
        self._kind, self._said = "", 0.0

    def __enter__(self) -> SiteLine:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, kind: str, text: str) -> None:
        now = time.monotonic()
        if self._status is not None:
            self._status.update(Text(printable(text)))
        if kind != self._kind or (self._status is None and kind == "working" and now - self._said > SAY_EVERY):
            self._kind, self._said = kind, now
            tell(text, err)
