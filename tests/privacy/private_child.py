"""What the processes of test_private_kills.py do: a private run that is killed at one of its moments, or resumed.

Imported by children of a fork server that has fedzero loaded already.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from entropy import given_entropy
from fedzero.engines.gathering import HostedClients
from fedzero.gatherings.private import central
from fedzero.ledger.answers import Answers, Place
from fedzero.ledger.folder import LEDGER
from fedzero.ledger.records import Round
from fedzero.ledger.store import Ledger
from fedzero.model.updates import decode_update
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import session
from fedzero.runs.progress import Silent

ROUND = 1
"""The round in which processes are killed."""


class Heard:
    """A file, outside the folder of the run, with what was done in all processes of a run: a JSON array a line."""

    def __init__(self, file: str):
        self.file = Path(file)

    def __call__(self, kind: str, round: int, what: bytes) -> None:
        with self.file.open("a") as file:
            file.write(json.dumps([kind, round, what.hex()]) + "\n")


SAID: list[Heard] = []


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def go(recipe: str, folder: str, heard: str, moment: str = "", plant: str = "") -> None:
    """moment: where the process is killed, a key of MOMENTS; empty: nowhere. Noise and roundings are of a stream of
    bytes of the moment, so that a process that goes on draws others."""
    torch.set_num_threads(1)
    SAID[:] = [Heard(heard)]
    MOMENTS[moment]()
    PLANTS[plant](Path(folder))
    listen(*SAID)
    where = Path(folder)
    with given_entropy(rounding=moment.encode(), noise=moment.encode()):
        if (where / LEDGER).exists():
            session.resume(where, Environment(), Silent())
        else:
            session.start(recipes.load(recipe), where, Environment(), Silent())


def listen(heard: Heard) -> None:
    """Hear the noise as it is drawn, the numbers as hosts hand them over, and updates as they are released."""
    drawn, phase, settle = central.rounded_gaussian, HostedClients.phase, HostedClients.settle
    now = [0]

    def noise(deviation: Any, count: int, entropy: Any) -> Any:
        found = drawn(deviation, count, entropy)
        heard("noise", now[0], found.tobytes())
        return found

    def answered(self: Any, asked: int, exchange: int, number: int, bodies: Any) -> Any:
        now[0] = asked
        found = phase(self, asked, exchange, number, bodies)
        for host, answer in sorted(found.items()):
            heard(f"answer of {host}", asked, answer if isinstance(answer, bytes) else str(answer).encode())
        return found

    def released(self: Any, round: int, update: Any, closings: Any, diverged: Any) -> None:
        heard("released", round, b"" if update is None else update.scalars)
        settle(self, round, update, closings, diverged)

    central.rounded_gaussian, HostedClients.phase, HostedClients.settle = noise, answered, released


# ---- moments


def _after_answers(of_hosts: bool) -> Callable[[], None]:
    """Behind the transaction that made answers of round ROUND durable: of clients, or of hosts to a phase."""

    def light() -> None:
        keep = Answers.keep

        def kept(self: Any, round: int, exchange: int, asked: Any, answers: Any, *notes: Any) -> None:
            keep(self, round, exchange, asked, answers, *notes)
            hosts = all(-(1 << 30) < client < 0 for client in answers)
            clients = all(client >= 0 for client in answers)
            if round == ROUND and answers and (hosts if of_hosts else clients):
                die()

        Answers.keep = kept

    return light


def _at_append(after: bool) -> Callable[[], None]:
    def light() -> None:
        append = Ledger.append

        def appended(self: Any, records: Any, *others: Any, **named: Any) -> None:
            mine = any(isinstance(record, Round) and record.round == ROUND for record in records)
            if mine and not after:
                die()
            append(self, records, *others, **named)
            if mine:
                die()

        Ledger.append = appended

    return light


def _before_commit() -> None:
    """Behind the statements of the transaction, before its COMMIT."""
    append, transaction = Ledger.append, Ledger.transaction
    mine = [False]

    def appended(self: Any, records: Any, *others: Any, **named: Any) -> None:
        mine[0] = any(isinstance(record, Round) and record.round == ROUND for record in records)
        append(self, records, *others, **named)

    def begun(self: Any) -> Any:
        inner = transaction(self)

        class Cut:
            def __enter__(self) -> Any:
                return inner.__enter__()

            def __exit__(self, *error: Any) -> Any:
                if mine[0]:
                    die()
                return inner.__exit__(*error)

        return Cut()

    Ledger.append, Ledger.transaction = appended, begun


MOMENTS: dict[str, Callable[[], None]] = {
    "": lambda: None,
    "answers": _after_answers(False),
    "phase": _after_answers(True),
    "noise": _at_append(False),
    "transaction": _before_commit,
    "commit": _at_append(True),
}


# ---- bugs


def _rounded_again(folder: Path) -> None:
    """Clients forget what they answered, and their store lets them."""
    put = Answers._put

    def replaced(self: Any, place: Place, answered: Any, once: bool) -> bool:
        if not put(self, place, answered, once):
            self._db.execute("DELETE FROM answers WHERE round = ? AND client = ?", (place.round, place.client))
            return put(self, place, answered, once)
        return True

    Answers._put = replaced
    Answers.before = lambda self, place, instruction: None


def _noise_written(folder: Path) -> None:
    """A debugger's line: the noise goes into the folder."""
    real = central.rounded_gaussian

    def noise(deviation: Any, count: int, entropy: Any) -> Any:
        found = real(deviation, count, entropy)
        with (folder / "debug.log").open("ab") as file:
            file.write(found.tobytes())
        return found

    central.rounded_gaussian = noise


def _released_before_commit(folder: Path) -> None:
    """Somebody hears of the update, and then it is written."""
    append = Ledger.append

    def appended(self: Any, records: Any, *others: Any, **named: Any) -> None:
        for record in records:
            if isinstance(record, Round) and record.update is not None:
                SAID[0]("released", record.round, decode_update(record.update).scalars)
        append(self, records, *others, **named)

    Ledger.append = appended


PLANTS: dict[str, Callable[[Path], None]] = {
    "": lambda folder: None,
    "rounded again": _rounded_again,
    "noise written": _noise_written,
    "released before": _released_before_commit,
}
