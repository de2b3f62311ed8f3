"""How a file of SQLite in the folder of a run is opened: what SQLite may touch when somebody else made the folder.

SQLite obeys what lies beside a database. It plays a rollback journal back, and deletes the file that the journal names.
It takes a write-ahead log for that of the database, whoever's it is, and writes it into the file. It follows links. So:

*   A rollback journal is refused. Nothing here makes one: where a database goes into or out of the mode with a
    write-ahead log, its journal is in memory. (It would hold the first page, in which two bytes change.)
*   Whatever else lies beside a ledger has to be a file, and, where it would be written, have no other name.
*   A ledger is read without a byte being written, in its folder or elsewhere: the log is read beside an index in this
    process's memory, and where SQLite cannot do without an index on disk, in a private copy.
*   A log counts if it goes on from where the file ends, or if a process that writes the run holds it.

Files are looked at, and opened by nobody but SQLite: who closes a second descriptor of a database drops the locks that
SQLite has on it in the same process.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import stat
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from fedzero.errors import FedzeroError
from fedzero.ledger.database import DAMAGE, Patience, Tampered, Unreadable, check_format

JOURNAL, LOG, INDEX = "-journal", "-wal", "-shm"
"""What SQLite calls the files beside a database."""
_SMALLEST = 512
"""Bytes of a database: of an empty one SQLite would delete the log."""
_BEGINS = 2.0
"""Seconds in which a process that begins to write has a log and its index."""
_CACHE = "PRAGMA cache_size = -2000"
"""Kilobytes; a file may ask for gigabytes."""
_LIMITS = {
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
_HARDENED = {"SQLITE_DBCONFIG_DEFENSIVE": True, "SQLITE_DBCONFIG_ENABLE_TRIGGER": False}
"""From Python 3.12 on."""


class Foreign(FedzeroError):
    """What lies beside a ledger is not of this ledger."""


class _Moving(Unreadable):
    """A ledger is between two states; a moment later it is in one."""


@dataclass(frozen=True)
class _Beside:
    """Whether there is a write-ahead log, of how many bytes, and whether it has an index."""

    log: bool
    size: int
    index: bool


@dataclass(frozen=True)
class Opened:
    """A ledger to be read. patience: of its queries. whole: entries that the file has without its log."""

    db: sqlite3.Connection
    patience: Patience
    whole: int


def for_reading(path: Path, unwritten: bool = False) -> Opened:
    """A ledger that is only read, found to have the tables of one.

    unwritten: this process has the claim on its folder, and has not begun to write.
    """
    path = path.resolve()  # SQLite follows links, and looks beside the file itself
    until = time.monotonic() + _BEGINS
    while True:
        beside, live = _judged(path, written=False), not unwritten and _written(path.parent)
        try:
            return _read(path, beside, live)
        except (sqlite3.OperationalError, _Moving):  # of a run that begins or ends just now
            if unwritten or not (live or _written(path.parent)) or time.monotonic() > until:
                raise
            time.sleep(0.01)


def for_writing(path: Path) -> sqlite3.Connection:
    """A ledger that is written, by who holds the claim on its folder. What a log beside it says has been read."""
    _judged(path, written=True)
    db = connect(path, "mode=rw")
    try:
        Patience(db, [path])
        check_format(db, path)
        db.set_progress_handler(None, 0)
        with_log(db)
    except BaseException:
        db.close()
        raise
    return db


def connect(path: Path, options: str, seconds: float = 5.0, threads: bool = False) -> sqlite3.Connection:
    """A connection whose file can call nothing, and asks for no more than it should get. threads: it is used by several
    threads, one at a time."""
    uri = f"{path.absolute().as_uri()}?{options}"
    db = sqlite3.connect(uri, seconds, uri=True, isolation_level=None, check_same_thread=not threads)
    for limit, value in _LIMITS.items():
        db.setlimit(limit, value)
    if hasattr(db, "setconfig"):
        for name, on in _HARDENED.items():
            db.setconfig(getattr(sqlite3, name), on)
    for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "temp_store = MEMORY", "mmap_size = 0"):
        db.execute(f"PRAGMA {pragma}")
    return db


def with_log(db: sqlite3.Connection) -> None:
    """From now on with a write-ahead log, and synced. The first page is changed under a journal in memory."""
    if db.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        db.execute("PRAGMA journal_mode = MEMORY")
        if db.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
            raise sqlite3.OperationalError("its file system has no shared memory")
    db.execute("PRAGMA synchronous = FULL")


def without_log(db: sqlite3.Connection) -> None:
    """One plain file: the log is written into it and gone. Fails while anybody reads."""
    db.execute("PRAGMA journal_mode = MEMORY")


def has_log(path: Path) -> bool:
    return _beside(path, written=True).size > 0


def refuse_foreign(path: Path) -> None:
    """Of a database that is written, and may not be there yet: what SQLite would write or delete elsewhere."""
    if _about(path) is None:
        _beside(path, written=True)
    else:
        _judged(path, written=True, smallest=0)


def named(path: Path, suffix: str) -> Path:
    """A file beside a database."""
    return path.with_name(path.name + suffix)


def _judged(path: Path, written: bool, smallest: int = _SMALLEST) -> _Beside:
    about = path.lstat() if written else path.stat()
    if written and stat.S_ISLNK(about.st_mode):
        raise Foreign(f"{path} is a link, and the file that it names would be written: put a copy of that file here")
    _expect_file(path, about, written)
    if about.st_size < smallest:
        raise Tampered(-1, f"{path} is damaged ({about.st_size} bytes are no ledger)")
    return _beside(path, written)


def _beside(path: Path, written: bool) -> _Beside:
    if _about(journal := named(path, JOURNAL)) is not None:
        raise Foreign(
            f"{journal} does not belong to {path.name}: fedzero writes no such file, and SQLite would change "
            f"{path.name} by it and delete the file that it names: delete it"
        )
    log, index = _about(named(path, LOG)), _about(named(path, INDEX))
    for suffix, about in ((LOG, log), (INDEX, index)):
        if about is not None:
            _expect_file(named(path, suffix), about, written)
    return _Beside(log is not None, 0 if log is None else log.st_size, index is not None)


def _about(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def _expect_file(path: Path, about: os.stat_result, written: bool) -> None:
    if not stat.S_ISREG(about.st_mode):
        raise Foreign(f"{path} is no file, but a link, a folder, a pipe or a device: delete it")
    if written and about.st_nlink > 1:
        raise Foreign(f"{path} has other names (hard links), under which it would be written, too: put a copy here")


def _written(folder: Path) -> bool:
    """Whether a process writes in the folder: it holds the lock of `Claim`, which this one does not keep."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without such locks
        return False
    finally:
        os.close(descriptor)
    return False


def _read(path: Path, beside: _Beside, live: bool) -> Opened:
    found = _connected(path, how) if (how := _way(path, beside, live)) else _copied(path, live)
    try:
        check_format(found.db, path)
        return found if live or not beside.size else replace(found, whole=_continued(path, found.db))
    except BaseException:
        found.db.close()
        raise


def _way(path: Path, beside: _Beside, live: bool) -> str | None:
    """How SQLite reads a ledger where it is without writing anything; None where it cannot.

    mode=ro: neither file nor log are written. readonly_shm: nor the index; that of a process that writes is used, and
    no other is believed. immutable: there is no log, and nobody makes one.
    """
    if beside.size or (live and beside.log):
        return "mode=ro&readonly_shm=1" if beside.index else None
    if not beside.log and not _expects_log(path):
        return "mode=ro&readonly_shm=1"  # with SQLite's own locks, should somebody begin to write
    if live:
        raise _Moving(f"{path} is being written by a process that has no log yet: try again")
    return "mode=ro&immutable=1"


def _expects_log(path: Path) -> bool:
    """Whether a file says that it has a log; SQLite would make one. Without locks there can be none, and it refuses."""
    try:
        with closing(connect(path, "mode=ro&nolock=1")) as db:
            Patience(db, [path])
            db.execute("SELECT 1 FROM sqlite_schema").fetchone()
    except sqlite3.OperationalError as error:
        return error.sqlite_errorcode == sqlite3.SQLITE_CANTOPEN
    except sqlite3.Error:
        return False  # whoever reads it says what is wrong
    return False


def _connected(path: Path, options: str) -> Opened:
    db = connect(path, options)
    try:
        patience = Patience(db, [path, named(path, LOG)])
        db.execute("PRAGMA query_only = ON")
        db.execute(_CACHE)
    except BaseException:
        db.close()
        raise
    return Opened(db, patience, 0)


def _copied(path: Path, live: bool) -> Opened:
    """A private copy of a ledger and its log, whose files have no name any more when this returns."""
    if live:
        raise _Moving(f"{path} is being written by a process whose log has no index yet: try again")
    before = _signature(path)
    with tempfile.TemporaryDirectory(prefix="fedzero-ledger-") as name:
        folder, size = Path(name), sum(size for size, *_ in before)
        if 2 * size > shutil.disk_usage(folder).free:
            raise Unreadable(
                f"{path} cannot be read where it is (its log has no index), and {folder.parent} has no room for a copy "
                f"of {size:,} bytes: name another folder with TMPDIR"
            )
        for suffix in ("", LOG):
            shutil.copyfile(named(path, suffix), folder / f"ledger{suffix}")
        if _signature(path) != before:
            raise _Moving(f"{path} was changed while it was read: try again")
        found = _connected(folder / "ledger", "mode=ro")
        try:
            found.db.execute("SELECT 1 FROM sqlite_schema").fetchone()  # opens all files
        except BaseException:
            found.db.close()
            raise
        return found


def _signature(path: Path) -> list[tuple[int, int, int]]:
    """What changes when a ledger or its log does."""
    found = [named(path, suffix).stat() for suffix in ("", LOG)]
    return [(about.st_size, about.st_mtime_ns, about.st_ino) for about in found]


def _continued(path: Path, db: sqlite3.Connection) -> int:
    """The entries that the file has without its log, which has to go on from there.

    0 where the file cannot be read without its log, as after a crash while the log was written into it.
    """
    last = "SELECT seq, chain FROM entries ORDER BY seq DESC LIMIT 1"
    with closing(connect(path, "mode=ro&immutable=1")) as alone:
        try:
            patience = Patience(alone, [path])
            check_format(alone, path)
            found = alone.execute(last).fetchone()
            if found is None:
                return 0
            if db.execute("SELECT chain FROM entries WHERE seq = ?", found[:1]).fetchone() == found[1:]:
                return int(found[0]) + 1
            patience.again()
            if alone.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
                return 0
        except (FedzeroError, *DAMAGE):
            return 0
    raise Foreign(
        f"{named(path, LOG)} is not the log of {path.name}, or an old one: its entries do not go on from those of the "
        "file: move it away"
    )
