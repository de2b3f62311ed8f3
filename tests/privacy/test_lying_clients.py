"""Clients of a private run that lie, and readers of its folder: what they can do, and what they learn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import detectors
import msgspec
import numpy as np
import pytest
from detectors import P, played, recipe, summed
from slopes import Linear, Private, Slopes

from entropy import given_entropy
from fedzero import plugins
from fedzero.engines.gathering import HostedClients
from fedzero.errors import FedzeroError
from fedzero.gatherings.private import central
from fedzero.ledger.answers import files_of
from fedzero.privacy.integers import Grid
from fedzero.protocol.engine import Arrival
from fedzero.protocol.messages import decode_reply, encode_reply
from fedzero.recipe.environment import Environment
from fedzero.runs import session
from fedzero.runs.progress import Silent

LIAR = 3
SILENT = {client: [0.0] for client in range(detectors.CLIENTS)}
HIDDEN = ("cohort", "refused", "remembered", "queried", "bytes_up", "bytes_down", "queries", "loss")


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(plugins._registered["tasks"], "test-slopes", plugins.Plugin(Slopes, "", ""))
    with patch.object(central, "rounded_gaussian", lambda deviation, count, entropy: np.zeros(count, np.int64)):
        yield


@pytest.fixture
def honest(tmp_path: Path) -> Any:
    return played(tmp_path, recipe(probability=1.0), private=Private(SILENT))


ANSWERS: dict[str, Callable[[bytes], bytes | Exception]] = {
    "huge": lambda answer: np.full(P, 2**31 - 1, "<i4").tobytes(),
    "smallest": lambda answer: np.full(P, -(2**31), "<i4").tobytes(),
    "wider": lambda answer: np.full(P, 2**62, "<i8").tobytes(),
    "narrower": lambda answer: np.ones(P, "<i2").tobytes(),
    "one number more": lambda answer: answer + bytes(4),
    "one number less": lambda answer: answer[4:],
    "a byte less": lambda answer: answer[1:],
    "nothing": lambda answer: b"",
    "very much": lambda answer: bytes(10**6),
    "floats": lambda answer: np.full(P, np.nan, "<f4").tobytes(),
    "an error": lambda answer: FedzeroError("my data: 17"),
}


@pytest.mark.parametrize("lie", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_that_is_no_sum_of_units_counts_as_zero(tmp_path: Path, honest: Any, lie: Any) -> None:
    real = HostedClients.phase

    def phase(self: Any, asked: int, exchange: int, number: int, bodies: Mapping[str, bytes]) -> Any:
        answers = dict(real(self, asked, exchange, number, bodies))
        name = f"client {LIAR}"
        answers[name] = lie(answers[name])
        return answers

    with patch.object(HostedClients, "phase", phase):
        run = played(tmp_path, recipe(probability=1.0), private=Private(SILENT))
    _shows_nothing(run, honest)


def _shows_nothing(run: Any, honest: Any) -> None:
    """All were zero, so the sum is zero, and the record is that of a round in which nobody lied."""
    assert not summed(run).any()
    for name in HIDDEN:
        assert getattr(run.records[0], name) == getattr(honest.records[0], name), name


def test_a_lying_client_moves_a_sum_by_no_more_than_the_bound(tmp_path: Path) -> None:
    """The longest answer that is admitted, and one that is a little longer."""
    made = recipe(1, probability=1.0)
    gathering = detectors.trial(tmp_path / "grid", made).setup.chain.gathering
    grid = Grid(1.0, gathering.exponent, 1)
    longest = int(np.floor(np.sqrt(grid.allowance)))
    real = HostedClients.phase
    for lie, moved in ((longest, longest), (longest + 1, 0), (-longest, -longest)):

        def phase(self: Any, asked: int, exchange: int, number: int, bodies: Any, lie: int = lie) -> Any:
            told = {f"client {LIAR}": np.array([lie], "<i4").tobytes()}
            return {**real(self, asked, exchange, number, bodies), **told}

        with patch.object(HostedClients, "phase", phase):
            found = summed(played(tmp_path, made, private=Private(SILENT)))
        assert found[0] == pytest.approx(moved * 2.0**-gathering.exponent, rel=1e-6)


def _in_the_clear(arrival: Arrival) -> list[Arrival]:
    reply = decode_reply(arrival.data, len(arrival.data))
    told = msgspec.structs.replace(reply, values=np.ones(P, "<f4").tobytes(), loss=b"\0\0\x80?")
    return [msgspec.structs.replace(arrival, data=encode_reply(told))]


def _other_client(arrival: Arrival) -> list[Arrival]:
    return [arrival, msgspec.structs.replace(arrival, client=detectors.CLIENTS + 4, host="client 12")]


REPLIES: dict[str, Callable[[Arrival], list[Arrival]]] = {
    "in the clear": _in_the_clear,
    "twice": lambda arrival: [arrival, arrival],
    "of a client that was not drawn": _other_client,
    "of another model": lambda arrival: [
        msgspec.structs.replace(arrival, data=arrival.data.replace(decode_reply(arrival.data, 99).digest, bytes(8)))
    ],
    "of many queries": lambda arrival: [
        msgspec.structs.replace(
            arrival, data=encode_reply(msgspec.structs.replace(decode_reply(arrival.data, 99), queries=10**9))
        )
    ],
    "garbage": lambda arrival: [msgspec.structs.replace(arrival, data=b"\xff" * 40)],
    "a failure": lambda arrival: [msgspec.structs.replace(arrival, data=FedzeroError("my data: 17"))],
    "none": lambda arrival: [],
}


@pytest.mark.parametrize("lie", REPLIES.values(), ids=REPLIES)
def test_a_reply_that_does_not_count_shows_nowhere(tmp_path: Path, honest: Any, lie: Any) -> None:
    real = HostedClients.receive

    def receive(self: Any, seconds: float) -> Any:
        return [told for each in real(self, seconds) for told in (lie(each) if each.client == LIAR else [each])]

    with patch.object(HostedClients, "receive", receive):
        run = played(tmp_path, recipe(probability=1.0), private=Private(SILENT))
    _shows_nothing(run, honest)
    assert b"my data" not in b"".join(path.read_bytes() for path in run.ledger.path.parent.iterdir())


def test_a_client_that_was_not_drawn_and_answers_does_not_count(tmp_path: Path) -> None:
    """All who were not drawn answer with the numbers of those who were."""
    made, real = recipe(probability=0.5), HostedClients.receive

    def receive(self: Any, seconds: float) -> Any:
        events = list(real(self, seconds))
        there = {each.client for each in events}
        others = [c for c in range(detectors.CLIENTS) if c not in there]
        return events + [msgspec.structs.replace(events[0], client=c) for c in others] if events else events

    with given_entropy(coins=b"coins"):
        run = detectors.trial(tmp_path / "run", made)
    cohort = run.server.schedule.cohort(0)
    assert 0 < len(cohort) < detectors.CLIENTS
    with patch.object(HostedClients, "receive", receive), patch.object(central, "Total", _Kept):
        run.play(1)
    assert _Kept.last == cohort


class _Kept(central.Total):
    last: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        type(self).last = self.clients


def test_a_row_that_fails_takes_no_other_row_with_it(tmp_path: Path) -> None:
    """With a row whose loss cannot be computed, and without its slopes: the sum is the same up to roundings."""
    made = recipe(1, 1, 4, unit="example", clip=1.0, population=32, probability=1.0)
    real = Linear.row_losses

    def failing(self: Any, base: Any, points: Any, batch: Any) -> Any:
        if (batch[1] == FAILS).any():
            raise FedzeroError("a row without a loss")
        return real(self, base, points, batch)

    without = summed(played(tmp_path, made, private=Private({LIAR: [1.0, 0.0, 1.0, 1.0]})))
    with patch.object(Linear, "row_losses", failing):
        found = summed(played(tmp_path, made, private=Private({LIAR: [1.0, FAILS, 1.0, 1.0]})))
    assert abs(without) > 0.01
    assert found == pytest.approx(without, abs=32 * 2.0**-15)


FAILS = 7.0


def test_what_is_kept_during_a_run_is_its_owners_and_goes_with_its_end(tmp_path: Path) -> None:
    """Cohorts and replies are in one file, which nobody else may read, until the run ends."""
    made, seen = recipe(rounds=3), list[set[str]]()

    class Looking(Silent):
        def round(self, record: Any) -> None:
            modes = {path.name: path.stat().st_mode & 0o077 for path in files_of(tmp_path / "run") if path.exists()}
            assert modes and not any(modes.values())
            seen.append({path.name for path in (tmp_path / "run").iterdir()})

    session.start(made, tmp_path / "run", Environment(), Looking())
    assert len(seen) == 3
    others = set().union(*seen) - {path.name for path in files_of(tmp_path / "run")}
    assert others <= {"ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.lock", "checkpoint", "run.lock"}, others
    assert not any(path.exists() for path in files_of(tmp_path / "run"))
