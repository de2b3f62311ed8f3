"""The log of queries is on the chain: whatever is done to it behind fedzero's back is found, and the round is named."""

from __future__ import annotations

import hashlib
import random
import shutil
import sqlite3
import struct
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedzero import api as blackbox
from fedzero.ledger import End, Ledger, Tampered
from fedzero.ledger.folder import LEDGER
from fedzero.ledger.records import encode_record
from fedzero.ledger.store import link
from fedzero.methods import FedZO
from ledgers import first_bad_round
from stops import StopAt

ROUNDS, TURN = 3, 3


def shaky(x: Any) -> float:
    """Fails now and then, so that the log has rows of every kind."""
    shaky.calls += 1  # type: ignore[attr-defined]
    if shaky.calls % 5 == 2 or shaky.calls in (4, 5):  # type: ignore[attr-defined]
        raise ValueError("no luck")
    return float(x.sum())


def steady(x: Any) -> float:
    return float((x**2).sum())


def minimise(out: Path, **options: Any) -> blackbox.Result:
    shaky.calls = 0  # type: ignore[attr-defined]
    method = FedZO(rate=0.02, directions=TURN - 1)
    options = {"rounds": ROUNDS, "evaluate": "query", "retries": 1, "backoff": 0.0, "together": False} | options
    return blackbox.minimise([shaky, steady], [(-1, 2)] * 2, algorithm=method, out=out, **options)


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tamper") / "run"
    minimise(folder)
    return folder


@dataclass(frozen=True)
class Copy:
    folder: Path

    def sql(self, statement: str, *values: Any) -> list[Any]:
        with closing(sqlite3.connect(self.folder / LEDGER, isolation_level=None)) as db:
            db.execute("PRAGMA synchronous = OFF")
            return db.execute(statement, values).fetchall()

    def verdict(self) -> int | None:
        return first_bad_round(self.folder)


@pytest.fixture
def run(original, tmp_path) -> Copy:
    return Copy(shutil.copytree(original, tmp_path / "run"))


KEY = "round = ? AND client = ? AND ordinal = ? AND attempt = ?"


def keys(run: Copy) -> list[tuple[int, int, int, int]]:
    return run.sql("SELECT round, client, ordinal, attempt FROM queries ORDER BY round, client, ordinal, attempt")


def test_an_untouched_log_is_intact(run):
    assert run.verdict() is None
    states = {state for (state,) in run.sql("SELECT DISTINCT state FROM queries")}
    assert states == {"done", "failed", "unused"}  # so the tests below meet all of them
    assert {ordinal for _, _, ordinal, _ in keys(run)} == {-1, 0, 1, 2}


def spoiled(value: Any, choose: random.Random) -> Any:
    if isinstance(value, bytes):
        changed = bytearray(value)
        changed[choose.randrange(len(value))] ^= 1 << choose.randrange(8)
        return bytes(changed)
    if isinstance(value, float):
        return struct.unpack("<d", spoiled(struct.pack("<d", value)[:6], choose) + struct.pack("<d", value)[6:])[0]
    return value + "!"


@pytest.mark.parametrize("column", ["digest", "state", "value", "cause", "point"])
def test_every_value_of_every_row(run, column):
    choose, changed = random.Random(column), 0
    for key in keys(run):
        ((value,),) = run.sql(f"SELECT {column} FROM queries WHERE {KEY}", *key)
        if value is None:
            continue
        run.sql(f"UPDATE queries SET {column} = ? WHERE {KEY}", spoiled(value, choose), *key)
        assert run.verdict() == key[0], key
        run.sql(f"UPDATE queries SET {column} = ? WHERE {KEY}", value, *key)
        changed += 1
    assert changed >= TURN + 1
    assert run.verdict() is None


@pytest.mark.parametrize("column", ["round", "client", "ordinal", "attempt"])
def test_a_row_that_is_moved(run, column):
    """Also into another round: then the first of the two is named."""
    for key in keys(run)[::3]:
        run.sql(f"UPDATE queries SET {column} = {column} + 100 WHERE {KEY}", *key)
        assert run.verdict() == key[0], key
        moved = [place + 100 * (name == column) for name, place in zip(KEY_NAMES, key, strict=True)]
        run.sql(f"UPDATE queries SET {column} = {column} - 100 WHERE {KEY}", *moved)
    assert run.verdict() is None


KEY_NAMES = ("round", "client", "ordinal", "attempt")


def test_a_row_that_is_deleted(run):
    for key in keys(run):
        (row,) = run.sql(f"SELECT * FROM queries WHERE {KEY}", *key)
        run.sql(f"DELETE FROM queries WHERE {KEY}", *key)
        assert run.verdict() == key[0], key
        run.sql(f"INSERT INTO queries VALUES ({', '.join('?' * len(row))})", *row)
    assert run.verdict() is None


@pytest.mark.parametrize(("round", "ordinal"), [(0, 0), (1, -1), (2, 7), (3, 0), (99, 0)])
def test_a_row_that_is_added(run, round, ordinal):
    """Of a client that had no part in it, in a round that was played or not: after its end a run has no open round."""
    run.sql("INSERT INTO queries VALUES (7, ?, ?, 0, zeroblob(16), 'done', 1.0, '', NULL)", round, ordinal)
    assert run.verdict() == round


def test_a_value_that_is_forgotten(run):
    """NULL is a change, too."""
    for key in keys(run)[::4]:
        ((value,),) = run.sql(f"SELECT value FROM queries WHERE {KEY}", *key)
        run.sql(f"UPDATE queries SET value = ? WHERE {KEY}", None if value is not None else 0.0, *key)
        assert run.verdict() == key[0]
        run.sql(f"UPDATE queries SET value = ? WHERE {KEY}", value, *key)


def test_a_log_that_is_gone_or_another_table(run):
    run.sql("ALTER TABLE queries RENAME TO kept")
    assert run.verdict() == -1  # other tables
    run.sql("DROP TABLE kept")
    assert run.verdict() == 0


def test_a_log_in_a_run_that_has_none(tmp_path, tiny, run_recipe):
    run_recipe(tiny, tmp_path / "tiny")
    run = Copy(tmp_path / "tiny")
    assert run.verdict() is None
    run.sql("CREATE TABLE queries (client INTEGER)")
    assert run.verdict() == -1


def test_points_are_kept_of_the_last_round_of_evaluations_and_of_the_best_only(run):
    kept = run.sql("SELECT DISTINCT round, ordinal >= 0 FROM queries WHERE point IS NOT NULL")
    assert {(0, 0), (ROUNDS - 1, 1), (ROUNDS, 0)} <= set(kept)
    assert sum(probe for _, probe in kept) <= 2  # the last round, and that of the best point


@pytest.mark.parametrize(
    "crime",
    [
        "DELETE FROM queries WHERE round = 0",
        "UPDATE queries SET state = 'unused' WHERE round = 1",
        "DROP TABLE queries",
    ],
)
def test_resume_does_not_go_by_a_log_that_was_changed(tmp_path, crime):
    """Whoever deletes rows to have more budget gets nothing."""
    with pytest.raises(KeyboardInterrupt):
        minimise(tmp_path / "run", progress=StopAt(1), budget=100)
    run = Copy(tmp_path / "run")
    assert run.verdict() is None
    run.sql(crime)
    with pytest.raises(Tampered):
        minimise(tmp_path / "run", budget=100)


# ---- an end before its time


def rewritten_end(run: Copy, **changes: Any) -> End:
    """Replace the last entry and forge a chain and a seal that fit; what was there."""
    path = run.folder / LEDGER
    with closing(Ledger.open(path)) as ledger:
        *_, before, last = ledger.entries()
    assert isinstance(last.record, End)
    body = encode_record(msgspec.structs.replace(last.record, **changes))
    chain = link(before.chain, last.seq, body)
    seal = hashlib.sha256(chain + struct.pack("<dd", last.at, last.seconds)).digest()[:8]
    run.sql("UPDATE entries SET body = ?, chain = ? WHERE seq = ?", body, chain, last.seq)
    run.sql("UPDATE clock SET seal = ? WHERE seq = ?", seal, last.seq)
    return last.record


def test_an_early_end_needs_its_reason(tmp_path):
    """An end before the last round is intact exactly if it says why."""
    minimise(tmp_path / "run", budget=2 * TURN + 1, evaluate="log")
    run = Copy(tmp_path / "run")
    assert run.verdict() is None
    end = rewritten_end(run, reason="")
    assert end.round < ROUNDS
    assert run.verdict() == end.round
    rewritten_end(run, reason=end.reason)  # the forger is good: with the reason, all is well again
    assert run.verdict() is None


def test_an_end_in_time_has_no_reason(run):
    rewritten_end(run, reason="enough")
    assert run.verdict() == ROUNDS
