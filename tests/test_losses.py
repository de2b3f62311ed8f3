"""Training losses beside replies: what cannot be true is refused, what is far from the others is left out and named."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest

from fedzero.methods import DeComFL, FedAvg
from fedzero.methods.contract import Federation
from fedzero.protocol.messages import decode_reply, loss_of
from fedzero.rounds.losses import HELD, beyond
from fedzero.rounds.refusals import OFTEN, Refusals
from fedzero.tasks.quadratic import Quadratic
from fedzero.testing.engines import Changing
from fedzero.testing.methods import altered, first_replaced
from fedzero.testing.trial import Trial, recipe_of, trial

LIED = 2


def saying(loss: float):
    return first_replaced(lambda reply, data: [altered(reply, loss=np.float32(loss).tobytes())])


def lied_to(folder: Path, change: Any, bound: float = 5.0, method: Any = None, noise: float = 0.1) -> Trial:
    federation = Federation(clients=10, cohort=10, bound=bound)
    run = trial(folder, recipe_of(method or DeComFL(rate=1e-3), federation, Quadratic(dimension=20, noise=noise)))
    run.engine = Changing(run.engine, change, None, range(LIED, 100))
    return run


@pytest.mark.parametrize("loss", [3e38, -3e38, 1e6])
@pytest.mark.parametrize("method", [DeComFL(rate=1e-3), FedAvg(rate=1e-3)], ids=["scalars", "models"])
def test_a_loss_far_from_the_others_is_left_out_and_its_client_named(tmp_path: Path, method, loss) -> None:
    heard: list[float] = []

    def change(replies, round, exchange):
        heard[:] = [loss_of(decode_reply(data, 1 << 20).loss) for _, data in replies]
        return saying(loss)(replies, round, exchange)

    run, honest = lied_to(tmp_path / "lied", change, method=method), lied_to(tmp_path / "not", None, method=method)
    run.play(LIED + 1)
    honest.play(LIED + 1)
    assert run.records[LIED].loss == pytest.approx(mean(heard[1:]))
    assert run.records[LIED].bounded == (0,)
    assert not run.records[LIED].refused
    assert run.records[LIED].update == honest.records[LIED].update, "what it computed counts as ever"
    assert [record.bounded or () for record in honest.records] == [()] * (LIED + 1)
    assert [record.loss for record in run.records[:LIED]] == [record.loss for record in honest.records[:LIED]]


def test_who_says_so_again_and_again_is_told_of(tmp_path: Path) -> None:
    run, refusals = lied_to(tmp_path, saying(3e38)), Refusals()
    run.play(LIED + OFTEN)
    lines = [line for record in run.records for line in refusals.news(record)]
    (line,) = lines
    assert "client 0 sent numbers far larger than the others', or a loss far from theirs" in line


def test_where_clients_are_meant_to_differ_all_count(tmp_path: Path) -> None:
    run = lied_to(tmp_path, saying(1e6), bound=0)
    run.play(LIED + 1)
    assert run.records[LIED].loss > 1e5
    assert not run.records[LIED].bounded


def test_a_loss_below_what_the_task_has_is_refused_by_name(tmp_path: Path) -> None:
    run = lied_to(tmp_path, saying(-5.0), noise=0.0)
    run.play(LIED + 1)
    ((client, why),) = run.records[LIED].refused
    assert client == 0
    assert "a loss of -5, but losses of this task are at least 0" in why


def test_fewer_than_half_do_not_move_who_counts() -> None:
    """Whatever f < n/2 clients say, honest losses that are close together stay, and what counts is near them."""
    generator = np.random.default_rng(0)
    for _ in range(500):
        count = int(generator.integers(3, 20))
        liars = int(generator.integers(0, (count - 1) // 2 + 1))
        honest = {c: float(v) for c, v in enumerate(generator.uniform(1, 3, count - liars))}
        said = honest | {len(honest) + i: float(v) for i, v in enumerate(generator.normal(0, 1e30, liars))}
        out = beyond(said)
        assert not set(out) & honest.keys()
        assert all(abs(said[c]) <= (HELD + 1) * 3 for c in said.keys() - set(out))
    assert beyond({0: 1.0, 1: 1e30}) == [], "of two nobody knows"
    assert beyond({0: 0.0, 1: 0.0, 2: 0.0, 3: 1.0}) == [3]
