"""What lies beside a ledger: nothing of somebody else is obeyed, and who reads writes nothing."""

from __future__ import annotations

import ctypes
import os
import shutil
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fedzero.errors import FedzeroError
from fedzero.ledger import opening
from fedzero.ledger.opening import Foreign
from fedzero.ledger.store import Claim, Ledger, Tampered
from fedzero.ledger.told import ToldTable

READERS = {
    "verify": (),
    "replay": ("--out", "x.safetensors"),
    "report": ("--out", "x.html"),
    "watch": ("--once",),
    "export": (),
    "patch export": ("--out", "x.patch"),
}
COMMANDS = {**READERS, "resume": ()}
Call = Callable[[str, Path, Path], object]


@pytest.fixture
def call(fedzero, tmp_path: Path) -> Call:
    def go(command: str, run: Path, out: Path = tmp_path) -> object:
        options = [out / word if "." in word else word for word in COMMANDS[command]]
        return fedzero(*command.split(), run, *options)

    return go


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny: Path, run_recipe) -> Path:
    """run: a whole one. stopped: the same, killed: entries are in a log beside the ledger. other: of another seed."""
    folder = tmp_path_factory.mktemp("made")
    run_recipe(tiny, folder / "run")
    run_recipe(tiny, folder / "other", "seed=99")
    killed(tiny, folder / "stopped")
    killed(tiny, folder / "killed other", "seed=99", "evaluate_every=1")
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made / "run", tmp_path / "run")


@pytest.fixture
def stopped(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made / "stopped", tmp_path / "stopped")


def killed(recipe: Path, folder: Path, *options: str, rounds: int = 5) -> None:
    script = (
        "import os, sys; from pathlib import Path\n"
        "from fedzero.recipe import recipe; from fedzero.recipe.environment import Environment\n"
        "from fedzero.runs import session; from fedzero.runs.progress import Silent\n"
        "class Killed(Silent):\n"
        "    def round(self, record):\n"
        "        if record.round + 1 == int(sys.argv[3]): os.kill(os.getpid(), 9)\n"
        "options = sys.argv[4:]\n"
        "session.start(recipe.load(sys.argv[1], options), Path(sys.argv[2]), Environment(), Killed())\n"
    )
    command = [sys.executable, "-c", script, str(recipe), str(folder), str(rounds), *options]
    assert subprocess.run(command, capture_output=True).returncode == -9
    assert (folder / "ledger.db-wal").stat().st_size > 0


def listing(folder: Path) -> dict[str, tuple[object, ...]]:
    """Every byte, and every time of a change."""
    return {
        path.name: (path.lstat().st_ino, path.lstat().st_mtime_ns, path.lstat().st_mode, path.read_bytes())
        for path in sorted(folder.iterdir())
        if path.is_file()
    }


def journal_naming(victim: Path, database: Path) -> bytes:
    """A rollback journal that is hot, and whose super-journal is `victim`: SQLite deletes that when it is done."""
    page, nonce = database.read_bytes()[:4096], 7
    header = bytes.fromhex("d9d505f920a163d7") + struct.pack(
        ">5I", 1, nonce, database.stat().st_size // 4096, 512, 4096
    )
    total = nonce
    for at in range(4096 - 200, 0, -200):
        total += page[at]
    record = struct.pack(">I", 1) + page + struct.pack(">I", total & 0xFFFFFFFF)
    name = os.fsencode(victim)
    pending = struct.pack(">I", (1 << 30) // 4096 + 1)
    end = name + struct.pack(">II", len(name), sum(struct.unpack(f"{len(name)}b", name)) & 0xFFFFFFFF)
    return header.ljust(512, b"\0") + record + pending + end + bytes.fromhex("d9d505f920a163d7")


def test_the_journal_of_these_tests_is_one_that_sqlite_obeys(run: Path, tmp_path: Path) -> None:
    """Otherwise they show nothing."""
    victim = tmp_path / "thesis.txt"
    victim.write_text("years of work")
    (run / "ledger.db-journal").write_bytes(journal_naming(victim, run / "ledger.db"))
    with closing(sqlite3.connect(run / "ledger.db")) as db:
        db.execute("SELECT count(*) FROM entries").fetchone()
    assert not victim.exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_journal_is_not_played_back(call: Call, run: Path, tmp_path: Path, command: str) -> None:
    """0.2 deleted the file, and said that all is well."""
    victim = tmp_path / "thesis.txt"
    victim.write_text("years of work")
    (run / "ledger.db-journal").write_bytes(journal_naming(victim, run / "ledger.db"))
    before = listing(run)
    call(command, run).refused("ledger.db-journal", "delete it")
    assert victim.read_text() == "years of work" and listing(run) == before


def planted(path: Path, what: str, elsewhere: Path) -> None:
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "link":
        path.symlink_to(elsewhere)
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.parametrize("command", ["verify", "resume"])
@pytest.mark.parametrize("what", ["folder", "pipe", "link", "device"])
@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
def test_what_is_beside_a_ledger_is_a_file(call: Call, run: Path, tmp_path: Path, command, what, suffix) -> None:
    (elsewhere := tmp_path / "elsewhere").write_bytes(b"of somebody" * 99)
    planted(run / f"ledger.db{suffix}", what, elsewhere)
    before = listing(run)
    call(command, run).refused(f"ledger.db{suffix}")
    assert elsewhere.read_bytes() == b"of somebody" * 99 and listing(run) == before


@pytest.mark.parametrize("name", ["ledger.db", "ledger.db-wal", "ledger.db-shm"])
@pytest.mark.parametrize("how", [os.link, os.symlink])
def test_a_run_is_not_resumed_into_another_file(call: Call, stopped: Path, tmp_path: Path, name: str, how) -> None:
    """A ledger, its log or its index that is a file elsewhere, too, would be written there."""
    (stopped / name).rename(elsewhere := tmp_path / "elsewhere")
    how(elsewhere, stopped / name)
    before = elsewhere.read_bytes()
    call("resume", stopped).refused(name)
    assert elsewhere.read_bytes() == before


@pytest.mark.parametrize("command", READERS)
def test_readers_write_nothing(call: Call, run: Path, command: str) -> None:
    before = listing(run)
    assert call(command, run).code == 0
    assert listing(run) == before


@pytest.mark.parametrize("index", ["as it was", "nonsense", "none"])
@pytest.mark.parametrize("command", READERS)
def test_readers_of_a_run_that_was_killed_write_nothing(call: Call, stopped: Path, command: str, index: str) -> None:
    if index == "nonsense":
        (stopped / "ledger.db-shm").write_bytes(b"\xff" * 32768)
    if index == "none":
        (stopped / "ledger.db-shm").unlink()
    before = listing(stopped)
    outcome = call(command, stopped)
    assert outcome.code == 0 or (command == "patch export" and "resume it first" in outcome.err)
    assert listing(stopped) == before
    with closing(Ledger.open(stopped / "ledger.db")) as ledger:
        assert ledger.done == 5, "what is in the log counts"


@pytest.mark.parametrize("index", [True, False])
def test_a_run_that_was_killed_is_resumed_from_its_log(call: Call, stopped: Path, run: Path, index: bool) -> None:
    if not index:
        (stopped / "ledger.db-shm").unlink()
    assert call("resume", stopped).code == 0
    with closing(Ledger.open(stopped / "ledger.db")) as one, closing(Ledger.open(run / "ledger.db")) as other:
        assert one.head == other.head
    assert sorted(path.name for path in stopped.iterdir()) == ["ledger.db", "model.safetensors"]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_log_of_another_ledger(call: Call, run: Path, made: Path, command: str) -> None:
    """SQLite takes it for its own, and `resume` of 0.2 wrote it into the ledger."""
    for suffix in ("-wal", "-shm"):
        shutil.copy(made / "killed other" / f"ledger.db{suffix}", run / f"ledger.db{suffix}")
    before = listing(run)
    outcome = call(command, run)
    assert outcome.code in (1, 2) and "Traceback" not in outcome.err
    assert listing(run) == before


def whole_log(ledger: Path, folder: Path) -> bytes:
    """A log that holds every page of a ledger, made by SQLite itself."""
    with (
        closing(sqlite3.connect(folder / "a.db", isolation_level=None)) as to,
        closing(sqlite3.connect(ledger)) as source,
    ):
        to.execute("PRAGMA journal_mode = WAL")
        to.execute("PRAGMA wal_autocheckpoint = 0")
        source.backup(to)
        return (folder / "a.db-wal").read_bytes()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_log_that_holds_the_whole_of_another_run(call: Call, run: Path, made: Path, tmp_path: Path, command) -> None:
    """Then the log alone is a ledger, with a chain that is right."""
    (run / "ledger.db-wal").write_bytes(whole_log(made / "other" / "ledger.db", tmp_path))
    before = listing(run)
    call(command, run).refused("ledger.db-wal", "move it away")
    assert listing(run) == before


def test_an_old_log_of_the_same_run(call: Call, stopped: Path, tmp_path: Path) -> None:
    """With it SQLite would take the ledger back to the round of the log."""
    shutil.copy(stopped / "ledger.db-wal", tmp_path / "old-wal")
    assert call("resume", stopped).code == 0
    shutil.copy(tmp_path / "old-wal", stopped / "ledger.db-wal")
    for command in COMMANDS:
        outcome = call(command, stopped)
        assert outcome.code in (1, 2), command
    (stopped / "ledger.db-wal").unlink()
    assert call("verify", stopped).code == 0


def test_a_log_that_changes_entries_is_not_written(call: Call, stopped: Path, tmp_path: Path) -> None:
    """The right log with another entry in it, and its checksums made anew: the chain tells before SQLite writes."""
    copy = shutil.copytree(stopped, tmp_path / "copy")
    with closing(sqlite3.connect(copy / "ledger.db", isolation_level=None)) as db:
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute(
            "UPDATE entries SET body = CAST(body || x'00' AS BLOB) WHERE seq = (SELECT max(seq) - 1 FROM entries)"
        )
        (stopped / "ledger.db-wal").write_bytes((copy / "ledger.db-wal").read_bytes())
    before = (stopped / "ledger.db").read_bytes()
    call("resume", stopped).refused("hash chain")
    assert (stopped / "ledger.db").read_bytes() == before


def test_a_file_that_was_half_checkpointed_is_read_with_its_log(call: Call, stopped: Path, run: Path) -> None:
    """Killed while pages of the log were written into the file: it is whole only with the log."""
    content = bytearray((stopped / "ledger.db").read_bytes())
    log = (stopped / "ledger.db-wal").read_bytes()
    (page,) = struct.unpack(">I", log[8:12])
    for at in range(32, len(log) - page, page + 24):  # only pages with even numbers got there
        (number,) = struct.unpack(">I", log[at : at + 4])
        if number % 2 == 0 and number * page <= len(content):
            content[(number - 1) * page : number * page] = log[at + 24 : at + 24 + page]
    (stopped / "ledger.db").write_bytes(content)
    assert call("verify", stopped).code == 0
    assert call("resume", stopped).code == 0
    with closing(Ledger.open(stopped / "ledger.db")) as one, closing(Ledger.open(run / "ledger.db")) as other:
        assert one.head == other.head


def test_an_empty_file_does_not_cost_its_log(call: Call, stopped: Path) -> None:
    (stopped / "ledger.db").write_bytes(b"")
    for command in COMMANDS:
        assert call(command, stopped).code in (1, 2)
    assert (stopped / "ledger.db-wal").stat().st_size > 0


@pytest.mark.parametrize("name", ["a?mode=memory", "a#b", "a%00b", "file:x?mode=memory", "a b\u00e9"])
def test_names_with_a_meaning_in_addresses(call: Call, run: Path, tmp_path: Path, monkeypatch, name: str) -> None:
    run.rename(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert call("verify", Path(name)).code == 0
    assert call("resume", Path(name)).code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]


def test_a_linked_ledger_is_read_where_it_is(call: Call, run: Path, tmp_path: Path) -> None:
    """Caches consist of links. What lies beside the link is not looked at, what lies beside the file is."""
    run.rename(kept := tmp_path / "kept")
    run.mkdir()
    (run / "ledger.db").symlink_to(kept / "ledger.db")
    (run / "model.safetensors").symlink_to(kept / "model.safetensors")
    assert call("verify", run).code == 0
    (kept / "ledger.db-journal").write_bytes(b"x" * 999)
    call("verify", run).refused("journal")


def test_a_file_that_says_it_has_a_log(call: Call, run: Path) -> None:
    """Bytes 18 and 19: SQLite would make an empty log, also to read."""
    content = bytearray((run / "ledger.db").read_bytes())
    content[18] = content[19] = 2
    (run / "ledger.db").write_bytes(content)
    before = listing(run)
    for command in READERS:
        assert call(command, run).code == 0
    assert listing(run) == before
    (run / "ledger.db-wal").write_bytes(b"")
    before = listing(run)
    for command in READERS:
        assert call(command, run).code == 0
    assert listing(run) == before
    assert call("resume", run).code == 0


@pytest.mark.skipif(sys.platform != "linux", reason="inotify")
def test_no_journal_is_ever_made(tiny: Path, tmp_path: Path, run_recipe) -> None:
    """Not even for the moment in which a ledger gets a log, or loses it: a kill there would leave one behind."""
    (tmp_path / "run").mkdir()
    libc, create = ctypes.CDLL(None), 0x100
    watch = libc.inotify_init1(os.O_NONBLOCK)
    assert libc.inotify_add_watch(watch, os.fsencode(tmp_path / "run"), create) > 0
    run_recipe(tiny, tmp_path / "run")
    Ledger.open(tmp_path / "run" / "ledger.db", writable=True).close()
    seen = os.read(watch, 1 << 20)
    os.close(watch)
    assert b"ledger.db-wal\0" in seen and b"ledger.new\0" in seen and b"-journal" not in seen


def test_a_schema_without_end_is_not_read_for_ever(run: Path, tmp_path: Path) -> None:
    """Its tree points to itself: 2,000 copies of a row, 2,000 times, and so on."""
    content = bytearray((run / "ledger.db").read_bytes())
    size = struct.unpack(">H", content[16:18])[0]
    rows = bytes(content[100:size])
    leaf = len(content) // size + 1
    spare = bytearray(size)
    spare[: 8 + 2 * 5] = rows[: 8 + 2 * 5]
    cells = [struct.unpack(">H", rows[8 + 2 * i : 10 + 2 * i])[0] for i in range(struct.unpack(">H", rows[3:5])[0])]
    spare[:] = bytes([13]) + rows[1:8] + b"".join(struct.pack(">H", cell) for cell in cells) + bytes(size)
    spare = spare[:size]
    lowest = min(cells)
    spare[lowest:] = content[lowest:size]
    below = leaf
    content += spare
    for _ in range(15):  # pages with five hundred children, which are all the same
        count = 300
        page = bytearray(size)
        page[0], page[3:5] = 5, struct.pack(">H", count)
        page[8:12] = struct.pack(">I", below)
        start = size - 5 * count
        page[5:7] = struct.pack(">H", start)
        for i in range(count):
            page[12 + 2 * i : 14 + 2 * i] = struct.pack(">H", start + 5 * i)
            page[start + 5 * i : start + 5 * i + 5] = struct.pack(">I", below) + b"\x7f"
        content += page
        below = len(content) // size
    root = bytearray(size)
    root[:100] = content[:100]
    root[100], root[103:105], root[108:112] = 5, struct.pack(">H", 0), struct.pack(">I", below)
    root[105:107] = struct.pack(">H", 0)
    content[:size] = root
    content[28:32] = struct.pack(">I", len(content) // size)
    (run / "ledger.db").write_bytes(content)
    with pytest.raises(FedzeroError):
        Ledger.open(run / "ledger.db")


def test_a_reader_beside_a_writer(stopped: Path) -> None:
    """It sees what is durable at once, writes nothing, and lets the writer leave one file behind."""
    writer = Ledger.open(stopped / "ledger.db", writable=True)
    try:
        log = (stopped / "ledger.db-shm").read_bytes()
        with closing(Ledger.open(stopped / "ledger.db")) as reader:
            assert reader.head == writer.head
            with writer.transaction() as db:
                db.execute("INSERT INTO dense VALUES (7, x'00')")
            assert reader.rows("SELECT round FROM dense", -1) == [(7,)] or reader.rows(
                "SELECT round FROM dense", -1
            ) == [[7]]
        assert len((stopped / "ledger.db-shm").read_bytes()) == len(log)
    finally:
        writer.close()
    assert sorted(path.name for path in stopped.iterdir()) == ["ledger.db"]


def test_a_look_at_the_claim_keeps_no_writer_out(run: Path) -> None:
    for _ in range(50):
        assert not opening._written(run)
    claim = Claim(run)
    assert opening._written(run)
    claim.release()
    Ledger.open(run / "ledger.db", writable=True).close()


@pytest.fixture
def told(tmp_path: Path) -> Iterator[ToldTable]:
    table = ToldTable(tmp_path / "told.db")
    table.create(fresh=True)
    yield table


def test_the_table_of_points_obeys_no_journal(told: ToldTable, tmp_path: Path) -> None:
    assert told.awaited() == 0 and not list(tmp_path.glob("*-journal"))
    victim = tmp_path / "thesis.txt"
    victim.write_text("years of work")
    (tmp_path / "told.db-journal").write_bytes(journal_naming(victim, told.path))
    for act in (told.awaited, lambda: told.create(True), lambda: told.lease(1, None, 1.0), lambda: told.tell(1, 0.5)):
        with pytest.raises(Foreign, match=r"told\.db-journal"):
            act()
    assert victim.exists()


def test_the_table_of_points_has_no_triggers(told: ToldTable) -> None:
    with closing(sqlite3.connect(told.path)) as db:
        db.execute("CREATE TRIGGER t AFTER UPDATE ON points BEGIN DELETE FROM points; END")
    with pytest.raises(FedzeroError, match="triggers"):
        told.lease(1, None, 1.0)


def test_a_ledger_that_is_a_pipe(call: Call, run: Path) -> None:
    (run / "ledger.db").unlink()
    os.mkfifo(run / "ledger.db")
    for command in COMMANDS:
        assert call(command, run).code in (1, 2)
    with pytest.raises((Foreign, Tampered)):
        Ledger.open(run / "ledger.db")
