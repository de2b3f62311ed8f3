"""Several runs by one command: `fedzero run RECIPE --seeds 0,1,2 --set algorithm.rate=1e-3,3e-3`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedzero.cli.common import err, out, print_json, repeatable, say, tell


def sweep_recipe(
    recipe: str,
    single: Sequence[str],
    grid: Mapping[str, Sequence[str]],
    seeds: str | None,
    options: Mapping[str, Any],
    engine: str | None,
    folder: Path | None,
    environment: Any,
    web: bool | str,
    as_json: bool,
) -> None:
    """Make the runs that are missing, and show what they came to."""
    from fedzero.recipe import recipe as recipes
    from fedzero.report.differences import merged, told_apart
    from fedzero.report.tables import terminal_table
    from fedzero.results.history import history
    from fedzero.runs import grids, sweeping
    from fedzero.web import serving_if

    values: dict[str, Sequence[Any]] = dict(grid)
    if seeds is not None:
        values[grids.SEED] = grids.seeds_of(seeds)
    planned = {
        name: recipes.load(recipe, [*single, *(f"{key}={value}" for key, value in setting.items())], **options)
        for name, setting in grids.named(grids.combinations(values)).items()
    }
    place = folder or Path("runs") / f"sweep-{next(iter(planned.values())).name}"

    with repeatable(), serving_if(place, web, say, several=True):
        found = sweeping.sweep(planned, place, environment, say, engine)
    console = err if as_json else out
    console.print(terminal_table(told_apart(merged([history(place / name) for name in planned]))))
    tell(f"{len(planned)} runs in {place}; `fedzero report {place}` draws them", console)
    if as_json:
        print_json(found)
