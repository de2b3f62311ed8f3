"""The curves of a run as data: a row for the start and one for each round, from the ledger alone."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import msgspec
from msgspec import UNSET, Struct, UnsetType

from fedzero.ledger.outline import LedgerSummary
from fedzero.ledger.records import Evaluation, Round
from fedzero.ledger.store import ledger_in
from fedzero.oracles import Metrics
from fedzero.results.measures import Measures

FORMULA = ("=", "+", "-", "@")
"""How a formula begins."""


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
    epsilon: float | UnsetType = UNSET
    """spent by then, against readers of model and ledger; only of a run with [privacy]"""
    time: float | UnsetType = UNSET
    """simulated seconds; only of a run with a simulated clock"""
    others: dict[str, float] = {}


def rows(folder: Path) -> list[Row]:
    """All rows of the run in a folder."""
    found: list[Row] = []
    outline, measures, measured, at = LedgerSummary(), Measures(), None, 0.0
    with ledger_in(folder) as ledger:
        for entry in ledger.entries():
            record = entry.record
            if isinstance(record, Round):  # its time is that of its beginning, when the one before it was over
                found.append(_row(outline, measured, entry.seconds if measured is None else at, record.loss))
                measured = None
            elif isinstance(record, Evaluation):
                others = measures.of(record.metrics.others)
                measured, at = msgspec.structs.replace(record.metrics, others=others), entry.seconds
            outline.note(record, entry.chain, entry.seconds)
        outline.finish()
    return [*found, _row(outline, measured, outline.seconds if measured is None else at, None)]


def _row(outline: LedgerSummary, measured: Metrics | None, seconds: float, train_loss: float | None) -> Row:
    return Row(
        round=outline.done,
        seconds=seconds,
        queries=outline.queries,
        bytes_up_per_client=outline.bytes_up / outline.clients,
        bytes_down_per_client=outline.bytes_down / outline.clients,
        train_loss=train_loss,
        test_loss=None if measured is None else measured.loss,
        accuracy=None if measured is None else measured.accuracy,
        epsilon=outline.spent[0] if outline.spent else UNSET,
        time=UNSET if outline.time is None else outline.time,
        others={} if measured is None else measured.others,
    )


def as_csv(rows: list[Row]) -> str:
    """One line a row below a line of names; what a task measures besides has a column of its own name.

    Spreadsheets compute a cell that begins like a formula: a name that does has an apostrophe before it.
    """
    others = list(dict.fromkeys(name for row in rows for name in row.others))
    some = {name for name in ("epsilon", "time") if any(getattr(row, name) is not UNSET for row in rows)}
    plain = [name for name in Row.__struct_fields__ if name not in {"epsilon", "time", "others"} - some]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*plain, *(f"'{name}" if name.startswith(FORMULA) else name for name in others)])
    for row in rows:
        numbers = [getattr(row, name) for name in plain]
        writer.writerow(
            [None if number is UNSET else number for number in numbers] + [row.others.get(name) for name in others]
        )
    return text.getvalue()


def as_json(rows: list[Row]) -> str:
    """An array of objects, one on each line; what is not a finite number is null."""
    return "[\n" + ",\n".join(msgspec.json.encode(row).decode() for row in rows) + "\n]\n"
