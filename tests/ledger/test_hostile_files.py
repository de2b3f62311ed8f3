"""Ledgers that somebody else made: nothing in them runs, nothing of them is believed unread, and reading ends."""

from __future__ import annotations

import gzip
import io
import os
import sqlite3
import time
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from rich.console import Console

from fedzero.errors import FedzeroError
from fedzero.ledger import database, query_log, replay
from fedzero.ledger.outline import GENESIS, LedgerSummary
from fedzero.ledger.query_log import LedgerLog
from fedzero.ledger.records import End, Evaluation, Record, Round, Start, decode_record, encode_record
from fedzero.ledger.store import Ledger, Tampered, _seal, link
from fedzero.ledger.turns import Turns
from fedzero.methods.contract import Federation
from fedzero.model import files
from fedzero.model.files import Unfit
from fedzero.model.updates import Seeded, encode_update, pack
from fedzero.oracles import Metrics
from fedzero.rounds.refusals import Refusals
from fedzero.rounds.tracker import ClientTracker
from fedzero.runs.progress import LiveWatch, PlainWatch, follow
from fedzero.tasks import images
from fedzero.tasks.language import rows

SAID = "failed: see [/etc/config] [bold]\x1b]0;mine\x07\x1b[2J\nround 9: all is well"


@pytest.fixture
def run(tiny: Path, tmp_path: Path, run_recipe) -> Path:
    run_recipe(tiny, tmp_path / "run")
    return tmp_path / "run"


def rewritten(run: Path, change: Callable[[Record], Record]) -> None:
    """Records changed, and chain and seals made anew."""
    with sqlite3.connect(run / "ledger.db") as db:
        rows = db.execute("SELECT e.seq, e.body, c.at, c.seconds FROM entries e JOIN clock c USING (seq)").fetchall()
        chain = GENESIS
        for seq, body, at, seconds in sorted(rows):
            body = encode_record(change(decode_record(body)))
            chain = link(chain, seq, body)
            db.execute("UPDATE entries SET body = ?, chain = ? WHERE seq = ?", (body, chain, seq))
            db.execute("UPDATE clock SET seal = ? WHERE seq = ?", (_seal(chain, at, seconds), seq))


ENDLESS = (
    "WITH RECURSIVE n(seq) AS (SELECT 0 UNION ALL SELECT seq + 1 FROM n) SELECT seq, x'00' body, x'00' chain FROM n"
)
SCHEMAS = {
    "a view for a table": ["DROP TABLE entries", f"CREATE VIEW entries AS {ENDLESS}"],
    "a trigger": ["CREATE TRIGGER t AFTER INSERT ON entries BEGIN DELETE FROM entries; END"],
    "a view beside the tables": [f"CREATE VIEW more AS {ENDLESS}"],
    "an index": ["CREATE INDEX i ON entries (body)"],
    "another table": ["DROP TABLE clock", "CREATE TABLE clock (seq INTEGER PRIMARY KEY, at, seconds, seal)"],
}


@pytest.mark.covered
@pytest.mark.parametrize("command", ["report", "watch", "resume", "replay", "export"])
@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_only_the_tables_of_a_ledger_are_read(fedzero, run: Path, tmp_path: Path, command: str, schema) -> None:
    with sqlite3.connect(run / "ledger.db") as db:
        for statement in schema:
            db.execute(statement)
    began = time.process_time()
    out = ["--out", tmp_path / "x"] if command in ("report", "replay") else []
    fedzero(command, run, *out).refused("damaged", "views")
    assert time.process_time() - began < 5


def test_verify_calls_it_not_intact(fedzero, run: Path) -> None:
    with sqlite3.connect(run / "ledger.db") as db:
        db.execute(f"CREATE VIEW more AS {ENDLESS}")
    assert fedzero("verify", run).code == 1


def test_a_query_ends(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one over pages that point to each other in a circle must."""
    monkeypatch.setattr(database, "_FREE", 1_000_000)
    monkeypatch.setattr(database, "_STEPS_A_BYTE", 1)
    ledger = Ledger.open(run / "ledger.db")
    with pytest.raises(Tampered, match="takes longer"):
        ledger.rows(f"SELECT count(*) FROM (SELECT seq FROM ({ENDLESS}) LIMIT 3000000)", -1)
    assert len(ledger.rows("SELECT seq FROM entries", -1)) > 10, "each query has its own patience"
    ledger.close()


def wrong_round(record: Record) -> Record:
    return msgspec.structs.replace(record, round=10**6) if isinstance(record, Evaluation) and record.round else record


def stranger(record: Record) -> Record:
    return msgspec.structs.replace(record, cohort=(2**40,)) if isinstance(record, Round) else record


def refused_stranger(record: Record) -> Record:
    return msgspec.structs.replace(record, refused=((5, "x"),)) if isinstance(record, Round) else record


def other_recipe(recipe: bytes) -> Callable[[Record], Record]:
    return lambda record: msgspec.structs.replace(record, recipe=recipe) if isinstance(record, Start) else record


CHANGES: dict[str, Callable[[Record], Record]] = {
    "evaluation of a wrong round": wrong_round,
    "a client that is not there": stranger,
    "a refusal of a client that is not there": refused_stranger,
    "no recipe": other_recipe(b""),
    "a recipe that is nested": other_recipe(b"[" * 5000),
    "a recipe of another kind": other_recipe(b'{"rounds": "many", "federation": 3}'),
    "a number of thousands of digits": other_recipe(b'{"rounds": ' + b"9" * 5000 + b"}"),
    "a billion clients": other_recipe(b'{"rounds": 9, "federation": {"clients": 1000000000}}'),
    "clients of thirty digits": other_recipe(b'{"rounds": 9, "federation": {"clients": 1' + b"0" * 30 + b"}}"),
}


@pytest.mark.covered
@pytest.mark.parametrize("command", ["report", "watch", "resume", "export"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_entries_that_no_run_writes(fedzero, run: Path, tmp_path: Path, command: str, change) -> None:
    rewritten(run, change)
    fedzero(command, run, *(["--out", tmp_path / "x"] if command == "report" else [])).refused()


def test_entries_that_are_nested(fedzero, run: Path, tmp_path: Path) -> None:
    body = b"\x91" * 1500
    chain = link(GENESIS, 0, body)
    with sqlite3.connect(run / "ledger.db") as db:
        db.execute("UPDATE entries SET body = ?, chain = ? WHERE seq = 0", (body, chain))
        db.execute("UPDATE clock SET at = 0, seconds = 0, seal = ? WHERE seq = 0", (_seal(chain, 0.0, 0.0),))
    fedzero("report", run, "--out", tmp_path / "x").refused("not an entry")


def speaking(record: Record) -> Record:
    if isinstance(record, Round):
        return msgspec.structs.replace(record, refused=tuple((client, SAID) for client in sorted(set(record.cohort))))
    return msgspec.structs.replace(record, reason=SAID, round=record.round) if isinstance(record, End) else record


def test_what_clients_said_is_shown_as_text(fedzero, run: Path, tmp_path: Path) -> None:
    rewritten(run, lambda record: speaking(record) if isinstance(record, Round) else record)
    for command in (["watch", run, "--once"], ["report", run, "--out", tmp_path / "page.html"], ["verify", run]):
        outcome = fedzero(*command)
        assert outcome.code in (0, 1) and "Traceback" not in outcome.err, outcome.err
        assert (outcome.out + outcome.err).replace("\n", "").isprintable()
    assert "see [/etc/config]" in (page := (tmp_path / "page.html").read_text()) and "\x1b" not in page


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_of_clients_that_speak_markup(run: Path, terminal: bool) -> None:
    """0.1 ended with MarkupError, at every `watch` again."""
    said = io.StringIO()
    console = Console(file=said, force_terminal=terminal, width=120, color_system=None)
    watch = (LiveWatch if terminal else PlainWatch)(console)
    follow(run, watch, once=True)
    watch.begin(*begun(run))
    record = next(e.record for e in replay.read(Ledger.open(run / "ledger.db")).entries if isinstance(e.record, Round))
    watch.round(speaking(record))
    watch.end()
    (line,) = [line for line in said.getvalue().splitlines() if "/etc/config" in line]
    assert "see [/etc/config] [bold]" in line and "round 9: all is well" in line
    assert "\x1b]0" not in line and "\x1b[2J" not in line and "\x07" not in line


def begun(run: Path) -> tuple[Any, int, LedgerSummary]:
    from fedzero.runs.recorded import recipe_in

    return recipe_in(run), 16, LedgerSummary()


def test_verify_reads_every_update_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation every round: 0.1 looked through all updates for each."""
    rounds, base, folded, decoded = 1500, b"8" * 8, [], []
    recipe = msgspec.json.encode({"rounds": rounds, "federation": {"clients": 1, "cohort": 1}})
    ledger = Ledger.create(tmp_path / "ledger.db", Start(recipe, base, 1, 1, None))
    scalars = pack(np.zeros(1, np.float32))
    records: list[Record] = []
    for round in range(rounds):
        records.append(Round(round, (0,), encode_update(Seeded(round, scalars)), False, 1, 1, 1, 0.0))
        records.append(Evaluation(round + 1, base, Metrics(0.0)))
    ledger.append(records, 0.0)
    still: Any = SimpleNamespace(
        state=SimpleNamespace(params=SimpleNamespace(size=1, matches=lambda model: model.digest == base)),
        follow=lambda updates: folded.append([update.round for update in updates]),
        matches=lambda model: model.digest == base,
    )
    decode = replay.decode_update
    monkeypatch.setattr(replay, "decode_update", lambda data: decoded.append(data) or decode(data))
    replay.verify(ledger, still)
    assert folded == [[round] for round in range(rounds)], "up to each digest, and no further"
    assert len(decoded) == rounds
    ledger.close()


def test_a_client_that_is_away_for_ever_costs_nothing() -> None:
    clients, rounds = 1_000_000, 20_000
    tracker = ClientTracker(Federation(clients=clients, cohort=2), Turns.of(clients), 0, lambda first, last: ())
    began = time.process_time()
    for round in range(rounds):
        tracker.note(Round(round, (round % 998, 998), b"u", False, 0, 0, 0, None))
        tracker.prune(round + 1, None)
    assert time.process_time() - began < 5, "quadratic in the rounds, or linear in the clients"
    assert tracker.oldest == 0 == min(tracker.known) and len(tracker.history) == rounds
    tracker = ClientTracker(Federation(clients=3, cohort=2), Turns.of(3), 0, lambda first, last: ())
    for round, cohort in enumerate([(0, 1), (0, 1), (1, 2), (0, 1)]):
        tracker.note(Round(round, cohort, b"%d" % round, False, 0, 0, 0, None))
        tracker.prune(round + 1, None)
    assert tracker.oldest == min(tracker.known) == min(tracker.history) == 2
    assert tracker.missed(2, 4) == (2, b"23")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("bounded", (99,), "client 99 as scaled down"),
        ("queried", ((99, b"x" * 32),), "names client 99"),
        ("refused", ((99, "no"),), "names client 99"),
        ("remembered", ((99, b"x" * 16),), "names client 99"),
    ],
)
def test_rounds_name_clients_of_the_run(fedzero, run: Path, field: str, value: Any, words: str) -> None:
    def changed(record: Record) -> Record:
        return msgspec.structs.replace(record, **{field: value}) if isinstance(record, Round) else record

    rewritten(run, changed)
    for command in ("watch", "report", "resume"):
        fedzero(command, run).refused(words)
    with closing(Ledger.open(run / "ledger.db")) as ledger, pytest.raises(Tampered, match=words):
        replay.read(ledger)
    many = Refusals()
    record = Round(0, (0, 1), b"u", False, 0, 0, 0, None, bounded=(99,))
    assert many.news(record) == []


ROW = (0, 1, 0, 0, b"d" * 16, "done", 0.5, "", np.ones(2).tobytes())


@pytest.mark.parametrize(
    "row",
    [
        (7, *ROW[1:]),  # found by the fuzzer: KeyError of the mean over clients
        (0, -3, *ROW[2:]),  # found by the fuzzer: KeyError of the log in memory
        (-1, *ROW[1:]),
        (*ROW[:2], -2, *ROW[3:]),
        (*ROW[:-1], b"123"),
    ],
)
def test_rows_of_a_log_that_no_run_writes(tmp_path: Path, row: tuple[Any, ...]) -> None:
    recipe = msgspec.json.encode({"rounds": 3, "federation": {"clients": 1, "cohort": 1}})
    ledger = Ledger.create(tmp_path / "ledger.db", Start(recipe, b"8" * 8, 1, 1, None))
    LedgerLog(ledger, 1)
    with ledger.transaction() as db:
        db.execute(f"INSERT INTO queries VALUES ({', '.join('?' * 9)})", row)
    if row[0] == 7:
        assert query_log.best(ledger, 1) is None
    else:
        with pytest.raises(Tampered):
            LedgerLog(ledger, 1)
    ledger.close()


def test_values_of_other_types_than_the_table_has(tmp_path: Path) -> None:
    """A file may hold what SQLite would not have written."""
    recipe = msgspec.json.encode({"rounds": 3, "federation": {"clients": 1, "cohort": 1}})
    ledger = Ledger.create(tmp_path / "ledger.db", Start(recipe, b"8" * 8, 1, 1, None))
    with ledger.transaction() as db:
        db.execute("INSERT INTO dense VALUES (0, x'6162')")
    ledger.close()
    path = tmp_path / "ledger.db"
    content = path.read_bytes()
    at = content.rindex(bytes([16]) + b"ab")  # serial type 16: a blob of two bytes; 17: a text of two
    path.write_bytes(content[:at] + bytes([17]) + content[at + 1 :])
    ledger = Ledger.open(path)
    with pytest.raises(Tampered, match="damaged"):
        ledger.dense_updates({0: b"x" * 32})
    ledger.close()


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(3 << 30)


NO_FILES: dict[str, Callable[[Path], None]] = {
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a sparse file": sparse,
}
BY_NAME = {
    "verify": ("checkpoint.bin", "model.safetensors"),
    "resume": ("checkpoint.bin",),
    "watch": ("checkpoint.bin",),
    "patch apply": ("a.patch", "base.safetensors"),
    "run": ("a.toml",),
}


@pytest.mark.covered
@pytest.mark.parametrize("made", NO_FILES.values(), ids=NO_FILES)
@pytest.mark.parametrize(("command", "name"), [(command, name) for command, of in BY_NAME.items() for name in of])
def test_files_by_name(fedzero, run: Path, tmp_path: Path, command: str, name: str, made) -> None:
    """0.2 waited for ever for a pipe, and read a sparse file of 3 GB into 6.7 GB."""
    place = (run if name in ("checkpoint.bin", "model.safetensors") else tmp_path) / name
    arguments: list[object] = [run]
    if command == "patch apply":
        fedzero("patch", "export", run, "--out", tmp_path / "a.patch")
        arguments = [tmp_path / "a.patch", "--base", tmp_path / "base.safetensors", "--out", tmp_path / "out"]
    elif command == "run":
        arguments = [place, "--out", tmp_path / "x"]
    elif command == "watch":
        arguments.append("--once")
    place.unlink(missing_ok=True)
    made(place)
    began = time.process_time()
    outcome = fedzero(*command.split(), *arguments)
    assert outcome.code in (1, 2) and name in outcome.err and "Traceback" not in outcome.err, outcome.err
    assert time.process_time() - began < 5


@pytest.mark.parametrize("made", NO_FILES.values(), ids=NO_FILES)
def test_one_reader_judges_all_files(tmp_path: Path, made) -> None:
    made(path := tmp_path / "x")
    for read in (files.read, files.expect, files.opened):
        with pytest.raises(Unfit, match="x"):
            read(path, 1 << 20)
    loads: list[Callable[[], object]] = [
        lambda: files.load_arrays(path, "a"),
        lambda: images.read_idx(path),
        lambda: files.decoded(path, dict),
    ]
    for load in loads:
        with pytest.raises(FedzeroError, match="x"):
            load()
    if made is not sparse:
        with pytest.raises(FedzeroError, match="x"):
            rows.load(str(path), None)


def test_bytes_that_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is small on the disk is not small when it is unpacked."""
    monkeypatch.setattr(images, "LARGEST", 1 << 20)
    monkeypatch.setattr(rows, "LONGEST", 1 << 20)
    monkeypatch.setattr(files, "LARGEST_ARRAYS", 1 << 20)
    for name in ("x.gz", "x.jsonl.gz"):
        (tmp_path / name).write_bytes(gzip.compress(bytes(1 << 22)))
    with pytest.raises(FedzeroError, match="unpacks"):
        images.read_idx(tmp_path / "x.gz")
    with pytest.raises(FedzeroError, match="a line of more than"):
        rows.load(str(tmp_path / "x.jsonl.gz"), None)
    np.savez_compressed(tmp_path / "large.npz", a=np.zeros(1 << 20))
    with pytest.raises(FedzeroError, match="unpacks"):
        files.load_arrays(tmp_path / "large.npz", "a")
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (1 << 40,)})
    with zipfile.ZipFile(tmp_path / "claims.npz", "w") as archive:
        archive.writestr("a.npy", header.getvalue())
    with pytest.raises(FedzeroError, match="not as large as it says"):
        files.load_arrays(tmp_path / "claims.npz", "a")
    np.savez_compressed(tmp_path / "good.npz", a=np.arange(5), b=np.zeros((2, 3)))
    assert files.load_arrays(tmp_path / "good.npz", "a")[0].tolist() == [0, 1, 2, 3, 4]


def test_links_that_lie_where_files_are_written(tmp_path: Path) -> None:
    """A folder of somebody else may have links under the names of files that are made on the way."""
    (victim := tmp_path / "victim").write_text("kept")
    for name in (f".x.{os.getpid()}.new", "told.lock"):
        (tmp_path / name).symlink_to(victim)
    files.write(tmp_path / "x", b"new", private=True)
    with pytest.raises(FedzeroError), files.locked(tmp_path / "told"):
        pass
    assert victim.read_text() == "kept" and (tmp_path / "x").read_bytes() == b"new"
