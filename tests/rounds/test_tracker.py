"""The updates that some client may still need."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from fedzero.rounds.tracker import UpdateHistory


@dataclass(frozen=True)
class Recorded:
    round: int
    update: bytes | None
    dense: bool = False


def history(updates: list[bytes | None], held: int) -> UpdateHistory:
    """Of so many rounds, the last `held` of which are in memory."""

    def earlier(first: int, last: int) -> Iterable[Recorded]:
        return (Recorded(round, updates[round]) for round in range(first, last))

    found = UpdateHistory(len(updates) - held, earlier)  # type: ignore[arg-type]  # of a record it reads no more
    for round in range(len(updates) - held, len(updates)):
        found.append(round, updates[round])
    return found


def test_rounds_without_an_update_stay_held_when_earlier_ones_are_read() -> None:
    found = history([b"0", b"1", b"2", None, None], held=3)
    assert found.between(0, 5) == [b"0", b"1", b"2"]
    assert (found.first, found.next) == (0, 5)
    found.forget(5)
    assert found.first == 5


@settings(max_examples=60, deadline=None)
@given(st.lists(st.none() | st.binary(min_size=1, max_size=3), min_size=1, max_size=12), st.data())
def test_a_history_gives_the_rounds_that_are_asked_for(updates: list[bytes | None], data: st.DataObject) -> None:
    found = history(updates, data.draw(st.integers(0, len(updates))))
    for _ in range(3):
        first = data.draw(st.integers(0, len(updates)))
        last = data.draw(st.integers(first, len(updates)))
        assert found.between(first, last) == [update for update in updates[first:last] if update is not None]
        assert found.next == len(updates)
