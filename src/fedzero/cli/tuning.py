"""The command that searches for a rate, or for several values together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from fedzero.cli import options
from fedzero.cli.common import app, environment_of, err, out, print_json, repeatable, say, tell
from fedzero.cli.runs import PANEL
from fedzero.errors import FedzeroError

if TYPE_CHECKING:
    from fedzero.runs.searching import Found
    from fedzero.runs.tuning import Trial, Tuned


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
    journal: options.Journal = None,
    as_json: options.AsJson = False,
) -> None:
    """Find a rate by short runs, of which the better half goes on; judged by training loss, never by test data.

    Lists of values, --set algorithm.rate=1e-3,3e-3 --set algorithm.directions=5,20, are searched together.

    The recipe's own value is always tried. Where the best value is the largest or the smallest, further ones are tried.

    After Ctrl-C or a crash the same command goes on where it was. With --engine ray the runs are spread over a cluster.
    Example: fedzero tune demo --from 5e-3 --to 5e-2 --rounds 80
    """
    from fedzero.recipe import recipe as recipes
    from fedzero.runs import grids, searching, tuning

    single, grid = grids.split(set_ or ())
    if grid and (low is not None or high is not None or key != "algorithm.rate"):
        raise FedzeroError("--key, --from and --to search one field: leave them out where --set has lists of values")
    if (low is None) != (high is None):
        raise FedzeroError("--from and --to go together: give both, or neither")
    loaded, environment = recipes.load(recipe, single, seed=seed), environment_of(data, secret, journal=journal)
    fields = [field.rpartition(".")[2] for field in grid]  # apart from those of a search in one field
    folder = out_ or Path("runs") / "-".join(["tune", loaded.name, *fields])

    def told(trial: Trial) -> None:
        say(f"{'setting' if grid else key} = {trial}")

    found: Found | Tuned
    with repeatable():
        if grid:
            values = {each: [grids.value_of(text) for text in texts] for each, texts in grid.items()}
            settings = grids.named(grids.combinations(values))
            found = searching.search_recipe(loaded, settings, rounds, folder, environment, told, engine)
        else:
            bounds = None if low is None or high is None else (low, high)
            found = tuning.tune(loaded, folder, environment, key, trials, rounds, bounds, told, engine)
    _show(found, list(grid) or [key], folder, as_json)


def _show(found: Found | Tuned, keys: Sequence[str], folder: Path, as_json: bool) -> None:
    """A row for each setting, best first, and what to set."""
    from fedzero.runs.searching import of_one
    from fedzero.runs.tuning import Tuned, loss_text

    console, grid = err if as_json else out, of_one(found) if isinstance(found, Tuned) else found
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in (*keys, "rounds", "training loss"):
        table.add_column(heading, justify="right")
    for trial in grid.trials:
        values = [str(trial.setting.get(key, "recipe")) for key in keys]
        table.add_row(*values, str(trial.rounds), loss_text(trial.loss))
    console.print(table)
    own = f"the recipe's own {keys[0]}" if isinstance(found, Tuned) else "the recipe as it is"
    sets = " ".join(f"--set {key}={value}" for key, value in grid.best.items())
    tell(f"best: {own if found.best == getattr(found, 'own', {}) else sets}", console)
    if found.note:
        tell(f"note: {found.note}", console)
    if not isinstance(found, Tuned):
        tell(f"`fedzero report {folder}` draws the runs", console)
    if as_json:
        print_json(found)
