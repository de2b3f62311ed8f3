"""Nothing of a run grows with all of its clients or rounds: what clients missed, thinned curves, joined messages."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedzero.ledger.records import Round
from fedzero.ledger.turns import Turns
from fedzero.methods.contract import Federation
from fedzero.model.updates import Seeded, encode_update
from fedzero.protocol.messages import Work, decode_instruction, encode, encode_joined_work
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.results.thinning import Thinned
from fedzero.rounds.tracker import ClientTracker
from fedzero.runs import session
from fedzero.runs.progress import Silent


@pytest.mark.parametrize("count", [0, 1, 15, 16, 65_535, 65_536])
@pytest.mark.parametrize("counted", [None, 7])
def test_joined_updates_are_the_message(count: int, counted: int | None) -> None:
    update = Seeded(3, b"1234")
    joined = encode_joined_work(300, 0, count, count * encode_update(update), counted)
    fields = (1, 300, 0, [msgspec.Raw(encode_update(update))] * count)
    assert joined == encode(fields if counted is None else (*fields, counted))
    assert decode_instruction(joined) == Work(300, 0, (update,) * count, counted)


class Plain:
    """What a server has to know of its clients, in lists."""

    def __init__(self, clients: int):
        self.known, self.updates = [0] * clients, {}

    def note(self, record: Round, sync: bool) -> None:
        for client in set(record.cohort) - {client for client, _ in record.refused}:
            self.known[client] = record.round + sync
        if record.update is not None:
            self.updates[record.round] = record.update

    def missed(self, known: int, round: int) -> tuple[int, bytes]:
        found = [self.updates[r] for r in range(known, round) if r in self.updates]
        return len(found), b"".join(found)


@st.composite
def rounds(draw: st.DrawFn) -> list[Round]:
    made = []
    for round in range(draw(st.integers(1, 40))):
        cohort = tuple(sorted(draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))))
        refused = ((cohort[0], "no"),) if draw(st.booleans()) else ()
        update = None if draw(st.integers(0, 4)) == 0 else b"%d;" % round
        made.append(Round(round, cohort, update, False, 0, 0, 0, None, refused))
    return made


@given(rounds(), st.booleans(), st.integers(0, 40))
def test_clients_are_sent_what_they_missed(records: list[Round], sync: bool, restart: int) -> None:
    """Also by a server that begins anew in between, which reads what it has not seen from the ledger, and nothing else:
    what somebody may still need is kept."""
    federation, plain, began = Federation(clients=5, cohort=2, sync=sync), Plain(5), 0

    def earlier(first: int, last: int) -> list[Round]:
        return records[first:last]

    tracker = ClientTracker(federation, Turns.of(5), 0, earlier)
    for record in records:
        if record.round == restart:
            began = restart
            tracker = ClientTracker(federation, Turns.from_bytes(*tracker.turns.to_bytes()), record.round, earlier)
        for known in plain.known:
            assert tracker.missed(known, record.round) == plain.missed(known, record.round)
        tracker.note(record)
        tracker.prune(record.round + 1, None)
        plain.note(record, sync)
        assert tracker.known.tolist() == plain.known and tracker.oldest == min(plain.known)
        needed = {r for r in plain.updates if r >= tracker.oldest}
        assert {r for r in needed if r >= began} <= set(tracker.history) <= needed


@given(st.integers(0, 300), st.integers(1, 6))
def test_a_thinned_curve(count: int, power: int) -> None:
    most = 1 << power
    curve: Thinned[tuple[float, int]] = Thinned(
        lambda a, b: ((a[0] * a[1] + b[0] * b[1]) / (a[1] + b[1]), a[1] + b[1]), most
    )
    for n in range(count):
        curve.add((float(n), 1))
    found = curve.things()
    assert len(found) <= most + power + 1 + count.bit_length() and curve.count == count
    if count < most:
        assert found == tuple((float(n), 1) for n in range(count))
    else:
        assert found[0][0] == 0 and found[-1][0] == count - 1
    assert all(a[0] < b[0] for a, b in pairwise(found))


def test_a_run_does_not_hold_objects_for_all_clients(tmp_path: Path) -> None:
    """What runs with 100 and with 100,000 clients hold at most; arrays, of which numpy tells tracemalloc, may grow."""
    held = []
    for number, clients in enumerate((100, 100, 100_000)):  # the first compiles and imports
        recipe = recipes.decode(
            {
                "name": "many",
                "rounds": 2,
                "evaluate_every": 2,
                "algorithm": {"kind": "decomfl", "rate": 0.01, "directions": 2},
                "task": {"kind": "quadratic", "dimension": 2},
                "federation": {"clients": clients, "cohort": 4},
            }
        )
        if number:
            tracemalloc.start()
        try:
            session.start(recipe, tmp_path / str(number), Environment(), Silent())
            held.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    numbers = 2 * 2 + 8  # centres twice while they are drawn, and what is known of each client, with copies
    assert held[2] - held[1] < 100_000 * 8 * numbers, "a hundred bytes a client"
