"""A ledger as the report sees it, read in one pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from msgspec import UnsetType

from fedzero import __version__
from fedzero.ledger.folder import folder_of
from fedzero.ledger.outline import LedgerSummary
from fedzero.ledger.query_log import at_models, located
from fedzero.ledger.records import Extended, Start
from fedzero.ledger.store import ledger_in
from fedzero.methods.contract import Scale
from fedzero.recipe import recipe as recipes
from fedzero.recipe.in_force import extended_by
from fedzero.recipe.recipe import Recipe
from fedzero.report.history import Found, History, Point, Promise
from fedzero.results.outcome import Result, result_of
from fedzero.results.reading import Reading
from fedzero.results.settings import settings_of
from fedzero.results.surrogate_slices import slices
from fedzero.tasks.blackbox import BlackBox


def history(folder: Path) -> History:
    """Read one run; figures need nothing but the ledger."""
    reading = Reading()
    with ledger_in(folder) as ledger:
        reading.more(ledger)
    return history_of(reading, folder)


def history_of(reading: Reading, folder: Path, sites: Mapping[str, Sequence[int]] | None = None) -> History:
    """A ledger that has been read. sites: which clients are at which, where they are at sites."""
    start, outline = reading.start, reading.outline
    recipe, toml, settings = described(start.recipe, tuple(start.needs.items()), outline.extended)
    result = result_of(folder_of(folder)) if isinstance(recipe.task, BlackBox) else None
    points, last = reading.points.things(), outline.evaluations.last
    model = (last or start).identity
    return History(
        name=recipe.title or recipe.name,
        algorithm=recipe.algorithm.name,
        task=recipe.task.label,
        parameters=start.parameters,
        clients=outline.clients,
        cohort=recipe.federation.cohort,
        rounds=outline.done,
        points=points if result is None else _measured(points, result),
        train_loss=reading.losses.things(),
        seconds=outline.seconds,
        model_digest=model.digest.hex(),
        model_sha256=model.sha256.hex(),
        recipe=toml,
        events=tuple(reading.events),
        complete=outline.end is not None,
        earlier_events=outline.refused - len(reading.events),
        facts=start.facts,
        diverged=recipe.stop.diverged(outline.evaluations),
        pictures=reading.pictures,
        said=dict(reading.said),
        found=None if result is None else found_by(result, recipe),
        gradients=recipe.algorithm.traits(Scale(start.parameters, outline.clients)).first_order,
        settings=settings,
        planned=recipe.rounds,
        slopes=reading.slopes.things(),
        parties=() if recipe.privacy else reading.attendance.parties(sites),
        refusals=reading.attendance.reasons(),
        versions=versions(start),
        folder=str(folder_of(folder).resolve()),
        privacy=promise_of(recipe, outline),
    )


def promise_of(recipe: Recipe, outline: LedgerSummary) -> Promise | None:
    """What the page says of [privacy]; None: the recipe has none, or the rounds do not say what they spent."""
    privacy, federation = recipe.privacy, recipe.federation
    if not privacy or (outline.done and outline.spent is None):
        return None
    epsilon, server = outline.spent or (0.0, None)
    return Promise(epsilon, server, privacy.delta_of(federation), privacy.unit, privacy.asked(federation))


def _measured(points: tuple[Point, ...], result: Result) -> tuple[Point, ...]:
    """Points of a run with black boxes: attempts on record, and whether a value is an estimate."""
    steps = {step.rounds: step for step in result.history}
    return tuple(
        replace(point, queries=step.queries, estimated=step.estimated) if (step := steps.get(point.round)) else point
        for point in points
    )


def found_by(result: Result, recipe: Recipe) -> Found:
    """What the page shows of black boxes: where they stand, what each gave at the models, and the surrogate there."""
    clients, task = recipe.federation.clients, recipe.task
    assert isinstance(task, BlackBox)
    with ledger_in(result.folder) as ledger:
        asked, points = at_models(ledger), located(ledger)
    return Found(
        x=tuple(result.x.tolist()),
        values=result.values,
        by_party=tuple((round, tuple(of.get(c) for c in range(clients))) for round, of in sorted(asked.items())),
        surrogate=slices(points, task.bounds, result.x),
        queried=sum(map(len, points.values())),
        traffic=result.sent + result.received,
    )


@lru_cache(16)
def described(
    canonical: bytes, needs: tuple[tuple[str, str], ...], extended: Extended | None
) -> tuple[Recipe, str, dict[str, str]]:
    """The recipe of a ledger, as TOML and as a flat table: a run that is followed is described many times."""
    recipe = extended_by(recipes.from_canonical(canonical, dict(needs)), extended)
    return recipe, recipes.to_toml(recipe), settings_of(recipe)


def versions(start: Start) -> dict[str, str]:
    """What the run is repeated with: this release, the stream of directions, packages of others, threads."""
    threads = {} if isinstance(start.threads, UnsetType) else {"threads": str(start.threads)}
    return {"fedzero": __version__, "direction stream": str(start.directions), **start.needs, **threads}
