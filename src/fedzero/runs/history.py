"""A ledger as the report sees it, read in one pass; of long runs the curves are thinned."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from fedzero.ledger.outline import Outline
from fedzero.ledger.records import Evaluation, Round, Shown
from fedzero.ledger.store import Ledger
from fedzero.report.history import Found, History, Point
from fedzero.runs import recipe as recipes
from fedzero.runs.outcome import Result, result_of
from fedzero.runs.session import LEDGER, folder_of
from fedzero.runs.thinning import Thinned
from fedzero.tasks.blackbox import BlackBox

MOST_EVENTS = 1000
"""Events that are listed one by one."""


def history(folder: Path) -> History:
    """Read one run; figures need nothing but the ledger."""
    outline, pictures = Outline(), None
    points: Thinned[Point] = Thinned(lambda first, second: second)
    losses: Thinned[tuple[float, float]] = Thinned(_halfway)
    events: list[str] = []
    with closing(Ledger.open(folder_of(folder) / LEDGER)) as ledger:
        start = ledger.start()
        for entry in ledger.entries():
            record = entry.record
            outline.note(record, entry.chain, entry.seconds)
            if isinstance(record, Round):
                if record.loss is not None:
                    losses.add((record.round, record.loss))
                room = MOST_EVENTS - len(events)
                events += [f"round {record.round}: client {client} {why}" for client, why in record.refused[:room]]
            elif isinstance(record, Evaluation):
                points.add(_point(record, outline))
            elif isinstance(record, Shown):
                pictures = pictures or record.pictures
        outline.finish()
    if outline.refused > len(events):
        events.append(f"and {outline.refused - len(events):,} more")
    recipe = recipes.from_canonical(start.recipe, start.needs)
    result = result_of(folder_of(folder)) if isinstance(recipe.task, BlackBox) else None
    last = outline.course.last
    return History(
        name=recipe.title or recipe.name,
        algorithm=recipe.algorithm.name,
        task=recipe.task.label,
        parameters=start.parameters,
        clients=outline.clients,
        cohort=recipe.federation.cohort,
        rounds=outline.done,
        points=points.things() if result is None else _measured(points.things(), result),
        train_loss=losses.things(),
        seconds=outline.seconds,
        model_digest=(start.base if last is None else last.model).hex(),
        recipe=recipes.to_toml(recipe),
        events=tuple(events),
        complete=outline.end is not None,
        facts=start.facts,
        diverged=recipe.stop.diverged(outline.course),
        pictures=pictures,
        found=None if result is None else Found(tuple(result.x.tolist()), result.values),
    )


def _halfway(first: tuple[float, float], second: tuple[float, float]) -> tuple[float, float]:
    return (first[0] + second[0]) / 2, (first[1] + second[1]) / 2


def _point(evaluation: Evaluation, outline: Outline) -> Point:
    return Point(
        round=evaluation.round,
        loss=evaluation.metrics.loss,
        accuracy=evaluation.metrics.accuracy,
        bytes_up=outline.bytes_up / outline.clients,
        bytes_down=outline.bytes_down / outline.clients,
        queries=outline.queries,
        others=evaluation.metrics.others,
        seconds=outline.seconds,
    )


def _measured(points: tuple[Point, ...], result: Result) -> tuple[Point, ...]:
    """Points of a run with black boxes: attempts on record, and whether a value is an estimate."""
    steps = {step.rounds: step for step in result.history}
    return tuple(
        replace(point, queries=step.queries, estimated=step.estimated) if (step := steps.get(point.round)) else point
        for point in points
    )
