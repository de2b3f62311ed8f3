"""Loggers of other projects that follow a run: TensorBoard, MLflow, W&B. Each writes in a thread; none ends a run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import cast

from fedzero.errors import FedzeroError
from fedzero.loggers.reporter import Reporter, Sink
from fedzero.recipe.report import Report

__all__ = ["Reporter", "reporters"]


def reporters(report: Report | None, warn: Callable[[str], None]) -> list[Reporter]:
    """One for each logger. Nothing is imported yet, but a missing package is an error now."""
    if report is None:
        return []
    for name in report.loggers:
        if not find_spec(name):
            raise FedzeroError(f"report_to = {name!r} needs {name}: pip install 'fedzero[{name}]'")
    return [Reporter(name, partial(_sink, name, report), warn) for name in report.loggers]


def _sink(name: str, report: Report) -> Sink:
    return cast(Sink, import_module(f"fedzero.loggers.to_{name}").Sink(report))
