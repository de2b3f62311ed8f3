"""A finite 1e30 from one client of a round: with `federation.bound` it moves the model by no more than is stated. For
every method and every exchange of its rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import SHAPES, WIRES, exchanges_of, label, traits_of, writes_floats

from fedzero.links.bounds import norm_of
from fedzero.model.updates import Dense, decode_update, unpack
from fedzero.protocol.messages import Reply, decode_reply
from fedzero.rounds import guard
from fedzero.testing.engines import Changing, Replies
from fedzero.testing.methods import altered, first_replaced
from fedzero.testing.trial import Trial, federation_for, recipe_of, trial

BOUND, ROUNDS, LIED = 2.0, 4, 2


def lie(reply: Reply, data: bytes) -> list[bytes | Exception]:
    return [altered(reply, values=np.full(len(reply.values) // 4, 1e30, "<f4").tobytes())]


def bounded(folder: Path, algorithm: Any, **options: Any) -> Trial:
    return trial(folder, recipe_of(algorithm, federation_for(algorithm, bound=BOUND, **options)))


COMPARABLE = [
    algorithm
    for algorithm in SHAPES
    if writes_floats(algorithm)
    and traits_of(algorithm).comparable
    and exchanges_of(algorithm) == 1
    and federation_for(algorithm).cohort >= 4
]


@pytest.mark.parametrize("algorithm", COMPARABLE, ids=label)
def test_the_update_moves_by_no_more_than_the_bound(tmp_path: Path, algorithm) -> None:
    """‖mean − mean with nothing of the liar‖ ≤ c · M/n, M at most the largest honest norm."""
    run, heard = bounded(tmp_path, algorithm), []

    def lied(replies: Replies, round: int, exchange: int) -> Replies:
        heard[:] = [np.frombuffer(decode_reply(data, 1 << 30).values, "<f4") for _, data in replies]  # type: ignore
        return first_replaced(lie)(replies, round, exchange)

    run.engine = Changing(run.engine, lied, None, range(LIED, LIED + 1))
    updates: list[Any] = []
    apply = run.server.aggregation.update
    run.server.aggregation.update = lambda *given: updates.append(apply(*given)) or updates[-1]  # type: ignore[method-assign]
    run.play(ROUNDS)
    record, update = run.records[LIED], updates[LIED]
    assert not record.refused
    assert record.bounded[0] == record.cohort[0]
    honest = heard[1:]
    norms = [norm_of(values) for values in honest]
    middle = sorted([*norms, np.inf])[(len(norms)) // 2]
    others = sum(v * min(1.0, BOUND * middle / norm_of(v)) for v in np.asarray(honest, np.float64)) / len(heard)
    mean = unpack(update.values if isinstance(update, Dense) else update.scalars).astype(np.float64)
    mean = mean[: others.size]  # a method may let numbers of its own follow
    assert np.linalg.norm(mean - others) <= BOUND * max(norms) / len(heard) * (1 + 1e-5)
    assert guard.finite(run.replica.state)
    assert run.replayed().digest() == run.replica.digest()
    if not isinstance(update, Dense):
        assert decode_update(record.update) == update


EVERY_EXCHANGE = [
    pytest.param(algorithm, exchange, id=f"{label(algorithm)}-{exchange}")
    for algorithm in filter(writes_floats, WIRES)
    for exchange in range(exchanges_of(algorithm))
    if federation_for(algorithm).cohort >= 4
]


@pytest.mark.parametrize(("algorithm", "exchange"), EVERY_EXCHANGE)
def test_no_method_is_led_far_away(tmp_path: Path, algorithm, exchange) -> None:
    """Whatever numbers mean: where the model ends is about as far from its start as without the liar."""
    honest, run = (bounded(tmp_path / name, algorithm) for name in ("honest", "lied"))
    start = run.replica.state.params.vector()
    run.engine = Changing(run.engine, first_replaced(lie), exchange, range(1, ROUNDS))
    honest.play(ROUNDS)
    run.play(ROUNDS)
    moved, right = (float((each.replica.state.params.vector() - start).norm()) for each in (run, honest))
    assert moved < 10 * right
    assert run.replayed().digest() == run.replica.digest()
    liars = [record.cohort[0] for record in run.records[1:]]
    noticed = [{*(record.bounded or ()), *dict(record.refused)} for record in run.records[1:]]
    assert all(liar in found for liar, found in zip(liars, noticed, strict=True))


@pytest.mark.parametrize("algorithm", COMPARABLE[:1], ids=label)
def test_without_it_the_same_lie_is_the_end_of_the_model(tmp_path: Path, algorithm) -> None:
    run = trial(tmp_path, recipe_of(algorithm))
    start = run.replica.state.params.vector()
    run.engine = Changing(run.engine, first_replaced(lie), None, range(LIED, LIED + 1))
    run.play(ROUNDS)
    assert float((run.replica.state.params.vector() - start).norm()) > 1e20
    assert not run.records[LIED].bounded
