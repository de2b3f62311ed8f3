"""A small experiment for the tests, and a command line that knows it: a rate is tuned, then used with some seeds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.report.history import History
from fedzero.results.history import history
from fedzero.runs import session
from fedzero.runs.progress import Silent
from fedzero_papers.experiments import EXPERIMENTS
from fedzero_papers.experiments.contract import Experiment, Job, Options, Plan, Stage
from fedzero_papers.experiments.outcome import Figure, Line, Outcome, Panel, Table

RATES = (1e-3, 1e-2)


def job(folder: str, rounds: int, seed: int, rate: float) -> Job:
    table: dict[str, Any] = {
        "name": "toy",
        "rounds": rounds,
        "seed": seed,
        "evaluate_every": 10,
        "algorithm": {"kind": "decomfl", "rate": rate, "directions": 3},
        "task": {"kind": "quadratic", "dimension": 16, "noise": 0.1},
        "federation": {"clients": 5, "cohort": 2},
    }
    return Job(folder, recipes.decode(table), cost=rounds * 1e-3)


def plan(rounds: int, options: Options) -> Plan:
    seeds = options.seeds(2)
    trials = {rate: job(f"tune/rate-{rate:g}", rounds, 0, rate) for rate in RATES}
    found = yield Stage("tuning", tuple(trials.values()), (len(seeds), rounds * 1e-3 * len(seeds)))
    best = min(RATES, key=lambda rate: found[trials[rate].folder].final_loss)
    finals = {seed: job(f"final/seed-{seed}", rounds, seed, best) for seed in seeds}
    found = yield Stage("final", tuple(finals.values()))
    runs = {seed: found[final.folder] for seed, final in finals.items()}
    rows = tuple((seed, best, run.final_loss, run.queries) for seed, run in runs.items())
    lines = tuple(
        Line(f"seed {seed}", tuple(float(p.queries) for p in run.points), tuple(p.loss for p in run.points), index)
        for index, (seed, run) in enumerate(runs.items())
    )
    return Outcome(
        (Table("table", "Losses", ("seed", "rate", "loss", "queries"), rows),),
        (Figure("fig", "No paper, figure 0", (Panel("a quadratic", lines, "queries", "loss", log_y=True),)),),
        (f"The best rate is {best:g}.",),
    )


TOY = Experiment("toy", "No paper, figure 0", "A quadratic", ("1 s", "2 s"), plan, 20, 20, needs_data=False)


def drive(plan: Plan, folder: Path, data: Path | None = None) -> tuple[Outcome, dict[str, History]]:
    """All of a plan in this process, one run after the other; what came out, and every run's history."""
    torch.set_num_threads(1)  # as a worker would have it
    everything: dict[str, History] = {}
    found: dict[str, History] | None = None
    while True:
        try:
            stage = next(plan) if found is None else plan.send(found)
        except StopIteration as done:
            return done.value, everything
        for each in stage.jobs:
            session.start(each.recipe, folder / each.folder, Environment(data), Silent())
        found = {each.folder: history(folder / each.folder) for each in stage.jobs}
        everything |= found


def main(rounds: int) -> None:
    from fedzero import cli

    EXPERIMENTS["toy"] = replace(TOY, full=rounds)
    cli.main()


if __name__ == "__main__":  # workers import this file, too
    import sys

    main(int(sys.argv.pop(1)))
