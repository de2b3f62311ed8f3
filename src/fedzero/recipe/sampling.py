"""The randomness of cohorts and batches: the keys of the run, which everybody with the recipe has, or the operating
system.

    public    a function of the keys and the round: any release, site or replay draws the same again
    private   drawn once, and on disk before it is used: a cohort before the first instruction leaves, the root of a
              client's batches before its first evaluation. With [privacy] every unit has its own coin.

Where hosts draw (`privacy.hosts`), a client that is a unit has its coin at its host: see `HiddenTurns`.

Everybody who knows a public seed knows whose data were used, so public sampling hides nobody: amplification by sampling
can be claimed for private draws only. Replay needs neither: it folds the recorded updates, and a record has its cohort.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from fedzero.callbacks import ignore
from fedzero.directions import Keys
from fedzero.errors import FedzeroError
from fedzero.ledger.answers import FILE, Answers, Place
from fedzero.links.contract import Entropy
from fedzero.model.decoding import decoded
from fedzero.oracles.poisson import drawn_units
from fedzero.recipe.plan import Plan
from fedzero.recipe.recipe import Recipe

COHORT = -(1 << 41)
"""The client number under which the cohort of a round is kept among the answers."""
BATCHES = -(1 << 40)
"""The number BATCHES − i stands for the root of client i's batches in a round."""
ROOT = 32
"""Bytes of the root of a client's batches."""

_cohorts = msgspec.msgpack.Decoder(tuple[int, ...])


class PrivateCohorts:
    """The private cohorts of a server: C_r by round. folder: of the run."""

    def __init__(self, folder: Path, plan: Plan, entropy: Entropy = os.urandom):
        self._folder, self._plan, self._entropy = folder, plan, entropy

    def __call__(self, round: int) -> tuple[int, ...]:
        with closing(Answers(self._folder)) as answers:
            if (found := answers.find(Place(round, COHORT))) is not None:
                return self._checked(round, found.answer)
            generator = np.random.Generator(np.random.Philox(key=int.from_bytes(self._entropy(16), "little")))
            cohort = self._plan.drawn(generator)
            answers.keep(round, 0, {COHORT: b""}, {COHORT: msgspec.msgpack.encode(cohort)})
            return cohort

    def _checked(self, round: int, kept: bytes) -> tuple[int, ...]:
        """A kept cohort; refused unless it can have been drawn: the folder may be somebody else's."""
        cohort = decoded(_cohorts.decode, kept, f"the cohort of round {round}", FedzeroError)
        if not self._plan.can_be_drawn(cohort):
            raise FedzeroError(
                f"{self._folder / FILE} has a cohort of round {round} that nobody can have drawn: delete it"
            )
        return cohort


class PrivateBatches:
    """The private batches of a process with clients. answers: opens the store, or returns an open one; close: whether
    to close it after use."""

    def __init__(self, answers: Callable[[], Answers], close: bool, entropy: Entropy = os.urandom):
        self._answers, self._close, self._entropy = answers, close, entropy
        self._round, self._roots = -1, dict[int, bytes]()

    def __call__(self, round: int, client: int) -> Keys:
        if round != self._round or client not in self._roots:
            self.begin(round, [client])
        root = self._roots[client]
        return Keys(root, root)

    def know(self, round: int, roots: Mapping[int, bytes]) -> None:
        """Roots of a round that another process has drawn, and has on its disk."""
        if round != self._round:
            self._round, self._roots = round, {}
        self._roots |= roots

    def roots(self, round: int, clients: Iterable[int]) -> dict[int, bytes]:
        """The roots of several clients, for another process."""
        wanted = list(clients)
        self.begin(round, wanted)
        return {client: self._roots[client] for client in wanted}

    def begin(self, round: int, clients: Iterable[int]) -> None:
        """Draw the roots for the turns of several clients, and make them durable together."""
        self.know(round, {})
        missing = [client for client in clients if client not in self._roots]
        if not missing:
            return
        answers = self._answers()
        try:
            found = {client: answers.find(Place(round, BATCHES - client)) for client in missing}
            new = {BATCHES - client: self._entropy(ROOT) for client, kept in found.items() if kept is None}
            if new:
                answers.keep(round, 0, dict.fromkeys(new, b""), new)
        finally:
            if self._close:
                answers.close()
        roots = {c: new[BATCHES - c] if kept is None else kept.answer for c, kept in found.items()}
        if strange := [client for client, root in roots.items() if len(root) != ROOT]:
            raise FedzeroError(f"what is kept of the batches of client {strange[0]} in round {round} is damaged")
        self._roots |= roots


def batches_in(recipe: Recipe, folder: Path | None) -> PrivateBatches | None:
    """The private batches of clients in this process; None: batches follow from the run's keys."""
    if not draws_batches(recipe):
        return None
    if folder is None:
        raise FedzeroError("sampling = 'private' keeps what was drawn, and nobody said where")
    return PrivateBatches(partial(Answers, folder), close=True)


def batches_of(recipe: Recipe, answers: Answers) -> PrivateBatches | None:
    """The private batches of a site, which keeps its answers open; None: batches follow from the run's keys."""
    return PrivateBatches(lambda: answers, close=False) if draws_batches(recipe) else None


def draws_batches(recipe: Recipe) -> bool:
    """Whether batches are private. Where a whole client is the unit, its rows need not be drawn in private."""
    return bool(recipe.sampling or (recipe.privacy and recipe.privacy.unit != "client"))


@dataclass
class HiddenTurns:
    """The turns of a host's clients, of which nobody else may see whether the client took part: one without a part in
    the round, or that fails, gives zeros, and its reply looks like any other.

    roots: of a client's turn, from which its coin of probability `rate` follows; None: every client takes part, and its
    rows have the coins. failed: is told why a client gives zeros; what it is told stays at the host. barred: clients
    that never take part.
    """

    rate: float
    roots: PrivateBatches | None = None
    failed: Callable[[BaseException], None] = ignore
    barred: set[int] = field(default_factory=set)

    def taking(self, round: int, clients: Iterable[int]) -> list[int]:
        """The clients that take part; their coins are on disk."""
        able = [client for client in clients if client not in self.barred]
        if self.roots is None:
            return able
        self.roots.begin(round, able)
        return [client for client in able if len(drawn_units(self.roots(round, client).root, 1, self.rate))]


def hidden_in(recipe: Recipe, folder: Path | None) -> HiddenTurns | None:
    """The hidden turns of clients in this process; None: the server knows whom it asked."""
    if not recipe.privacy or not recipe.privacy.hosts:
        return None
    if folder is None:
        raise FedzeroError("hosts keep what they drew, and nobody said where")
    return _hidden(recipe, PrivateBatches(partial(Answers, folder), close=True))


def hidden_of(recipe: Recipe, answers: Answers, failed: Callable[[BaseException], None]) -> HiddenTurns | None:
    """The hidden turns of a site, which keeps its answers open; see `hidden_in`."""
    if not recipe.privacy or not recipe.privacy.hosts:
        return None
    return _hidden(recipe, PrivateBatches(lambda: answers, close=False), failed)


def _hidden(recipe: Recipe, roots: PrivateBatches, failed: Callable[[BaseException], None] = ignore) -> HiddenTurns:
    privacy = recipe.privacy
    assert privacy
    return HiddenTurns(privacy.q(recipe.federation), roots if privacy.unit == "client" else None, failed)
