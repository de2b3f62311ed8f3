"""The command of a site of a federation: what it brings, what it insists on, and joining."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from fedzero.cli import options
from fedzero.cli.common import FEDERATIONS, app, err, say, tell, terminable
from fedzero.errors import FedzeroError
from fedzero.lines import printable

if TYPE_CHECKING:
    from fedzero.deploy.site.settings import Settings

SAY_EVERY = 60.0
"""Seconds between two lines of a site that works."""

Kit = Annotated[Path, options.argument(help="This site's kit.")]
Model = Annotated[str | None, options.optional(help="Path of the model at this site.")]
Device = Annotated[str | None, options.optional(help="cpu, cuda or auto.")]
Threads = Annotated[int | None, options.optional(min=1, help="CPU threads; default: all.")]
Engine = Annotated[
    str | None,
    options.optional(help="Where the site's clients work: an engine, such as ray:2; default: in its process."),
]
OwnFile = Annotated[
    list[str] | None,
    options.repeated(
        "--file", "A file or folder that recipes may name (rows, a model, …), and where it is", "NAME=PATH"
    ),
]
OnlyMethod = Annotated[list[str] | None, options.repeated("--only-method", "Serve this method and no other")]
OnlyTask = Annotated[list[str] | None, options.repeated("--only-task", "Serve this kind of task and no other")]
Private = Annotated[
    bool | None,
    options.optional(
        "--private/--no-private",
        help="Serve private runs only, or open ones as well; default: private ones where there is a secret.",
    ),
]
Approve = Annotated[list[str] | None, options.repeated("--approve", "Serve recipes with this hash only", "HASH")]
QueriesPerDay = Annotated[int | None, options.optional(min=0, help="Evaluations in 24 hours at most, over all runs.")]
Term = Annotated[list[str] | None, options.repeated("--term", "A limit, such as least_batch=16", "NAME=NUMBER")]
Forget = Annotated[
    list[str] | None, options.repeated("--forget", "A stored setting, by its name in --show, or all", "NAME")
]


@app.command(rich_help_panel=FEDERATIONS)
def join(
    kit: Kit,
    data: options.Data = None,
    model: Model = None,
    device: Device = None,
    threads: Threads = None,
    engine: Engine = None,
    secret: options.Secret = None,
    task: options.OwnTask = None,
    file: OwnFile = None,
    only_method: OnlyMethod = None,
    only_task: OnlyTask = None,
    private: Private = None,
    approve: Approve = None,
    queries_per_day: QueriesPerDay = None,
    term: Term = None,
    forget: Forget = None,
    show: Annotated[
        bool, typer.Option("--show", help="Show what is stored and what privacy was spent, and do not join.")
    ] = False,
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

    settings = settings_of(kit)
    if forget:
        settings = settings.without(forget)
    terms = {"methods": only_method, "tasks": only_task, "private": private, "approved": approve}
    given = _given(data, model, device, threads, engine, secret, task, file)
    given |= _given_terms(settings, terms | {"queries_per_day": queries_per_day}, term or [])
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
        _print_budget(kit, settings)
    if not show:
        _carry_out(kit)


def _given(
    data: Path | None,
    model: str | None,
    device: str | None,
    threads: int | None,
    engine: str | None,
    secret: Path | None,
    task: list[str] | None,
    file: list[str] | None,
) -> dict[str, Any]:
    """Settings that the options of this call give."""
    from fedzero.deploy.site import tasks as site_tasks

    values = {
        "data": None if data is None else str(data.resolve()),
        "secret": None if secret is None else str(secret.resolve()),
        "device": device,
        "threads": threads,
        "engine": engine,
        "model": None if model is None else _place_of("--model", model),
        "tasks": site_tasks.places_of(task) if task else None,
        "files": dict(map(_declared, file)) if file else None,
    }
    return {name: value for name, value in values.items() if value is not None}


def _given_terms(settings: Settings, options: dict[str, Any], limits: list[str]) -> dict[str, Any]:
    """The site's terms with those that the options of this call give; empty if there are none."""
    from fedzero.deploy.site.terms import with_options

    terms = options | with_options(limits)
    given = {name: value for name, value in terms.items() if value is not None}
    import msgspec

    return {"terms": msgspec.to_builtins(settings.terms) | given} if given else {}


def _carry_out(kit: Path) -> None:
    from fedzero.deploy.flare.launch import join as carry_out

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
    import msgspec

    tell(msgspec.toml.encode(settings).decode().strip() or "nothing is stored: all settings are as by default")


def _print_budget(kit: Path, settings: Settings) -> None:
    from fedzero.runs.spending import budget

    for line in budget.lines(Path(settings.keep or kit / "local" / "keep"), settings.privacy):
        tell(line)


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
