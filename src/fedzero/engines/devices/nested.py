"""Devices as the clients of a host, such as a site: the server, which is elsewhere, draws the cohort and does not know
who is present.

A place whose device is not present when its order comes is refused by name, at once, and the round goes on without it.
A host keeps no past updates, so a device that lacks some is sent a checkpoint, and takes part from the next round on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from fedzero.engines.devices import messages as m
from fedzero.engines.devices.clients import LOOK_EVERY, DeviceClients
from fedzero.errors import Sendable
from fedzero.protocol.engine import Arrival, Event


class NestedDevices(DeviceClients):
    """grace: also the seconds for which an order waits for devices that get ready, or for the least number of them."""

    _absent: Sequence[Event] = ()

    def send(self, asked: int, exchange: int, messages: Sequence[bytes], which: Mapping[int, int]) -> None:
        self.hub.post(self.hub.begin, asked)
        self._wait_for(which)
        here = {client: message for client, message in which.items() if client in self.standing}
        DeviceClients.send(self, asked, exchange, messages, here)
        absent = [client for client in which if client not in here]
        self._absent = [Arrival(c, Sendable(f"device {c} is not present"), f"device {c}", asked=asked) for c in absent]

    def _wait_for(self, which: Mapping[int, int]) -> None:
        end, most = time.monotonic() + self.grace, min(self.least, len(which))
        self._happenings(0.0)
        while time.monotonic() < end and (self._behind & which.keys() or len(self.standing.keys() & which) < most):
            self._happenings(LOOK_EVERY)

    def receive(self, seconds: float) -> Sequence[Event]:
        if self._absent:
            found, self._absent = self._absent, ()
            return found
        return DeviceClients.receive(self, seconds)

    def _catch_up(self, place: int, ready: int | None) -> None:
        """The server's orders have what a device lacks since it was last counted; one that lacks more is sent all."""
        now = self.replica.round
        if ready == now and place not in self._rebuild:
            self._behind.discard(place)
            self.standing[place] = now
            self.hub.post(self.hub.resend, place)
            return
        self._behind.add(place)
        self._rebuild.discard(place)
        if now == 0 and self.run.recipe.base is None:
            self.hub.post(self.hub.update, place, [m.encode(m.UpdatesBody(True, (), b"", 0))])
            return
        found = self.missed.checkpoint()
        self.hub.post(self.hub.offer, place, found.body, found.sha256, found.content)

    def finish(self, rounds: int) -> None:
        """The run has ended at the server."""
        self.hub.post(self.hub.finish, rounds, "")
