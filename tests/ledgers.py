"""What tests ask a run's folder."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from fedzero.ledger.folder import LEDGER
from fedzero.ledger.records import Round
from fedzero.ledger.store import Ledger, Tampered
from fedzero.recipe.environment import Environment
from fedzero.runs import recorded


def rounds_of(folder: Path) -> list[Round]:
    with closing(Ledger.open(folder / LEDGER)) as ledger:
        return list(ledger.rounds())


def first_bad_round(folder: Path) -> int | None:
    """By `fedzero verify`; None: the run is intact."""
    try:
        recorded.verified(folder, Environment())
    except Tampered as found:
        return found.round
    return None
