"""Whether two runs left the same behind."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from fedzero.ledger import replay
from fedzero.ledger.folder import LEDGER, MODEL
from fedzero.ledger.store import Ledger
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import session


def content_of(folder: Path) -> dict[str, Any]:
    """Everything of a run that does not tell the time: all tables but the clock, the head of the chain, the model."""
    with closing(Ledger.open(folder / LEDGER)) as ledger:
        replay.verify(ledger, None)
        tables = [name for (name,) in ledger.rows("SELECT name FROM sqlite_master WHERE type = 'table'", -1)]
        found = {name: ledger.rows(f"SELECT * FROM {name}", -1) for name in tables if name != "clock"}
        return found | {"head": ledger.head, "model": (folder / MODEL).read_bytes()}


def same_as_local(
    made: recipes.Recipe, folder: Path, environment: Environment, watch: Any, engine: Any = "ray"
) -> None:
    """Run by two workers and in this process; the ledgers are equal."""
    session.start(made, folder / "local", environment, watch)
    session.start(recipes.with_engine(made, engine), folder / "ray", environment, watch)
    assert content_of(folder / "ray") == content_of(folder / "local")
