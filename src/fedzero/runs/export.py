"""The curves of a run as data: a row for the start and one for each round, from the ledger alone."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import msgspec
from msgspec import Struct

from fedzero.ledger.records import Evaluation, Round
from fedzero.ledger.replay import read
from fedzero.ledger.store import Ledger
from fedzero.oracles import Metrics
from fedzero.runs import recipe as recipes
from fedzero.runs.session import LEDGER, folder_of


class Row(Struct, frozen=True, kw_only=True):
    """A run when `round` rounds were made; totals are since its start."""

    round: int
    seconds: float
    """with the evaluation, where there is one"""
    queries: int
    """of all clients together"""
    bytes_up_per_client: float
    bytes_down_per_client: float
    train_loss: float | None = None
    """of the next round's cohort, on the model as it is here"""
    test_loss: float | None = None
    """where the model was evaluated, as the rest"""
    accuracy: float | None = None
    others: dict[str, float] = {}


def rows(folder: Path) -> list[Row]:
    """All rows of the run in a folder."""
    ledger = Ledger.open(folder_of(folder) / LEDGER)
    try:
        view, start = read(ledger), ledger.start()
    finally:
        ledger.close()
    clients = recipes.from_canonical(start.recipe, start.needs).federation.clients
    seconds: dict[int, float] = {}
    metrics: dict[int, Metrics] = {}
    for entry in view.entries:
        if isinstance(entry.record, Evaluation):
            seconds[entry.record.round], metrics[entry.record.round] = entry.seconds, entry.record.metrics
        elif isinstance(entry.record, Round):  # its time is that of its beginning, when the one before it was over
            seconds.setdefault(entry.record.round, entry.seconds)
    found, queries, up, down = [], 0, 0, 0
    for round, record in enumerate([*view.rounds, None]):
        measured = metrics.get(round)
        found.append(
            Row(
                round=round,
                seconds=seconds.get(round, view.outline.seconds),
                queries=queries,
                bytes_up_per_client=up / clients,
                bytes_down_per_client=down / clients,
                train_loss=None if record is None else record.loss,
                test_loss=None if measured is None else measured.loss,
                accuracy=None if measured is None else measured.accuracy,
                others={} if measured is None else measured.others,
            )
        )
        if record is not None:
            queries, up, down = queries + record.queries, up + record.bytes_up, down + record.bytes_down
    return found


def as_csv(rows: list[Row]) -> str:
    """One line a row below a line of names; what a task measures besides has a column of its own name."""
    others = list(dict.fromkeys(name for row in rows for name in row.others))
    plain = [name for name in Row.__struct_fields__ if name != "others"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*plain, *others])
    for row in rows:
        writer.writerow([getattr(row, name) for name in plain] + [row.others.get(name) for name in others])
    return text.getvalue()


def as_json(rows: list[Row]) -> str:
    """An array of objects, one on each line; what is not a finite number is null."""
    return "[\n" + ",\n".join(msgspec.json.encode(row).decode() for row in rows) + "\n]\n"
