"""One sentence and an exit status for what goes wrong around a run: full disk, no memory, another release's ledger."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import forked_command
import msgspec
import pytest
import typer

from fedzero.cli.common import interruptible
from fedzero.ledger.database import Unreadable
from fedzero.ledger.outline import GENESIS
from fedzero.ledger.records import End, Start, decode_record, encode_record
from fedzero.ledger.store import Ledger, Unwritable, _seal, link
from outcome import Outcome

KILOBYTES = 400


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={KILOBYTES}k", "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("only root may mount a small disk, and not in every container")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def process(warm_server, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Ended]:
    """process("run", path, …, limit=None): the command in a process of its own; limit: the largest file it may write,
    in bytes; memory: of addresses."""

    def call(*arguments: object, limit: int | None = None, memory: int | None = None) -> Ended:
        folder = tmp_path_factory.mktemp("streams")
        streams = str(folder / "out"), str(folder / "err")
        process = warm_server.Process(
            target=forked_command.run, args=([*map(str, arguments)], streams, limit, memory), daemon=True
        )
        process.start()
        process.join(300)
        assert process.exitcode is not None, "the process hangs"
        return Ended(process.exitcode, *(Path(stream).read_text() for stream in streams))

    return call


class Ended(Outcome):
    """A process that may have shown its progress."""

    @property
    def refusal(self) -> str:
        """The one sentence of a command that failed; a run may have shown its progress before."""
        assert self.code == 2, self.err
        assert "Traceback" not in self.err
        *_, sentence = self.err.splitlines()
        assert sentence.startswith("fedzero: ")
        return sentence

    @property
    def rounds(self) -> int:
        """As `fedzero verify` says it."""
        assert self.code == 0, self.err
        return int(self.out.split(" rounds")[0].split()[-1])


def test_disk_full_in_mid_run_and_at_the_start(process, small_disk: Path, tiny: Path, tmp_path: Path) -> None:
    run = small_disk / "run"
    sentence = process("run", tiny, "--rounds", 100_000, "--out", run).refusal
    assert "ledger.db cannot be written" in sentence and "make room" in sentence and "resumes" in sentence
    assert "cannot be written" in process("resume", run).refusal, "there still is no room"
    second = small_disk / "second"
    assert "ledger.db cannot be written" in process("run", tiny, "--out", second).refusal
    assert not second.exists()
    moved = shutil.copytree(run, tmp_path / "moved")
    assert process("verify", moved).rounds > 10


def test_files_that_may_not_grow(process, tiny: Path, tmp_path: Path, run_recipe) -> None:
    run_recipe(tiny, tmp_path / "first")  # kernels are in numba's cache then
    run = tmp_path / "run"
    assert "cannot be written" in process("run", tiny, "--rounds", 100_000, "--out", run, limit=300_000).refusal
    assert process("verify", run).rounds > 10


def test_a_full_disk_keeps_the_run_that_was_to_be_replaced(process, tiny: Path, tmp_path: Path, run_recipe) -> None:
    run = tmp_path / "run"
    run_recipe(tiny, run)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    assert "cannot be written" in process("run", tiny, "--out", run, "--overwrite", limit=4096).refusal
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


@pytest.mark.parametrize(
    "override",
    [
        "algorithm.directions=99999999999",
        "algorithm.local_steps=99999999999",
        'algorithm={kind="fedzo",rate=0.01,form="dense",directions=99999999999}',
    ],
)
def test_turns_that_no_client_can_make(fedzero, tiny: Path, tmp_path: Path, override: str) -> None:
    outcome = fedzero("run", tiny, "--set", override, "--out", tmp_path / "out")
    outcome.refused("numbers", "algorithm.directions")
    assert not (tmp_path / "out").exists()


def test_no_memory(process, tiny: Path, tmp_path: Path) -> None:
    """Sixteen gigabytes for one array are more than this process is given."""
    options = "--set", f"task.dimension={1 << 32}", "--out", tmp_path / "out"
    assert "memory" in process("run", tiny, *options, memory=8 << 30).refusal
    assert not (tmp_path / "out").exists()


def rewritten(ledger: Path, change) -> None:
    """The recipe of a ledger changed, and the chain made anew, as another release would have written it."""
    with sqlite3.connect(ledger) as db:
        rows = db.execute("SELECT e.seq, e.body, c.at, c.seconds FROM entries e JOIN clock c USING (seq)").fetchall()
        chain = GENESIS
        for seq, body, at, seconds in sorted(rows):
            record = decode_record(body)
            if isinstance(record, Start):
                table = msgspec.json.decode(record.recipe)
                change(table)
                body = encode_record(msgspec.structs.replace(record, recipe=msgspec.json.encode(table)))
            chain = link(chain, seq, body)
            db.execute("UPDATE entries SET body = ?, chain = ? WHERE seq = ?", (body, chain, seq))
            db.execute("UPDATE clock SET seal = ? WHERE seq = ?", (_seal(chain, at, seconds), seq))


CHANGES = {
    "kind": (lambda table: table["algorithm"]["optimizer"].update(kind="lion"), "lion"),
    "key": (lambda table: table["federation"].update(quorum=3), "quorum"),
    "method": (lambda table: table["algorithm"].update(kind="decomfl-two"), "decomfl-two"),
}


@pytest.mark.parametrize("command", ["report", "watch", "verify", "resume", "replay"])
@pytest.mark.parametrize(("change", "word"), CHANGES.values(), ids=CHANGES)
def test_a_ledger_of_another_release(fedzero, run_recipe, tiny, tmp_path: Path, command: str, change, word) -> None:
    run_recipe(tiny, tmp_path / "run")
    rewritten(tmp_path / "run" / "ledger.db", change)
    out = ["--out", tmp_path / "x"] if command in ("report", "replay") else []
    fedzero(command, tmp_path / "run", *out).refused(word)
    assert not (tmp_path / "x").exists()


def test_a_disk_that_is_read_only(process, small_disk: Path, tiny: Path) -> None:
    """It can be reported; what has to write says so, and calls nothing damaged."""
    run = small_disk / "run"
    assert process("run", tiny, "--out", run).code == 0
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert process("verify", run).rounds == 12
    for command in (["resume", run], ["run", tiny, "--out", run, "--overwrite"], ["run", tiny, "--out", run / "new"]):
        sentence = process(*command).refusal
        assert "damaged" not in sentence
        assert "Read-only" in sentence or ("cannot be written" in sentence and "writable" in sentence)


def test_a_file_that_may_only_be_read_is_not_called_damaged(run_recipe, tiny: Path, tmp_path: Path) -> None:
    """As on a disk that is read-only, where none can be mounted."""
    run_recipe(tiny, tmp_path / "run")
    ledger = Ledger.open(tmp_path / "run" / "ledger.db", writable=True)
    ledger._db.execute("PRAGMA query_only = ON")
    with pytest.raises(Unwritable, match=r"cannot be written .*make file and folder writable"):
        ledger.append([End(0, b"")], 0.0)
    with pytest.raises(Unreadable, match=r"cannot be read .*make file and folder writable"):
        ledger.rows("DELETE FROM entries", -1)
    ledger.close()


def test_sigterm_ends_a_command_as_ctrl_c_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """Once: a second one must not end what cleans up. Then it means what it meant before."""
    heard: list[int] = []
    cleaned = False
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with pytest.raises(typer.Exit) as ended, interruptible(tmp_path / "run"):
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(5)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
                cleaned = True
        assert (ended.value.exit_code, heard, cleaned) == (130, [], True)
        assert "resumes from the last completed round" in capsys.readouterr().err
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)
