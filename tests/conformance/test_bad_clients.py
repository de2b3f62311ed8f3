"""A client that goes wrong is refused by name, leaves no trace, and the round goes on without it. For every method and
every exchange of its rounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from cases import CHAINS, KEEPS_A_REST, UNLIKE, WIRES, allowed, exchanges_of, label, traits_of, writes_floats
from trouble import BAD_CODES, BAD_NUMBERS, BAD_PLACES, BAD_REPLIES, BAD_SCALES

from fedzero.errors import FedzeroError
from fedzero.lines import LONGEST_SAID
from fedzero.links import NO_FILTERS, Chain
from fedzero.links.coders import Plain
from fedzero.protocol.messages import Reply
from fedzero.testing.engines import Changing
from fedzero.testing.methods import Bad, altered, first_replaced
from fedzero.testing.trial import Trial, federation_for, recipe_of, trial

pytestmark = pytest.mark.covered

ROUNDS, DURING = 6, range(2, 4)
"""Trouble comes when clients have something to remember, and goes while there are turns left to use it in."""


def small(folder: Path, algorithm: Any, chain: Chain = NO_FILTERS, replicas: bool = False) -> Trial:
    return trial(folder, recipe_of(algorithm, filters=chain.links, replicas=replicas))


def absence(engine: Any, exchange: int) -> Changing:
    """The first of those who are asked is not heard."""
    return Changing(engine, first_replaced(lambda reply, data: []), exchange, DURING)


@dataclass(frozen=True)
class Outcome:
    """All of a run that must not depend on what exactly a client did wrong."""

    model: bytes
    updates: tuple[bytes | None, ...]
    refused: tuple[tuple[int, ...], ...]
    queries: tuple[int, ...]
    losses: tuple[float | None, ...]
    remembered: Any
    memories: dict[int, bytes]


def outcome(run: Trial) -> Outcome:
    records = run.records
    return Outcome(
        model=run.replica.digest(),
        updates=tuple(r.update for r in records),
        refused=tuple(tuple(client for client, _ in r.refused) for r in records),
        queries=tuple(r.queries for r in records),
        losses=tuple(r.loss for r in records),
        remembered=tuple(r.remembered for r in records),
        memories=run.memories(),
    )


@lru_cache(maxsize=64)
def without(algorithm: Any, exchange: int, chain: Chain = NO_FILTERS) -> Outcome:
    """The run in which the client is simply not there, and that its absence makes a difference."""
    with TemporaryDirectory() as folder:
        absent, clean = (small(Path(folder, name), algorithm, chain) for name in ("absent", "clean"))
        absent.engine = absence(absent.engine, exchange)
        absent.play(ROUNDS)
        clean.play(ROUNDS)
        found = outcome(absent)
    assert found.model != clean.replica.digest()
    assert [len(names) for names in found.refused] == [round in DURING for round in range(ROUNDS)]
    alone = federation_for(algorithm).cohort == 1
    assert [update is None for update in found.updates] == [alone and round in DURING for round in range(ROUNDS)]
    return found


def refused_without_a_trace(
    folder: Path, algorithm: Any, exchange: int, bad: Bad, chain: Chain = NO_FILTERS, replicas: bool = False
) -> Trial:
    run = small(folder, algorithm, chain, replicas)
    run.engine = Changing(run.engine, first_replaced(bad), exchange, DURING)
    run.play(ROUNDS)
    assert outcome(run) == without(algorithm, exchange, chain)
    return run


def exchanges(algorithms: list[Any]) -> list[tuple[Any, int]]:
    return [(algorithm, exchange) for algorithm in algorithms for exchange in range(exchanges_of(algorithm))]


def every_kind_once() -> Iterator[tuple[Any, int]]:
    """One variant of every kind of method, for each of its exchanges."""
    yield from {(type(a), exchanges_of(a), e): (a, e) for a, e in reversed(exchanges(WIRES))}.values()


EVERY_WAY = [
    pytest.param(algorithm, exchange, bad, id=f"{label(algorithm)}-{exchange}-{name}")
    for algorithm, exchange in every_kind_once()
    for name, bad in (BAD_REPLIES | BAD_NUMBERS).items()
    if algorithm in UNLIKE or name in ("late", "nan", "diverged")
    if name in BAD_REPLIES or writes_floats(algorithm)
]


@pytest.mark.parametrize(("algorithm", "exchange", "bad"), EVERY_WAY)
def test_every_way_to_go_wrong(tmp_path: Path, algorithm, exchange, bad) -> None:
    refused_without_a_trace(tmp_path, algorithm, exchange, bad)


ONE_LINK = [(algorithm, chain) for algorithm, chain in KEEPS_A_REST if len(chain.links) == 1]


@pytest.mark.parametrize(("algorithm", "chain"), ONE_LINK, ids=label)
def test_what_a_filter_left_out_is_kept_for_turns_that_count(tmp_path: Path, algorithm, chain) -> None:
    last = exchanges_of(algorithm) - 1
    run = refused_without_a_trace(tmp_path, algorithm, last, BAD_REPLIES["late"], chain, replicas=True)
    assert run.memories()


REASONS = {
    "late": "round 3, not round 2",
    "other exchange": "exchange 1 of the round, not 0",
    "silent": "did not answer",
    "failed": "failed: out of memory",
    "diverged": "6f746865726f6e65",
    "nan": "NaN or infinite",
    "infinity": "NaN or infinite",
    "short": "numbers where",
    "long": "numbers where",
    "garbage": "not a reply",
    "oversize": "at most",
    "no loss": "no training loss",
    "a boast": "9223372036854775808",
    "part of a memory": "memory",
}


@pytest.mark.parametrize("name", REASONS)
def test_the_reason_is_on_record(tmp_path: Path, name) -> None:
    bad = (BAD_REPLIES | BAD_NUMBERS)[name]
    run = refused_without_a_trace(tmp_path, WIRES[0], 0, bad)
    ((client, reason),) = run.records[2].refused
    assert client == run.records[2].cohort[0]
    assert REASONS[name] in reason


@pytest.mark.parametrize("algorithm", WIRES, ids=label)
def test_of_two_answers_the_first_counts(tmp_path: Path, algorithm) -> None:
    def twice(reply: Reply, data: bytes) -> list[bytes | Exception]:
        return [data, altered(reply, values=bytes(len(reply.values)))]

    run, clean = (small(tmp_path / name, algorithm) for name in ("twice", "clean"))
    run.engine = Changing(run.engine, first_replaced(twice))
    run.play(3)
    clean.play(3)
    assert outcome(run) == outcome(clean)


@pytest.mark.parametrize("name", ["late", "garbage", "failed", "no loss"])
@pytest.mark.parametrize("algorithm", [a for a in WIRES if traits_of(a).remembers], ids=label)
def test_nonsense_before_an_answer_does_not_spoil_it(tmp_path: Path, algorithm, name) -> None:
    """Say, the late answer to the round before: the right one counts, and the books say so.

    (Of two whole answers the first counts, even if it turns out to be computed on another model.)
    """

    def nonsense_first(reply: Reply, data: bytes) -> list[bytes | Exception]:
        return [*BAD_REPLIES[name](reply, data), data]

    run, clean = (small(tmp_path / which, algorithm) for which in ("run", "clean"))
    run.engine = Changing(run.engine, first_replaced(nonsense_first), None, DURING)
    run.play(ROUNDS)
    clean.play(ROUNDS)
    assert outcome(run) == outcome(clean)


@pytest.mark.parametrize(("algorithm", "exchange"), exchanges(WIRES), ids=label)
def test_who_was_not_asked_has_no_say(tmp_path: Path, algorithm, exchange) -> None:
    """Somebody from outside, and a client that is not in the cohort, with a perfectly good reply."""
    run, clean = (small(tmp_path / name, algorithm) for name in ("run", "clean"))
    strangers: list[tuple[int, ...]] = []

    def intrude(replies: list[Any], round: int, exchange: int) -> list[Any]:
        asked = {client for client, _ in replies}
        idle = set(range(federation_for(algorithm).clients)) - asked
        strangers.append((*sorted(idle)[:1], 4711))
        return [*((stranger, replies[0][1]) for stranger in strangers[-1]), *replies]

    run.engine = Changing(run.engine, intrude, exchange)
    run.play(3)
    clean.play(3)
    assert run.replica.digest() == clean.replica.digest()
    assert [r.update for r in run.records] == [r.update for r in clean.records]
    for record, uninvited in zip(run.records, strangers, strict=True):
        assert record.refused == tuple((stranger, "was not asked") for stranger in uninvited)


def bad_values(chain: Chain) -> dict[str, Bad]:
    """What can be wrong with the numbers that a chain's clients send."""
    if not chain.codes:
        return BAD_NUMBERS
    return BAD_CODES | ({} if isinstance(chain.coder, Plain) else BAD_SCALES) | (BAD_PLACES if chain.sparse else {})


REMEMBERS = [algorithm for algorithm in WIRES if traits_of(algorithm).remembers]
ALL_CHAINS = next(a for a in WIRES if not traits_of(a).seeded and all(allowed(a, chain) for chain in CHAINS))
FILTERED_WAYS = [
    pytest.param(algorithm, chain, bad, id=f"{label(algorithm)}-{label(chain)}-{name}")
    for algorithm in (ALL_CHAINS, *REMEMBERS[:1])
    for chain in {(type(chain.coder), chain.sparse, chain.feedback): chain for chain in CHAINS}.values()
    if algorithm is ALL_CHAINS or (chain.feedback and allowed(algorithm, chain))
    for name, bad in bad_values(chain).items()
]


@pytest.mark.parametrize(("algorithm", "chain", "bad"), FILTERED_WAYS)
def test_every_way_to_send_wrong_codes(tmp_path: Path, algorithm, chain, bad) -> None:
    refused_without_a_trace(tmp_path, algorithm, 0, bad, chain)


def test_what_a_client_says_is_recorded_as_one_short_visible_line(tmp_path: Path) -> None:
    said = "see [/etc/config]\x1b[2J\nround 9: all is well\u202e" + "x" * 10_000
    run = small(tmp_path, WIRES[0])
    run.engine = Changing(run.engine, first_replaced(lambda reply, data: [FedzeroError(said)]), 0, DURING)
    run.play(DURING.start + 1)
    ((_, reason),) = run.records[-1].refused
    assert reason.startswith("failed: see [/etc/config]") and reason.isprintable() and len(reason) == LONGEST_SAID
