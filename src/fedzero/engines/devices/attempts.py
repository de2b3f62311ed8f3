"""Under which attempt a round is asked, on disk before its first order leaves.

    attempt  stays while rounds follow each other, and where the same orders go out again after a crash
             grows by one where a round is asked again by other orders: the server has lost the end of its ledger

So (round, exchange, attempt) names one set of orders, and devices answer the new ones. Where this file was lost as
well, devices say so: by an order refused, or by a model that is ahead of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from fedzero.ledger.durable import Durable
from fedzero.ledger.folder import DEVICES as FILE


class Attempts(Durable):
    """folder: of the run."""

    tables = """
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY CHECK (id = 1), round INTEGER NOT NULL,
  exchange INTEGER NOT NULL, attempt INTEGER NOT NULL, hash BLOB NOT NULL) STRICT;
"""

    def __init__(self, folder: Path):
        super().__init__(folder / FILE)

    def of(self, round: int, exchange: int, bodies: Mapping[int, bytes], lost: bool = False) -> int:
        """The attempt of the orders of an exchange, by place their bodies. lost: devices know that the end of the
        ledger was lost."""
        hashed = sha256()
        for place in sorted(bodies):
            hashed.update(place.to_bytes(4, "little") + sha256(bodies[place]).digest())
        query = "SELECT round, exchange, attempt, hash FROM orders"
        with self._reading(), self._transaction():
            before = self._db.execute(query).fetchone() or (-1, 0, 0, b"")
            same = before[:2] == (round, exchange) and before[3] == hashed.digest()
            later = (round, exchange) > before[:2] and not lost
            attempt = before[2] if same or later else before[2] + 1
            row = round, exchange, attempt, hashed.digest()
            self._db.execute("INSERT OR REPLACE INTO orders VALUES (1, ?, ?, ?, ?)", row)
        return int(attempt)
