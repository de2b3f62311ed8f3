"""A ledger as the report sees it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from pathlib import Path

import numpy as np
from msgspec import UnsetType

from fedzero import __version__
from fedzero.algorithms.contract import Scale
from fedzero.ledger.query_log import at_models, located
from fedzero.ledger.records import Evaluation, Round, Shown, Start
from fedzero.ledger.replay import LedgerView, read
from fedzero.ledger.store import Ledger
from fedzero.model.updates import Seeded, decode_update
from fedzero.report.history import Found, History, Point
from fedzero.runs import recipe as recipes
from fedzero.runs.attendance import parties, reasons
from fedzero.runs.outcome import Result, result_of
from fedzero.runs.recipe import Recipe
from fedzero.runs.session import LEDGER, folder_of
from fedzero.runs.settings import settings_of
from fedzero.runs.surrogate_slices import slices
from fedzero.tasks.blackbox import BlackBox


def history(folder: Path) -> History:
    """Read one run; figures need nothing but the ledger."""
    with closing(Ledger.open(folder_of(folder) / LEDGER)) as ledger:
        view = read(ledger)
    return history_of(view, folder)


def history_of(view: LedgerView, folder: Path, sites: Mapping[str, Sequence[int]] | None = None) -> History:
    """A ledger that has been read. sites: which clients are at which, where they are at sites."""
    start = view.entries[0].record
    assert isinstance(start, Start)
    recipe, toml, settings = described(start.recipe, tuple(start.needs.items()))
    result = result_of(folder_of(folder)) if isinstance(recipe.task, BlackBox) else None
    steps = {} if result is None else {step.rounds: step for step in result.history}
    clients, rounds = recipe.federation.clients, view.rounds
    up, down, queries = [0.0], [0.0], [0]
    for record in rounds:
        up.append(up[-1] + record.bytes_up / clients)
        down.append(down[-1] + record.bytes_down / clients)
        queries.append(queries[-1] + record.queries)
    evaluations = [(e.record, e.seconds) for e in view.entries if isinstance(e.record, Evaluation)]
    return History(
        name=recipe.title or recipe.name,
        algorithm=recipe.algorithm.name,
        task=recipe.task.label,
        parameters=start.parameters,
        clients=clients,
        cohort=recipe.federation.cohort,
        rounds=len(rounds),
        points=tuple(
            Point(
                round=e.round,
                loss=e.metrics.loss,
                accuracy=e.metrics.accuracy,
                bytes_up=up[e.round],
                bytes_down=down[e.round],
                queries=steps[e.round].queries if e.round in steps else queries[e.round],
                others=e.metrics.others,
                estimated=e.round in steps and steps[e.round].estimated,
                seconds=seconds,
            )
            for e, seconds in evaluations
        ),
        train_loss=tuple((r.round, r.loss) for r in rounds if r.loss is not None),
        seconds=view.seconds,
        model_digest=evaluations[-1][0].model.hex() if evaluations else start.base.hex(),
        recipe=toml,
        events=tuple(f"round {r.round}: client {client} {why}" for r in rounds for client, why in r.refused),
        complete=view.end is not None,
        facts=start.facts,
        diverged=recipe.stop.diverged(view.evaluations),
        pictures=next((e.record.pictures for e in view.entries if isinstance(e.record, Shown)), None),
        found=None if result is None else found_by(result, recipe),
        gradients=recipe.algorithm.wire(0, Scale(start.parameters, clients)).first_order,
        settings=settings,
        planned=recipe.rounds,
        slopes=slopes(rounds),
        parties=parties(view.entries, clients, sites),
        refusals=reasons(rounds),
        versions=versions(start),
    )


def found_by(result: Result, recipe: Recipe) -> Found:
    """What the page shows of black boxes: where they stand, what each gave at the models, and the surrogate there."""
    clients, task = recipe.federation.clients, recipe.task
    assert isinstance(task, BlackBox)
    with closing(Ledger.open(result.folder / LEDGER)) as ledger:
        asked, points = at_models(ledger), located(ledger)
    return Found(
        x=tuple(result.x.tolist()),
        values=result.values,
        by_party=tuple((round, tuple(of.get(c) for c in range(clients))) for round, of in sorted(asked.items())),
        surrogate=slices(points, task.bounds, result.x),
        queried=sum(map(len, points.values())),
    )


def slopes(rounds: Sequence[Round]) -> tuple[tuple[int, float], ...]:
    """(round, √(mean of g²)) over the scalars g of its update, where updates are scalars of directions."""
    found = []
    for record in rounds:
        if record.update is not None and not record.dense:
            update = decode_update(record.update)
            if isinstance(update, Seeded) and update.scalars and not len(update.scalars) % 4:
                scalars = np.frombuffer(update.scalars, "<f4").astype(np.float64)
                found.append((record.round, math.sqrt(scalars.dot(scalars) / len(scalars))))
    return tuple(found)


@lru_cache(16)
def described(canonical: bytes, needs: tuple[tuple[str, str], ...]) -> tuple[Recipe, str, dict[str, str]]:
    """The recipe of a ledger, as TOML and as a flat table: a run that is followed is described many times."""
    recipe = recipes.from_canonical(canonical, dict(needs))
    return recipe, recipes.to_toml(recipe), settings_of(recipe)


def versions(start: Start) -> dict[str, str]:
    """What the run is repeated with: this release, the stream of directions, packages of others, threads."""
    threads = {} if isinstance(start.threads, UnsetType) else {"threads": str(start.threads)}
    return {"fedzero": __version__, "direction stream": str(start.directions), **start.needs, **threads}
