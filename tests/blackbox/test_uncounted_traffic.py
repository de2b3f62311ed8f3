"""Bytes of a run are those between server and clients, however a box is asked (docs/blackbox.md, "What is sent")."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import fedzero
from fedzero import api
from fedzero.ledger import replay
from fedzero.ledger.store import Ledger


def rounds_of(folder: Path) -> list[tuple[int, int, int]]:
    with closing(Ledger.open(folder / "ledger.db")) as ledger:
        return [(each.bytes_up, each.bytes_down, each.queries) for each in replay.read(ledger).rounds]


def test_a_service_adds_queries_and_no_bytes(web, tmp_path: Path):
    bounds = [(-5, 5)] * 20
    asked = {"here": sum, "there": api.http(f"{web.address}/sum")}
    found = {}
    for name, box in asked.items():
        fedzero.minimise([box], bounds=bounds, budget=90, rounds=3, out=tmp_path / name, progress=False)
        found[name] = rounds_of(tmp_path / name)
    assert found["here"] == found["there"]
    up = sum(bytes_up for bytes_up, _, _ in found["there"])
    sent = sum(len(str(x)) for _, x in web.calls)
    assert len(web.calls) >= sum(queries for *_, queries in found["there"]) > 60
    assert sent > 10 * up, "what the service was sent is more than all that is on record"
