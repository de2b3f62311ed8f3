"""A program: the command line of fedzero, and a file with every message between the server and its clients.

    python -m fedzero.testing.overheard MESSAGES run RECIPE --out FOLDER …

It adds `--engine overheard`: the local engine with somebody who listens. The engine is no part of a ledger.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from runpy import run_module
from typing import ClassVar

import msgspec
from msgspec import Struct

from fedzero import plugins
from fedzero.engines.local import Local
from fedzero.model.identity import Identity
from fedzero.model.updates import Update
from fedzero.oracles import Metrics
from fedzero.protocol.altered import Altered
from fedzero.protocol.engine import Arrival, Clients
from fedzero.recipe.view import RunView


class Message(Struct, frozen=True, array_like=True, order=True):
    """One message. kind: "instruction", "reply", "failure", "outcome", "phase", "answer" or "measured"; by: a client's
    number or a host's name."""

    round: int
    exchange: int
    kind: str
    by: str
    data: bytes


class Overhearing(Altered):
    """Clients whose messages are written down."""

    def __init__(self, clients: Clients, file: Path, oldest: int = 0):
        super().__init__(clients, self._replies, oldest)
        self._file = file

    def _write(self, round: int, exchange: int, kind: str, by: object, data: bytes) -> None:
        with self._file.open("ab") as file:
            body = msgspec.msgpack.encode(Message(round, exchange, kind, str(by), data))
            file.write(len(body).to_bytes(8, "little") + body)

    def _replies(self, round: int, exchange: int, arrivals: Sequence[Arrival]) -> Sequence[Arrival]:
        for arrival in arrivals:
            kind = "reply" if isinstance(arrival.data, bytes) else "failure"
            data = arrival.data if isinstance(arrival.data, bytes) else str(arrival.data).encode()
            self._write(round, exchange, kind, arrival.client, data)
        return arrivals

    def send(self, asked: int, exchange: int, messages: Sequence[bytes], which: Mapping[int, int]) -> None:
        for client, message in which.items():
            self._write(asked, exchange, "instruction", client, messages[message])
        super().send(asked, exchange, messages, which)

    def settle(
        self, round: int, update: Update | None, closings: Mapping[int, bytes], diverged: Collection[int]
    ) -> None:
        for client, closing in closings.items():
            self._write(round, 0, "outcome", client, closing)
        super().settle(round, update, closings, diverged)

    def phase(
        self, asked: int, exchange: int, phase: int, bodies: Mapping[str, bytes]
    ) -> Mapping[str, bytes | Exception]:
        answers = super().phase(asked, exchange, phase, bodies)
        for host, body in bodies.items():
            self._write(asked, exchange, "phase", f"{host} {phase}", body)
        for host, answer in answers.items():
            data = answer if isinstance(answer, bytes) else str(answer).encode()
            self._write(asked, exchange, "answer", f"{host} {phase}", data)
        return answers

    def evaluate(self, after: int = 0, last: bool = False) -> tuple[Identity, Metrics]:
        identity, metrics = super().evaluate(after, last)
        self._write(after, 0, "measured", "", msgspec.msgpack.encode(metrics))
        return identity, metrics


class Overheard(Local, tag="overheard"):
    """The local engine with somebody who listens."""

    messages: ClassVar[Path]
    """where messages are written"""

    @contextmanager
    def open(self, run: RunView) -> Iterator[Clients]:
        with super().open(run) as clients:
            yield Overhearing(clients, self.messages, run.oldest)


def messages_in(file: Path) -> list[Message]:
    """In the order of rounds, exchanges and clients, not of time."""
    data, found, place = file.read_bytes(), list[Message](), 0
    while place < len(data):
        end = place + 8 + int.from_bytes(data[place : place + 8], "little")
        found.append(msgspec.msgpack.decode(data[place + 8 : end], type=Message))
        place = end
    return sorted(found)


def main() -> None:
    Overheard.messages = Path(sys.argv.pop(1))
    plugins.register(Overheard)
    sys.argv += ["--engine", "overheard"]
    run_module("fedzero", run_name="__main__")


if __name__ == "__main__":
    main()
