"""Who is who: the keys of a gateway, its tickets, and the places of a run, in one SQLite file of the run's folder.

    ticket    admits so many keys until a time; it is kept as its SHA-256, so the file admits nobody
    place     0 … N−1, the number of a client; given to one key for ever, and never to another in the same run

A command may write while the gateway runs: every admission reads the file. Times are of this machine and decide about
tickets alone; no message carries one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from fedzero.engines.devices.codes import Code, Denied
from fedzero.engines.devices.signing import GatewayKeys
from fedzero.errors import FedzeroError
from fedzero.ledger.durable import Durable
from fedzero.ledger.folder import DEVICES as FILE

TICKET = 16
"""Bytes of a ticket."""
SHOWN = 8
"""Hexadecimal digits by which a ticket is named."""
HOURS = 24.0
TABLES = """
CREATE TABLE IF NOT EXISTS gateway (id INTEGER PRIMARY KEY CHECK (id = 1), run BLOB NOT NULL,
  ed25519 BLOB NOT NULL, p256 BLOB NOT NULL, url TEXT NOT NULL DEFAULT '') STRICT;
CREATE TABLE IF NOT EXISTS tickets (hash BLOB PRIMARY KEY, uses INTEGER NOT NULL, expires REAL NOT NULL,
  revoked INTEGER NOT NULL DEFAULT 0) STRICT;
CREATE TABLE IF NOT EXISTS places (place INTEGER PRIMARY KEY, algorithm INTEGER NOT NULL,
  key BLOB NOT NULL UNIQUE, ticket BLOB NOT NULL, at REAL NOT NULL, revoked INTEGER NOT NULL DEFAULT 0) STRICT;
"""


@dataclass(frozen=True)
class Place:
    """The holder of a place."""

    place: int
    algorithm: int
    key: bytes
    ticket: str
    at: float
    revoked: bool


@dataclass(frozen=True)
class Ticket:
    name: str
    uses: int
    used: int
    expires: float
    revoked: bool


class Registry(Durable):
    """Opened by the gateway and by commands. folder: of the run."""

    tables = TABLES

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder / FILE)

    def _opened(self) -> None:
        with self._transaction():
            if self._db.execute("SELECT 1 FROM gateway").fetchone() is None:
                keys = GatewayKeys.made()
                values = os.urandom(16), keys.ed25519, keys.p256
                self._db.execute("INSERT INTO gateway (id, run, ed25519, p256) VALUES (1, ?, ?, ?)", values)
        self.run, ed25519, p256 = self._db.execute("SELECT run, ed25519, p256 FROM gateway").fetchone()
        self.keys = GatewayKeys(ed25519, p256)

    def hurry(self) -> None:
        """Wait for another process that writes for a second, not longer: the gateway answers others meanwhile."""
        self._db.execute("PRAGMA busy_timeout = 1000")

    @property
    def url(self) -> str:
        """The address at which devices reach the gateway, as its engine last wrote it."""
        found: str = self._db.execute("SELECT url FROM gateway").fetchone()[0]
        return found

    @url.setter
    def url(self, value: str) -> None:
        self._db.execute("UPDATE gateway SET url = ?", (value,))

    @property
    def version(self) -> int:
        """Another number after another process has changed the file."""
        found: int = self._db.execute("PRAGMA data_version").fetchone()[0]
        return found

    # ---- tickets

    def ticket(self, uses: int, hours: float = HOURS) -> bytes:
        """A new ticket; it is nowhere kept."""
        ticket = os.urandom(TICKET)
        row = sha256(ticket).digest(), uses, time.time() + hours * 3600
        self._db.execute("INSERT INTO tickets (hash, uses, expires) VALUES (?, ?, ?)", row)
        return ticket

    def tickets(self) -> list[Ticket]:
        used = "(SELECT COUNT(*) FROM places WHERE places.ticket = tickets.hash)"
        rows = self._db.execute(f"SELECT hash, uses, {used}, expires, revoked FROM tickets ORDER BY expires")
        return [Ticket(h.hex()[:SHOWN], uses, used, expires, bool(revoked)) for h, uses, used, expires, revoked in rows]

    def revoke_ticket(self, name: str) -> list[int]:
        """Withdraw a ticket and all places that it admitted; returns these."""
        hashes = [h for (h,) in self._db.execute("SELECT hash FROM tickets") if h.hex().startswith(name.lower())]
        if len(hashes) != 1 or len(name) < 4:
            raise FedzeroError(f"{len(hashes)} tickets begin with {name!r}: `fedzero devices list` shows their names")
        with self._transaction():
            self._db.execute("UPDATE tickets SET revoked = 1 WHERE hash = ?", hashes)
            self._db.execute("UPDATE places SET revoked = 1 WHERE ticket = ?", hashes)
        return [place.place for place in self.places() if place.ticket == hashes[0].hex()[:SHOWN]]

    def revoke_place(self, place: int) -> None:
        if self.holder(place) is None:
            raise FedzeroError(f"nobody has place {place}: `fedzero devices list` shows all")
        self._db.execute("UPDATE places SET revoked = 1 WHERE place = ?", (place,))

    # ---- places

    def enrol(self, ticket: bytes, algorithm: int, key: bytes, places: Sequence[int]) -> int:
        """The place of a key: the one that it has, or the next one of `places`. The place is durable before it is
        returned."""
        hashed = sha256(ticket).digest()
        with self._transaction():
            held = self._db.execute("SELECT place, revoked, algorithm FROM places WHERE key = ?", (key,)).fetchone()
            if held is not None:
                if held[1]:
                    raise Denied(Code.REVOKED, f"place {held[0]}, which this key has, was withdrawn")
                if held[2] == algorithm:
                    return int(held[0])
            self._expect_valid(hashed)
            given = {number for (number,) in self._db.execute("SELECT place FROM places")}
            place = next((number for number in places if number not in given), None)
            if place is None:
                count = len(places)
                raise Denied(Code.FULL, f"all {count} places of this run are given: there is no place {count + 1}")
            row = place, algorithm, key, hashed, time.time()
            self._db.execute("INSERT INTO places (place, algorithm, key, ticket, at) VALUES (?, ?, ?, ?, ?)", row)
        return int(place)

    def _expect_valid(self, hashed: bytes) -> None:
        row = self._db.execute("SELECT uses, expires, revoked FROM tickets WHERE hash = ?", (hashed,)).fetchone()
        if row is None:
            raise Denied(Code.TICKET, "this ticket is not one of this run")
        uses, expires, revoked = row
        used = self._db.execute("SELECT COUNT(*) FROM places WHERE ticket = ?", (hashed,)).fetchone()[0]
        if revoked:
            raise Denied(Code.TICKET, "this ticket was withdrawn")
        if time.time() > expires:
            raise Denied(Code.TICKET, "this ticket has expired: ask for a new one")
        if used >= uses:
            raise Denied(Code.TICKET, f"this ticket has admitted {used} devices, as many as it may")

    def holder(self, place: int) -> Place | None:
        return next(iter(self._places("WHERE place = ?", (place,))), None)

    def places(self) -> list[Place]:
        return self._places("ORDER BY place", ())

    def revoked(self) -> set[int]:
        return {place for (place,) in self._db.execute("SELECT place FROM places WHERE revoked = 1")}

    def _places(self, clause: str, values: tuple[int, ...]) -> list[Place]:
        rows = self._db.execute(f"SELECT place, algorithm, key, ticket, at, revoked FROM places {clause}", values)
        return [Place(p, a, key, ticket.hex()[:SHOWN], at, bool(out)) for p, a, key, ticket, at, out in rows]
