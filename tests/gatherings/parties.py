"""Hosts of a secure sum with their disks, and a server between them that may do what it likes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from fedzero.engines.gathering import Hosting, Own
from fedzero.errors import FedzeroError
from fedzero.gatherings.committee import SecureSum
from fedzero.ledger.answers import Answers
from fedzero.links import Chain, Total
from fedzero.links.gathering import ServerContext
from fedzero.model.updates import pack
from fedzero.protocol.messages import Phase, Reply, encode_reply

NUMBERS = 3
RUN = "a run"
Answer = bytes | Exception
Change = Callable[[int, dict[str, bytes]], Mapping[str, bytes]]
"""(phase, bodies by host) → the bodies that are sent"""


class Party:
    """A host with one client, of its own number; every question is put to a new process."""

    def __init__(self, folder: Path, client: int, gathering: SecureSum, own: Own, numbers: int = NUMBERS):
        self.folder, self.client, self.chain, self.own, self.numbers = folder, client, Chain(), own, numbers
        self.gathering = gathering
        self.folder.mkdir(parents=True)
        self.sent: dict[tuple[int, int, int], list[Answer]] = {}

    def values(self, round: int) -> np.ndarray:
        """Multiples of 1/8, of this round and client alone."""
        drawn = np.random.default_rng((round, self.client)).integers(-4000, 4000, self.numbers)
        return (drawn / 8).astype(np.float32)

    def ask(self, order: Phase) -> Answer:
        reply = Reply(order.round, order.exchange, bytes(8), pack(self.values(order.round)), b"\0" * 4, 1)
        with closing(Answers(self.folder)) as answers:
            hosting = Hosting(self.chain, self.gathering, answers, np.random.bytes, self.own)
            found = hosting.answers({0: order}, lambda host: {self.client: encode_reply(reply)}, self.numbers)[0]
        self.sent.setdefault((order.round, order.exchange, order.phase), []).append(found)
        return found

    def finish(self) -> None:
        with closing(Answers(self.folder)) as answers:
            Hosting(self.chain, self.gathering, answers, np.random.bytes, self.own).finish()

    def copy(self, where: Path) -> None:
        shutil.copytree(self.folder, where)

    def put_back(self, copy: Path) -> None:
        shutil.rmtree(self.folder)
        shutil.copytree(copy, self.folder)


class Federation:
    """Parties "a", "b", … and the phases between them. lost: (phase, host) that do not answer."""

    def __init__(
        self, folder: Path, count: int, gathering: SecureSum | None = None, own: Own | None = None, **options: Any
    ):
        self.gathering = gathering or SecureSum(scale=8.0)
        names = [chr(ord("a") + i) for i in range(count)]
        mine = own or Own(run=RUN)
        self.parties = {n: Party(folder / n, i, self.gathering, mine, **options) for i, n in enumerate(names)}
        self.lost: set[tuple[int, str]] = set()
        self.bodies: list[dict[str, bytes]] = []
        self.answers: list[dict[str, Answer]] = []

    def play(
        self, round: int, exchange: int = 0, change: Change | None = None, idle: Sequence[str] = ()
    ) -> tuple[Total, int]:
        """The total, and the number of phases. idle: hosts without a client. change: what the server sends instead."""
        hosts = {name: () if name in idle else (party.client,) for name, party in self.parties.items()}
        weights = {client: 1 for mine in hosts.values() for client in mine}
        numbers = next(iter(self.parties.values())).numbers
        phases = self.gathering.at_server(hosts, ServerContext(round, exchange, numbers, weights))
        return self._played(phases, round, exchange, change)

    def _played(self, phases: Generator[Any, Any, Any], round: int, exchange: int, change: Change | None) -> Any:
        self.bodies, self.answers = [], []
        bodies: Mapping[str, bytes] = next(phases)
        while True:
            phase = len(self.bodies)
            sent = bodies if change is None else change(phase, dict(bodies))
            answers = {name: self.answer(name, Phase(round, exchange, phase, body)) for name, body in sent.items()}
            self.bodies.append(dict(sent))
            self.answers.append(answers)
            try:
                bodies = phases.send(answers)
            except StopIteration as done:
                return done.value, phase + 1

    def answer(self, name: str, order: Phase) -> Answer:
        return FedzeroError("the line is dead") if (order.phase, name) in self.lost else self.parties[name].ask(order)

    def right(self, round: int, names: Sequence[str]) -> np.ndarray:
        return np.sum([self.parties[name].values(round).astype(np.float64) for name in names], axis=0)

    def why(self, phase: int) -> dict[str, str]:
        """Of the last play, by host that did not answer a phase, the reason."""
        return {name: str(a) for name, a in self.answers[phase].items() if isinstance(a, Exception)}
