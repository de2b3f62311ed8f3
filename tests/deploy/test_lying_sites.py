"""A site that answers in time and in form, and lies: about how often it asked, which model it has, whose replies it
brings, how many clients it has."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness import recipe_of

from fedzero.deploy.server.conduct import run_at_sites
from fedzero.engines.remote.assignment import SiteAssignment
from fedzero.engines.remote.engine import Service
from fedzero.engines.remote.messages import Replies, decode_answer, encode
from fedzero.ledger import replay
from fedzero.ledger.store import Ledger
from fedzero.links.topk import TopK
from fedzero.methods import DeComFL, FedZO
from fedzero.recipe.environment import Environment
from fedzero.runs import recorded
from fedzero.runs.progress import Silent
from fedzero.runs.summary import Summary
from fedzero.testing.engines import LocalSites

SITES, LIAR, THEIRS = ["north", "south", "west"], "south", (1, 4)
SCALARS, REMEMBERING = DeComFL(rate=2e-3, directions=4), FedZO(rate=2e-3, form="dense")
ROUNDS = 4
Fields = list[Any]
"""Of a reply: round, exchange, digest, values, loss, queries, and the digest of a memory where one is kept."""
QUERIES, DIGEST, MEMORY = 5, 2, 6


def recipe_for(remembers: bool = False) -> Any:
    options: dict[str, Any] = {"algorithm": SCALARS}
    if remembers:
        options = {"algorithm": REMEMBERING, "filters": (TopK(fraction=0.2, feedback=True),)}
    made = recipe_of(clients=6, cohort=6, **options)
    return msgspec.structs.replace(made, rounds=ROUNDS, evaluate_every=ROUNDS)


def played(folder: Path, recipe: Any, lie: Callable[[Replies], bytes]) -> tuple[Summary, replay.LedgerView]:
    """A run in which one site changes its answers to exchanges, and what its ledger says."""

    def spoil(site: str, data: bytes) -> bytes:
        answer = decode_answer(data)
        return lie(answer) if site == LIAR and isinstance(answer, Replies) else data

    link = LocalSites(folder / "sites", SITES)
    link.spoil = spoil
    found = run_at_sites(recipe, folder / "run", Environment(), Silent(), Service(link, lambda: SITES, patience=0.0))
    ledger = Ledger.open(folder / "run" / "ledger.db")
    try:
        view = replay.read(ledger)
    finally:
        ledger.close()
    assert found.complete
    assert recorded.verified(folder / "run", Environment()).end is not None
    return found, view


def with_fields(change: Callable[[Fields], object]) -> Callable[[Replies], bytes]:
    """Replies with other fields, of whatever types; what a typed encoder would not write, too."""

    def lie(answer: Replies) -> bytes:
        replies = {}
        for client, data in answer.replies.items():
            fields = msgspec.msgpack.decode(data)
            change(fields)
            replies[client] = msgspec.msgpack.encode(fields)
        return encode(Replies(replies, answer.failed))

    return lie


def put(place: int, value: object) -> Callable[[Fields], None]:
    def change(fields: Fields) -> None:
        fields[place] = value(fields[place]) if callable(value) else value

    return change


LIES = {
    "one query more": (put(QUERIES, lambda n: n + 1), "times where the method asks"),
    "2^63 queries": (put(QUERIES, 2**63), "times where the method asks"),
    "2^64 - 1 queries": (put(QUERIES, 2**64 - 1), "times where the method asks"),
    "a negative number of queries": (put(QUERIES, -1), "not a reply"),
    "half a query": (put(QUERIES, 1.5), "not a reply"),
    "queries in words": (put(QUERIES, "5"), "not a reply"),
    "no queries": (put(QUERIES, None), "not a reply"),
    "nothing after the loss": (lambda fields: fields.__delitem__(slice(QUERIES, None)), "not a reply"),
    "another model": (put(DIGEST, b"\xff" * 8), "worked on model ffffffffffffffff, not "),
    "one bit of another model": (put(DIGEST, lambda d: bytes([d[0] ^ 1]) + d[1:]), "must rebuild"),
    "half a model": (put(DIGEST, lambda d: d[:4]), "not a reply"),
    "a long model": (put(DIGEST, bytes(1 << 10)), "at most"),
    "no model": (put(DIGEST, b""), "not a reply"),
    "a model in words": (put(DIGEST, "12345678"), "not a reply"),
    "a memory": (lambda fields: fields.append(bytes(16)), "a digest of a memory where none is kept"),
}
LIES_OF_MEMORY = {
    "no memory": (lambda fields: fields.__delitem__(MEMORY), "sent no digest of its memory"),
    "half a memory": (put(MEMORY, lambda d: d[:7]), "sent no digest of its memory"),
    "a long memory": (put(MEMORY, bytes(1 << 10)), "bytes where at most"),
    "a memory in words": (put(MEMORY, "0123456789abcdef"), "not a reply"),
}


@pytest.mark.parametrize("lie", [*LIES, *LIES_OF_MEMORY])
def test_a_reply_that_lies_does_not_count(tmp_path: Path, lie: str) -> None:
    change, reason = (LIES | LIES_OF_MEMORY)[lie]
    _, view = played(tmp_path, recipe_for(remembers=lie in LIES_OF_MEMORY), with_fields(change))
    for record in view.rounds:
        assert sorted(dict(record.refused)) == list(THEIRS)
        assert all(reason in why for _, why in record.refused), record.refused
        assert record.update is not None


def test_who_says_that_it_asked_less_changes_that_number_alone(tmp_path: Path) -> None:
    """Nobody can tell: a black box's answer may be in the log. What was paid for is counted at the site."""
    recipe = recipe_for()
    honest, then = played(tmp_path / "honest", recipe, encode)
    found, view = played(tmp_path / "lying", recipe, with_fields(put(QUERIES, 0)))
    assert found.model_digest == honest.model_digest
    assert [record.update for record in view.rounds] == [record.update for record in then.rounds]
    assert [3 * record.queries for record in view.rounds] == [2 * record.queries for record in then.rounds]


def test_another_memory_is_found_at_the_client_s_next_turn_and_costs_others_nothing(tmp_path: Path) -> None:
    """The server cannot know what a client remembers: the ledger has what it said. Its own site holds it to that."""
    recipe = recipe_for(remembers=True)
    found, view = played(tmp_path, recipe, with_fields(put(MEMORY, b"\xff" * 16)))
    assert {client for record in view.rounds for client, _ in record.refused} <= set(THEIRS)
    assert all(record.update is not None for record in view.rounds)
    assert recorded.replayed(tmp_path / "run", Environment(), None).digest().hex() == found.model_digest


CROWDS = {
    "a client of another site": lambda a: {**a.replies, 0: next(iter(a.replies.values()))},
    "a client that nobody has": lambda a: {**a.replies, 4711: b""},
    "a negative client": lambda a: {**a.replies, -1: b""},
    "a client beyond 64 bits": lambda a: {**a.replies, 2**64 - 1: b""},
    "only others'": lambda a: {0: next(iter(a.replies.values()))},
    "a million clients": lambda a: {**a.replies, **dict.fromkeys(range(10**6), b"")},
}


@pytest.mark.parametrize("crowd", CROWDS)
@pytest.mark.parametrize("fail", [False, True], ids=["replies", "failures"])
def test_a_site_speaks_for_its_own_clients_alone(tmp_path: Path, crowd: str, fail: bool) -> None:
    """Whether it brings replies of others, or says that they failed."""

    def lie(answer: Replies) -> bytes:
        clients = CROWDS[crowd](answer)
        return encode(Replies({}, dict.fromkeys(clients, "no"))) if fail else encode(Replies(clients, {}))

    began = time.process_time()
    _, view = played(tmp_path, recipe_for(), lie)
    assert time.process_time() - began < 60
    for record in view.rounds:
        assert sorted(dict(record.refused)) == list(THEIRS), "and nobody else"
        assert record.update is not None
        assert sum(len(why) for _, why in record.refused) < 600
    assert SiteAssignment.of(tmp_path / "run") is not None
    assert set(SiteAssignment.of(tmp_path / "run").clients[LIAR]) == set(THEIRS), "it decides nothing of who is where"
