"""Clients whose replies somebody counts, loses or changes on the way, and sites in this process behind a link that
breaks when told to."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from fedzero.callbacks import always_false
from fedzero.deploy.site.site import Settings, Site
from fedzero.engines.remote.transport import Answers, Gone, News
from fedzero.errors import FedzeroError, Refused
from fedzero.model.updates import Update
from fedzero.oracles import ALL_DATA
from fedzero.protocol.altered import Altered
from fedzero.protocol.engine import Arrival, Clients, Interrupted, Undelivered
from fedzero.protocol.messages import decode_reply

Sent = tuple[int, bytes | Exception]
Replies = list[Sent]
Change = Callable[[Replies, int, int], Replies]
"""(replies, round, exchange) → replies"""


class Changing(Altered):
    """Clients whose replies are changed before the server sees them: in every exchange or `at` one, in every round or
    `during` some. Counts what passes: bytes both ways, and those of the numbers of a reply by (round, exchange)."""

    def __init__(
        self, clients: Clients, change: Change | None = None, at: int | None = None, during: range | None = None
    ):
        super().__init__(clients, self._changed)
        self.change, self.at, self.during = change, at, during
        self.up = self.down = 0
        self.sizes: dict[tuple[int, int], set[int]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def send(self, asked: int, exchange: int, messages: Sequence[bytes], which: Mapping[int, int]) -> None:
        self.down += sum(len(messages[message]) for message in which.values())
        super().send(asked, exchange, messages, which)

    def _changed(self, round: int, exchange: int, arrivals: Sequence[Arrival]) -> Sequence[Arrival]:
        for arrival in arrivals:
            if isinstance(arrival.data, bytes):
                self.up += len(arrival.data)
                sizes = self.sizes.setdefault((round, exchange), set())
                sizes.add(len(decode_reply(arrival.data, 1 << 30).values))
        here = self.at in (None, exchange) and (self.during is None or round in self.during)
        if self.change is None or not here:
            return arrivals
        whole = {arrival.client: arrival for arrival in arrivals}
        changed = self.change([(arrival.client, arrival.data) for arrival in arrivals], round, exchange)
        return [replace(whole.get(client, Arrival(client, data)), data=data) for client, data in changed]

    def settle(
        self, round: int, update: Update | None, closings: Mapping[int, bytes], diverged: Collection[int]
    ) -> None:
        self.down += sum(map(len, closings.values()))
        super().settle(round, update, closings, diverged)


class Counting:
    """An objective that counts evaluations itself: one for every point and batch, one for every gradient."""

    def __init__(self, objective: Any):
        self.objective, self.evaluations = objective, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.objective, name)

    def losses(self, base: Any, points: Any, batches: Any, basis: Any = None) -> Any:
        self.evaluations += len(points) * len(batches)
        return self.objective.losses(base, points, batches, basis)

    def gradient(self, base: Any, batch: Any) -> Any:
        self.evaluations += 1
        return self.objective.gradient(base, batch)


class Failing:
    """An objective that cannot be evaluated on the data of one client."""

    def __init__(self, objective: Any, shards: Any, keys: Any, client: int):
        self.objective, self._bad = objective, shards.batch(keys, 0, ALL_DATA, client)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.objective, name)

    def losses(self, base: Any, points: Any, batches: Any, basis: Any = None) -> Any:
        if any(np.array_equal(batch[0], self._bad[0]) for batch in batches):
            raise FedzeroError("this client's function cannot be evaluated")
        return self.objective.losses(base, points, batches, basis)


class Delayed:
    """An objective whose evaluations take so many seconds longer."""

    def __init__(self, objective: Any, seconds: float):
        self.objective, self._seconds = objective, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self.objective, name)

    def losses(self, base: Any, points: Any, batches: Any, basis: Any = None) -> Any:
        time.sleep(self._seconds)
        return self.objective.losses(base, points, batches, basis)


@dataclass(frozen=True)
class SiteProgram:
    """A site, as what the host of a transport runs; it keeps what outlasts it in the folder of its name."""

    folder: Path
    engine: str | dict[str, Any] = ""

    def __call__(self, name: str) -> Site:
        return Site(Settings(device="cpu", threads=1, engine=self.engine), self.folder / name)


class LocalSites:
    """A link to sites in this process, made anew in every epoch as a site's process is.

    breaks(asked): whether the epoch ends after so many answers of all epochs. `forgetful` sites have no folder to come
    back to.
    """

    several = True

    def __init__(
        self,
        folder: Path,
        names: Collection[str],
        breaks: Callable[[int], bool] = lambda asked: False,
        forgetful: bool = False,
    ):
        self.folder, self.names, self.breaks, self.forgetful = folder, list(names), breaks, forgetful
        self.epochs = self.asked = 0
        self.sites: dict[str, Site] = {}
        self.spoil: Callable[[str, bytes], bytes] = lambda site, answer: answer
        self.wants: set[str] = set()
        """sites that wait to be let in"""
        self.leaves: set[str] = set()
        """sites that leave when they are asked next"""

    def begin(self) -> Collection[str]:
        for site in self.sites.values():
            site.leave()
        self.epochs += 1
        self.sites = {name: self._made(name) for name in self.names}
        self.wants.clear()
        return list(self.sites)

    def _made(self, name: str) -> Site:
        keep = f"{self.epochs}" if self.forgetful else "kept"
        return Site(Settings(device="cpu"), self.folder / keep / name)

    def ask(
        self, orders: Mapping[str, bytes], seconds: float, limit: int, enough: Callable[[], bool] = always_false
    ) -> Answers:
        absent = orders.keys() - self.sites.keys()  # orders leave together
        for name, order in orders.items():
            self.asked += 1
            if self.breaks(self.asked):
                raise Interrupted("the link broke")
            if name in absent:
                yield name, Undelivered("is not here")
                continue
            if name in self.leaves:
                self.leaves.discard(name)
                self.sites.pop(name).leave()
                yield name, Gone("left the federation")
                continue
            answer = self.spoil(name, self.sites[name].answer(order))
            fits = len(answer) <= limit
            yield name, answer if fits else Refused(f"sent {len(answer)} bytes, at most {limit} expected")
            if self.wants:
                yield name, News()

    def late(self) -> Answers:
        yield from ()

    def admit(self) -> Collection[str]:
        come = sorted(self.wants)
        self.wants.clear()
        self.sites |= {name: self._made(name) for name in come}
        return come
