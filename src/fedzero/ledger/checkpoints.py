"""A checkpoint of a run beside its ledger, so that a resume reads and folds the last rounds only.

`checkpoint.bin` says where the ledger stood (`LedgerSummary`, `Turns`) and what the model was. It can be made again
from the ledger, so it is not part of it: one that is missing, damaged, of another ledger or of another user costs time
and nothing else. It counts only if this user wrote it on this machine (a keyed hash tells), the ledger's chain has its
value at its place, and the model is that of the evaluation there. `verify` does not use it, but computes everything in
it anew.
"""

from __future__ import annotations

import hashlib
import hmac
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from fedzero.errors import FedzeroError
from fedzero.ledger.outline import LedgerSummary
from fedzero.ledger.store import Ledger
from fedzero.ledger.turns import Turns
from fedzero.model import files
from fedzero.model.decoding import MALFORMED
from fedzero.protocol.replica import Replica

FILE = "checkpoint.bin"
EVERY = 10_000
"""Rounds between checkpoints."""
LARGEST = 1 << 26
"""Bytes of a state at most: what is larger is folded again."""
_MOST = 1 << 28
"""Bytes of the file: beside a state, of the turns of eight million clients."""
_VERSION = 2
_DIGEST = 32
_KEY = "checkpoints"
"""The key of the user's own that marks what he wrote."""


class Checkpoint(Struct, frozen=True):
    """outline: of the entries so far. counted, memories, asked: `Turns.to_bytes`. state: tensors, or None where the
    ledger has them (dense updates), nobody here has a model, or it is too large; numbers: what it holds beside them."""

    version: int
    outline: LedgerSummary
    counted: bytes
    memories: bytes
    state: bytes | None
    numbers: int | bytes
    asked: bytes = b""

    @staticmethod
    def of(outline: LedgerSummary, turns: Turns, replica: Replica | None) -> Checkpoint:
        counted, memories, asked = turns.to_bytes()
        if replica is None or outline.dense or 4 * replica.state.params.size > LARGEST:
            return Checkpoint(_VERSION, outline, counted, memories, None, 0, asked)
        state = replica.state
        return Checkpoint(_VERSION, outline, counted, memories, state.to_bytes(), state.numbers, asked)

    @property
    def turns(self) -> Turns:
        return Turns.from_bytes(self.counted, self.memories, self.asked)

    def restore(self, replica: Replica) -> None:
        """Give a replica of the base model the state; raises `FedzeroError` if it is not the model on the chain."""
        assert self.state is not None
        replica.state = replica.state.restored(self.state, self.outline.moved, self.numbers)
        found = self.outline.evaluations.last
        if found is not None and found.round == self.outline.done and not replica.matches(found.identity):
            raise FedzeroError(
                f"{FILE} does not hold the model after {found.round} rounds that is on the ledger: delete it, and all "
                "rounds are folded again"
            )

    def tells(self, outline: LedgerSummary, turns: Turns) -> bool:
        """Whether it says this of a ledger. Compared as bytes: a loss may be NaN."""
        same = msgspec.msgpack.encode(self.outline) == msgspec.msgpack.encode(outline)
        return same and (self.counted, self.memories, self.asked) == turns.to_bytes()

    def holds(self, replica: Replica) -> bool:
        """Whether it has the state that a replica has."""
        return (self.state, self.numbers) == (replica.state.to_bytes(), replica.state.numbers)


def due(done: int, since: int, evaluated: int, evaluate_every: int) -> bool:
    """Whether to write one after `done` rounds, `since` being those of the last: where there is an evaluation to check
    the model against, unless these are rare."""
    return done - since >= EVERY and (evaluated == done or evaluate_every > EVERY)


def write(folder: Path, checkpoint: Checkpoint, private: bool) -> None:
    """Nothing, where this user has nowhere to keep a key: who cannot recognise a checkpoint cannot use it."""
    with suppress(OSError):
        key = files.own_key(_KEY)
        body = msgspec.msgpack.encode(checkpoint)
        rest = hmac.digest(key, body, "sha256") + body
        if _DIGEST + len(rest) <= _MOST:
            files.write(folder / FILE, hashlib.sha256(rest).digest() + rest, durable=True, private=private)


def own(folder: Path, ledger: Ledger) -> Checkpoint | None:
    """The checkpoint of a ledger that this user wrote on this machine; None if there is none that fits the ledger.

    What is before it is not read, so one of somebody else could say anything.
    """
    content = _content(folder)
    if content is None:
        return None
    mark, body = content
    try:
        mine = hmac.compare_digest(mark, hmac.digest(files.own_key(_KEY), body, "sha256"))
    except OSError:
        return None
    return _fitting(body, ledger) if mine else None


def found(folder: Path, ledger: Ledger) -> Checkpoint | None:
    """The same, whoever wrote it: to be compared with the ledger, and not to be believed."""
    content = _content(folder)
    return None if content is None else _fitting(content[1], ledger)


def _content(folder: Path) -> tuple[memoryview, memoryview] | None:
    """The mark of who wrote it, and the encoded checkpoint. Raises `Unfit` for what is no file of its size."""
    try:
        content = memoryview(files.read(folder / FILE, _MOST))
    except OSError:
        return None
    if hashlib.sha256(content[_DIGEST:]).digest() != content[:_DIGEST]:
        return None
    return content[_DIGEST : 2 * _DIGEST], content[2 * _DIGEST :]


def _fitting(body: memoryview, ledger: Ledger) -> Checkpoint | None:
    try:
        found = msgspec.msgpack.decode(body, type=Checkpoint)
        fits = found.version == _VERSION and len(found.turns.counted) == found.outline.clients
    except MALFORMED:
        return None
    return found if fits and _on_chain(found.outline, ledger) else None


def _on_chain(outline: LedgerSummary, ledger: Ledger) -> bool:
    """Whether the chain has the value at the place, and the entry there is the one that was read last."""
    place = outline.entries - 1
    last = next(ledger.entries(place, place + 1), None) if place > 0 else None
    if last is None or last.chain != outline.chain:
        return False
    evaluation = outline.evaluations.last
    return evaluation is None or evaluation.round < outline.done or evaluation == last.record


def remove(folder: Path) -> None:
    (folder / FILE).unlink(missing_ok=True)
