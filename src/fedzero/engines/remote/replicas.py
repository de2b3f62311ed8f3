"""Replicas at sites: brought forward where they are behind, and asked to evaluate the model."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fedzero.engines.remote import measuring, messages
from fedzero.engines.remote.answers import SiteFailure
from fedzero.engines.remote.assignment import Assignment
from fedzero.engines.remote.sites import PREPARING, Sites
from fedzero.engines.remote.transport import Pending
from fedzero.model.updates import decode_update
from fedzero.protocol.engine import Interrupted, Tied, Undelivered
from fedzero.recipe.view import RunView
from fedzero.rounds import votes

BURST = 256
"""Updates in one message to a replica that is behind."""
OVERHEAD = 4096
"""Bytes of an answer in addition to the replies in it."""


class Replicas:
    """deadline: seconds of an exchange."""

    def __init__(self, sites: Sites, run: RunView, deadline: float):
        self.sites, self.run, self.deadline = sites, run, deadline
        self.may_be_behind = run.plan.traits.delivery != "snapshot"
        """False: every instruction carries the state, so no replica is ever behind"""
        self._last: tuple[int, messages.Measured] | None = None
        """the last evaluation, and after how many rounds"""

    def recover(self, round: int, by_site: Assignment) -> None:
        """Bring replicas to the round at which the server takes them to be. A replica with rounds that are not on the
        ledger (any more) begins from the base model. A site that needs longer than the deadline of an exchange
        continues on its own."""
        end = time.monotonic() + self.deadline
        for site in [s for s in by_site if s not in self.sites.away and self.may_be_behind]:
            if self.sites.ready[site] > round:
                self.sites.ready[site] = -1
            known = max(map(self.run.past.known, by_site[site]))
            if self.sites.ready[site] < known:
                self.bring(site, known, end)

    def bring(self, site: str, to: int, end: float) -> None:
        ready = self.sites.ready[site]
        updates = self.run.past.updates(ready, to)
        for first in range(0, max(1, len(updates)), BURST):
            burst = tuple(updates[first : first + BURST])
            order = messages.Recover(ready < 0 and not first, burst)
            reached = to if first + BURST >= len(updates) else decode_update(burst[-1]).round + 1
            for _, answer in self.sites.ask(
                {site: order}, messages.Done, PREPARING, OVERHEAD, lambda: time.monotonic() > end
            ):
                if isinstance(answer, SiteFailure):
                    self.sites.lose(site, f"cannot rebuild its model: {answer}")
                if isinstance(answer, Pending):
                    self.sites.coming[site] = reached
                if isinstance(answer, Exception):
                    return  # it is asked again before its next turn
            self.sites.ready[site] = reached

    def measure(self, after: int) -> messages.Measured:
        """Let a few sites, drawn for each evaluation, evaluate the model; all sites do if these do not agree, or if
        they have their own data."""
        if self._last is not None and self._last[0] == after:
            return self._last[1]
        sites = sorted(self.sites.ready.keys() - self.sites.away.keys())
        drawn = [sites[i] for i in self.run.plan.keys.generator("measure", after).permutation(len(sites))]
        found = self.measured(drawn[: measuring.MEASURING], after)
        least = self.run.plan.least_loss
        if not found or not measuring.settled(found, least):
            found |= self.measured(drawn[measuring.MEASURING :], after)
        if not found:
            raise Interrupted("no site could evaluate the model")
        ballots = {site: measured.identity for site, measured in sorted(found.items())}
        model = votes.leading(ballots)
        if model is None:
            self.sites.ready |= dict.fromkeys(found, -1)
            raise Tied(
                f"the model after {after} rounds is not the same everywhere ({votes.sides(ballots, 'model {}')})"
            )
        for site in [site for site, other in ballots.items() if other != model]:
            self.sites.ready[site] = -1
            self.sites.report(f"{site} evaluated model {found.pop(site).identity}, not {model}: must rebuild")
        clients = {site: len(mine) for site, mine in self.sites.assignment.items()}
        metrics, odd = measuring.combined({site: found[site] for site in sorted(found)}, clients, least)
        for site, why in sorted(odd.items()):
            self.sites.report(f"{site} {why}")
        self._last = after, messages.Measured(model.digest, metrics, sha256=model.sha256)
        return self._last[1]

    def measured(self, sites: Sequence[str], after: int) -> dict[str, messages.Measured]:
        """The evaluations of the given sites, without the sites that could not evaluate the model."""
        orders, found, end = {}, {}, time.monotonic() + self.deadline
        for site in sites:
            updates: Sequence[bytes] = ()
            if self.may_be_behind:
                if self.sites.ready[site] < 0:
                    self.bring(site, after, end)
                if site in self.sites.away or self.sites.ready[site] < 0:
                    continue
                updates = self.run.past.updates(self.sites.ready[site], after)
            orders[site] = messages.Measure(tuple(updates), after)
        enough = self.sites.most_of(orders)
        for site, answer in self.sites.ask(orders, messages.Measured, PREPARING, 1 << 20, enough):
            if isinstance(answer, messages.Measured):
                enough.answered()
                self.sites.ready[site] = max(after, self.sites.ready[site])
                found[site] = answer
            else:
                if isinstance(answer, Pending):
                    self.sites.coming[site] = after
                elif not isinstance(answer, Undelivered):  # its absence was reported already
                    self.sites.report(f"{site} could not evaluate the model: {answer}")
        return found
