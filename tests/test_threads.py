"""A resumed run is computed with as many threads as it was started with."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
import torch

from fedzero.ledger.folder import LEDGER
from fedzero.ledger.store import Ledger
from fedzero.model.device import threads
from fedzero.recipe import recipe as recipes
from fedzero.recipe import thread_counts
from fedzero.recipe.environment import Environment
from fedzero.runs import recorded, session
from fedzero.runs.progress import Silent

OLD = Path(__file__).parent / "ledger" / "v0_1" / "fedavg.db"


class Hearing(Silent):
    """Notes what it is told, and stops where it is told to."""

    def __init__(self, stop: int = -1):
        self.stop, self.warned, self.counts = stop, [], set()

    def warn(self, text: str) -> None:
        self.warned.append(text)

    def round(self, record) -> None:
        self.counts.add(torch.get_num_threads())
        if record.round == self.stop:
            raise KeyboardInterrupt


def recipe_for(**settings):
    given = {"engine.device": "cpu", "evaluate_every": 2, **settings}
    return recipes.load("demo-fedavg", [f"{key}={value}" for key, value in given.items()], rounds=3)


def started(folder: Path, count: int, **settings) -> Hearing:
    watch = Hearing(0)
    with threads(count), pytest.raises(KeyboardInterrupt):
        session.start(recipe_for(**settings), folder, Environment(), watch)
    return watch


def test_a_run_resumed_elsewhere_ends_in_the_same_bits(tmp_path: Path) -> None:
    """0.1: three digests from 1 thread, 2 threads, and 2 after 1."""
    with threads(2):
        whole = session.start(recipe_for(), tmp_path / "whole", Environment(), Silent())
    started(tmp_path / "run", 2)
    watch = Hearing()
    with threads(1):
        resumed = session.resume(tmp_path / "run", Environment(), watch)
    assert watch.counts == {2}
    assert (resumed.threads, watch.warned) == (2, [])
    assert (resumed.ledger_head, resumed.model_digest) == (whole.ledger_head, whole.model_digest)


def test_without_merging_the_number_is_one_and_not_on_the_ledger(tmp_path: Path) -> None:
    watch = started(tmp_path / "run", 2, **{"engine.merge": "false"})
    assert watch.counts == {1}
    with closing(Ledger.open(tmp_path / "run" / LEDGER)) as ledger:
        assert ledger.start().threads is msgspec.UNSET
        assert b"threads" not in next(iter(ledger.rows("SELECT body FROM entries ORDER BY seq LIMIT 1", -1)))[0]


def test_a_machine_with_fewer_cores_says_so(tmp_path: Path, monkeypatch) -> None:
    started(tmp_path / "run", 2)
    monkeypatch.setattr(thread_counts.os, "cpu_count", lambda: 1)
    watch = Hearing()
    session.resume(tmp_path / "run", Environment(), watch)
    assert watch.warned == [
        "the run was started with 2 threads, and this machine has 1 cores: the last bits of its values may differ"
    ]


def test_a_ledger_of_0_1_does_not_say_it(tmp_path: Path) -> None:
    shutil.copy(OLD, tmp_path / LEDGER)
    merged = recorded.recipe_in(tmp_path).engine.merge
    watch = Hearing()
    assert session.resume(tmp_path, Environment(), watch).threads is None
    assert ("does not say with how many threads" in str(watch.warned)) == merged
