"""From a ledger back to a model: resume, rebuild any round, verify. Entries are read one at a time and none is kept."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

from fedzero.callbacks import ignore
from fedzero.errors import FedzeroError, Refused
from fedzero.ledger import query_log
from fedzero.ledger.checkpoints import Checkpoint
from fedzero.ledger.outline import LedgerSummary
from fedzero.ledger.records import Asked, End, Evaluation, Round
from fedzero.ledger.store import Entry, Ledger, Tampered
from fedzero.ledger.turns import Turns
from fedzero.methods.contract import Numbers
from fedzero.model.identity import Identity
from fedzero.model.params import Params
from fedzero.model.updates import Dense, Update, decode_update
from fedzero.protocol.replica import Replica

BURST = 256
"""Rounds folded in one pass at most."""
PASS_SECONDS = 2.0
"""A pass should take about so long, for somebody to see that it goes on."""
Progress = Callable[[int, int], None]
"""Is told how many rounds have been folded, and of how many."""


@dataclass(frozen=True)
class LedgerView:
    """A ledger that was read to its end.

    `outline` and `turns` are what a run needs. The lists are read from the file when somebody asks for them; they grow
    with the rounds, so nothing that has to serve long runs uses them.
    """

    path: Path
    outline: LedgerSummary
    turns: Turns

    def _read(self) -> Iterator[Entry]:
        with closing(Ledger.open(self.path)) as ledger:
            yield from ledger.entries(0, self.outline.entries)

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(self._read())

    @cached_property
    def rounds(self) -> list[Round]:
        return [e.record for e in self._read() if isinstance(e.record, Round)]

    @cached_property
    def evaluations(self) -> list[Evaluation]:
        return [e.record for e in self._read() if isinstance(e.record, Evaluation)]

    @cached_property
    def asked(self) -> list[Asked]:
        return [e.record for e in self._read() if isinstance(e.record, Asked)]

    @cached_property
    def marks(self) -> list[tuple[int, Identity]]:
        """Models on record: after so many rounds, where it was evaluated and where the run ended."""
        return [(e.record.round, e.record.identity) for e in self._read() if isinstance(e.record, Evaluation | End)]

    @property
    def only_sums(self) -> bool:
        """Whether the base is on record without SHA-256: a release before 0.2.1 began the run."""
        with closing(Ledger.open(self.path)) as ledger:
            return not ledger.start().identity.sha256

    @property
    def end(self) -> End | None:
        return self.outline.end


def read(ledger: Ledger, after: LedgerView | None = None, kept: Checkpoint | None = None) -> LedgerView:
    """All of a ledger, in an order that a run can have written; after: what was read of it before; kept: to be compared
    with what was read when it was made."""
    outline = LedgerSummary() if after is None else copy.deepcopy(after.outline)
    turns = None if after is None else copy.deepcopy(after.turns)
    for entry in grown(ledger, outline):
        outline.note(entry.record, entry.chain, entry.seconds)
        turns = turns or Turns.of(outline.clients)
        if isinstance(entry.record, Round):
            turns.note(entry.record)
        if kept is not None and outline.entries == kept.outline.entries and not kept.tells(outline, turns):
            raise Tampered(outline.done, "the checkpoint beside the ledger does not say what the ledger says")
    outline.finish()
    assert turns is not None
    return LedgerView(ledger.path, outline, turns)


def read_from(ledger: Ledger, kept: Checkpoint | None) -> LedgerView:
    """The same from a checkpoint on, where there is one."""
    return read(ledger, None if kept is None else LedgerView(ledger.path, kept.outline, kept.turns))


def grown(ledger: Ledger, outline: LedgerSummary) -> Iterator[Entry]:
    """What is new on a ledger of which `outline` was read before."""
    if ledger.chain_before(outline.entries) != outline.chain:
        raise Tampered(-1, "another ledger has taken the place of this one")
    return ledger.entries(outline.entries)


def check_base(ledger: Ledger, params: Params) -> None:
    base = ledger.start().identity
    if not params.matches(base):
        raise FedzeroError(
            f"this ledger starts from model {base}, but the base here is {params.identity}: give the base "
            "model (and data) the run was started with"
        )


def check_queries(ledger: Ledger, view: LedgerView) -> None:
    if view.outline.logged or query_log.exists(ledger):
        query_log.check(ledger, view.rounds, view.asked, view.end is not None)


def updates_of(ledger: Ledger, view: LedgerView, upto: int | None = None, first: int = 0) -> Iterator[Update]:
    """The updates of rounds first … upto − 1; dense ones from the checkpoint on, earlier ones are no longer there."""
    dense, since = _dense(ledger, view)
    for record in ledger.rounds(max(first, since), upto, view.outline.entries):
        if record.update is not None:
            yield _update(record, record.update, dense)


def _dense(ledger: Ledger, view: LedgerView) -> tuple[Mapping[int, bytes], int]:
    """Dense updates that are still there, by round, and the round of the checkpoint they follow."""
    since = view.outline.saved.round if view.outline.saved is not None else 0
    rounds = ledger.rounds(since, before=view.outline.entries) if view.outline.dense else ()
    return ledger.dense_updates({r.round: r.update for r in rounds if r.dense and r.update is not None}), since


def _update(record: Round, encoded: bytes, dense: Mapping[int, bytes]) -> Update:
    try:
        update = decode_update(dense[record.round] if record.dense else encoded)
    except Refused as error:
        raise Tampered(record.round, f"the update cannot be read ({error})") from error
    if update.round != record.round:
        raise Tampered(record.round, f"its update is that of round {update.round}")
    if isinstance(update, Dense) != record.dense:
        raise Tampered(record.round, "its update is not of the kind that it says")
    return update


def fold(replica: Replica, updates: Iterable[Update], total: int, progress: Progress = ignore) -> None:
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
    saved, state = view.outline.saved, ledger.checkpoint(view.outline.saved)
    return None if saved is None or state is None else (state, view.outline.moved_when_saved, saved.numbers)


def rebuild(
    ledger: Ledger,
    view: LedgerView,
    replica: Replica,
    upto: int | None = None,
    progress: Progress = ignore,
    kept: Checkpoint | None = None,
) -> None:
    """Bring a replica of the base model to where it stood before round `upto` (default: the end); kept: a checkpoint to
    begin with."""
    check_base(ledger, replica.state.params)
    saved, first = view.outline.saved, 0
    if saved is not None and upto is not None and upto < saved.round:
        raise FedzeroError(
            f"round {upto} cannot be replayed: this run's updates are dense, and of those the ledger keeps a "
            f"rolling checkpoint only (from round {saved.round}); runs with seeded updates replay any round"
        )
    if (found := checkpoint(ledger, view)) is not None:
        replica.state = replica.state.restored(*found)
    elif kept is not None and kept.state is not None:
        kept.restore(replica)
        first = kept.outline.done
    total = view.outline.done if upto is None else upto
    fold(replica, updates_of(ledger, view, upto, first), total, progress)
    progress(total, total)  # rounds in which nobody answered may stand at the end


def recent(
    ledger: Ledger,
    view: LedgerView,
    replica: Replica,
    last: int,
    progress: Progress = ignore,
    kept: Checkpoint | None = None,
    at: Callable[[int], None] = ignore,
) -> dict[int, bytes]:
    """As `rebuild`, to the end; of the last rounds the digests of the models that they were asked at, by round. at: is
    told each of these rounds, when the replica stands where it stood then."""
    first, digests = max(0, view.outline.done - last), dict[int, bytes]()
    rebuild(ledger, view, replica, first, progress, kept if kept and kept.outline.done <= first else None)
    updates = {update.round: update for update in updates_of(ledger, view, first=first)}
    for round in range(first, view.outline.done):
        digests[round] = replica.digest()
        at(round)
        if round in updates:
            replica.follow([updates[round]])
    return digests


def verify(
    ledger: Ledger, replica: Replica | None, progress: Progress = ignore, kept: Checkpoint | None = None
) -> LedgerView:
    """Check everything that can be checked; raises `Tampered` with the first bad round.

    File, chain and order always; with a replica of the base also that the updates lead to the digests on record. kept:
    a checkpoint, which must hold what the ledger comes to.
    """
    view = read(ledger, kept=kept)
    ledger.integrity(view.outline.done)
    for _ in ledger.memories(view.turns):
        pass
    check_queries(ledger, view)
    if replica is None:
        return view
    here, there = replica.state.params.size, ledger.start().parameters
    if here != there:
        raise Tampered(-1, f"the model has {here} parameters, that of the ledger {there}")
    check_base(ledger, replica.state.params)
    good = view.outline.saved.round if view.outline.saved is not None else 0
    if good:
        rebuild(ledger, view, replica, good, progress)
    segments = _Segments(ledger, view, good, kept)
    while not segments.over:
        try:
            fold(replica, segments.updates(), view.outline.done, progress)
        except Tampered:
            raise
        except (FedzeroError, ValueError) as error:
            rounds = f"{good} to {segments.last}"
            raise Tampered(good, f"the updates of rounds {rounds} cannot be applied ({error})") from error
        if segments.model is not None and not replica.matches(segments.model):
            raise Tampered(good, f"the updates of rounds {good} to {segments.last} do not lead to the model on record")
        if kept is not None and segments.at_checkpoint and not kept.holds(replica):
            raise Tampered(segments.last + 1, "the checkpoint beside the ledger does not hold the model of its round")
        good = segments.last + 1
    progress(view.outline.done, view.outline.done)
    return view


class _Segments:
    """The updates of a ledger in order, in segments that end where something is on record to compare the model with:
    each is read once, however many digests are checked.

    model: the one on record where a segment ended; None behind the last. last: the last round read.
    """

    def __init__(self, ledger: Ledger, view: LedgerView, since: int, kept: Checkpoint | None):
        self._dense, _ = _dense(ledger, view)
        first = ledger.place_of(since - 1) + 1 if since else 0
        self._entries = ledger.entries(first, view.outline.entries)
        self._kept = -1 if kept is None or kept.state is None else kept.outline.entries
        self.last, self.at_checkpoint, self.over = since - 1, False, False
        self.model: Identity | None = None

    def updates(self) -> Iterator[Update]:
        for entry in self._entries:
            record = entry.record
            if isinstance(record, Round):
                self.last = record.round
                if record.update is not None:
                    yield _update(record, record.update, self._dense)
            self.model = record.identity if isinstance(record, Evaluation | End) else None
            self.at_checkpoint = entry.seq + 1 == self._kept
            if self.model is not None or self.at_checkpoint:
                return
        self.over, self.model, self.at_checkpoint = True, None, False
