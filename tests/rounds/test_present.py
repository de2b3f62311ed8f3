"""A cohort is drawn among who is present, and clients that caught up are not sent again what they have."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fedzero.directions import Keys
from fedzero.ledger.turns import Turns
from fedzero.methods import Federation, SeededMethod
from fedzero.recipe.plan import Plan
from fedzero.rounds.present import Attended, Present
from fedzero.rounds.schedule import StepSoFar
from fedzero.rounds.tracker import ClientTracker


class Some:
    def __init__(self, *here: int):
        self.here = here
        self.standing = dict.fromkeys(here, 2)

    def present(self) -> tuple[int, ...]:
        return self.here


def schedule(folder: Path, here: Some, cohort: int = 3) -> Present:
    federation = Federation(clients=10, cohort=cohort)
    plan = Plan(SeededMethod(rate=0.1), federation, Keys.of_seed(1), 5)
    return Present(plan, here, folder)


def tracked(rounds: int) -> ClientTracker:
    tracker = ClientTracker(Federation(clients=3, cohort=3), Turns.of(3), 0, lambda first, last: [])
    for round in range(rounds):
        tracker.history.append(round, bytes([round]))
    return tracker


def test_nobody_is_asked_who_is_not_there(tmp_path: Path) -> None:
    assert isinstance(Some(1), Attended)
    for here in ((7,), (2, 5), (1, 4, 9), (0, 2, 4, 6, 8)):
        cohort = schedule(tmp_path, Some(*here)).ask(StepSoFar(0))
        assert len(cohort) == min(3, len(here)) and set(cohort) <= set(here) and list(cohort) == sorted(cohort)
    assert schedule(tmp_path, Some(1, 2)).ask(StepSoFar(0, {1: 0}, {1: 0})) == ()


def test_all_who_are_present_are_drawn_equally_often(tmp_path: Path) -> None:
    present, counts = schedule(tmp_path, Some(0, 3, 5, 8, 9), cohort=2), Counter[int]()
    for step in range(500):
        counts.update(present.ask(StepSoFar(step)))
    assert set(counts) == {0, 3, 5, 8, 9}
    assert stats.chisquare([counts[c] for c in sorted(counts)]).pvalue > 1e-3


def test_a_client_that_caught_up_is_sent_what_it_lacks() -> None:
    tracker = tracked(5)
    tracker.reached({0: 4, 2: 2})
    assert tracker.known.tolist() == [4, 0, 2] and tracker.oldest == 0
    assert [tracker.missed(int(known), 5)[0] for known in tracker.known] == [1, 5, 3]
    tracker.reached({1: 3, 2: 1})  # nobody goes back
    assert tracker.known.tolist() == [4, 3, 2] and tracker.oldest == 2


def test_a_server_that_was_killed_asks_the_same_clients_the_same_question(tmp_path: Path) -> None:
    here, tracker = Some(0, 1, 2), tracked(40)
    here.standing = {0: 39, 1: 10, 2: 40}
    first = schedule(tmp_path, here)
    cohort = first.ask(StepSoFar(40))
    first.question(40, cohort, tracker)
    assert tracker.known.tolist() == [39, 0, 40]  # client 1 is near: it is sent all that the server counts
    again, later = tracked(40), Some(1)
    killed = schedule(tmp_path, later)
    assert killed.ask(StepSoFar(40)) == cohort
    killed.question(40, cohort, again)
    assert again.known.tolist() == tracker.known.tolist()
    assert killed.ask(StepSoFar(41)) == (1,)


@pytest.mark.parametrize("members", [("present",), ("standing",)])
def test_other_engines_keep_their_schedule(members: tuple[str, ...]) -> None:
    assert not isinstance(type("Other", (), dict.fromkeys(members, np.zeros(1)))(), Attended)
