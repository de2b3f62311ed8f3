"""The sites of a run: which of them are present, ready and asked, and the epochs in which they take part."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from msgspec import Struct, structs

from fedzero.callbacks import always_false
from fedzero.engines.remote import messages
from fedzero.engines.remote.agreement import common, differs
from fedzero.engines.remote.answers import SiteFailure, T, received
from fedzero.engines.remote.assignment import Assignment
from fedzero.engines.remote.transport import Enough, Link, News, Pending, Waiting
from fedzero.errors import FedzeroError
from fedzero.protocol.engine import Event, Interrupted, Joined, Left
from fedzero.rounds.refusals import AT_SITE, named

W = TypeVar("W")
PREPARING = 3600.0
"""Seconds after which a site that gets ready, catches up or evaluates counts as gone. The others wait for it only as
long as `Enough` or the deadline of an exchange says."""
DOING: dict[type[Struct], str] = {
    messages.Prepared: "still gets ready",
    messages.Done: "still catches up",
    messages.Measured: "still evaluates",
}
"""By kind of answer: what a site does while its answer is pending."""


@dataclass(frozen=True)
class Service:
    """How a run is served. roster: all sites, whether present or not; deadline: seconds of an exchange; report: is
    told in sentences what happens to sites and epochs; idle: is called repeatedly between runs; minimum: number of
    sites that must be ready before the others are left behind; patience: seconds to wait for these others."""

    link: Link
    roster: Callable[[], Sequence[str]]
    deadline: float = 60.0
    report: Callable[[str], None] = lambda text: None
    idle: Callable[[], None] = lambda: None
    minimum: int = 1
    patience: float = 30.0


class Sites:
    """prepare, assign and fits: see `RemoteClients`."""

    def __init__(
        self,
        service: Service,
        prepare: messages.Prepare,
        assign: Callable[[Collection[str]], Assignment],
        fits: Callable[[messages.Prepared], bool],
    ):
        self.service, self.link, self.report = service, service.link, service.report
        self.prepare, self.assign, self.fits = prepare, assign, fits
        self.started = False
        """whether the run has begun"""
        self.assignment: Assignment = {}
        self.away: dict[str, str] = {}
        """by site that takes no part in this epoch (any more): the reason"""
        self.missed: dict[str, str] = {}
        """by site that was reported missing: the reason; each is reported once"""
        self.seen: set[str] = set()
        """sites that have taken part"""
        self.ready: dict[str, int] = {}
        """the round a site's replica is known to be ready for; −1: to be rebuilt"""
        self.pending: dict[str, type[Struct]] = {}
        """by site that is away until its answer has come: the kind of answer"""
        self.coming: dict[str, int] = {}
        """by site that still catches up: the round for which it will be ready"""
        self.common: messages.Prepared | None = None
        """the start on which the sites agreed"""
        self.open, self.epoch = False, 0
        """whether an epoch is in progress; its number"""
        self.told = set[str]()
        """sites that were last reported as present"""
        self.come = set[str]()
        """sites that have come and have no clients yet: they get some between two rounds"""
        self.since = set[str]()
        """sites that have come since the orders of this exchange left"""
        self.played: dict[int, int] = {}
        """by client, the epoch in which it played the exchanges of the round"""

    def lasting(self, work: Callable[[], W]) -> W:
        """Do work that needs an epoch; if the epoch ends before the work does, repeat it in the next one."""
        while True:
            try:
                if not self.open:
                    self.begin()
                return work()
            except Interrupted as reason:
                self.over(reason)

    def over(self, reason: Interrupted) -> None:
        self.open = False
        self.report(f"the epoch ended: {reason}")

    def begin(self) -> None:
        """Begin an epoch. A site with another base model than most is left out, by name."""
        self.epoch += 1
        here = self.link.begin()
        self.assignment = self.assign(here)
        self.pending, self.coming, self.ready, self.come = {}, {}, {}, set()
        self.away = {site: "is away" for site in self.assignment if site not in here}
        for site in self.away:
            self.miss(site)
        orders = self.preparing(here)
        found: dict[str, messages.Prepared] = {}
        enough = self.most_of(orders, self.service.minimum)
        for site, answer in self.ask(orders, messages.Prepared, PREPARING, 1 << 20, enough):
            if isinstance(answer, messages.Prepared):
                enough.answered()
                found[site] = answer
            elif not isinstance(answer, Pending):
                self.lose(site, f"cannot take part: {answer}")
        if not found:
            raise self.nobody()
        if self.common is None:
            self.common = common(found, self.fits)
        for site, prepared in found.items():
            self.admit(site, prepared)
        if not self.ready:
            raise self.nobody()
        self.open = True

    def preparing(self, sites: Collection[str]) -> dict[str, messages.Order]:
        mine = {site: self.assignment.get(site) for site in sites}
        return {site: structs.replace(self.prepare, clients=clients) for site, clients in mine.items() if clients}

    def welcome(self, between: bool = True) -> None:
        """Prepare sites that have come since the epoch began, while the others continue. In the middle of a round
        (between = False) clients stay where they are."""
        self.come |= set(self.link.admit())
        come = sorted(site for site in self.come if between or self.assignment.get(site))
        self.come -= set(come)
        if not come:
            return
        if between:
            self.assignment = self.assign(come)
        self.since |= set(come)
        for site in come:  # its new process knows nothing, whatever it knew before
            self.ready.pop(site, None)
            for client in self.assignment.get(site, ()):
                self.played.pop(client, None)
        orders = self.preparing(come)
        for site, answer in self.ask(orders, messages.Prepared, PREPARING, 1 << 20, lambda: True):
            if isinstance(answer, messages.Prepared):
                self.admit(site, answer)
            elif not isinstance(answer, Pending):
                self.lose(site, f"cannot take part: {answer}")

    def nobody(self) -> FedzeroError:
        reasons = "; ".join(f"{site} {why}" for site, why in self.away.items())
        # A run that has begun waits until a site is ready; a run that has not begun ends here.
        return (FedzeroError if not self.started else Interrupted)(f"no site is ready: {reasons}")

    def admit(self, site: str, found: messages.Prepared) -> None:
        assert self.common is not None
        if why := differs(found, self.common):
            self.lose(site, why)
            return
        self.away.pop(site, None)
        self.ready[site] = found.round
        self.find(site)

    def most_of(self, sites: Collection[str], minimum: int = 1) -> Enough:
        return Enough(min(max(minimum, len(sites) // 2 + 1), len(sites)), self.service.patience)

    def arrivals(self) -> None:
        """Take the late answers of sites that were not waited for."""
        for site, data in self.link.late() if self.pending else ():
            kind = self.pending.pop(site, messages.Done)
            answer = received(site, data, kind)
            self.away.pop(site, None)
            if isinstance(answer, messages.Prepared):
                self.admit(site, answer)
            elif isinstance(answer, Exception) and (kind is messages.Prepared or isinstance(answer, SiteFailure)):
                self.lose(site, f"cannot take part: {answer}")
            elif not isinstance(answer, Exception):
                self.ready[site] = max(self.ready[site], self.coming.pop(site, -1))

    def lose(self, site: str, why: str) -> None:
        self.away[site] = why
        if self.missed.get(site) != why:
            self.missed[site] = why
            self.report(f"{site} {why}")

    def miss(self, site: str, cause: str = "") -> None:
        if site in self.missed or not (clients := self.assignment.get(site)):
            return
        known, because = site in self.seen, f" ({cause})" if cause else ""
        left_out = f"{named(clients)} {'are' if len(clients) > 1 else 'is'} left out"
        self.missed[site] = cause
        self.report(
            f"site {site} is {'gone' if known else 'not here yet'}{because}: {left_out} until it "
            f"{'returns' if known else 'joins'}"
        )

    def find(self, site: str) -> None:
        if self.missed.pop(site, None) is not None:
            self.report(f"site {site} is {'back' if site in self.seen else 'here'}")
        self.seen.add(site)

    def here(self) -> set[str]:
        return self.ready.keys() - self.away.keys() - self.missed.keys()

    def joined(self) -> list[Event]:
        """The sites that have come since the last call."""
        come = sorted(self.here() - self.told)
        self.told |= set(come)
        return [Joined(site, self.assignment.get(site, ())) for site in come]

    def left(self) -> list[Event]:
        """The sites that have gone since the last call. A client that was sent nothing also gets an `Undelivered`
        arrival."""
        gone = sorted(self.told - self.here())
        self.told -= set(gone)
        return [Left(s, self.assignment.get(s, ()), f"{AT_SITE} {s} {self.away.get(s, 'is gone')}") for s in gone]

    def ask(
        self,
        orders: Mapping[str, messages.Order],
        wanted: type[T],
        seconds: float,
        limit: int,
        enough: Callable[[], bool] = always_false,
        news: bool = False,
    ) -> Iterator[tuple[str, T | Exception]]:
        """Send orders to sites; from each, an answer of the wanted kind or the reason why there is none. news: also
        yields news between the answers; otherwise they are read before the next round."""
        if not orders:
            return
        encoded = {site: messages.encode(order) for site, order in orders.items()}
        for site, data in self.link.ask(encoded, seconds, limit, enough):
            if isinstance(data, Pending):
                self.pending[site] = wanted
                self.away[site] = DOING.get(wanted, "is busy")
                if self.missed.get(site) != self.away[site]:
                    self.missed.pop(site, None)
                    self.miss(site, self.away[site])
            if news or not isinstance(data, News | Waiting):
                yield site, received(site, data, wanted)
