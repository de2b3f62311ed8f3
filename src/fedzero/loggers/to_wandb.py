"""A run of Weights & Biases. WANDB_MODE, WANDB_API_KEY and the like are obeyed; a series that cannot be asked for its
last step (offline) continues with the rounds of this call.

Nothing is sent but what this module names: no console, no code, no versions of packages, no facts about the machine.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import wandb

from fedzero.callbacks import RunInfo
from fedzero.loggers.reporter import Point, Written
from fedzero.recipe.report import Report


class Sink:
    def __init__(self, report: Report):
        self._project = report.project

    def open(self, run: RunInfo, series: str) -> Written:
        again = any((run.folder / "wandb").glob(f"*run-*-{series}"))
        settings = wandb.Settings(
            console="off",
            silent=True,
            disable_code=True,
            disable_git=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )
        self._run = wandb.init(
            project=self._project,
            name=run.name,
            id=series,
            resume="allow",
            dir=str(run.folder),
            config=dict(run.config),
            settings=settings,
        )
        if self._run.offline:
            return Written(run.rounds, run.rounds) if again else Written()
        last = self._run.step - 1
        return Written(last, last)

    def write(self, points: Sequence[Point]) -> None:
        for point in points:
            self._run.log(dict(point.values), step=point.step)

    def page(self, path: Path) -> None:
        """Copied into W&B's own folder, from where it is sent later."""
        shutil.copy(path, Path(self._run.dir) / path.name)
        self._run.save(str(Path(self._run.dir) / path.name), base_path=self._run.dir, policy="now")

    def close(self, complete: bool) -> None:
        self._run.finish(0 if complete else 1)
