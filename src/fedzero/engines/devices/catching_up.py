"""What devices that lack rounds are sent: the updates, or a checkpoint, whichever is shorter. Made once for all devices
that lack the same."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from fedzero.engines.devices import messages as m
from fedzero.engines.devices.plan import Rates
from fedzero.model.updates import decode_update
from fedzero.recipe.view import RunView

MOST_KEPT = 16
"""Rounds from which on devices lack something, for which it is kept what they are sent."""
IN_FRAME = 256
"""Updates of one frame."""


@dataclass(frozen=True)
class Offered:
    """A checkpoint: the body that offers it, and the state."""

    body: bytes
    sha256: bytes
    content: bytes


class Missed:
    """Of a run, up to its current round."""

    def __init__(self, run: RunView, rates: Rates):
        self._run, self._rates = run, rates
        _, self._replica = run.built()
        self._made_here = run.recipe.base is None
        """whether devices can make the first model"""
        plan = run.plan
        self._least = 4 * sum(plan.cost(0).replies)
        """the fewest bytes of an update: its numbers"""
        self._round, self._updates = -1, dict[int, Sequence[bytes]]()
        self._bodies = dict[tuple[bool, int], list[bytes]]()
        self._checkpoint: Offered | None = None

    def _refresh(self) -> None:
        """Forget what was made in an earlier round."""
        if self._round != self._replica.round:
            self._round, self._updates, self._bodies, self._checkpoint = self._replica.round, {}, {}, None

    def updates(self, first: int) -> Sequence[bytes]:
        """The updates from round `first` on."""
        self._refresh()
        if first not in self._updates:
            if len(self._updates) >= MOST_KEPT:
                self._updates.clear()
                self._bodies.clear()
            self._updates[first] = self._run.past.updates(first, self._round)
        return self._updates[first]

    def shorter(self, fresh: bool, first: int) -> list[bytes] | Offered:
        """Bodies of frames with updates, from round `first` on, or a checkpoint. fresh: from the first model."""
        self._refresh()
        if fresh and not self._made_here:
            return self.checkpoint()
        size = sum(tensor.numel() * tensor.element_size() for tensor in self._replica.state.tensors())
        if (self._round - first) * self._least > size or sum(map(len, self.updates(first))) > size:
            return self.checkpoint()
        if (fresh, first) not in self._bodies:
            self._bodies[fresh, first] = self._encoded(fresh, self.updates(first))
        return self._bodies[fresh, first]

    def _encoded(self, fresh: bool, updates: Sequence[bytes]) -> list[bytes]:
        found = []
        for first in range(0, max(1, len(updates)), IN_FRAME):
            some = tuple(updates[first : first + IN_FRAME])
            rounds = [decode_update(each).round for each in some]
            reached = self._round if first + IN_FRAME >= len(updates) else rounds[-1] + 1
            found.append(m.encode(m.UpdatesBody(fresh and not first, some, self._rates.of(rounds), reached)))
        return found

    def checkpoint(self) -> Offered:
        self._refresh()
        if self._checkpoint is None:
            content = self._replica.state.to_bytes()
            hashed = hashlib.sha256(content).digest()
            body = m.encode(m.CheckpointBody(self._round, hashed, len(content), self._replica.digest()))
            self._checkpoint = Offered(body, hashed, content)
        return self._checkpoint
