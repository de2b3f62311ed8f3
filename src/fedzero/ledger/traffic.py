"""What went between clients and their black boxes over HTTP: `traffic.json` in the folder of a run, absent where
nothing did.

    {"0": [requests, sent, received], …}       by client; bytes of heads and bodies, without TLS; of errors the heads

It is beside the ledger and not on its chain: how long an answer is says nothing that a run is repeated with. A kill
loses at most what the last attempts sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from fedzero.model import files
from fedzero.model.numbers import Natural
from fedzero.oracles.blackbox import Query

FILE = "traffic.json"


class Traffic(Struct, frozen=True, array_like=True):
    """Requests, bytes sent, and bytes received."""

    requests: Natural = 0
    sent: Natural = 0
    received: Natural = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.requests + other.requests, self.sent + other.sent, self.received + other.received)


def read(folder: Path) -> dict[int, Traffic]:
    """By client; empty where nothing was counted."""
    path = folder / FILE
    return files.decoded(path, dict[int, Traffic]) if path.exists() else {}


def total(folder: Path) -> Traffic:
    return sum(read(folder).values(), Traffic())


@dataclass
class Counter:
    """Of a run in progress."""

    folder: Path

    def __post_init__(self) -> None:
        self._found = read(self.folder)

    @property
    def total(self) -> Traffic:
        return sum(self._found.values(), Traffic())

    def note(self, rows: Iterable[Query]) -> None:
        """Attempts that have ended."""
        asked = [row for row in rows if row.sent]
        for row in asked:
            of = self._found.get(row.client, Traffic())
            self._found[row.client] = of + Traffic(1, row.sent, row.received)
        if asked:
            files.write(self.folder / FILE, msgspec.json.encode(self._found))
