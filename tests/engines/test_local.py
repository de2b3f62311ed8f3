"""The local engine: merged or one by one, and clients that fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import small

from fedzero.algorithms import DeComFL
from fedzero.errors import FedzeroError


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
