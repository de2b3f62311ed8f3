"""The local engine: merged or one by one, and clients that fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import small

from fedzero.engines.local import LocalClients
from fedzero.errors import FedzeroError
from fedzero.methods import DeComFL


@pytest.mark.parametrize("K", [1, 3])
def test_merged_and_one_by_one_agree(tmp_path: Path, K) -> None:
    """On an objective whose batches do not mix in one kernel, to the last bit."""
    merged, single = (
        small(tmp_path / str(merge), DeComFL(rate=2e-3, local_steps=K), merge=merge) for merge in (True, False)
    )
    merged.play(8)
    single.play(8)
    assert merged.records == single.records
    assert merged.replica.digest() == single.replica.digest()


@pytest.mark.parametrize("merge", [True, False])
def test_a_client_that_fails_at_work_sits_the_round_out(tmp_path: Path, merge, monkeypatch) -> None:
    honest = DeComFL.client

    def client(self, state, turn):
        if turn.client == 0:
            raise FedzeroError("no disk left")
        return (yield from honest(self, state, turn))

    monkeypatch.setattr(DeComFL, "client", client)
    run = small(tmp_path, DeComFL(rate=2e-3), clients=4, cohort=4, merge=merge)
    run.play(3)
    for record in run.records:
        assert record.refused == ((0, "failed: no disk left"),)
        assert record.update is not None
        assert record.queries == 3 * 11


class Cracked:
    """An objective that cannot be evaluated on some client's data, alone or together with others'."""

    def __init__(self, honest: Any, bad: Any):
        self.honest, self.bad, self.asked = honest, bad, []

    def losses(self, base: Any, points: Any, batches: Any, basis: Any = None) -> Any:
        self.asked.append(len(batches))
        if any(batch[0] is self.bad for batch in batches):
            raise FedzeroError("a broken disk")
        return self.honest.losses(base, points, batches, basis)


@pytest.mark.parametrize("merge", [True, False])
def test_an_ask_that_fails_fails_nobody_else(tmp_path: Path, merge) -> None:
    """Merged with those of others it fails once for all; then everybody is asked alone."""
    run = small(tmp_path, DeComFL(rate=2e-3), clients=4, cohort=4, merge=merge)
    whole = small(tmp_path / "whole", DeComFL(rate=2e-3), clients=4, cohort=4, merge=merge)

    class Shards:
        clients, honest = 4, run.setup.problem.shards

        def batch(self, keys, round, step, client):
            centre, noise = self.honest.batch(keys, round, step, client)
            return (cracked.bad, noise) if client == 2 else (centre, noise)

    cracked = Cracked(run.setup.problem.objective, np.zeros(50))
    run.engine = LocalClients(run.replica, cracked, Shards(), merge)
    run.play(3)
    whole.play(3)
    for record in run.records:
        assert record.refused == ((2, "failed: a broken disk"),)
        assert record.queries == 3 * 11
    assert (4 in cracked.asked) == merge
    assert run.records[0].loss != whole.records[0].loss
