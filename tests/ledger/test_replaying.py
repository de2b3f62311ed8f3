"""A ledger is folded in passes of any length to the same bits, and somebody is told how far it is."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from fedzero.ledger import replay
from fedzero.model.checkpoint import save_model
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import patches, progress, recorded, session


@pytest.fixture
def run(tmp_path: Path, tiny: Path, quiet) -> Path:
    session.start(recipes.load(str(tiny), rounds=40), tmp_path / "run", Environment(), quiet)
    return tmp_path / "run"


def told(run: Path, upto: int | None = None) -> tuple[bytes, list[tuple[int, int]]]:
    seen: list[tuple[int, int]] = []
    replica = recorded.replayed(run, Environment(replaying=lambda *at: seen.append(at)), upto)
    return replica.digest(), seen


def test_slow_passes_are_short_and_end_in_the_same_bits(run: Path, monkeypatch: pytest.MonkeyPatch):
    fast, few = told(run)
    monkeypatch.setattr(replay, "PASS_SECONDS", 0.0)  # nothing is that fast
    slow, many = told(run)
    assert fast == slow
    assert [done for done, _ in few] == [1, 3, 7, 15, 31, 40, 40]
    assert [done for done, _ in many] == [*range(1, 41), 40]
    assert {total for _, total in few + many} == {40}


def test_a_pass_has_no_more_rounds_than_a_burst(run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(replay, "BURST", 6)
    assert [done for done, _ in told(run)[1]] == [1, 3, 7, 13, 19, 25, 31, 37, 40, 40]


def test_up_to_a_round(run: Path):
    assert told(run, 5)[1] == [(1, 5), (3, 5), (5, 5), (5, 5)]
    assert told(run, 0)[1] == [(0, 0)]


def test_rounds_without_an_update_at_the_end_are_done_as_well(run: Path, monkeypatch: pytest.MonkeyPatch):
    """Else the bar would stay, and the next one could not be drawn."""
    whole = replay.updates_of
    monkeypatch.setattr(replay, "updates_of", lambda *of: (u for u in whole(*of) if u.round < 30))
    assert told(run)[1][-2:] == [(30, 40), (40, 40)]


def test_verifying_and_going_on_are_told_as_well(run: Path, quiet):
    seen: list[tuple[int, int]] = []
    environment = Environment(replaying=lambda *at: seen.append(at))
    recorded.verified(run, environment)
    assert seen[-1] == (40, 40)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    seen.clear()
    session.resume(run, environment, quiet)
    assert seen[-1] == (40, 40)


def test_patches(run: Path, tmp_path: Path):
    seen: list[tuple[int, int]] = []
    (tmp_path / "fine.patch").write_bytes(patches.export_patch(run, Environment()))
    base = tmp_path / "base.safetensors"
    save_model(recorded.replayed(run, Environment(), 0).state.params, base)
    patches.apply_patch(
        tmp_path / "fine.patch", str(base), tmp_path / "out.safetensors", progress=lambda *at: seen.append(at)
    )
    assert seen[-1] == (40, 40)


def lines(terminal: bool, steps: int) -> str:
    text = StringIO()
    shown = progress.Replaying(Console(file=text, force_terminal=terminal, width=80))
    for done in range(1, steps + 1):
        shown(done, steps)
    return text.getvalue()


def test_what_is_seen_of_it(monkeypatch: pytest.MonkeyPatch):
    assert lines(False, 5) == "", "over at once"
    assert lines(True, 1) == ""
    assert "replaying" in lines(True, 5)
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    assert "replaying: round 4/5 · 0.0 s left" in lines(False, 5)
