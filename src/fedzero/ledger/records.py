"""What a ledger holds, entry by entry. Bodies are msgpack; times are kept beside the entries, never in them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from fedzero.model import distributions
from fedzero.model.decoding import decoded
from fedzero.model.identity import Identity, Sha256
from fedzero.model.numbers import Natural, PositiveInt
from fedzero.oracles import Metrics, Pictures, Sample


class Start(Struct, frozen=True, tag="start"):
    """First entry: everything needed to begin again from nothing."""

    recipe: bytes
    """canonical JSON"""
    base: bytes
    """digest of the model the run starts from"""
    parameters: Natural
    directions: int
    """version of the direction stream"""
    secret: str | None
    """fingerprint of the private seed shift's secret, if there is one"""
    facts: dict[str, str] = {}
    """what the task found out when it was built: which model is attacked, and how good it is"""
    needs: dict[str, str] = {}
    """distributions that the recipe's method, task and filters come from, beside this one, and their versions"""
    threads: int | UnsetType = UNSET
    """of the process that began the run, where its values may depend on them: clients in one process, merged batches"""
    base_sha256: Sha256 | UnsetType = UNSET
    """of the model the run starts from; not written by 0.2.0 and before"""

    def __post_init__(self) -> None:
        distributions.check(self.needs)

    @property
    def identity(self) -> Identity:
        return _identity(self.base, self.base_sha256)


class Round(Struct, frozen=True, tag="round"):
    """One round. Seeded updates are kept whole; of dense ones the SHA-256."""

    round: Natural
    cohort: tuple[Natural, ...]
    """clients whose turn ended in this round: they count, or are refused"""
    update: bytes | None
    """encoded update; None if nobody answered"""
    dense: bool
    bytes_up: Natural
    bytes_down: Natural
    queries: Natural
    loss: float | None
    """mean training loss of the cohort, before local work, without those far from the others'"""
    refused: tuple[tuple[Natural, str], ...] = ()
    remembered: tuple[tuple[Natural, bytes], ...] = ()
    """(client, digest of its memory) of those who keep something between their turns"""
    queried: tuple[tuple[Natural, bytes], ...] = ()
    """(client, SHA-256 of its rows in the log of queries) of those whose queries are logged, refused or not"""
    bounded: tuple[int, ...] | UnsetType = UNSET
    """clients whose numbers were scaled down to `federation.bound`, or whose loss is not in the mean; not written where
    there are none, as in 0.1"""
    asked: tuple[Natural, ...] | UnsetType = UNSET
    """clients who were sent the question of this round; not written where they are the cohort. The others of the cohort
    answered the question of an earlier round, and who is not in the cohort may answer in a later one"""
    stopped: str | UnsetType = UNSET
    """why the run ends after this round, if a callback said so; not written where none did. No round follows"""


class PrivateRound(Round, frozen=True, tag="private-round", kw_only=True):
    """A round with [privacy]: it names no client, and its costs are the expected ones."""

    spent: tuple[float, float | None]
    """ε after this round, against readers of the model and the ledger, and against the server (None: no bound)"""


class TimedRound(Round, frozen=True, tag="timed-round", kw_only=True):
    """A round on a simulated clock."""

    time: float
    """simulated seconds from the start of the run to the step"""
    asked_at: tuple[float, ...] = ()
    """simulated seconds at which the clients in `asked` were asked, in their order"""


def time_of(record: Round) -> float | None:
    """Simulated seconds to a step; None: the run has no simulated clock."""
    return record.time if isinstance(record, TimedRound) else None


def spent_of(record: Round) -> tuple[float, float | None] | None:
    """ε after a round; None: the run has no [privacy]."""
    return record.spent if isinstance(record, PrivateRound) else None


def readers_of(record: Round) -> float | None:
    """ε after a round against readers of the model and the ledger; None: the run has no [privacy]."""
    return None if (spent := spent_of(record)) is None else spent[0]


class Saved(Struct, frozen=True, tag="saved"):
    """A rolling checkpoint was written: the state after `round` rounds, whose bytes have this SHA-256."""

    round: Natural
    numbers: int | bytes = field(name="steps")
    """what the state holds beside its tensors"""
    state: bytes


class Asked(Struct, frozen=True, tag="asked"):
    """An evaluation after `round` rounds made queries of its own; as `Round.queried`."""

    round: Natural
    queried: tuple[tuple[Natural, bytes], ...]


class Evaluation(Struct, frozen=True, tag="evaluation"):
    """The model after `round` rounds: digest, how good it is, and SHA-256 (not written by 0.2.0 and before)."""

    round: Natural
    model: bytes
    metrics: Metrics
    sha256: Sha256 | UnsetType = UNSET

    @property
    def identity(self) -> Identity:
        return _identity(self.model, self.sha256)


def metrics_of(record: Evaluation) -> Mapping[str, float]:
    """All numbers of an evaluation by name, its own copy, which nobody can change."""
    found = record.metrics
    ours = {"loss": found.loss} if found.accuracy is None else {"loss": found.loss, "accuracy": found.accuracy}
    return MappingProxyType(found.others | ours)


class Shown(Struct, frozen=True, tag="shown"):
    """Pictures of what came out."""

    round: Natural
    pictures: Pictures


class Said(Struct, frozen=True, tag="said"):
    """What a language model said after so many rounds, of prompts from the test set of whoever keeps the ledger."""

    round: Natural
    rows: tuple[Sample, ...]


class End(Struct, frozen=True, tag="end"):
    """The run is finished, unless it is extended. `reason`: why it ended before its last round; empty if it did not."""

    round: Natural
    model: bytes
    reason: str = ""
    sha256: Sha256 | UnsetType = UNSET

    @property
    def identity(self) -> Identity:
        return _identity(self.model, self.sha256)


class Extended(Struct, frozen=True, tag="extended"):
    """A finished run goes on. The fields have the values that are in force from here on, changed or not."""

    round: Natural
    """rounds made so far, as in the end before it"""
    rounds: PositiveInt
    """R, all rounds of the run"""
    evaluate_every: PositiveInt
    stop: bytes
    """canonical JSON, as `stop` of a recipe"""


def _identity(digest: bytes, sha256: bytes | UnsetType) -> Identity:
    return Identity(digest, b"" if isinstance(sha256, UnsetType) else sha256)


def sha256_of(model: Identity) -> bytes | UnsetType:
    """As records have it."""
    return model.sha256 or UNSET


Record = Start | Round | PrivateRound | TimedRound | Saved | Asked | Evaluation | Shown | Said | End | Extended

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)


def encode_record(record: Record) -> bytes:
    return _encoder.encode(record)


def decode_record(data: bytes) -> Record:
    record: Record = decoded(_decoder.decode, data, "an entry of a ledger")
    return record
