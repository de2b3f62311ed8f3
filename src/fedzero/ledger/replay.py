"""From a ledger back to a model: resume, rebuild any round, verify."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import msgspec
from msgspec import Struct

from fedzero.algorithms.contract import Numbers
from fedzero.errors import FedzeroError, Refused
from fedzero.ledger import query_log
from fedzero.ledger.records import Asked, End, Evaluation, Round, Saved, Start
from fedzero.ledger.store import Entry, Ledger, Tampered
from fedzero.model.decoding import decoded
from fedzero.model.numbers import PositiveInt
from fedzero.model.params import Params
from fedzero.model.updates import Update, decode_update
from fedzero.protocol.replica import Replica

BURST = 256
"""Rounds folded in one pass at most."""
PASS_SECONDS = 2.0
"""A pass should take about so long, for somebody to see that it goes on."""
Progress = Callable[[int, int], None]
"""Is told how many rounds have been folded, and of how many."""


@dataclass(frozen=True)
class LedgerView:
    """A ledger read to its end."""

    entries: tuple[Entry, ...]

    @cached_property
    def rounds(self) -> list[Round]:
        return [e.record for e in self.entries if isinstance(e.record, Round)]

    @cached_property
    def evaluations(self) -> list[Evaluation]:
        return [e.record for e in self.entries if isinstance(e.record, Evaluation)]

    @cached_property
    def asked(self) -> list[Asked]:
        return [e.record for e in self.entries if isinstance(e.record, Asked)]

    @cached_property
    def saved(self) -> Saved | None:
        """The last checkpoint."""
        return next((e.record for e in reversed(self.entries) if isinstance(e.record, Saved)), None)

    @property
    def end(self) -> End | None:
        last = self.entries[-1].record
        return last if isinstance(last, End) else None

    @cached_property
    def marks(self) -> list[tuple[int, bytes]]:
        """Digests on record: of the model after so many rounds, where it was evaluated and where the run ended."""
        ended = [] if self.end is None else [(self.end.round, self.end.model)]
        return [(evaluation.round, evaluation.model) for evaluation in self.evaluations] + ended

    @property
    def seconds(self) -> float:
        return self.entries[-1].seconds

    @cached_property
    def remembered(self) -> dict[int, tuple[int, bytes]]:
        """Of every client that keeps a memory: the round it is of, and its digest."""
        return {client: (r.round, digest) for r in self.rounds for client, digest in r.remembered}

    @cached_property
    def dense(self) -> bool:
        return any(record.dense for record in self.rounds)


def read(ledger: Ledger) -> LedgerView:
    """All of it, in an order that a run can have written."""
    entries = tuple(ledger.entries())
    if not entries:
        raise Tampered(-1, "the ledger has no start")
    view = LedgerView(entries)
    _check_order(view)
    return view


def grown(ledger: Ledger, view: LedgerView) -> LedgerView:
    """The same ledger read to its end again; only what is new is read from the file."""
    last = view.entries[-1]
    if ledger.rows(f"SELECT chain FROM entries WHERE seq = {last.seq}", -1, tuple[bytes]) != [(last.chain,)]:
        raise Tampered(-1, "another ledger has taken the place of this one")
    view = LedgerView((*view.entries, *ledger.entries(view.entries[-1])))
    _check_order(view)
    return view


def check_base(ledger: Ledger, params: Params) -> None:
    base = ledger.start().base
    if params.digest() != base:
        raise FedzeroError(
            f"this ledger starts from model {base.hex()}, but the base here is {params.digest().hex()}: give the base "
            "model (and data) the run was started with"
        )


def check_queries(ledger: Ledger, view: LedgerView) -> None:
    query_log.check(ledger, view.rounds, view.asked, view.end is not None)


def updates_of(ledger: Ledger, view: LedgerView, upto: int | None = None) -> Iterator[Update]:
    """The updates of rounds before `upto`; dense ones from the checkpoint on, earlier ones are no longer there."""
    since = view.saved.round if view.saved is not None else 0
    expected = {r.round: r.update for r in view.rounds if r.dense and r.update is not None and r.round >= since}
    dense = ledger.dense_updates(expected)
    for record in view.rounds:
        if record.update is None or (upto is not None and record.round >= upto):
            continue
        if record.dense and record.round < since:
            continue
        try:
            update = decode_update(dense[record.round] if record.dense else record.update)
        except Refused as error:
            raise Tampered(record.round, f"the update cannot be read ({error})") from error
        if update.round != record.round:
            raise Tampered(record.round, f"its update is that of round {update.round}")
        yield update


def unseen(done: int, total: int) -> None:
    """Progress that nobody looks at."""


def fold(replica: Replica, updates: Iterable[Update], total: int, progress: Progress = unseen) -> None:
    """Bring a replica forward, and tell after every pass; how many rounds a pass has changes no bit."""
    waiting, rounds = iter(updates), 1
    while some := list(islice(waiting, rounds)):
        began = time.monotonic()
        replica.follow(some)
        took = time.monotonic() - began
        if took < PASS_SECONDS / 2:
            rounds = min(BURST, 2 * rounds)
        elif took > 2 * PASS_SECONDS:
            rounds = max(1, rounds // 2)
        progress(some[-1].round + 1, total)


def checkpoint(ledger: Ledger, view: LedgerView) -> tuple[bytes, int, Numbers] | None:
    """The state of the last checkpoint, as `State.restored` takes it: its tensors, the round it is ready for (silent
    rounds do not count, as in the run), and what it holds beside tensors."""
    saved, state = view.saved, ledger.checkpoint(view.saved)
    if saved is None or state is None:
        return None
    moved = max((r.round + 1 for r in view.rounds[: saved.round] if r.update is not None), default=0)
    return state, moved, saved.numbers


def rebuild(
    ledger: Ledger, view: LedgerView, replica: Replica, upto: int | None = None, progress: Progress = unseen
) -> None:
    """Bring a replica of the base model to where it stood before round `upto` (default: the end)."""
    check_base(ledger, replica.state.params)
    saved = view.saved
    if saved is not None and upto is not None and upto < saved.round:
        raise FedzeroError(
            f"round {upto} cannot be replayed: this run's updates are dense, and of those the ledger keeps a "
            f"rolling checkpoint only (from round {saved.round}); runs with seeded updates replay any round"
        )
    if (found := checkpoint(ledger, view)) is not None:
        replica.state = replica.state.restored(*found)
    total = len(view.rounds) if upto is None else upto
    fold(replica, updates_of(ledger, view, upto), total, progress)
    progress(total, total)  # rounds in which nobody answered may stand at the end


def verify(ledger: Ledger, replica: Replica | None, progress: Progress = unseen) -> LedgerView:
    """Check everything that can be checked; raises `Tampered` with the first bad round.

    File, chain and order always; with a replica of the base also that the updates lead to the digests on record.
    """
    view = read(ledger)
    ledger.integrity(len(view.rounds))
    ledger.memories(view.remembered)
    check_queries(ledger, view)
    if replica is None:
        return view
    here, there = replica.state.params.size, ledger.start().parameters
    if here != there:
        raise Tampered(-1, f"the model has {here} parameters, that of the ledger {there}")
    check_base(ledger, replica.state.params)
    good = view.saved.round if view.saved is not None else 0
    if good:
        rebuild(ledger, view, replica, good, progress)
    waiting = _Waiting(u for u in updates_of(ledger, view) if u.round >= good)
    for round, digest in view.marks:
        if round < good:
            continue
        try:
            fold(replica, waiting.before(round), len(view.rounds), progress)
        except Tampered:
            raise
        except (FedzeroError, ValueError) as error:
            raise Tampered(good, f"the updates of rounds {good} to {round - 1} cannot be applied ({error})") from error
        if replica.digest() != digest:
            raise Tampered(good, f"the updates of rounds {good} to {round - 1} do not lead to the model on record")
        good = round
    for _ in waiting.before(len(view.rounds)):  # those behind the last digest can at least be read
        pass
    progress(len(view.rounds), len(view.rounds))
    return view


class _Waiting:
    """Updates in order, taken up to a round at a time: each is read once, however many digests are checked."""

    def __init__(self, updates: Iterator[Update]):
        self._updates, self._next = updates, next(updates, None)

    def before(self, round: int) -> Iterator[Update]:
        while self._next is not None and self._next.round < round:
            yield self._next
            self._next = next(self._updates, None)


class _Clients(Struct, frozen=True):
    clients: PositiveInt


class _Frame(Struct, frozen=True):
    """What of a recipe its ledger is checked against, whatever else the release that wrote it put in."""

    rounds: PositiveInt
    federation: _Clients


_frames = msgspec.json.Decoder(_Frame)


def _check_order(view: LedgerView) -> None:
    """A start, then rounds 0, 1, 2, … with what belongs to each behind it, then at most an end, then nothing; and no
    client that the recipe does not have."""
    first = view.entries[0].record
    if not isinstance(first, Start):
        raise Tampered(-1, "the start of the run is not the first entry")
    frame = decoded(_frames.decode, first.recipe, "the recipe of a run", FedzeroError)
    done, ended = 0, False
    for position, entry in enumerate(view.entries):
        record = entry.record
        if ended:
            raise Tampered(done, "there are entries after the end of the run")
        if isinstance(record, Start) != (position == 0):
            raise Tampered(done if position else -1, "the start of the run is not the first entry")
        if isinstance(record, Round):
            if record.round != done:
                raise Tampered(done, f"round {record.round} follows instead")
            _check_clients(record, frame.federation.clients)
            done += 1
        elif not isinstance(record, Start) and record.round != done:
            raise Tampered(done, f"an entry of round {record.round} follows round {done - 1}")
        ended = isinstance(record, End)
    rounds = frame.rounds
    if view.end is not None and done != rounds and not (view.end.reason and done < rounds):
        raise Tampered(done, "the ledger ends before the last round of the recipe")
    if view.end is not None and view.end.reason and done == rounds:
        raise Tampered(done, "the ledger says that the run ended early, but has all of its rounds")


def _check_clients(record: Round, clients: int) -> None:
    pairs = (record.refused, record.remembered, record.queried)
    for client in (max(of, default=0) for of in (record.cohort, *([client for client, _ in of] for of in pairs))):
        if client >= clients:
            raise Tampered(record.round, f"it names client {client}, but the run has {clients} clients")
    for client in set(record.bounded or ()) - set(record.cohort):
        raise Tampered(record.round, f"it names client {client} as scaled down, who was not asked")
