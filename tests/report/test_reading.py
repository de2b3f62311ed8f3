"""What a report needs of a ledger, read in one go or bit by bit, beside the same computed from lists of all rounds."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedzero.ledger import replay
from fedzero.ledger.folder import LEDGER
from fedzero.ledger.records import Round
from fedzero.ledger.store import Ledger, Tampered
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.setup import prepare
from fedzero.report.history import Party
from fedzero.results import attendance, reading
from fedzero.results.attendance import Attendance
from fedzero.results.history import history, history_of
from fedzero.results.reading import Reading
from fedzero.runs import session
from fedzero.runs.progress import Silent
from stops import StopAt

HERE = Environment()
CLIENTS = 6
REASONS = ("did not answer", "sent NaN", "was late")


@st.composite
def rounds(draw: st.DrawFn) -> list[Round]:
    made = []
    for round in range(draw(st.integers(0, 12))):
        cohort = tuple(sorted(draw(st.lists(st.integers(0, CLIENTS - 1), max_size=4))))
        some = draw(st.sets(st.integers(0, CLIENTS - 1), max_size=3))  # who was not asked may answer, too
        refused = tuple((client, draw(st.sampled_from(REASONS))) for client in sorted(some))
        made.append(Round(round, cohort, None, False, 0, 0, 0, None, refused))
    return made


def party(name: str, clients: list[int], records: list[Round]) -> Party:
    """From all rounds."""
    counted = [r.round for r in records if any(c in r.cohort and c not in dict(r.refused) for c in clients)]
    out = [(r.round, c, dict(r.refused)[c]) for r in records for c in clients if c in r.cohort and c in dict(r.refused)]
    last = max((round for round, _, _ in out), default=-1)
    return Party(
        name=name,
        clients=len(clients),
        turns=sum(c in r.cohort for r in records for c in clients),
        answered=counted[-1] if counted else None,
        at=float(counted[-1]) if counted else None,
        refused=len(out),
        reason=next((why for round, _, why in out if round == last), ""),
    )


@given(rounds(), st.integers(1, 7), st.integers(1, 20))
def test_who_answered_and_what_was_refused(records: list[Round], most: int, waiting: int) -> None:
    found = Attendance(CLIENTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attendance, "MOST_WAITING", waiting)
        for record in records:
            found.note(record, float(record.round))
    sites = {"a": [0, 3, 4], "b": [1], "c": [2, 5], "gone": [CLIENTS + 3]}
    assert found.parties(sites) == tuple(party(name, clients, records) for name, clients in sites.items())
    everybody = [party(f"client {c}", [c], records) for c in range(CLIENTS)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attendance, "MOST", most)
        shown = found.parties()
    first = sorted(everybody, key=lambda p: (-p.refused, -1 if p.answered is None else p.answered))[:most]
    assert list(shown) == [p for p in everybody if p in first]
    times = Counter(why for record in records for _, why in record.refused)
    assert found.reasons() == tuple(times.most_common())


def test_reasons_are_told_apart_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attendance, "MOST_REASONS", 2)
    found = Attendance(9)
    for client in range(9):
        found.note(Round(client, (client,), None, False, 0, 0, 0, None, ((client, f"sent {client // 3}"),)), 0.0)
    assert found.reasons() == (("sent 0", 3), ("sent 1", 3), (attendance.OTHER, 3))
    assert [p.reason for p in found.parties()] == ["sent 0"] * 3 + ["sent 1"] * 3 + [attendance.OTHER] * 3


def test_a_ledger_that_grows_is_read_bit_by_bit(tmp_path: Path) -> None:
    """After every piece the history is that of the whole ledger; another ledger in its place is noticed."""
    table = {
        "name": "q", "rounds": 9, "evaluate_every": 2, "algorithm": {"kind": "decomfl", "rate": 0.01, "directions": 2},
        "task": {"kind": "quadratic", "dimension": 8}, "federation": {"clients": 5, "cohort": 2},
    }  # fmt: skip
    for folder, seed in (("a", 0), ("b", 1)):
        with pytest.raises(KeyboardInterrupt):
            session.start(recipes.decode(table | {"seed": seed}), tmp_path / folder, HERE, StopAt(2))
    seen, path = Reading(), tmp_path / "a" / LEDGER
    for after in (4, 7, None):
        with closing(Ledger.open(path)) as ledger:
            seen.more(ledger)
        assert history_of(seen, tmp_path / "a") == history(tmp_path / "a")
        if after is None:
            session.resume(tmp_path / "a", HERE, Silent())
            break
        with pytest.raises(KeyboardInterrupt):
            session.resume(tmp_path / "a", HERE, StopAt(after - 1))
    with closing(Ledger.open(path)) as ledger:
        seen.more(ledger)
        rounds = replay.read(ledger).rounds
    whole = history_of(seen, tmp_path / "a")
    assert whole == history(tmp_path / "a") and whole.complete and whole.rounds == 9
    assert list(whole.train_loss) == [(record.round, record.loss) for record in rounds]
    assert sum(p.turns for p in whole.parties) == sum(len(record.cohort) for record in rounds) == 18
    with closing(Ledger.open(tmp_path / "b" / LEDGER)) as other, pytest.raises(Tampered):
        seen.more(other)


def test_the_last_events_are_listed_and_all_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_EVENTS", 3)
    recipe = recipes.decode(
        {
            "name": "q",
            "rounds": 9,
            "algorithm": {"kind": "decomfl", "rate": 0.01},
            "task": {"kind": "quadratic", "dimension": 8},
            "federation": {"clients": 5, "cohort": 2},
        }
    )
    with closing(session.create(tmp_path / "run", prepare(recipe, HERE).start)) as ledger:
        refused = ((1, "sent NaN"), (2, "was late"))
        ledger.append([Round(r, (1, 2), None, False, 0, 0, 0, None, refused) for r in range(4)], 1.0)
    found = history(tmp_path / "run")
    assert found.events == ("round 2: client 2 was late", "round 3: client 1 sent NaN", "round 3: client 2 was late")
    assert found.earlier_events == 5 and found.refusals == (("sent NaN", 4), ("was late", 4))
