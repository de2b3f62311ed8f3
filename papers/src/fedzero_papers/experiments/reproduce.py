"""Drive a plan: run what is missing, take what is there, write tables and figures.

OUT/runs/<folder>/ledger.db     every run, an ordinary one: `fedzero report`, `verify` and `replay` work on it
OUT/<id>.md                     what came out, with tables and figures
OUT/<id>-<table>.csv            tables with every digit
OUT/<id>-<figure>.png, .csv     figures, and their points
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fedzero.errors import FedzeroError
from fedzero.ledger.store import Claim
from fedzero.report.history import History
from fedzero.report.units import human_seconds
from fedzero.run.history import history
from fedzero_papers.experiments.contract import Experiment, Job, Outcome, Setting, Stage
from fedzero_papers.experiments.crew import Crew, cores
from fedzero_papers.experiments.display import Display
from fedzero_papers.experiments.figures import draw
from fedzero_papers.experiments.folders import state_of
from fedzero_papers.experiments.tables import figure_csv, markdown, table_csv

RUNS = "runs"


@dataclass(frozen=True)
class Request:
    """An experiment, how it is wanted, and where."""

    experiment: Experiment
    setting: Setting
    out: Path
    data: Path | None = None
    jobs: int | None = None
    """worker processes; None: one a core"""

    @property
    def workers(self) -> int:
        return self.jobs or cores()


def default_folder(name: str, quick: bool) -> Path:
    return Path("runs") / "reproduce" / (f"{name}-quick" if quick else name)


def reproduce(request: Request, watch: Callable[[str, int], Display]) -> dict[str, Any]:
    """All of an experiment; the summary of what came out."""
    experiment, setting = request.experiment, request.setting
    if experiment.needs_data and not setting.quick and request.data is None:
        raise FedzeroError(
            f"{experiment.name} in full needs the datasets: give --data DIR or set FEDZERO_DATA, or try --quick"
        )
    plan, began, made, runs = experiment.plan(setting), time.monotonic(), 0, 0
    request.out.mkdir(parents=True, exist_ok=True)
    claim = Claim(request.out)  # two at once would make every run twice
    display = watch(experiment.name, request.workers)
    try:
        with Crew(request.workers, request.out / RUNS, request.data) as crew:
            found: dict[str, History] | None = None
            while True:
                try:
                    stage = next(plan) if found is None else plan.send(found)
                except StopIteration as done:
                    outcome: Outcome = done.value
                    break
                todo = _missing(stage, request.out / RUNS)
                made, runs = made + len(todo), runs + len(stage.jobs)
                display.stage(stage, [job for job, _ in todo])
                crew.run(todo, display.note)
                found = {job.folder: history(request.out / RUNS / job.folder) for job in stage.jobs}
        files = write(request, outcome)
    finally:
        display.end()
        claim.release()
    return {
        "experiment": experiment.name,
        "quick": setting.quick,
        "out": str(request.out),
        "runs": runs,
        "runs_made": made,
        "seconds": round(time.monotonic() - began, 1),
        "files": [str(path) for path in files],
        "findings": list(outcome.findings),
        "tables": {t.name: [dict(zip(t.columns, row, strict=True)) for row in t.rows] for t in outcome.tables},
    }


def _missing(stage: Stage, root: Path) -> list[tuple[Job, bool]]:
    """Runs still to make, the longest first so that the last ones end together; with whether each was begun."""
    names = [job.folder for job in stage.jobs]
    assert len(set(names)) == len(names), "two runs of a stage in one folder"
    states = [(job, state_of(root / job.folder, job)) for job in stage.jobs]
    todo = [(job, state == "unfinished") for job, state in states if state != "finished"]
    return sorted(todo, key=lambda item: -item[0].cost)


def write(request: Request, outcome: Outcome) -> list[Path]:
    """Everything there is to show, in OUT."""
    name, out = request.experiment.name, request.out
    figures = [out / f"{name}-{figure.name}.png" for figure in outcome.figures]
    for figure, path in zip(outcome.figures, figures, strict=True):
        draw(figure, path)
        path.with_suffix(".csv").write_text(figure_csv(figure), encoding="utf-8")
    tables = [out / f"{name}-{table.name}.csv" for table in outcome.tables]
    for table, path in zip(outcome.tables, tables, strict=True):
        path.write_text(table_csv(table), encoding="utf-8")
    page = out / f"{name}.md"
    page.write_text(_page(request, outcome), encoding="utf-8")
    return [page, *tables, *figures]


def _page(request: Request, outcome: Outcome) -> str:
    experiment, setting = request.experiment, request.setting
    options = [" --quick"] * setting.quick
    options += [f" --{n} {v}" for n, v in (("seeds", setting.seeds), ("only", setting.only)) if v is not None]
    parts = [
        f"# {experiment.name.upper()}: {experiment.paper}\n",
        f"{experiment.about}. Made by `fedzero reproduce {experiment.name}{''.join(options)}`.\n",
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


def summary_json(summary: dict[str, Any]) -> str:
    """One line; msgspec writes what is not a number as null, where Python's own would not be JSON."""
    return msgspec.json.encode(summary).decode()
