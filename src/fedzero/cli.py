"""The command line. Every command says what it does, and bad input gets one sentence and exit status 2."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedzero import __version__
from fedzero.errors import FedzeroError

# torch, numba and matplotlib are slow to import, so commands import what they use when they run.

app = typer.Typer(
    help="Federated optimization with zero gradients and near-zero communication.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
patches = typer.Typer(help="A fine-tune as a file of kilobytes.", no_args_is_help=True)
app.add_typer(patches, name="patch")

err = Console(stderr=True)
out = Console()

Folder = Annotated[Path, typer.Argument(help="Folder of a run (it holds ledger.db).", show_default=False)]
Data = Annotated[
    Path | None, typer.Option("--data", envvar="FEDZERO_DATA", help="Folder with the datasets.", show_default=False)
]
Secret = Annotated[
    Path | None,
    typer.Option("--secret", help="File with the clients' secret (or set FEDZERO_SECRET).", show_default=False),
]
RecipeName = Annotated[str, typer.Argument(help="A recipe file, or the name of one from `fedzero list`.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="A.B=C", help="Change a value of the recipe; may be repeated.")
]
Rounds = Annotated[int | None, typer.Option(help="Number of rounds.", show_default=False)]
Seed = Annotated[int | None, typer.Option(help="Seed of everything random.", show_default=False)]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a run that is already there.")]
ProjectFolder = Annotated[Path, typer.Argument(help="Folder that `fedzero provision` made.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object on the last line.")]


def _around(data: Path | None, secret: Path | None) -> Any:
    from fedzero.session import Surroundings, data_folder, secret_of

    key = os.environ.get("FEDZERO_SECRET", "").encode() or None
    if secret is not None:
        if not secret.is_file():
            raise FedzeroError(f"--secret {secret}: no such file")
        key = secret.read_bytes().strip()
    return Surroundings(data_folder(data), secret_of(key))


def _expect_file(path: Path) -> None:
    if path.is_dir():
        raise FedzeroError(f"--out {path} is a folder: name a file to write")


@contextmanager
def _interruptible(folder: Path, command: str = "resume") -> Iterator[None]:
    """Ctrl-C loses nothing: say how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        err.print(f"stopped; `fedzero {command} {escape(str(folder))}` goes on from the last completed round")
        raise typer.Exit(130) from None


def _finish(summary: dict[str, Any], folder: Path, as_json: bool) -> None:
    _show(folder, err if as_json else out)
    if summary["reason"]:
        (err if as_json else out).print(f"ended early: {escape(summary['reason'])}", highlight=False, soft_wrap=True)
    if as_json:
        print(json.dumps(summary))


def _show(folder: Path, console: Console = out) -> None:
    from fedzero.histories import history
    from fedzero.report.tables import terminal_table

    console.print(terminal_table([history(folder)]))


@app.command()
def run(
    recipe: RecipeName,
    set_: Overrides = None,
    rounds: Rounds = None,
    seed: Seed = None,
    data: Data = None,
    out_: Annotated[
        Path | None, typer.Option("--out", help="Folder for ledger and model; default runs/NAME.", show_default=False)
    ] = None,
    secret: Secret = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Run a recipe: writes OUT/ledger.db as it goes and OUT/model.safetensors at the end.

    Example: fedzero run demo --set algorithm.directions=20 --rounds 100 --out runs/first
    """
    from fedzero import recipe as recipes
    from fedzero import session
    from fedzero.progress import watch_on

    loaded = recipes.load(recipe, set_, rounds=rounds, seed=seed)
    folder = out_ or Path("runs") / loaded.name
    with _interruptible(folder):
        summary = session.start(loaded, folder, _around(data, secret), watch_on(err), overwrite)
    _finish(summary, folder, as_json)


@app.command()
def resume(folder: Folder, data: Data = None, secret: Secret = None, as_json: AsJson = False) -> None:
    """Continue a run that was stopped, killed or unplugged; the model comes out the same to the last bit."""
    from fedzero import session
    from fedzero.progress import watch_on

    with _interruptible(folder):
        summary = session.resume(folder, _around(data, secret), watch_on(err))
    _finish(summary, folder, as_json)


Deadline = Annotated[float, typer.Option(min=0.1, help="Seconds a site may take for one exchange.")]
Minimum = Annotated[int, typer.Option(min=1, help="Sites without which nothing is begun.")]
Patience = Annotated[float, typer.Option(min=0, help="Seconds to wait for sites that were there before.")]


@app.command()
def federate(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe; leave it out to go on with the run in OUT.", show_default=False)
    ] = None,
    sites: Annotated[int, typer.Option(min=1, help="How many sites; clients are dealt to them in turn.")] = 3,
    set_: Overrides = None,
    rounds: Rounds = None,
    seed: Seed = None,
    data: Data = None,
    out_: Annotated[Path | None, typer.Option("--out", help="Folder; default runs/NAME.", show_default=False)] = None,
    secret: Secret = None,
    deadline: Deadline = 60.0,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Try a federation on this machine: a server and sites as processes of their own, with certificates and mutual TLS.

    The same recipe with `--set engine.merge=false` gives the same ledger here and with `fedzero run`.

    Example: fedzero federate demo --sites 3 --rounds 20
    """
    from fedzero import recipe as recipes
    from fedzero.engines.nvflare.epochs import Manner
    from fedzero.federating import federate as carry_out
    from fedzero.progress import watch_on

    loaded = None if recipe is None else recipes.load(recipe, set_, rounds=rounds, seed=seed)
    if loaded is None and out_ is None:
        raise FedzeroError("name a recipe, or with --out the folder of a run to go on with")
    folder = out_ or Path("runs") / str(loaded and loaded.name)
    around, manner = _around(data, secret), Manner(sites if loaded is not None else 1, say=_say)
    with _interruptible(folder, "federate --out"):
        summary = carry_out(loaded, sites, folder, around, watch_on(err), manner, deadline, overwrite)
    _finish(summary, folder, as_json)


@app.command()
def provision(
    project: Annotated[Path, typer.Argument(help="Folder of the project.", show_default=False)],
    site: Annotated[list[str] | None, typer.Option("--site", help="Name of a site; may be repeated.")] = None,
    host: Annotated[str | None, typer.Option(help="Name of the server's machine, as sites reach it.")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port of the server; default 8002.")] = None,
) -> None:
    """Make certificates and a start kit for every machine; again with more sites to add them.

    Example: fedzero provision hospital --host fl.example.org --site north --site south
    """
    from fedzero.engines.nvflare.kits import kit_of
    from fedzero.engines.nvflare.kits import provision as make

    made = make(project, site or [], host, port)
    out.print(f"server {made.host}:{made.port}; kits, one for each site:", highlight=False)
    for name in made.sites:
        out.print(f"  {kit_of(project, name)}", highlight=False, soft_wrap=True)
    out.print(f"Here: fedzero serve {project} RECIPE. At a site, with its kit: fedzero join KIT", highlight=False)


@app.command()
def serve(
    project: ProjectFolder,
    recipe: Annotated[
        str | None,
        typer.Argument(help="A recipe; without one, and without --out, what is submitted.", show_default=False),
    ] = None,
    set_: Overrides = None,
    rounds: Rounds = None,
    seed: Seed = None,
    data: Data = None,
    out_: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder of the run, also to go on with; default PROJECT/runs/NAME.", show_default=False
        ),
    ] = None,
    deadline: Deadline = 60.0,
    minimum: Minimum = 1,
    patience: Patience = 30.0,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Serve a run to the sites of a project: they may come, crash, return and join while it goes.

    Killed or unplugged, the same command goes on from the ledger. `fedzero watch` looks on from elsewhere, and
    `fedzero stop` ends it. Without a recipe it stays, and plays what `fedzero submit` brings.

    Example: fedzero serve hospital recipe.toml --minimum 2
    """
    from fedzero import recipe as recipes
    from fedzero.engines.nvflare.epochs import Manner
    from fedzero.engines.nvflare.kits import Project
    from fedzero.federating import serve as carry_out
    from fedzero.progress import watch_on
    from fedzero.standing import stand
    from fedzero.submissions import supervising

    Project.of(project)
    loaded = None if recipe is None else recipes.load(recipe, set_, rounds=rounds, seed=seed)
    around, manner = _around(data, None), Manner(minimum, patience, _say)
    if loaded is None and out_ is None:
        with _interruptible(project, "serve"), supervising(project):
            stand(project, around, lambda: watch_on(err), manner, deadline, _show)
        return
    folder = out_ or project / "runs" / str(loaded and loaded.name)
    with _interruptible(folder, f"serve {project} --out"), supervising(project):
        summary = carry_out(project, loaded, folder, around, watch_on(err), manner, deadline, overwrite)
    _finish(summary, folder, as_json)


@app.command()
def submit(
    project: ProjectFolder,
    recipe: RecipeName,
    set_: Overrides = None,
) -> None:
    """Hand a recipe to the supervisor of a project: it is played into PROJECT/runs/NAME when its turn comes.

    Example: fedzero submit hospital recipe.toml --set name=second
    """
    from fedzero import recipe as recipes
    from fedzero import submissions
    from fedzero.engines.nvflare.kits import Project
    from fedzero.standing import expect_place

    Project.of(project)
    loaded = recipes.load(recipe, set_)
    expect_place(project, loaded.name)
    submissions.submit(project, loaded)
    pid = submissions.supervisor(project)
    how = f"process {pid} serves it" if pid is not None else f"nobody serves {project} yet: fedzero serve {project}"
    out.print(f"{loaded.name} is number {len(submissions.waiting(project))} in the queue; {how}", highlight=False)


@app.command()
def stop(
    project: ProjectFolder,
) -> None:
    """End the supervisor of a project, as Ctrl-C would: what it was playing can be gone on with."""
    from fedzero import submissions

    if not submissions.stop(project):
        raise FedzeroError(f"nobody serves {project}")
    out.print("stopped; the same `fedzero serve` goes on from the ledger")


@app.command()
def join(
    kit: Annotated[Path, typer.Argument(help="This site's kit.", show_default=False)],
    data: Data = None,
    model: Annotated[str | None, typer.Option(help="Where this site has the model.", show_default=False)] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or auto.", show_default=False)] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Of the CPU; default: all.", show_default=False)] = None,
    secret: Secret = None,
) -> None:
    """Take part in a federation as a site, until Ctrl-C. What is given here is kept in KIT/local/fedzero.toml.

    Example: fedzero join kits/north --data /srv/data
    """
    import msgspec

    from fedzero.federating import configure, settings_of
    from fedzero.federating import join as carry_out
    from fedzero.site import Settings

    settings = settings_of(kit)
    places = {"data": data, "secret": secret}
    given: dict[str, Any] = {name: str(path.resolve()) for name, path in places.items() if path is not None}
    values = {"model": model, "device": device, "threads": threads}
    given |= {name: value for name, value in values.items() if value is not None}
    if given:
        settings = Settings.of({**msgspec.to_builtins(settings), **given}, "fedzero join")
        configure(kit, settings)
    settings.around()  # what is wrong with it shows here
    try:
        carry_out(kit, _say)
    except KeyboardInterrupt:
        err.print("left the federation; the same command comes back to it")
        raise typer.Exit(130) from None


@app.command()
def watch(folder: Folder, once: Annotated[bool, typer.Option("--once", help="Look once, then leave.")] = False) -> None:
    """Look on while somebody else runs or serves: reads the ledger, changes nothing."""
    from fedzero.progress import follow, watch_on

    try:
        follow(folder, watch_on(err), once)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _say(text: str) -> None:
    err.print(f"[yellow]{escape(text)}", highlight=False, soft_wrap=True)


@app.command()
def replay(
    folder: Folder,
    out_: Annotated[Path, typer.Option("--out", help="Where to write the model (safetensors).")],
    round_: Annotated[
        int | None, typer.Option("--round", help="The model before this round; default: the last.", show_default=False)
    ] = None,
    data: Data = None,
    secret: Secret = None,
) -> None:
    """Rebuild the model of any round from the ledger alone."""
    from fedzero import session, weights

    replica = session.replayed(folder, _around(data, secret), round_)
    weights.save_model(replica.state.params, out_)
    out.print(f"model before round {replica.round}: {replica.digest().hex()} → {out_}")


@app.command()
def verify(folder: Folder, data: Data = None, secret: Secret = None) -> None:
    """Check a run: hash chain, updates, digests, model file. Exit 1 and the first bad round on any tampering."""
    from fedzero import session
    from fedzero.ledger.store import Tampered

    try:
        story = session.verified(folder, _around(data, secret))
    except Tampered as error:
        err.print(f"[bold red]not intact:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        raise typer.Exit(1) from error
    end = "unfinished" if story.end is None else "ended early" if story.end.reason else "complete"
    out.print(f"intact: {len(story.rounds)} rounds, {end}, chain head {story.entries[-1].chain.hex()[:16]}")


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs; several are compared.", show_default=False)],
    out_: Annotated[Path, typer.Option("--out", help="The page to write.")] = Path("report.html"),
) -> None:
    """One self-contained HTML page about a run or a comparison of runs; readable offline."""
    from fedzero.histories import history
    from fedzero.report import page
    from fedzero.report.tables import terminal_table

    histories = [history(folder) for folder in folders]
    _expect_file(out_)
    page.write(histories, out_)
    out.print(terminal_table(histories))
    out.print(f"report: {out_}")


@app.command()
def reproduce(
    experiment: Annotated[
        str | None, typer.Argument(help="Which one; leave it out to see what there is.", show_default=False)
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small setting: at most three minutes on two cores.")
    ] = False,
    out_: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder for runs, tables, figures; default runs/reproduce/EXPERIMENT.", show_default=False
        ),
    ] = None,
    data: Data = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many repetitions.", show_default=False)] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Worker processes; default: one a core.", show_default=False)
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="Only parts whose name matches, such as 'rcv1*iid'.", show_default=False),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="For e3: another language model (a folder, a GGUF file, a hub name).", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Reproduce an experiment of a paper: makes all its runs, then writes its figure (PNG) and table (Markdown, CSV).

    Stop it whenever you like: the same command goes on where it was, and never makes a finished run again. Every run is
    an ordinary one, in OUT/runs.

    Example: fedzero reproduce e8 --quick
    """
    from fedzero.experiments import EXPERIMENTS
    from fedzero.experiments import experiment as find
    from fedzero.experiments.contract import Setting
    from fedzero.experiments.display import display_on
    from fedzero.experiments.reproduce import Request, default_folder, summary_json, summary_text
    from fedzero.experiments.reproduce import reproduce as carry_out
    from fedzero.session import data_folder

    if experiment is None:
        table = Table("", "what", "--quick", "in full", "", box=None, pad_edge=False, header_style="bold")
        for each in EXPERIMENTS.values():
            needs = "needs --data" if each.needs_data else ""
            table.add_row(f"[bold]{each.name}", f"{escape(each.about)} ({escape(each.paper)})", *each.times, needs)
        out.print(table)
        return
    found = find(experiment)
    request = Request(
        found, Setting(quick, seeds, only, model), out_ or default_folder(found.name, quick), data_folder(data), jobs
    )
    try:
        summary = carry_out(request, lambda name, workers: display_on(err, name, workers))
    except KeyboardInterrupt:
        err.print("stopped; the same command goes on from here, and finished runs are not made again")
        raise typer.Exit(130) from None
    (err if as_json else out).print(escape(summary_text(summary)), highlight=False, soft_wrap=True)
    if as_json:
        print(summary_json(summary))


@patches.command("export")
def patch_export(
    folder: Folder,
    out_: Annotated[Path, typer.Option("--out", help="The patch to write.")],
    data: Data = None,
    secret: Secret = None,
) -> None:
    """Write a finished run's fine-tune as a small file."""
    from fedzero.patches import export_patch
    from fedzero.report.units import human_bytes

    content = export_patch(folder, _around(data, secret))
    _expect_file(out_)
    out_.parent.mkdir(parents=True, exist_ok=True)
    out_.write_bytes(content)
    out.print(f"patch of {human_bytes(len(content))}: {out_}")


@patches.command("apply")
def patch_apply(
    patch: Annotated[Path, typer.Argument(help="A file from `fedzero patch export`.")],
    base: Annotated[
        str,
        typer.Option(
            "--base",
            help="What the run started from: a safetensors file, or a language model (folder, GGUF file, hub name).",
        ),
    ],
    out_: Annotated[
        Path, typer.Option("--out", help="Where to write: a safetensors file; of a language model, a folder.")
    ],
    tokenizer: Annotated[str | None, typer.Option(help="Where the tokenizer is, if not with the model.")] = None,
    merge: Annotated[bool, typer.Option(help="Merge LoRA adapters into the weights.")] = False,
) -> None:
    """Base + patch = fine-tuned model, checked against the digest in the patch.

    Example: fedzero patch apply sentiment.patch --base smollm2-135m --out tuned, and then
    AutoModelForCausalLM.from_pretrained("tuned").
    """
    from fedzero.patches import apply_patch

    params = apply_patch(patch, base, out_, tokenizer, merge)
    out.print(f"model {params.digest().hex()} → {out_}")


@app.command("list")
def list_() -> None:
    """Algorithms, filters, tasks and recipes, one line each."""
    from typing import get_args

    from fedzero import recipe as recipes
    from fedzero.algorithms import AnyAlgorithm
    from fedzero.filters import AnyFilter
    from fedzero.tasks import AnyTask

    for title, union in (("Algorithms", AnyAlgorithm), ("Filters", AnyFilter), ("Tasks", AnyTask)):
        table = Table(title=title, title_justify="left", show_header=False, box=None)
        for kind in get_args(union):
            table.add_row(f"[bold]{kind.__struct_config__.tag}", (kind.__doc__ or "").split("\n")[0])
        out.print(table)
    table = Table(title="Recipes", title_justify="left", show_header=False, box=None)
    for name, path in recipes.recipes().items():
        table.add_row(f"[bold]{name}", recipes.load(path).about)
    out.print(table)


@app.command()
def directions(
    key: Annotated[str, typer.Option(help="64-bit key, decimal or 0x….")],
    tensor: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Ordinal of the tensor.")] = 0,
    kind: Annotated[str, typer.Option(help="gaussian or rademacher.")] = "gaussian",
    n: Annotated[int, typer.Option("--n", min=1, help="How many numbers.")] = 1 << 20,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """SHA-256 of a direction's float32 bytes: run it on two machines and compare by eye."""
    import torch

    from fedzero.devices import device_of
    from fedzero.directions import Domain, kernels

    try:
        number = int(key, 0)
    except ValueError:
        raise FedzeroError(f"--key {key}: not a number; write it in decimal or as 0x…") from None
    if not 0 <= number < 1 << 64:
        raise FedzeroError(f"--key {key}: a key has 64 bits")
    if kind not in ("gaussian", "rademacher"):
        raise FedzeroError(f"--kind {kind}: use gaussian or rademacher (the sphere is a scaled gaussian)")
    if device not in ("cpu", "cuda"):
        raise FedzeroError(f"--device {device}: use cpu or cuda")
    z = torch.empty(n, dtype=torch.float32, device=device_of(device))
    kernels(z.device).generate(z, Domain[kind.upper()], number, tensor)
    print(hashlib.sha256(z.cpu().numpy().astype("<f4").tobytes()).hexdigest())


@app.command()
def version() -> None:
    """The version of fedzero."""
    print(__version__)


def main() -> None:
    """Entry point: errors meant for people are printed as one sentence, everything else is a bug and shows itself."""
    try:
        app()
    except FedzeroError as error:
        _refuse(str(error))
    except OSError as error:
        _refuse(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _refuse(sentence: str) -> None:
    err.print(f"[bold red]fedzero:[/] {escape(sentence)}", highlight=False, soft_wrap=True)
    sys.exit(2)
