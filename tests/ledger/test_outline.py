"""What a ledger comes to, entry by entry: the round that a checkpoint is ready for."""

from __future__ import annotations

import msgspec

from fedzero.ledger.outline import GENESIS, LedgerSummary
from fedzero.ledger.records import Record, Round, Saved, Start

RECIPE = msgspec.json.encode({"rounds": 9, "federation": {"clients": 3}})


def outline_of(*records: Record) -> LedgerSummary:
    outline = LedgerSummary()
    for record in (Start(RECIPE, b"8 bytes.", 2, 1, None), *records):
        outline.note(record, GENESIS, 0.0)
    return outline


def made(round: int, update: bytes | None) -> Round:
    return Round(round, (0,), update, True, 0, 0, 0, None)


def test_a_checkpoint_is_ready_for_the_round_after_the_last_update() -> None:
    """Rounds in which nobody answered leave the state where it is, in the run and in its replay."""
    assert outline_of(Saved(0, 0, b"")).moved_when_saved == 0
    assert outline_of(made(0, b"x"), Saved(1, 0, b"")).moved_when_saved == 1
    silent = outline_of(made(0, b"x"), made(1, b"x"), made(2, None), made(3, None), Saved(4, 0, b""))
    assert (silent.done, silent.moved, silent.moved_when_saved) == (4, 2, 2)
    silent.note(made(4, b"x"), GENESIS, 0.0)
    assert (silent.done, silent.moved, silent.moved_when_saved) == (5, 5, 2)
