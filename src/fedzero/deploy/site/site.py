"""A site: orders in, answers out; the transport is not known here.

The model is loaded when a run is prepared, and stays; all clients of a site share one replica (`run`).
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec
import torch
from msgspec import Struct

from fedzero.deploy.site import admission, reasons
from fedzero.deploy.site.allowance import Clock
from fedzero.deploy.site.reasons import Reason
from fedzero.deploy.site.run import SiteRun
from fedzero.deploy.site.settings import Settings as Settings
from fedzero.engines.remote import messages
from fedzero.errors import Refused
from fedzero.lines import printable
from fedzero.model.decoding import MALFORMED

LOGGED = 1000
"""The most errors that a process prints."""
KINDS: dict[type[messages.Order], Reason] = {
    messages.Prepare: Reason.TASK,
    messages.Recover: Reason.REBUILD,
    messages.Deliver: Reason.REBUILD,
    messages.Exchange: Reason.TURN,
    messages.Measure: Reason.MEASURE,
    messages.Phase: Reason.TURN,
}
"""By kind of order: the reason that is sent if the order could not be obeyed and the error itself must stay here."""


class SiteState(Struct, frozen=True, rename={"run": "name"}):
    """The activity of a site. round: the current or last round, counted from 1; 0 while the run is prepared. finished:
    the run has ended. problem: the reason why the site cannot take part."""

    run: str
    rounds: int
    round: int = 0
    busy: bool = True
    finished: bool = False
    problem: str = ""


class Site:
    """`answer` obeys orders; `state` is for the people at the site."""

    def __init__(self, settings: Settings, keep: Path):
        self.settings, self.keep = settings, keep
        self.run: SiteRun | None = None
        self.state: SiteState | None = None
        self._clock = Clock()
        """one clock for all runs: no order restarts it"""
        self._logged = "", 0
        """the last error, and how many were printed"""

    def answer(self, data: bytes) -> bytes:
        """Answer any order; if it cannot be obeyed, with a sentence that reveals nothing about the site."""
        problem, kind = "", Reason.ORDER
        try:
            most = admission.SMALL if self.run is None else self.run.agreement.largest
            if len(data) > most:
                raise Refused(f"was sent an order of {len(data):,} bytes, where at most {most:,} are expected")
            order = messages.decode_order(data)
            self.state, kind = _begun(order, self.state), KINDS.get(type(order), kind)
            return messages.encode(self._obey(order))
        except (Exception, SystemExit) as error:  # the site's own code may raise anything
            problem = reasons.kept(error)
            self.log(error)
            return messages.encode(messages.Failed(reasons.sent(error, kind)))
        finally:
            if self.state is not None:
                unable = problem if self.run is None else ""
                self.state = msgspec.structs.replace(self.state, busy=False, problem=unable)

    def log(self, error: BaseException) -> None:
        """Print an error; a repeated one only once, and at most `LOGGED` in all: orders must not fill the disk."""
        text, (last, count) = reasons.kept(error), self._logged
        if text != last and count < LOGGED:
            self._logged = text, count + 1
            reasons.log(error)

    def _obey(self, order: messages.Order) -> messages.Answer:
        if isinstance(order, messages.Prepare):
            if self.settings.threads is not None:
                torch.set_num_threads(self.settings.threads)
            self.leave()
            self.run = None
            self.run = SiteRun(order, self.settings, self.keep, self.log, self._clock)
            return self.run.prepared()
        if self.run is None:
            raise Refused("was given work before it was prepared for a run")
        match order:
            case messages.Recover():
                return self.run.recover(order)
            case messages.Exchange():
                return self.run.exchange(order)
            case messages.Deliver():
                return self.run.deliver(order)
            case messages.Measure():
                return self.run.measure(order)
            case messages.Phase():
                return self.run.phase(order)
            case messages.Finish():
                admission.check_finish(self.run.agreement, order)
                self.run.finish(order.rounds)
                return messages.Done()

    def leave(self) -> None:
        """The process ends, or another run begins."""
        if self.run is not None:
            self.run.close()


def _begun(order: messages.Order, before: SiteState | None) -> SiteState | None:
    """The state of a site when it begins to obey an order."""
    if isinstance(order, messages.Prepare):
        with suppress(*MALFORMED):
            found = msgspec.json.decode(order.recipe, type=SiteState)  # name and rounds of the recipe
            rounds = order.rounds if isinstance(order, messages.PrepareExtended) else found.rounds
            return msgspec.structs.replace(found, run=printable(found.run, reasons.LONGEST), rounds=rounds)
    if before is None:
        return None
    if isinstance(order, messages.Finish):
        return msgspec.structs.replace(before, round=order.rounds, finished=True)
    round = order.round + 1 if isinstance(order, messages.Exchange) else before.round
    return msgspec.structs.replace(before, round=round, busy=True)
