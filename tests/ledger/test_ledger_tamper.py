"""Tampering is found, and the first bad round is named.

A ledger is altered behind fedzero's back, through sqlite3 or in the raw bytes, and verified. The right answer to "first
bad round" for an entry is the number of rounds before it (−1 for the start), whatever the altered entry claims.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import sqlite3
import struct
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedzero.errors import FedzeroError
from fedzero.ledger.folder import LEDGER, MODEL
from fedzero.ledger.records import End, Evaluation, Record, Round, Start, decode_record, encode_record
from fedzero.ledger.store import Ledger, Tampered
from fedzero.model.checkpoint import load_model
from fedzero.model.updates import Seeded, decode_update, encode_update
from fedzero.recipe.environment import Environment
from fedzero.runs import recorded, session
from fedzero.runs.progress import Silent
from ledgers import first_bad_round
from sampling import sampled

GENESIS = hashlib.sha256(b"fedzero ledger 1").digest()
TABLES = ("entries", "clock", "dense", "checkpoint")
ROUNDS = 12


@pytest.fixture(scope="module")
def seeded_run(tmp_path_factory, run_recipe, tiny) -> Path:
    folder = tmp_path_factory.mktemp("tamper") / "seeded"
    run_recipe(tiny, folder)
    return folder


@pytest.fixture(scope="module")
def dense_run(tmp_path_factory, run_recipe, dense) -> Path:
    """12 rounds: a checkpoint before round 10, and the dense updates of rounds 10 and 11."""
    folder = tmp_path_factory.mktemp("tamper") / "dense"
    run_recipe(dense, folder)
    return folder


@pytest.fixture
def seeded(seeded_run, tmp_path) -> Copy:
    return Copy.of(seeded_run, tmp_path / "seeded")


@pytest.fixture
def dense_copy(dense_run, tmp_path) -> Copy:
    return Copy.of(dense_run, tmp_path / "dense")


@dataclass(frozen=True)
class Copy:
    """A run to spoil; `restore` makes it whole again."""

    original: Path
    folder: Path

    @staticmethod
    def of(original: Path, folder: Path) -> Copy:
        return Copy(original, shutil.copytree(original, folder))

    @property
    def path(self) -> Path:
        return self.folder / LEDGER

    def restore(self) -> None:
        shutil.rmtree(self.folder)
        shutil.copytree(self.original, self.folder)

    def connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, isolation_level=None)
        db.execute("PRAGMA synchronous = OFF")  # nobody needs these crimes to survive a power cut
        return db

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with closing(self.connect()) as db:
            return db.execute(statement, values).fetchall()

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """Everything anybody reads from the ledger."""
        return {table: self.sql(f"SELECT * FROM {table} ORDER BY rowid") for table in TABLES}

    def records(self) -> list[Record]:
        return [decode_record(body) for (body,) in self.sql("SELECT body FROM entries ORDER BY seq")]

    def rewrite(self, records: list[Record]) -> None:
        """Replace all entries and forge a chain and seals that fit: what somebody does who knows the format."""
        with closing(self.connect()) as db:
            db.execute("BEGIN")
            db.execute("DELETE FROM entries")
            db.execute("DELETE FROM clock")
            chain = GENESIS
            for seq, record in enumerate(records):
                body, at, seconds = encode_record(record), 1e9 + seq, 0.01 * seq
                chain = hashlib.sha256(chain + struct.pack("<q", seq) + body).digest()
                seal = hashlib.sha256(chain + struct.pack("<dd", at, seconds)).digest()[:8]
                db.execute("INSERT INTO entries VALUES (?, ?, ?)", (seq, body, chain))
                db.execute("INSERT INTO clock VALUES (?, ?, ?, ?)", (seq, at, seconds, seal))
            db.execute("COMMIT")

    def verdict(self) -> int | None:
        return first_bad_round(self.folder)


def right_round(records: list[Record], seq: int) -> int:
    return -1 if seq == 0 else sum(isinstance(record, Round) for record in records[:seq])


def flipped(data: bytes, bit: int) -> bytes:
    spoiled = bytearray(data)
    spoiled[bit // 8] ^= 1 << bit % 8
    return bytes(spoiled)


def altered(value: Any, choose: random.Random) -> Any:
    """The value with one bit flipped."""
    if isinstance(value, bytes):
        return flipped(value, choose.randrange(8 * len(value)))
    if isinstance(value, float):
        return struct.unpack("<d", flipped(struct.pack("<d", value), choose.randrange(52)))[0]
    return value ^ (1 << choose.randrange(12))


def test_an_untouched_run_is_intact(seeded, dense_copy):
    assert seeded.verdict() is None
    assert dense_copy.verdict() is None


@pytest.mark.parametrize(
    ("table", "column"),
    [("entries", "body"), ("entries", "chain"), ("clock", "at"), ("clock", "seconds"), ("clock", "seal")],
)
@pytest.mark.parametrize("which", ["seeded", "dense_copy"])
def test_one_bit_of_every_value_of_every_entry(request, which, table, column):
    run, choose = request.getfixturevalue(which), random.Random(column)
    records = run.records()
    found, right = {}, {}
    for seq, value in run.sql(f"SELECT seq, {column} FROM {table} ORDER BY seq"):
        run.sql(f"UPDATE {table} SET {column} = ? WHERE seq = ?", altered(value, choose), seq)
        found[seq], right[seq] = run.verdict(), right_round(records, seq)
        run.sql(f"UPDATE {table} SET {column} = ? WHERE seq = ?", value, seq)
    assert len(found) == len(records) > ROUNDS
    assert found == right
    assert run.verdict() is None


def test_every_bit_of_one_entry(seeded):
    """Also bits that make an entry claim another round, another kind, or nonsense."""
    records = seeded.records()
    seq = next(s for s, record in enumerate(records) if isinstance(record, Round) and record.round == 4)
    ((body,),) = seeded.sql("SELECT body FROM entries WHERE seq = ?", seq)
    found = set()
    for bit in range(8 * len(body)):
        seeded.sql("UPDATE entries SET body = ? WHERE seq = ?", flipped(body, bit), seq)
        found.add(seeded.verdict())
    assert found == {4}


@pytest.mark.parametrize("table", ["entries", "clock"])
def test_renumbered_row(seeded, table):
    records = seeded.records()
    found, right = {}, {}
    for seq in range(len(records)):
        seeded.sql(f"UPDATE {table} SET seq = ? WHERE seq = ?", seq + 1024, seq)
        found[seq], right[seq] = seeded.verdict(), right_round(records, seq)
        seeded.sql(f"UPDATE {table} SET seq = ? WHERE seq = ?", seq, seq + 1024)
    assert found == right


def delete(run: Copy, seq: int, tables: tuple[str, ...]) -> None:
    for table in tables:
        run.sql(f"DELETE FROM {table} WHERE seq = ?", seq)


@pytest.mark.parametrize("tables", [("entries",), ("clock",), ("entries", "clock")], ids=["entry", "time", "both"])
def test_deleted_row(seeded, tables):
    """Any but the last."""
    records = seeded.records()
    found, right = {}, {}
    for seq in range(len(records) - 1):
        delete(seeded, seq, tables)
        found[seq], right[seq] = seeded.verdict(), right_round(records, seq)
        seeded.restore()
    assert found == right


@pytest.mark.parametrize("tables", [("entries",), ("clock",), ("entries", "clock")], ids=["entry", "time", "both"])
def test_deleted_last_row(seeded, tables):
    delete(seeded, len(seeded.records()) - 1, tables)
    assert seeded.verdict() == ROUNDS


def swap(run: Copy, first: int, second: int) -> None:
    for table in ("entries", "clock"):
        for old, new in ((first, -1), (second, first), (-1, second)):
            run.sql(f"UPDATE {table} SET seq = ? WHERE seq = ?", new, old)


def duplicate(run: Copy, seq: int, end: int) -> None:
    run.sql("INSERT INTO entries SELECT ?, body, chain FROM entries WHERE seq = ?", end, seq)
    run.sql("INSERT INTO clock SELECT ?, at, seconds, seal FROM clock WHERE seq = ?", end, seq)


def test_whatever_is_done_to_an_entry_is_found(seeded):
    """Found at all; which round is named is the business of the tests around this one."""
    choose, last = random.Random(3), len(seeded.records()) - 1
    for seq in range(last):
        for crime in ("flip", "delete", "swap", "duplicate", "renumber"):
            if crime == "flip":
                ((body,),) = seeded.sql("SELECT body FROM entries WHERE seq = ?", seq)
                seeded.sql("UPDATE entries SET body = ? WHERE seq = ?", altered(body, choose), seq)
            elif crime == "delete":
                delete(seeded, seq, ("entries", "clock"))
            elif crime == "swap":
                swap(seeded, seq, choose.randrange(seq + 1, last + 1))
            elif crime == "duplicate":
                duplicate(seeded, seq, last + 1)
            else:
                seeded.sql("UPDATE entries SET seq = ? WHERE seq = ?", seq + 1024, seq)
            assert seeded.verdict() is not None, (crime, seq)
            seeded.restore()
    assert seeded.verdict() is None


@pytest.mark.parametrize("seq", [-1, 500])
def test_time_of_no_entry(seeded, seq):
    seeded.sql("INSERT INTO clock VALUES (?, 1.0, 1.0, x'0011223344556677')", seq)
    assert seeded.verdict() is not None


def test_everything_deleted(seeded):
    seeded.sql("DELETE FROM entries")
    assert seeded.verdict() == -1
    seeded.sql("DELETE FROM clock")
    assert seeded.verdict() == -1


@pytest.mark.parametrize("table", ["entries", "clock", "dense", "checkpoint"])
def test_dropped_table(dense_copy, table):
    dense_copy.sql(f"DROP TABLE {table}")
    assert dense_copy.verdict() is not None


def test_duplicated_entry(seeded):
    records = seeded.records()
    for seq in range(len(records)):
        duplicate(seeded, seq, len(records))
        assert seeded.verdict() == ROUNDS
        seeded.restore()


def test_swapped_entries(seeded):
    records, choose = seeded.records(), random.Random(4)
    pairs = [(s, s + 1) for s in range(len(records) - 1)]
    pairs += [tuple(sorted(choose.sample(range(len(records)), 2))) for _ in range(10)]
    for first, second in pairs:
        swap(seeded, first, second)
        assert seeded.verdict() == right_round(records, first), (first, second)
        seeded.restore()


def test_forged_chain_fits(seeded):
    """The forger of the tests below is good: without a change in substance, its ledger passes."""
    seeded.rewrite(seeded.records())
    assert seeded.verdict() is None


def in_window(run: Copy, first_bad: int) -> None:
    """Digests are on record every 2 rounds: the answer is the first bad round, or the last good digest before it."""
    found = run.verdict()
    assert found is not None
    assert first_bad - first_bad % 2 <= found <= first_bad


def change(records: list[Record], round: int, **fields: Any) -> list[Record]:
    return [
        msgspec.structs.replace(record, **fields) if isinstance(record, Round) and record.round == round else record
        for record in records
    ]


def round_record(records: list[Record], round: int) -> Round:
    return next(record for record in records if isinstance(record, Round) and record.round == round)


@pytest.mark.parametrize(("a", "b"), [(3, 4), (2, 3), (0, 11), (5, 9)])
@pytest.mark.parametrize("renumber", [False, True], ids=["as they are", "renumbered"])
def test_swapped_updates_with_a_forged_chain(seeded, a, b, renumber):
    records = seeded.records()
    updates = {r: decode_update(round_record(records, r).update) for r in (a, b)}
    assert updates[a] != updates[b]
    for here, there in ((a, b), (b, a)):
        update = msgspec.structs.replace(updates[there], round=here) if renumber else updates[there]
        records = change(records, here, update=encode_update(update))
    seeded.rewrite(records)
    in_window(seeded, a)


@pytest.mark.parametrize("round", [0, 5, 11])
def test_altered_scalar_with_a_forged_chain(seeded, round):
    records = seeded.records()
    update = decode_update(round_record(records, round).update)
    assert isinstance(update, Seeded)
    # The top bit of a mantissa: a change of 25 to 50 %, which no rounding swallows.
    spoiled = msgspec.structs.replace(update, scalars=flipped(update.scalars, 22))
    seeded.rewrite(change(records, round, update=encode_update(spoiled)))
    in_window(seeded, round)


def test_update_dropped_with_a_forged_chain(seeded):
    seeded.rewrite(change(seeded.records(), 4, update=None))
    in_window(seeded, 4)


@pytest.mark.parametrize(
    "update",
    [b"", b"\xc1", encode_update(Seeded(4, b"")), encode_update(Seeded(4, b"\0" * 7))],
    ids=["empty", "not msgpack", "no scalars", "odd length"],
)
def test_broken_update_with_a_forged_chain(seeded, update):
    seeded.rewrite(change(seeded.records(), 4, update=update))
    in_window(seeded, 4)


@pytest.mark.parametrize("kind", [Evaluation, End])
@pytest.mark.parametrize("field", ["model", "sha256"])
def test_altered_model_digest_with_a_forged_chain(seeded, kind, field):
    (seeded.folder / MODEL).unlink()  # or it would bear witness, too
    records = seeded.records()
    for seq, record in enumerate(records):
        if isinstance(record, kind):
            spoiled = msgspec.structs.replace(record, **{field: flipped(getattr(record, field), 5)})
            seeded.rewrite([*records[:seq], spoiled, *records[seq + 1 :]])
            found = seeded.verdict()
            assert found is not None
            assert record.round - 2 <= found <= record.round


def test_missing_round_with_a_forged_chain(seeded):
    records = seeded.records()
    seeded.rewrite([record for record in records if not (isinstance(record, Round) and record.round == 7)])
    assert seeded.verdict() == 7


def test_altered_recipe_with_a_forged_chain(seeded):
    start, *others = seeded.records()
    assert isinstance(start, Start)
    faster = start.recipe.replace(b'"rate":0.01', b'"rate":0.02')
    assert faster != start.recipe
    seeded.rewrite([msgspec.structs.replace(start, recipe=faster), *others])
    in_window(seeded, 0)


@pytest.mark.parametrize("field", ["parameters", "directions"])
def test_altered_start_with_a_forged_chain(seeded, field):
    start, *others = seeded.records()
    seeded.rewrite([msgspec.structs.replace(start, **{field: getattr(start, field) + 1}), *others])
    with pytest.raises(FedzeroError):
        recorded.verified(seeded.folder, Environment())


@pytest.mark.parametrize("extra", ["round", "evaluation", "end", "start"])
def test_entry_appended_after_the_end_with_a_fitting_chain(seeded, extra):
    records = seeded.records()
    update = decode_update(round_record(records, 11).update)
    entry = {
        "round": msgspec.structs.replace(
            round_record(records, 11), round=12, update=encode_update(msgspec.structs.replace(update, round=12))
        ),
        "evaluation": next(record for record in reversed(records) if isinstance(record, Evaluation)),
        "end": records[-1],
        "start": records[0],
    }[extra]
    seeded.rewrite([*records, entry])
    assert seeded.verdict() == ROUNDS


@pytest.mark.parametrize("keep", [1, 2, 10, -2, -1])
def test_cut_off_ledger_beside_its_finished_model(seeded, keep):
    """A chain cannot show that its end is missing, but model.safetensors is written only after the end."""
    records = seeded.records()[:keep]
    seeded.rewrite(records)
    assert seeded.verdict() == sum(isinstance(record, Round) for record in records)


@sampled
def test_every_bit_of_the_weights_in_the_model_file(seeded, every):
    path = seeded.folder / MODEL
    content = path.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    assert len(content) - begin == 4 * 16
    for bit in range(8 * begin, 8 * len(content), 1 if every else 7):
        path.write_bytes(flipped(content, bit))
        assert seeded.verdict() == ROUNDS
    path.write_bytes(content)
    assert seeded.verdict() is None


@sampled
def test_every_bit_of_the_header_of_the_model_file(seeded, every):
    """Found, or harmless: names, types, shapes and weights are what they were."""
    path = seeded.folder / MODEL
    content = path.read_bytes()
    weights = {name: tensor.tolist() for name, tensor in load_model(path).items()}
    for bit in range(0, 8 * (8 + int.from_bytes(content[:8], "little")), 1 if every else 7):
        path.write_bytes(flipped(content, bit))
        found = seeded.verdict()
        if found is None:
            again = load_model(path)
            assert {name: tensor.tolist() for name, tensor in again.items()} == weights
        else:
            assert found == ROUNDS


@pytest.mark.parametrize("content", [b"", b"nonsense", None], ids=["empty", "nonsense", "cut"])
def test_model_file_that_is_none(seeded, content):
    path = seeded.folder / MODEL
    path.write_bytes(path.read_bytes()[:-3] if content is None else content)
    assert seeded.verdict() == ROUNDS


def raw_flips(run: Copy, bits: list[int]) -> tuple[int, list[str]]:
    """Flip single bits of the file; how many were found, and which were neither found nor harmless."""
    content, rows = run.path.read_bytes(), run.rows()
    found, bad = 0, []
    for bit in bits:
        for leftover in run.folder.glob(f"{LEDGER}-*"):
            leftover.unlink()
        run.path.write_bytes(flipped(content, bit))
        try:
            recorded.verified(run.folder, Environment())
        except Tampered:
            found += 1
            continue
        except FedzeroError as error:
            # The format number may as well be that of a later release: a clear refusal, but not a proof.
            if not 60 <= bit // 8 < 64:
                bad.append(f"byte {bit // 8} bit {bit % 8}: {error}")
            continue
        except Exception as error:
            bad.append(f"byte {bit // 8} bit {bit % 8}: {type(error).__name__}: {error}")
            continue
        try:
            same = run.rows() == rows
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            same = False
        if not same:
            bad.append(f"byte {bit // 8} bit {bit % 8}: reads differently, not found")
    return found, bad


def schema(content: bytes) -> range:
    """The bits of the first page that hold the tables' definitions."""
    return range(8 * content.index(b"table", 100), 8 * 4096)


@pytest.mark.parametrize("which", ["seeded", "dense_copy"])
def test_single_bits_of_the_file(request, which):
    """Found, or of no consequence (free space, a counter): a sample, denser where SQLite keeps its own structures."""
    run, choose = request.getfixturevalue(which), random.Random(5)
    size = 8 * run.path.stat().st_size
    bits = {*(choose.randrange(size) for _ in range(200)), *(choose.randrange(800) for _ in range(50))}
    for page in range(0, size, 8 * 4096):
        bits |= {page + choose.randrange(8 * 16) for _ in range(15)}
    found, bad = raw_flips(run, sorted(bits - set(schema(run.path.read_bytes()))))
    assert bad == []
    assert found > 40


@pytest.mark.parametrize("which", ["seeded", "dense_copy"])
def test_single_bits_of_the_definitions_of_the_tables(request, which):
    run, choose = request.getfixturevalue(which), random.Random(6)
    found, bad = raw_flips(run, choose.sample(schema(run.path.read_bytes()), 150))
    assert bad == []
    assert found > 20


def test_bits_of_a_row_that_change_its_type(seeded):
    """A blob that reads as text or null is tampering, not a crash."""
    content = seeded.path.read_bytes()
    ((body, chain),) = seeded.sql("SELECT body, chain FROM entries WHERE seq = 9")
    at = content.index(body)  # a record is: header length, type of seq, type of body, type of chain, body, chain
    assert content[at + len(body) :].startswith(chain)
    found, bad = raw_flips(seeded, list(range(8 * (at - 8), 8 * at)))
    assert bad == []
    assert found > 16


def test_cut_off_file(seeded):
    """Found, or nothing but empty space was lost."""
    content, rows = seeded.path.read_bytes(), seeded.rows()
    for size in (100, 4096, 5000, 3 * 4096, len(content) - 4096, len(content) - 1):
        seeded.path.write_bytes(content[:size])
        if seeded.verdict() is None:
            assert size > len(content) - 4096
            assert seeded.rows() == rows


# ---- dense runs: what the chain does not hold


def test_dense_update_altered(dense_copy):
    rows = dense_copy.sql("SELECT round, body FROM dense ORDER BY round")
    assert [round for round, _ in rows] == [10, 11]
    for round, body in rows:
        for bit in (0, 8 * len(body) // 2, 8 * len(body) - 1):
            dense_copy.sql("UPDATE dense SET body = ? WHERE round = ?", flipped(body, bit), round)
            assert dense_copy.verdict() == round
        dense_copy.sql("UPDATE dense SET body = ? WHERE round = ?", body, round)


@pytest.mark.parametrize("round", [10, 11])
def test_dense_update_missing(dense_copy, round):
    dense_copy.sql("DELETE FROM dense WHERE round = ?", round)
    assert dense_copy.verdict() == round


def test_dense_update_under_another_round(dense_copy):
    dense_copy.sql("UPDATE dense SET round = 27 WHERE round = 10")
    assert dense_copy.verdict() == 10


def test_dense_update_of_no_round(dense_copy):
    dense_copy.sql("INSERT INTO dense SELECT 12, body FROM dense WHERE round = 11")
    assert dense_copy.verdict() == 12


def test_dense_updates_in_a_run_that_has_none(seeded):
    seeded.sql("INSERT INTO dense VALUES (3, x'00')")
    assert seeded.verdict() is not None


def unfinished(run: Copy) -> None:
    """As after a kill in round 11: no evaluation since the checkpoint, no end, no model file."""
    run.rewrite([record for record in run.records() if isinstance(record, Start) or record.round < 11])
    run.sql("DELETE FROM dense WHERE round = 11")
    (run.folder / MODEL).unlink()
    assert run.verdict() is None


@pytest.mark.parametrize("finished", [True, False], ids=["finished", "unfinished"])
@pytest.mark.parametrize("column", ["part", "body", "deleted"])
def test_checkpoint_altered(dense_copy, column, finished):
    if not finished:
        unfinished(dense_copy)
    ((part, body),) = dense_copy.sql("SELECT * FROM checkpoint")
    if column == "deleted":
        dense_copy.sql("DELETE FROM checkpoint")
    else:
        wrong = {"part": part ^ 1, "body": flipped(body, 77)}[column]
        dense_copy.sql(f"UPDATE checkpoint SET {column} = ?", wrong)
    assert dense_copy.verdict() == 10


def test_checkpoint_of_a_finished_run_altered_or_deleted_is_found(dense_copy):
    """By the digest of the last evaluation; which round is named is tested above."""
    ((body,),) = dense_copy.sql("SELECT body FROM checkpoint")
    for bit in range(0, 8 * len(body), 7):
        dense_copy.sql("UPDATE checkpoint SET body = ?", flipped(body, bit))
        assert dense_copy.verdict() is not None
    dense_copy.sql("DELETE FROM checkpoint")
    assert dense_copy.verdict() is not None


def test_resume_does_not_build_on_a_spoiled_checkpoint(dense_copy):
    unfinished(dense_copy)
    ((body,),) = dense_copy.sql("SELECT body FROM checkpoint")
    dense_copy.sql("UPDATE checkpoint SET body = ?", flipped(body, 77))
    with pytest.raises(FedzeroError):
        session.resume(dense_copy.folder, Environment(), Nobody())


class Nobody(Silent):
    pass


# ---- what uses a ledger without being asked to verify it


def test_resume_and_replay_refuse_a_spoiled_ledger(seeded, fedzero, tmp_path):
    ((body,),) = seeded.sql("SELECT body FROM entries WHERE seq = 9")
    seeded.sql("UPDATE entries SET body = ? WHERE seq = 9", flipped(body, 100))
    fedzero("resume", seeded.folder).refused("round")
    fedzero("replay", seeded.folder, "--out", tmp_path / "model").refused("round")
    fedzero("patch", "export", seeded.folder, "--out", tmp_path / "patch").refused("round")
    assert not (tmp_path / "model").exists()
    assert not (tmp_path / "patch").exists()


def test_verify_exits_with_1_and_names_the_round(seeded, fedzero):
    records = seeded.records()
    seq = records.index(round_record(records, 7))
    ((body,),) = seeded.sql("SELECT body FROM entries WHERE seq = ?", seq)
    seeded.sql("UPDATE entries SET body = ? WHERE seq = ?", flipped(body, 8 * len(body) - 1), seq)
    outcome = fedzero("verify", seeded.folder)
    assert outcome.code == 1
    assert "round 7" in outcome.err
    assert "Traceback" not in outcome.err
    assert outcome.out == ""


@pytest.mark.parametrize("name", ["ledger.db", "model.safetensors"])
def test_verify_exits_with_1_on_a_file_that_is_nonsense(seeded, fedzero, name):
    (seeded.folder / name).write_bytes(b"nonsense" * 512)
    assert fedzero("verify", seeded.folder).code == 1


def test_resume_of_a_file_that_is_nonsense(seeded, fedzero):
    seeded.path.write_bytes(b"nonsense" * 512)
    fedzero("resume", seeded.folder).refused("ledger.db")
    content = (seeded.original / LEDGER).read_bytes()
    seeded.path.write_bytes(content[:4096] + bytes(len(content) - 4096))  # a good first page, nothing behind it
    fedzero("resume", seeded.folder).refused()


# ---- two writers


def test_a_second_writer_is_refused(seeded):
    first = Ledger.open(seeded.path, writable=True)
    try:
        with pytest.raises(FedzeroError, match="another process"):
            Ledger.open(seeded.path, writable=True)
        Ledger.open(seeded.path).close()  # a reader is welcome
    finally:
        first.close()
    Ledger.open(seeded.path, writable=True).close()


def command_beside_a_writer(run: Copy, fedzero: Any, *arguments: object) -> None:
    """Another process writes, as in life; the command must be refused and change nothing."""
    script = (
        "import sys; from pathlib import Path; from fedzero.ledger.store import Ledger\n"
        "ledger = Ledger.open(Path(sys.argv[1]), writable=True); print('open', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(run.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout.readline() == "open\n"
            before = run.rows()
            fedzero(*arguments).refused("another process")
            assert run.rows() == before
        finally:
            holder.stdin.close()


def test_resume_beside_a_writer(seeded, fedzero):
    command_beside_a_writer(seeded, fedzero, "resume", seeded.folder)


def test_overwrite_beside_a_writer(seeded, tiny, fedzero):
    command_beside_a_writer(seeded, fedzero, "run", tiny, "--out", seeded.folder, "--overwrite", "--seed", 4)
