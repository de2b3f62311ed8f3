"""Drive a plan: run what is missing, take what is there, write tables and figures.

OUT/runs/<folder>/ledger.db     every run, an ordinary one: `fedzero report`, `verify` and `replay` work on it
OUT/<id>.md                     what came out, with tables and figures
OUT/<id>-<table>.csv            tables with every digit
OUT/<id>-<figure>.png, .csv     figures, and their points
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedzero.engines.ray import Ray
from fedzero.errors import FedzeroError
from fedzero.ledger.folder import LEDGER, MODEL
from fedzero.ledger.store import Claim
from fedzero.model.files import write
from fedzero.report.history import History
from fedzero.report.units import human_seconds
from fedzero.results.history import history
from fedzero.runs.recorded import recipe_in
from fedzero_papers.experiments.contract import Experiment, Job, Options, Stage
from fedzero_papers.experiments.display import Display
from fedzero_papers.experiments.figures import draw
from fedzero_papers.experiments.outcome import Outcome
from fedzero_papers.experiments.pool import Pool
from fedzero_papers.experiments.tables import figure_csv, markdown, table_csv

if TYPE_CHECKING:
    from fedzero_papers.experiments.cluster_pool import ClusterPool

RUNS = "runs"


def default_folder(name: str, quick: bool) -> Path:
    return Path("runs") / "reproduce" / (f"{name}-quick" if quick else name)


def reproduce(
    experiment: Experiment, options: Options, out: Path, workers: int | Ray, data: Path | None, display: Display
) -> dict[str, Any]:
    """All of an experiment, by so many processes or on a cluster; the summary of what came out."""
    if experiment.needs_data and not options.quick and data is None:
        raise FedzeroError(
            f"{experiment.name} in full needs the datasets: give --data DIR or set FEDZERO_DATA, or try --quick"
        )
    plan, began, made, runs = experiment.plan(options), time.monotonic(), 0, 0
    out.mkdir(parents=True, exist_ok=True)
    claim = Claim(out)  # two at once would make every run twice
    try:
        with display, _pool(workers, out / RUNS, data) as pool:
            found: dict[str, History] | None = None
            while True:
                try:
                    stage = next(plan) if found is None else plan.send(found)
                except StopIteration as done:
                    outcome: Outcome = done.value
                    break
                todo = _missing(stage, out / RUNS)
                made, runs = made + len(todo), runs + len(stage.jobs)
                display.stage(stage, [job for job, _ in todo])
                pool.run(todo, display.note)
                found = {job.folder: history(out / RUNS / job.folder) for job in stage.jobs}
        files = publish(experiment, options, out, outcome)
    finally:
        claim.release()
    return {
        "experiment": experiment.name,
        "quick": options.quick,
        "out": str(out),
        "runs": runs,
        "runs_made": made,
        "seconds": round(time.monotonic() - began, 1),
        "files": [str(path) for path in files],
        "findings": list(outcome.findings),
        "tables": {t.name: [dict(zip(t.columns, row, strict=True)) for row in t.rows] for t in outcome.tables},
    }


def _pool(workers: int | Ray, root: Path, data: Path | None) -> Pool | ClusterPool:
    if isinstance(workers, int):
        return Pool(workers, root, data)
    from fedzero_papers.experiments.cluster_pool import ClusterPool  # needs an extra

    return ClusterPool(workers, root, data)


def _missing(stage: Stage, root: Path) -> list[tuple[Job, bool]]:
    """Runs still to make, the longest first so that the last ones end together; with whether each was begun."""
    names = [job.folder for job in stage.jobs]
    assert len(set(names)) == len(names), "two runs of a stage in one folder"
    states = [(job, state_of(root / job.folder, job)) for job in stage.jobs]
    todo = [(job, state == "unfinished") for job, state in states if state != "finished"]
    return sorted(todo, key=lambda item: -item[0].cost)


def state_of(folder: Path, job: Job) -> Literal["absent", "unfinished", "finished"]:
    """How far a run has come; an error if the folder holds a run of another recipe."""
    if not (folder / LEDGER).exists():
        return "absent"
    try:
        recipe_in(folder, job.recipe)
    except FedzeroError as error:
        raise FedzeroError(f"{error}; remove {folder} to make the run again") from error
    # The model is written after the last entry of the ledger, in one piece: if it is there, so is everything.
    return "finished" if (folder / MODEL).exists() else "unfinished"


def publish(experiment: Experiment, options: Options, out: Path, outcome: Outcome) -> list[Path]:
    """Everything there is to show, in OUT."""
    name = experiment.name
    figures = {out / f"{name}-{figure.name}.png": figure for figure in outcome.figures}
    for path, figure in figures.items():
        draw(figure, path)
        write(path.with_suffix(".csv"), figure_csv(figure))
    texts = {out / f"{name}.md": _page(experiment, options, outcome)}
    texts |= {out / f"{name}-{table.name}.csv": table_csv(table) for table in outcome.tables}
    for path, text in texts.items():
        write(path, text)
    return [*texts, *figures]


def _page(experiment: Experiment, options: Options, outcome: Outcome) -> str:
    given = (("seeds", options.repetitions), ("only", options.only), ("model", options.model))
    words = [" --quick"] * options.quick + [f" --{name} {value}" for name, value in given if value is not None]
    parts = [
        f"# {experiment.name.upper()}: {experiment.paper}\n",
        f"{experiment.about}. Made by `fedzero reproduce {experiment.name}{''.join(words)}`.\n",
        *([f"- {finding}" for finding in outcome.findings] + [""] if outcome.findings else []),
    ]
    for table in outcome.tables:
        parts += [f"## {table.title}\n", markdown(table)]
    parts += [f"![{figure.title}]({experiment.name}-{figure.name}.png)\n" for figure in outcome.figures]
    return "\n".join(parts)


def summary_text(summary: dict[str, Any]) -> str:
    """What came out and where it is, for a terminal."""
    took = f"{summary['runs_made']} of {summary['runs']} runs made in {human_seconds(summary['seconds'])}"
    return "\n".join([*summary["findings"], f"{took}:" if summary["runs"] else "written:", *summary["files"]])
