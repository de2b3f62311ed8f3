"""Engines that count, lose or change what passes, and sites in this process behind a link that breaks when told to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedzero.deploy.site.site import Settings, Site
from fedzero.engines.remote.transport import Answers, never
from fedzero.errors import Refused
from fedzero.protocol.engine import Interrupted
from fedzero.protocol.messages import decode_reply

Sent = tuple[int, bytes | Exception]
Replies = list[Sent]
Change = Callable[[Replies, int, int], Replies]
"""(replies, round, exchange) → replies"""


class Changing:
    """An engine whose replies are changed before the server sees them: in every exchange or `at` one, in every round or
    `during` some. Counts what passes: bytes both ways, and those of the numbers of a reply by (round, exchange)."""

    def __init__(self, engine: Any, change: Change | None = None, at: int | None = None, during: range | None = None):
        self.engine, self.change, self.at, self.during = engine, change, at, during
        self.up = self.down = 0
        self.sizes: dict[tuple[int, int], set[int]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def exchange(self, round: int, exchange: int, instructions: Mapping[int, bytes]) -> Iterator[Sent]:
        self.down += sum(map(len, instructions.values()))
        replies: Replies = list(self.engine.exchange(round, exchange, instructions))
        for _, data in replies:
            if isinstance(data, bytes):
                self.up += len(data)
                sizes = self.sizes.setdefault((round, exchange), set())
                sizes.add(len(decode_reply(data, 1 << 30).values))
        here = self.at in (None, exchange) and (self.during is None or round in self.during)
        yield from replies if self.change is None or not here else self.change(replies, round, exchange)

    def close(self, round: int, update: Any, closings: Mapping[int, bytes]) -> None:
        self.down += sum(map(len, closings.values()))
        self.engine.close(round, update, closings)


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


class LocalSites:
    """A link to sites in this process, made anew in every epoch as a site's process is.

    breaks(asked): whether the epoch ends after so many answers of all epochs. `forgetful` sites have no folder to come
    back to.
    """

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
        """sites that wait to be let in, asked before every round"""

    def begin(self) -> Collection[str]:
        for site in self.sites.values():
            site.leave()
        self.epochs += 1
        keep = f"{self.epochs}" if self.forgetful else "kept"
        self.sites = {name: Site(Settings(device="cpu"), self.folder / keep / name) for name in self.names}
        self.wants.clear()
        return list(self.sites)

    def ask(
        self, orders: Mapping[str, bytes], seconds: float, limit: int, enough: Callable[[], bool] = never
    ) -> Answers:
        for name, order in orders.items():
            self.asked += 1
            if self.breaks(self.asked):
                raise Interrupted("the link broke")
            answer = self.spoil(name, self.sites[name].answer(order))
            fits = len(answer) <= limit
            yield name, answer if fits else Refused(f"sent {len(answer)} bytes, at most {limit} expected")

    def late(self) -> Answers:
        yield from ()

    def waiting(self) -> Collection[str]:
        return self.wants
