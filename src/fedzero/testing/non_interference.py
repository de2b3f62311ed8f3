"""Do private data show in anything that a run says, apart from what they may show in?

A recipe is run twice, in real processes of their own, with two data sets that the caller has chosen: for a private run
two with equal clipped vectors, and the same noise. Every message between clients and server, every line of the log,
every entry of the ledger and every file must then be the same, byte for byte. What differs is named as in the table of
docs/design.md, "The fields that leave a client".

Not compared, because two runs with the same data differ in it: times (the table `clock` of a ledger, seconds and rates
in the log), and the order in which replies arrive.
"""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedzero.errors import FedzeroError
from fedzero.ledger.folder import LEDGER
from fedzero.ledger.records import decode_record
from fedzero.protocol.messages import decode_instruction, decode_reply
from fedzero.testing.overheard import Message, messages_in

FIELDS = {
    "digest": "digest of the model",
    "memory": "digest of the memory",
    "remembered": "digest of the memory",
    "refused": "text of a failure",
    "metrics": "measured",
    "bytes_up": "size",
    "bytes_down": "size",
}
"""Names of the table, for fields of messages and entries that have other ones."""
TIMES = re.compile(r"\d+:\d\d(:\d\d)?|[\d.]+ ?(ms|s|min|h)\b")
SO_FAR = ", TIME so far"
"""The end of a line that names an activity which takes long."""
SECONDS = 600
"""Of one run at most."""
CLOCK = "clock"
"""The table of a ledger with times."""


@dataclass(frozen=True)
class Side:
    """One of the two runs: arguments of `fedzero run` (such as --data DIR), and variables of its environment."""

    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """field: its name in the table, or of the entry of the ledger; where: the message, line, entry or file."""

    field: str
    where: str


def differences(recipe: Path, first: Side, second: Side, folder: Path, program: Sequence[str] = ()) -> list[Difference]:
    """What differs, messages first, in the order in which it was said; empty: nothing does. program: see `played`."""
    return compared(*(played(recipe, side, folder / n, program) for n, side in (("first", first), ("second", second))))


def played(recipe: Path, side: Side, place: Path, program: Sequence[str] = ()) -> Path:
    """Run a recipe in a process. The folder `place` gets its messages, its output and the folder of the run.

    program: arguments of Python; default: `fedzero.testing.overheard`, which knows the tasks that are installed.
    """
    place.mkdir(parents=True)
    (place / "messages").touch()
    chosen = list(program) or ["-m", "fedzero.testing.overheard"]
    command = [sys.executable, *chosen, "messages", "run", str(recipe.resolve()), "--out", "run", *side.arguments]
    with (place / "stdout").open("wb") as out, (place / "stderr").open("wb") as err:
        environment = {**os.environ, **side.environment}
        done = subprocess.run(command, cwd=place, env=environment, stdout=out, stderr=err, timeout=SECONDS, check=False)
    if done.returncode:
        raise FedzeroError(f"{' '.join(command)} failed: {(place / 'stderr').read_text()[-1000:]}")
    return place


def compared(one: Path, other: Path) -> list[Difference]:
    """What differs between two runs that were `played`."""
    messages = of_messages(messages_in(one / "messages"), messages_in(other / "messages"))
    return [*messages, *_of_ledgers(one, other), *_of_logs(one, other), *_of_files(one / "run", other / "run")]


def of_messages(first: Sequence[Message], second: Sequence[Message]) -> Iterator[Difference]:
    for one, other in zip(first, second, strict=False):
        where = f"{one.kind} of round {one.round}, exchange {one.exchange}, {one.by}".rstrip(", ")
        if (one.round, one.exchange, one.kind, one.by) != (other.round, other.exchange, other.kind, other.by):
            yield Difference("the turn", where)
            return
        if one.data != other.data:
            yield from (Difference(name, where) for name in _fields(one, other))
    if len(first) != len(second):
        yield Difference("the turn", f"{len(first)} messages and {len(second)}")


def _fields(one: Message, other: Message) -> list[str]:
    """The fields in which two messages of one kind differ."""
    if one.kind == "failure":
        return ["text of a failure"]
    if one.kind == "measured":
        return ["measured"]
    if one.kind in ("phase", "answer"):
        return ["values"]
    read = _reply if one.kind == "reply" else decode_instruction
    found = _unequal(read(one.data), read(other.data))
    return found + (["size"] if len(one.data) != len(other.data) else [])


def _reply(data: bytes) -> Any:
    return decode_reply(data, len(data))


def _unequal(one: Any, other: Any) -> list[str]:
    """The fields in which two structs differ."""
    if type(one) is not type(other):
        return ["kind"]
    names = [name for name in one.__struct_fields__ if getattr(one, name) != getattr(other, name)]
    return [FIELDS.get(name, name) for name in names]


def _of_ledgers(first: Path, second: Path) -> Iterator[Difference]:
    tables = [_tables(place / "run" / LEDGER) for place in (first, second)]
    bodies = [[row[1] for row in table.get("entries", [])] for table in tables]
    for number, (one, other) in enumerate(zip(*bodies, strict=False)):
        if one != other:
            records = decode_record(one), decode_record(other)
            where = f"entry {number} of the ledger, {type(records[0]).__name__}"
            yield from (Difference(name, where) for name in _unequal(*records))
    if len(bodies[0]) != len(bodies[1]):
        yield Difference("the turn", f"{len(bodies[0])} entries of the ledger and {len(bodies[1])}")


def _of_logs(first: Path, second: Path) -> Iterator[Difference]:
    for name in ("stdout", "stderr"):
        texts = [TIMES.sub("TIME", (place / name).read_text()) for place in (first, second)]
        lines = [_said(text) for text in texts]
        for number, (one, other) in enumerate(zip(*lines, strict=False)):
            if one != other:
                yield Difference("log", f"{name}, line {number + 1}: {one!r} and {other!r}")
        if len(lines[0]) != len(lines[1]):
            yield Difference("log", f"{name}: {len(lines[0])} lines and {len(lines[1])}")


def _said(text: str) -> list[str]:
    """The lines of a log, without those that are only said because something took long."""
    lines = [" ".join(line.split()) for line in re.split(r"[\r\n]", text)]
    return [line for line in lines if not line.endswith(SO_FAR)]


def _of_files(first: Path, second: Path) -> Iterator[Difference]:
    found = [{path.relative_to(place) for path in place.rglob("*") if path.is_file()} for place in (first, second)]
    for path in sorted(found[0] ^ found[1]):
        yield Difference("file", f"{path} is there once")
    for path in sorted(found[0] & found[1]):
        if path.name == LEDGER:  # its entries are compared by field, and its chain follows from them
            pairs = (_tables(first / path), _tables(second / path))
            names = [name for name in pairs[0].keys() | pairs[1].keys() if name not in (CLOCK, "entries")]
            different = any(pairs[0].get(name) != pairs[1].get(name) for name in names)
        elif path.suffix == ".db":
            different = _tables(first / path) != _tables(second / path)
        else:
            different = (first / path).read_bytes() != (second / path).read_bytes()
        if different:
            yield Difference("file", str(path))


def _tables(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of a database, by table."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: database.execute(f'SELECT * FROM "{name}"').fetchall() for name in names}
