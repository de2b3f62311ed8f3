"""The clients of a run whose clients are devices: the contract of engines, on one side of a hub.

    come ──▶ behind: sent the updates that it missed, or a checkpoint ──▶ present: may be asked ──▶ gone

A device catches up while others play rounds, all of them at once; nobody waits for it. It is asked for the first time
in the round after it has caught up. A device whose connection breaks in a round may come back until the deadline: its
order waits for it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from queue import Empty

from fedzero.engines.devices import messages as m
from fedzero.engines.devices.attempts import Attempts
from fedzero.engines.devices.catching_up import IN_FRAME, Missed, Offered
from fedzero.engines.devices.hub import Came, Caught, Declined, Hub, HubEvent, Said, Went
from fedzero.engines.devices.plan import Rates
from fedzero.engines.devices.session import Asked
from fedzero.engines.devices.sums import WIDEST, Sums
from fedzero.errors import FedzeroError
from fedzero.model.identity import Identity
from fedzero.model.updates import Update
from fedzero.oracles import Metrics
from fedzero.protocol.engine import Arrival, Event, Joined, Left, Undelivered
from fedzero.protocol.messages import Work, decode_instruction
from fedzero.protocol.outstanding import Outstanding
from fedzero.recipe.view import RunView
from fedzero.rounds.present import NEAR

ANOTHER_ORDER = 1
"""The code of a refusal: the device has answered another order under the same number."""
LOOK_EVERY = 0.1
PAUSE = 30
"""Seconds after which devices try again while the run is paused."""
MOST_REBUILDS = 3
MOST_IDLE = 8
LONGEST_REST = 3600.0
"""Seconds for which a device that does not answer is not asked, at most."""
SAY_EVERY = 30.0
"""Seconds between two lines about waiting for devices."""


class DeviceClients:
    """deadline: seconds of an exchange; grace: in which a device that lost its connection may come back to the round.
    least: devices that must be present before a round begins."""

    def __init__(self, hub: Hub, run: RunView, rates: Rates, deadline: float, grace: float, least: int):
        setup, replica = run.built()
        self.hub, self.run, self.rates, self.least = hub, run, rates, least
        self.deadline, self.grace, self.missed = deadline, grace, Missed(run, rates)
        self.problem, self.replica = setup.problem, replica
        self.standing = dict[int, int]()
        """by place that is here and near the current round: the round that its model is ready for"""
        self._behind = set[int]()
        """places that are here and catch up"""
        self._open = Outstanding[float]()
        """questions, with the time at which they expire"""
        self._rebuild = set[int]()
        """places whose model is not the run's"""
        self._rebuilt = Counter[int]()
        """by place: how often it had to rebuild"""
        self._reached = dict[int, int]()
        """by place: the round for which it said last that it is ready"""
        self._idle = Counter[int]()
        """by place: how often it said so and was no further, since its last answer"""
        self._silent = dict[int, tuple[int, float]]()
        """by place that let its last orders expire: how many, and until when others are asked in its place"""
        self._lost = False
        """whether a device knows of rounds that the ledger has not: its end was lost"""
        self._sums = Sums() if run.plan.chain.gathering is not None else None
        """of a run with [privacy]"""
        self._gone = dict[int, float]()
        """by place that lost its connection: until when it may come back in this round"""

    # ---- who is present

    def present(self) -> Collection[int]:
        """The places that may be asked now; waits until there are enough."""
        said = time.monotonic()
        self.hub.post(self.hub.begin, self.replica.round)
        while True:
            self._happenings(0.0)
            self._catch_up_late()
            if self.hub.paused:
                self._pause()
            elif len(self.standing) >= self.least:
                return sorted(self._answering())
            if time.monotonic() - said > SAY_EVERY:
                said = time.monotonic()
                self.run.warn(f"waiting for devices: {len(self.standing)} of at least {self.least} are here")
            self._happenings(LOOK_EVERY)

    def _answering(self) -> Collection[int]:
        """Those who are present but for devices that let orders expire, if there are enough others: one that is silent
        would take the time of each round."""
        now = time.monotonic()
        found = [place for place in self.standing if self._silent.get(place, (0, 0.0))[1] <= now]
        return found if len(found) >= self.least else self.standing

    def _pause(self) -> None:
        """The operator has paused the run: devices are sent away, and the next round waits."""
        self.run.warn(f"paused ({self.hub.paused}): `fedzero devices resume {self.run.environment.folder}` goes on")
        self.hub.post(self.hub.pause, PAUSE, f"the operator has paused the run: {self.hub.paused}")
        while self.hub.paused:
            self._happenings(LOOK_EVERY)
        self.run.warn("devices are let in again")

    def _catch_up_late(self) -> None:
        """Devices that were not asked for a long time get updates before they are."""
        now = self.replica.round
        for place in [place for place, ready in self.standing.items() if now - ready > IN_FRAME]:
            self._catch_up(place, self.standing.pop(place))

    def _catch_up(self, place: int, ready: int | None) -> None:
        """Let a device become ready for the current round, by the fewest bytes."""
        now = self.replica.round
        fresh = ready is None or ready > now or place in self._rebuild
        first = 0 if fresh or ready is None else ready
        if not fresh and ready is not None and now - ready <= NEAR and ready >= self.run.past.known(place):
            self._behind.discard(place)
            self.standing[place] = ready
            self.hub.post(self.hub.resend, place)
            return
        self._behind.add(place)
        self._rebuild.discard(place)
        found = self.missed.shorter(fresh, first)
        if isinstance(found, Offered):
            self.hub.post(self.hub.offer, place, found.body, found.sha256, found.content)
        else:
            self.hub.post(self.hub.update, place, found)

    # ---- rounds

    def send(self, asked: int, exchange: int, messages: Sequence[bytes], which: Mapping[int, int]) -> None:
        said = {client: messages[message] for client, message in which.items()}
        self._open.add(asked, exchange, said, time.monotonic() + self.deadline)
        bodies = [self._body(asked, message) for message in messages]
        limit, attempt = self.run.past.limit(asked, exchange), self._attempt(asked, exchange, bodies, which)
        limit += 0 if self._sums is None else WIDEST * self.run.plan.numbers
        orders = {c: Asked(asked, exchange, attempt, bodies[i], limit) for c, i in which.items()}
        self.hub.post(self.hub.begin, asked)
        self.hub.post(self.hub.deliver, orders)

    def _attempt(self, asked: int, exchange: int, bodies: Sequence[bytes], which: Mapping[int, int]) -> int:
        """The attempt of these orders, durable before one of them leaves."""
        folder = self.run.environment.folder
        assert folder is not None
        with closing(Attempts(folder)) as attempts:
            found = attempts.of(asked, exchange, {c: bodies[i] for c, i in which.items()}, self._lost)
        self._lost = False
        return found

    def _body(self, asked: int, message: bytes) -> bytes:
        instruction = decode_instruction(message)
        assert isinstance(instruction, Work), "devices are sent updates, and nothing else"
        return m.encode(m.OrderBody(message, self.rates.of([*(u.round for u in instruction.updates), asked])))

    def receive(self, seconds: float) -> Sequence[Event]:
        end = time.monotonic() + seconds
        while True:
            self._open.prune()
            if not self._open.batches:
                return ()
            now = time.monotonic()
            found = self._happenings(max(0.0, min(LOOK_EVERY, end - now))) or self._expired(now)
            if found or now >= end:
                return found

    def _expired(self, now: float) -> list[Event]:
        events = list[Event]()
        for batch in self._open.batches:
            for client in list(batch.awaited):
                if now < min(batch.work, self._gone.get(client, batch.work)):
                    continue
                why = "is gone" if client in self._gone else f"did not answer in {self.deadline:g} s"
                count = self._silent.get(client, (0, 0.0))[0]
                rest = min(self.deadline * 2 ** min(count, 20), LONGEST_REST)
                self._silent[client] = count + 1, now + rest
                error = FedzeroError(f"device {client} {why}")
                events.append(Arrival(client, error, _host(client), asked=batch.asked))
                self.hub.post(self.hub.expire, [client])
        return self._noted(events)

    def _happenings(self, seconds: float) -> list[Event]:
        """What devices have said, and what became of them; waits up to so many seconds for the first."""
        found = list[Event]()
        try:
            found += self._happened(self.hub.events.get(timeout=seconds) if seconds else self.hub.events.get_nowait())
            while True:
                found += self._happened(self.hub.events.get_nowait())
        except Empty:
            return self._noted(found)

    def _noted(self, events: Sequence[Event]) -> list[Event]:
        for event in events:
            if isinstance(event, Arrival):
                for batch in self._open.batches:
                    batch.awaited.pop(event.client, None)
        return list(events)

    def _happened(self, event: HubEvent) -> list[Event]:
        place = event.place
        if isinstance(event, Came):
            self._gone.pop(place, None)
            self._reached.pop(place, None)
            self._lost |= event.ready is not None and event.ready > self.replica.round
            self._catch_up(place, event.ready)
            return [Joined(_host(place), (place,))]
        if isinstance(event, Caught):
            return self._caught(event)
        if isinstance(event, Said):
            self._silent.pop(place, None)
            self._idle.pop(place, None)
            self.standing[place] = max(event.round, self.standing.get(place, 0))
            host = _host(place)
            body = event.body if self._sums is None else self._sums.taken(event.round, host, event.body)
            return [Arrival(place, body, host, asked=event.round)]
        if isinstance(event, Declined):
            self._lost |= event.code == ANOTHER_ORDER
            why = f"device {place} refuses the order (code {event.code}): {event.text}"
            if self._sums is not None:  # the record of such a round names nobody
                self.run.warn(why)
            return [Arrival(place, FedzeroError(why), _host(place), asked=event.round)]
        return self._went(event)

    def _caught(self, event: Caught) -> list[Event]:
        now, right = self.replica.round, self.replica.digest()
        if event.round > now or (event.round == now and event.digest != right):
            self.run.warn(f"device {event.place} has model {event.digest.hex()}, not {right.hex()}: it must rebuild")
            self._rebuild.add(event.place)
            self._rebuilt[event.place] += 1
        self._idle[event.place] += event.round <= self._reached.get(event.place, -1)
        self._reached[event.place] = event.round
        if self._rebuilt[event.place] > MOST_REBUILDS:
            self.hub.post(self.hub.dismiss, event.place, "its model is another one each time that it rebuilds it")
        elif self._idle[event.place] > MOST_IDLE:
            self.hub.post(self.hub.dismiss, event.place, "it does not get any further")
        else:
            self._catch_up(event.place, event.round)
        return []

    def _went(self, event: Went) -> list[Event]:
        """A device that lost its connection may come back until the deadline."""
        self.standing.pop(event.place, None)
        self._behind.discard(event.place)
        if not event.for_good:
            self._gone[event.place] = time.monotonic() + self.grace
            return []
        self.hub.post(self.hub.expire, [event.place])
        for batch in self._open.batches:
            batch.left([event.place])
        return [Left(_host(event.place), (event.place,), f"device {event.place} has left")]

    def _wrong(self, place: int) -> None:
        """A device worked on a model that is not the run's: it begins anew once the model has moved."""
        self._rebuild.add(place)
        if self.standing.pop(place, None) is not None:
            self.hub.events.put(Came(place, None))

    def settle(
        self, round: int, update: Update | None, closings: Mapping[int, bytes], diverged: Collection[int]
    ) -> None:
        expired = [client for batch in self._open.batches for client in batch.awaited]
        self._open.expire(round + 1)
        self.hub.post(self.hub.expire, expired)
        for place in diverged:
            self._wrong(place)
        if update is not None:
            self.replica.follow([update])

    # ---- not devices' affair

    def hosts(self) -> Collection[str]:
        return ()

    def phase(
        self, asked: int, exchange: int, phase: int, bodies: Mapping[str, bytes]
    ) -> Mapping[str, bytes | Exception]:
        if self._sums is None:
            raise Undelivered("devices are not hosts of a gathering")
        return self._sums.answers(asked, phase, bodies)

    def identity(self, after: int) -> Identity:
        return self.replica.identity

    def evaluate(self, after: int = 0, last: bool = False) -> tuple[Identity, Metrics]:
        return self.replica.identity, self.problem.measure(self.replica.state.params, after, last)


def _host(place: int) -> str:
    return f"device {place}"
