"""Who was asked when, apart from what counted: what a ledger says of it, and what no run can have written."""

from __future__ import annotations

import re

import numpy as np
import pytest
from msgspec import UNSET
from test_outline import outline_of

from fedzero.ledger.database import Tampered
from fedzero.ledger.records import Round, decode_record, encode_record
from fedzero.ledger.turns import Turns
from fedzero.methods.contract import Federation
from fedzero.model.updates import Group, Seeded, Stepped, encode_update, pack
from fedzero.rounds.tracker import ClientTracker

ONE = pack(np.ones(1, np.float32))
Groups = dict[int, tuple[int, ...]]


def record(
    round: int, cohort: tuple[int, ...], asked: object = UNSET, groups: Groups | None = None, refused=()
) -> Round:
    update = Seeded(round, ONE)
    if groups is not None:
        update = Stepped(round, tuple(Group(a, ONE * max(1, len(c)), c) for a, c in groups.items()))
    return Round(round, cohort, encode_update(update), False, 0, 0, 0, None, refused, asked=asked)


BEGIN = [record(0, (0, 1)), record(1, (0,), (0, 1, 2)), record(2, (1, 3), (0, 3), {1: (1,), 2: (3,)})]
"""Clients 0 to 3: after it 2 has still to answer round 1, and 0 round 2."""


def turns_of(*records: Round) -> Turns:
    turns = Turns.of(5)
    for each in records:
        turns.note(each)
    return turns


def test_a_client_knows_what_came_before_the_question_that_it_answered() -> None:
    turns = turns_of(*BEGIN)
    assert turns.counted.tolist() == [1, 1, -1, 2, -1]
    assert turns.open() == {0: 2, 2: 1}
    again = Turns.from_bytes(*turns.to_bytes())
    again.note(record(3, (0, 2), (4,), {1: (2,), 2: (0,)}))
    assert again.counted.tolist() == [2, 1, 1, 2, -1]
    assert again.open() == {4: 3}


def test_a_question_that_was_answered_badly_is_over() -> None:
    turns = turns_of(*BEGIN, record(3, (0, 2), (), {2: (0,)}, refused=((2, "did not answer"),)))
    assert turns.open() == {}
    assert turns.last(2) is None


def test_who_has_nothing_open_is_kept_as_before() -> None:
    """No array more, and no byte more in a record."""
    turns = turns_of(record(0, (0, 1)), record(1, (1, 2)))
    assert turns.asked is None and turns.to_bytes()[2] == b"" and turns.open() == {}
    assert b"asked" not in encode_record(record(0, (0, 1)))
    assert decode_record(encode_record(BEGIN[1])) == BEGIN[1]


def test_a_server_sends_everything_since_the_question_that_was_answered() -> None:
    tracker = ClientTracker(Federation(clients=5, cohort=2), Turns.of(5), 0, lambda first, last: ())
    for each in BEGIN:
        tracker.note(each)
        tracker.prune(each.round + 1, None)
    assert tracker.known.tolist() == [1, 1, 0, 2, 0]
    count, updates = tracker.missed(1, 3)
    assert count == 2 and bytes(updates) == BEGIN[1].update + BEGIN[2].update
    assert tracker.oldest == 0 and set(tracker.history) == {0, 1, 2}


FORGED = {
    "asked again before it answered": (record(3, (), (2,)), "client 2 is asked while its answer to round 1 is open"),
    "asked again without a list": (record(3, (2, 4)), "client 2 is asked while its answer to round 1 is open"),
    "a turn of nobody's question": (record(3, (1,), (), {3: ()}), "client 1 has a turn, who was not asked"),
    "a group of another question": (record(3, (2,), (), {2: (2,)}), "other questions"),
    "a group of a round that nobody answered": (record(3, (2,), (), {1: (2,), 2: ()}), "other questions"),
    "the group of one who was refused": (record(3, (0, 2), (), {1: (2,), 2: (0,)}, ((0, "late"),)), "other questions"),
    "a late reply as a fresh one": (record(3, (2,), ()), "other questions"),
    "an update that cannot be read": (
        Round(3, (2,), b"\x93\x03\x03", False, 0, 0, 0, None, asked=()),
        "cannot be read",
    ),
}


@pytest.mark.parametrize("case", FORGED)
def test_what_no_run_can_have_written(case: str) -> None:
    forged, why = FORGED[case]
    turns = turns_of(*BEGIN)
    with pytest.raises(Tampered, match=re.escape(why)):
        turns.note(forged)


def test_groups_of_earlier_rounds_where_nobody_was_left_to_answer() -> None:
    with pytest.raises(Tampered, match="other questions"):
        turns_of(record(0, (0, 1)), record(1, (0, 1), UNSET, {0: (0,), 1: (1,)}))


@pytest.mark.parametrize(
    ("asked", "why"), [((3,), "names client 3"), ((1, 1), "asked twice, or not in order"), ((2, 0), "not in order")]
)
def test_who_was_asked_is_somebody_once(asked: tuple[int, ...], why: str) -> None:
    with pytest.raises(Tampered, match=why):
        outline_of(record(0, (0,), asked))
