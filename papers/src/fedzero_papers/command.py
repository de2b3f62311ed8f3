"""The command that makes the experiments of the papers again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from fedzero.cli import options
from fedzero.cli.common import err, out

app = typer.Typer()

Experiment = Annotated[str | None, options.argument(help="Which one; without it, all are listed.")]
Quick = Annotated[bool, typer.Option("--quick", help="A small setting: at most three minutes on two cores.")]
Out = Annotated[
    Path | None, options.optional("--out", help="Folder of the results; default runs/reproduce/EXPERIMENT.")
]
Seeds = Annotated[int | None, options.optional(min=1, help="How many repetitions.")]
Jobs = Annotated[int | None, options.optional(min=1, help="Worker processes; default: one a core.")]
Only = Annotated[str | None, options.optional(metavar="PATTERN,…", help="Only parts with such a name: 'rcv1*iid,mlp'.")]
Model = Annotated[
    str | None, options.optional(help="For e3: another language model (a folder, a GGUF file, a hub name).")
]


@app.command(rich_help_panel="Experiments")
def reproduce(
    experiment: Experiment = None,
    quick: Quick = False,
    out_: Out = None,
    data: options.Data = None,
    seeds: Seeds = None,
    jobs: Jobs = None,
    engine: options.Engine = None,
    only: Only = None,
    model: Model = None,
    as_json: options.AsJson = False,
) -> None:
    """Reproduce an experiment of a paper: makes all its runs, then writes its figure (PNG) and table (Markdown, CSV).

    It can be stopped at any time: the same command resumes it, and never makes a finished run again. Every run is an
    ordinary one, in OUT/runs. With --engine ray the runs are spread over a cluster.

    Example: fedzero reproduce e8 --quick
    """
    from fedzero.engines.local import Local
    from fedzero.engines.ray import Ray
    from fedzero.recipe.engines import chosen
    from fedzero.recipe.environment import data_folder
    from fedzero_papers.experiments import EXPERIMENTS, find
    from fedzero_papers.experiments.contract import Options
    from fedzero_papers.experiments.display import display_on
    from fedzero_papers.experiments.pool import cores
    from fedzero_papers.experiments.reproduce import default_folder, summary_text
    from fedzero_papers.experiments.reproduce import reproduce as carry_out

    if experiment is None:
        table = Table("", "what", "--quick", "in full", "", box=None, pad_edge=False, header_style="bold")
        for each in EXPERIMENTS.values():
            needs = "needs --data" if each.needs_data else ""
            table.add_row(f"[bold]{each.name}", f"{escape(each.about)} ({escape(each.paper)})", *each.times, needs)
        out.print(table)
        return
    found, options, workers = find(experiment), Options(quick, seeds, only, model), jobs or cores()
    folder, display = out_ or default_folder(found.name, quick), display_on(err, found.name, workers)
    cluster = chosen(Local(), engine)
    try:
        where = cluster if isinstance(cluster, Ray) else workers
        summary = carry_out(found, options, folder, where, data_folder(data, "--data"), display)
    except KeyboardInterrupt:
        err.print("stopped; the same command resumes it, and finished runs are not made again")
        raise typer.Exit(130) from None
    (err if as_json else out).print(escape(summary_text(summary)), highlight=False, soft_wrap=True)
    if as_json:
        import msgspec  # writes what is not a number as null, where Python's own would not be JSON

        print(msgspec.json.encode(summary).decode())
