"""What turns with privacy have spent: a journal on the device's disk, and the limit of its owner.

T turns with noise multipliers σ_t, chosen one after the other, tell readers as much as one Gaussian with
μ² = Σ 1/σ_t²; (ε, δ) with

    δ = Φ(μ/2 − ε/μ) − exp(ε) Φ(−μ/2 − ε/μ)                       central noise (arXiv:1805.06530)
    ε = min over α > 1 of α μ²/2 + ln(1 − 1/α) − ln(αδ)/(α − 1)   if a device added discrete noise (arXiv:2004.00010)

A turn is in the journal before it is computed. A turn that was begun is spent; the same order is paid once.
"""

from __future__ import annotations

import math
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from fedzero_client.errors import ClientError
from fedzero_client.privacy import CENTRAL, LOCAL, Privacy

FILE = "privacy.db"
SCHEMA = (
    "CREATE TABLE IF NOT EXISTS turns (run BLOB, place INTEGER, round INTEGER, exchange INTEGER, attempt INTEGER,"
    " asked BLOB, noise INTEGER NOT NULL, weight REAL NOT NULL, delta REAL NOT NULL,"
    " PRIMARY KEY (run, place, round, exchange, attempt, asked)) STRICT"
)
READERS, SERVER = "readers", "server"
Turn = tuple[int, int, int]
"""(round, exchange, attempt)"""


def epsilon_of(weight: float, delta: float, exact: bool) -> float:
    """ε of turns with Σ 1/σ² = weight, rounded up. exact: all noise was Gaussian."""
    if weight == 0:
        return 0.0
    if not exact:
        orders = (1 + 10 ** (k / 40) for k in range(-160, 161))
        found = (a * weight / 2 + math.log1p(-1 / a) - math.log(a * delta) / (a - 1) for a in orders)
        return max(0.0, min(found))
    low, high, mu = 0.0, 1.0, math.sqrt(weight)
    while _delta(high, mu) > delta:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _delta(middle, mu) > delta else (low, middle)
    return high


def _delta(epsilon: float, mu: float) -> float:
    tail = math.erfc((mu / 2 + epsilon / mu) / math.sqrt(2)) / 2
    near = math.erfc((epsilon / mu - mu / 2) / math.sqrt(2)) / 2
    return near - (math.exp(epsilon + math.log(tail)) if tail else 0.0)


@dataclass(frozen=True)
class Limit:
    """Of the owner. epsilon: of all turns in the journal together, None: they are counted, not limited; against: whom
    the figure is about; the server sees sums before central noise."""

    epsilon: float | None = None
    against: str = READERS

    def expect(self, privacy: Privacy | None) -> None:
        """Refuse a run that promises less than the owner asks for."""
        if privacy is None:
            if self.epsilon is not None or self.against == SERVER:
                raise ClientError("the run has no privacy, and this device's owner asks for it: nothing was sent")
        elif self.against == SERVER and privacy.noise != LOCAL:
            raise ClientError(
                "the server of the run adds the noise and sees this device's numbers before: --against server refuses"
            )


class Journal:
    """path: a file, which several runs on the same data may share."""

    def __init__(self, path: Path, limit: Limit):
        self._path, self.limit = path, limit
        self._db = sqlite3.connect(path, timeout=10, isolation_level=None)
        try:
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute(SCHEMA)
        except sqlite3.DatabaseError as error:
            raise ClientError(f"{path} is no journal of privacy: {error}") from error

    def close(self) -> None:
        self._db.close()

    def spent(self, privacy: Privacy, more: int = 0) -> float:
        """ε of all turns so far and of `more` with this privacy, at the smallest δ among them."""
        row = self._db.execute("SELECT TOTAL(weight), MIN(delta), MAX(noise) FROM turns").fetchone()
        weight, delta, noise = row[0] + more / privacy.sigma**2, row[1] or 1.0, row[2] or CENTRAL
        return epsilon_of(weight, min(delta, privacy.delta), max(noise, privacy.noise) == CENTRAL)

    def reserve(self, run: bytes, place: int, turn: Turn, asked: bytes, privacy: Privacy) -> str:
        """Make a turn spent; the reason why it may not be, if the owner's limit is reached. asked: SHA-256 of the
        order."""
        key = run, place, *turn, asked
        self._db.execute("BEGIN IMMEDIATE")
        try:
            where = "run = ? AND place = ? AND round = ? AND exchange = ? AND attempt = ? AND asked = ?"
            if self._db.execute(f"SELECT 1 FROM turns WHERE {where}", key).fetchone():
                return ""
            if why := self.full(privacy):
                return why
            row = (*key, privacy.noise, 1 / privacy.sigma**2, privacy.delta)
            self._db.execute("INSERT INTO turns VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            return ""
        finally:
            self._db.execute("COMMIT")

    def full(self, privacy: Privacy) -> str:
        """The reason why another turn does not fit; empty: it does."""
        limit = self.limit.epsilon
        if limit is None or (after := self.spent(privacy, 1)) <= limit:
            return ""
        return f"its owner's limit is ε = {limit:g}; this turn would make it {after:.4g}"
