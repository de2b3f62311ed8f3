"""When the replies of simulated clients arrive: a function of the keys of the run, the client and its question."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec import UnsetType
from numpy.typing import NDArray

from fedzero.directions import Keys
from fedzero.errors import FedzeroError
from fedzero.recipe.clock import F64, Clock, devices_in

TICK = 1e-9
"""Of a day: the clock goes on by so much beyond the moment at which a client comes, so that it is there."""


@dataclass(frozen=True, eq=False)
class Times:
    """By client: seconds of a turn, seconds of a byte down and up, and the part of the day that has passed at second
    0. Arrays of (N,); day: None where clients are always there."""

    clock: Clock
    keys: Keys
    seconds: F64
    down: F64
    up: F64
    phase: F64 | None = None

    def turn(self, asked: int, exchange: int, client: int) -> tuple[float, bool]:
        """Seconds of a turn without its messages, and whether it ends without a reply."""
        seconds, clock = float(self.seconds[client]), self.clock
        if not clock.jitter and not clock.dropout:
            return seconds, False
        draw = self.keys.generator("turn", asked, exchange, client)
        seconds *= math.exp(clock.jitter * draw.standard_normal())
        dropped = draw.random() < clock.dropout
        return (seconds * draw.random(), True) if dropped else (seconds, False)

    def messages(self, client: int, down: int, up: int) -> float:
        """Seconds that the messages of a turn take."""
        return down * float(self.down[client]) + up * float(self.up[client])

    def present(self, now: float) -> Sequence[int] | None:
        """The clients that are there, sorted; None: all."""
        if self.phase is None:
            return None
        found: list[int] = np.flatnonzero(self._passed(now) < self.clock.awake).tolist()
        return found

    def next(self, now: float) -> float:
        """When the next client comes, if nobody is there now."""
        assert self.phase is not None and not isinstance(self.clock.day, UnsetType)
        return now + self.clock.day * (float((1.0 - self._passed(now)).min()) + TICK)

    def _passed(self, now: float) -> F64:
        """The part of the day that has passed, by client."""
        assert self.phase is not None and not isinstance(self.clock.day, UnsetType)
        found: F64 = np.mod(now / self.clock.day + self.phase, 1.0)
        return found


def times_of(clock: Clock, keys: Keys, clients: int, labels: Sequence[NDArray[Any]] | None = None) -> Times:
    """The times of all clients. labels: of their samples, for `zones = "data"`."""
    if isinstance(clock.trace, UnsetType):
        seconds = clock.turn * _lognormal(keys, "speeds", clock.spread, clients)
        down = up = np.zeros(clients)
    else:
        devices = devices_in(clock.trace)
        share = np.array([device.share for device in devices])
        draw = keys.generator("devices").choice(len(devices), clients, p=share / share.sum())
        seconds = clock.turn * np.array([device.factor for device in devices])[draw]
        down, up = (1.0 / np.array([getattr(device, way) for device in devices])[draw] for way in ("down", "up"))
    line = _lognormal(keys, "lines", clock.lines, clients)
    if not isinstance(clock.down, UnsetType):
        down = line / clock.down
    if not isinstance(clock.up, UnsetType):
        up = line / clock.up
    phase = None if isinstance(clock.day, UnsetType) else _phases(clock, keys, clients, labels)
    return Times(clock, keys, seconds, down, up, phase)


def _lognormal(keys: Keys, purpose: str, sigma: float, clients: int) -> F64:
    if not sigma:
        return np.ones(clients)
    found: F64 = np.exp(sigma * keys.generator(purpose).standard_normal(clients))
    return found


def _phases(clock: Clock, keys: Keys, clients: int, labels: Sequence[NDArray[Any]] | None) -> F64:
    """The part of the day that has passed at second 0, in [0, 1)."""
    if clock.zones == "random":
        return keys.generator("zones").random(clients)
    if labels is None:
        raise FedzeroError("clock.zones = 'data' orders clients by their labels, which this task does not have")
    means = [float(np.mean(mine)) for mine in labels]
    phase = np.empty(clients)
    phase[np.argsort(means, kind="stable")] = np.arange(clients) / clients
    return phase
