"""The command that searches for a rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fedzero.cli import options
from fedzero.cli.common import app, environment_of, err, out, say, tell
from fedzero.cli.runs import PANEL
from fedzero.errors import FedzeroError

if TYPE_CHECKING:
    from fedzero.runs.searching import Tried
    from fedzero.runs.tuning import Trial


@app.command(rich_help_panel=PANEL)
def tune(
    recipe: options.RecipeName,
    set_: options.Overrides = None,
    key: Annotated[str, typer.Option(help="A key of the recipe that takes a number.")] = "algorithm.rate",
    trials: Annotated[int, typer.Option(help="Values to try.")] = 8,
    rounds: Annotated[int | None, options.optional(help="Of the longest runs; default: half of the recipe's.")] = None,
    low: Annotated[float | None, options.optional("--from", help="The smallest value to begin with.")] = None,
    high: Annotated[float | None, options.optional("--to", help="The largest value to begin with.")] = None,
    seed: options.Seed = None,
    engine: options.Engine = None,
    data: options.Data = None,
    out_: Annotated[Path | None, options.optional("--out", help="Folder for the runs; default runs/tune-NAME.")] = None,
    secret: options.Secret = None,
    as_json: options.AsJson = False,
) -> None:
    """Find a rate by short runs, of which the better half goes on; judged by training loss, never by test data.

    Lists of values, --set algorithm.rate=1e-3,3e-3 --set algorithm.directions=5,20, are searched together.

    The recipe's own value is always tried. Where the best value is the largest or the smallest, further ones are tried.

    After Ctrl-C or a crash the same command goes on where it was. With --engine ray the runs are spread over a cluster.
    Example: fedzero tune demo --from 5e-3 --to 5e-2 --rounds 80
    """
    from fedzero.recipe import recipe as recipes
    from fedzero.runs import grids, tuning

    single, grid = grids.split(set_ or ())
    if grid:
        if low is not None or high is not None or key != "algorithm.rate":
            raise FedzeroError(
                "--key, --from and --to search one field: leave them out where --set has lists of values"
            )
        _tune_grid(recipe, single, grid, rounds, seed, engine, out_, environment_of(data, secret), as_json)
        return
    if (low is None) != (high is None):
        raise FedzeroError("--from and --to go together: give both, or neither")
    loaded = recipes.load(recipe, set_, seed=seed)
    folder, console = out_ or Path("runs") / f"tune-{loaded.name}", err if as_json else out
    bounds = None if low is None or high is None else (low, high)
    environment = environment_of(data, secret)
    try:
        found = tuning.tune(
            loaded, folder, environment, key, trials, rounds, bounds, lambda t: say(_line(key, t)), engine
        )
    except KeyboardInterrupt:
        say("stopped; the same command goes on from here")
        raise typer.Exit(130) from None
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in (key, "rounds", "training loss"):
        table.add_column(heading, justify="right")
    for trial in found.trials:
        table.add_row(str(trial.value), str(trial.rounds), _loss(trial))
    console.print(table)
    own = found.best == found.own
    tell(f"best: the recipe's own {key}" if own else f"best: --set {key}={found.best}", console)
    if found.note:
        tell(f"note: {found.note}", console)
    if as_json:
        import msgspec

        print(msgspec.json.encode(found).decode())


def _line(key: str, trial: Trial) -> str:
    return f"{key} = {trial.value}, {trial.rounds} rounds: training loss {_loss(trial)}"


def _loss(trial: Trial | Tried) -> str:
    return "not finite" if trial.loss is None else f"{trial.loss:.4g}"


def _tune_grid(
    recipe: str,
    single: Sequence[str],
    grid: Mapping[str, Sequence[str]],
    rounds: int | None,
    seed: int | None,
    engine: str | None,
    out_: Path | None,
    environment: Any,
    as_json: bool,
) -> None:
    from fedzero.recipe import recipe as recipes
    from fedzero.runs import grids, searching

    loaded = recipes.load(recipe, single, seed=seed)
    settings = grids.named(
        grids.combinations({key: [grids.value_of(v) for v in values] for key, values in grid.items()})
    )
    fields = "-".join(key.rpartition(".")[2] for key in grid)  # apart from those of a search in one field
    folder, console = out_ or Path("runs") / f"tune-{loaded.name}-{fields}", err if as_json else out
    try:
        found = searching.search_recipe(
            loaded, settings, rounds, folder, environment, lambda t: say(_line("setting", t)), engine
        )
    except KeyboardInterrupt:
        say("stopped; the same command goes on from here")
        raise typer.Exit(130) from None
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in (*grid, "rounds", "training loss"):
        table.add_column(heading, justify="right")
    for trial in found.trials:
        values = [str(trial.setting.get(key, "recipe")) for key in grid]
        table.add_row(*values, str(trial.rounds), _loss(trial))
    console.print(table)
    sets = " ".join(f"--set {key}={value}" for key, value in found.best.items())
    tell(f"best: {sets}" if sets else "best: the recipe as it is", console)
    tell(f"`fedzero report {folder}` draws the runs", console)
    if as_json:
        import msgspec

        print(msgspec.json.encode(found).decode())
