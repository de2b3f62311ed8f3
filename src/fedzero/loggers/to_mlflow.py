"""A run of MLflow, found again by its tag. Without a tracking URI it is in mlflow.db in the current folder, which is
MLflow's own default."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.utils.validation import MAX_METRICS_PER_BATCH, MAX_PARAM_VAL_LENGTH, MAX_PARAMS_TAGS_PER_BATCH

from fedzero.callbacks import RunInfo
from fedzero.loggers.reporter import Point, Written
from fedzero.recipe.report import Report

TAG = "fedzero.series"
REFUSED = re.compile(r"[^\w\-. /:]")
"""Characters that names of metrics must not have; metrics are the user's own."""
SEEN, EVALUATED = "queries", "test/loss"
"""Metrics that every round and every evaluation has."""


class Sink:
    def __init__(self, report: Report):
        place = report.uri or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
        self._client, self._project = MlflowClient(tracking_uri=place), report.project

    def open(self, run: RunInfo, series: str) -> Written:
        client = self._client
        found = client.get_experiment_by_name(self._project)
        experiment = client.create_experiment(self._project) if found is None else found.experiment_id
        known = client.search_runs([experiment], f"tags.`{TAG}` = '{series}'", max_results=1)
        if known:
            self._run = known[0].info.run_id
            client.update_run(self._run, status="RUNNING")
            return Written(self._last(SEEN), self._last(EVALUATED))
        self._run = client.create_run(experiment, tags={TAG: series}, run_name=run.name).info.run_id
        params = [Param(key, str(value)[:MAX_PARAM_VAL_LENGTH]) for key, value in run.config.items() if str(value)]
        for first in range(0, len(params), MAX_PARAMS_TAGS_PER_BATCH):
            client.log_batch(self._run, params=params[first : first + MAX_PARAMS_TAGS_PER_BATCH])
        return Written()

    def _last(self, name: str) -> int:
        return max((metric.step for metric in self._client.get_metric_history(self._run, name)), default=-1)

    def write(self, points: Sequence[Point]) -> None:
        """A step is not torn apart: all of its numbers are in one batch."""
        batch: list[Metric] = []
        for point in points:
            if len(batch) + len(point.values) > MAX_METRICS_PER_BATCH:
                self._client.log_batch(self._run, metrics=batch, synchronous=True)
                batch = []
            at = int(1000 * point.at)
            batch += [Metric(REFUSED.sub("_", name), value, at, point.step) for name, value in point.values.items()]
        self._client.log_batch(self._run, metrics=batch, synchronous=True)

    def page(self, path: Path) -> None:
        self._client.log_artifact(self._run, str(path))

    def close(self, complete: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if complete else "KILLED")
