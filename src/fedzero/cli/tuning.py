"""The command that searches for a rate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.table import Table

from fedzero.cli import options
from fedzero.cli.common import app, environment_of, err, out, say, tell
from fedzero.cli.runs import PANEL
from fedzero.errors import FedzeroError

if TYPE_CHECKING:
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

    The recipe's own value is always tried. Where the best value is the largest or the smallest, further ones are tried.

    After Ctrl-C or a crash the same command goes on where it was. With --engine ray the runs are spread over a cluster.
    Example: fedzero tune demo --from 5e-3 --to 5e-2 --rounds 80
    """
    from fedzero.recipe import recipe as recipes
    from fedzero.runs import tuning

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
        print(msgspec.json.encode(found).decode())


def _line(key: str, trial: Trial) -> str:
    return f"{key} = {trial.value}, {trial.rounds} rounds: training loss {_loss(trial)}"


def _loss(trial: Trial) -> str:
    return "not finite" if trial.loss is None else f"{trial.loss:.4g}"
