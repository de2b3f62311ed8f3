"""SCAFFOLD-ZO, both types: against NumPy with every control variate kept, with clients that leave, and its costs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from byhand import EPS, How, Listening, Losing, assert_near, federation, model, start

from fedzero.methods import FedZO, ScaffoldZO
from fedzero.methods.contract import Scale
from fedzero.model.schedules import InverseSqrt
from fedzero.model.updates import decode_update
from fedzero.protocol.client import ClientMemory


def nobody(r: int, exchange: int, i: int) -> bool:
    return False


def by_hand(world, rounds: int, K: int, eta, gamma: float, type: str, how: How, lost=nobody):
    """(x, all N control variates). What does not arrive in an exchange counts from there on for nothing.

    Type I estimates c_i at x_r along the directions, and on the batch, of a step after the last.
    """
    x, variates = start(), np.zeros((world.N, world.d))
    for r in range(rounds):
        cohort, rate = world.cohort(r), eta(r)
        if type == "I":
            cohort = [i for i in cohort if not lost(r, 0, i)]
            own = {i: world.estimate(x, r, i, K, how) for i in cohort}
            c = np.mean([own[i] for i in cohort], axis=0)
        else:
            own, c = variates.copy(), variates.mean(axis=0)
        ends, fresh = [], {}
        for i in cohort:
            if lost(r, type == "I", i):
                continue
            y, estimates = x.copy(), []
            for k in range(K):
                estimates.append(world.estimate(y, r, i, k, how))
                y = y - rate * (estimates[-1] + gamma * (c - own[i]))
            ends.append(y)
            fresh[i] = np.mean(estimates, axis=0)
        if ends:
            x = np.mean(ends, axis=0)
        for i, mean in fresh.items():
            variates[i] = mean
    return x, variates


def left(r: int, exchange: int, i: int) -> bool:
    """Somebody in most rounds: in the first exchange, between the two, or both."""
    return (r * 3 + i * 5 + exchange) % 7 < 2


TYPES = pytest.mark.parametrize("type", ["I", "II"])
FORMS = pytest.mark.parametrize("form", ["dense", "seeded"])


@FORMS
@TYPES
@pytest.mark.parametrize("how", [How(), How(central=True), How(kind="rademacher")], ids=str)
def test_nine_rounds_equal_the_paper_by_hand(tmp_path: Path, how, type, form) -> None:
    """Three of five clients a round: the others' variates stay as they were."""
    eta, gamma, K, rounds = 5e-3, 0.8, 3, 9
    algorithm = ScaffoldZO(rate=eta, type=type, gamma=gamma, local_steps=K, form=form, **how.fields)
    run, world = federation(tmp_path, algorithm, clients=5, cohort=3, replicas=True)
    run.play(rounds)
    x, _ = by_hand(world, rounds, K, lambda r: eta, gamma, type, how)
    plain, _ = by_hand(world, rounds, K, lambda r: eta, 0.0, type, how)
    assert np.abs(x - plain).max() > 0.01, "the correction must be felt"
    assert_near(model(run), x, how.bound)
    assert not any(r.refused for r in run.records)


@FORMS
@pytest.mark.parametrize("cohort", [2, 5])
def test_c_is_the_mean_of_all_clients_variates(tmp_path: Path, form, cohort) -> None:
    """After every round, whoever took part, and when replies got lost."""
    eta, K, how = 5e-3, 3, How()
    algorithm = ScaffoldZO(rate=eta, type="II", local_steps=K, form=form, **how.fields)
    run, world = federation(tmp_path, algorithm, clients=5, cohort=cohort)
    inner, lost = run.engine, lambda r, exchange, i: (r + 2 * i) % 5 == 0
    run.engine = Losing(inner, lost)
    remembered = np.zeros((5, 50))
    for r in range(9):
        run.play(1)
        x, variates = by_hand(world, r + 1, K, lambda r: eta, 1.0, "II", how, lost)
        if not np.any(variates):
            continue
        c = run.replica.state.carry.mean[0].double().numpy()
        scale = np.abs(variates).max()
        # Rounding of c, EPS of the largest variate a round, comes on top of what the slopes are off by.
        assert np.abs(c - variates.mean(axis=0)).max() < (how.bound + (r + 1) * EPS) * scale
        assert_near(model(run), x, how.bound)
        if form == "dense":  # what the clients themselves remember
            for i, _ in run.records[-1].remembered:
                remembered[i] = ClientMemory.of_chunks([p.body for p in inner.clients[i].tried()]).memory[0]
            assert np.abs(remembered - variates).max() < how.bound * scale
            assert np.abs(c - remembered.mean(axis=0)).max() < (r + 1) * EPS * scale


@FORMS
@TYPES
@pytest.mark.parametrize("replacement", [False, True])
def test_clients_that_leave_in_the_middle(tmp_path: Path, type, form, replacement) -> None:
    """Type I: c is of all that shared, the mean of those who finished, and the two no longer cancel."""
    eta, K, rounds, how = 5e-3, 2, 10, How()
    algorithm = ScaffoldZO(rate=eta, type=type, local_steps=K, form=form, **how.fields)
    run, world = federation(
        tmp_path, algorithm, clients=6, cohort=6 if replacement else 4, replacement=replacement, replicas=True
    )
    run.engine = Losing(run.engine, left)
    run.play(rounds)
    x, _ = by_hand(world, rounds, K, lambda r: eta, 1.0, type, how, left)
    assert_near(model(run), x, how.bound)
    if form == "seeded" and type == "I":
        updates = [decode_update(r.update) for r in run.records if r.update is not None]
        assert {bool(update.others) for update in updates} == {True, False}
        for update in updates:
            stayed, gone = len(set(update.clients)), len(set(update.others))
            variates = (stayed + gone) * how.P if gone else 0
            assert len(update.scalars) == 4 * (stayed * K * how.P + variates)


def test_a_round_that_everybody_leaves_changes_nothing(tmp_path: Path) -> None:
    for type, form in (("I", "dense"), ("I", "seeded"), ("II", "dense"), ("II", "seeded")):
        how = How()
        algorithm = ScaffoldZO(rate=5e-3, type=type, local_steps=2, form=form, **how.fields)
        run, world = federation(tmp_path / type / form, algorithm, clients=5)
        lost = lambda r, exchange, i: r in (2, 3) and exchange == (type == "I")  # noqa: B023, E731
        run.engine = Losing(run.engine, lost)
        run.play(7)
        assert [r.update is None for r in run.records] == [r in (2, 3) for r in range(7)]
        x, _ = by_hand(world, 7, 2, lambda r: 5e-3, 1.0, type, how, lost)
        assert_near(model(run), x, how.bound)


@FORMS
@TYPES
def test_a_schedule_reaches_clients_and_server(tmp_path: Path, type, form) -> None:
    how = How()
    algorithm = ScaffoldZO(rate=InverseSqrt(start=1e-2), type=type, local_steps=2, form=form, **how.fields)
    run, world = federation(tmp_path, algorithm, clients=5)
    run.engine = Losing(run.engine, left)
    run.play(8)
    x, _ = by_hand(world, 8, 2, lambda r: 1e-2 / np.sqrt(r + 1), 1.0, type, how, left)
    assert_near(model(run), x, how.bound)


@FORMS
@TYPES
def test_without_the_correction_it_is_fedzo(tmp_path: Path, type, form) -> None:
    """Up to rounding: type II adds the server's change as one vector, FedZO term by term."""
    fields = {"rate": 5e-3, "local_steps": 3, "form": form, **How().fields}
    corrected, _ = federation(tmp_path / "scaffold", ScaffoldZO(gamma=0.0, type=type, **fields))
    plain, _ = federation(tmp_path / "zo", FedZO(**fields))
    corrected.play(8)
    plain.play(8)
    assert_near(model(corrected), model(plain), How().bound)
    if type == "I":
        assert corrected.replica.digest() == plain.replica.digest()
        assert [r.update for r in corrected.records] == [r.update for r in plain.records]


@FORMS
def test_both_exchanges_are_counted(tmp_path: Path, form) -> None:
    """Messages written down again: replies of Q and K·Q scalars (or d and d numbers), and c in between."""
    K, Q, m, d = 3, 4, 3, 50
    algorithm = ScaffoldZO(rate=5e-3, type="I", local_steps=K, directions=Q, form=form)
    run, _ = federation(tmp_path, algorithm, clients=5, cohort=m, replicas=True)
    run.engine = ear = Listening(run.engine)
    run.play(7)

    def length(*message: object) -> int:
        return len(msgspec.msgpack.encode(message))

    numbers = (Q, K * Q) if form == "seeded" else (d, d)
    for record in run.records:
        heard = [h for h in ear.heard if h[0] == record.round]
        assert [h[1] for h in heard] == [0] * m + [1] * m
        queries = (Q + 1, K * (Q + 1))
        expected = [length(record.round, e, bytes(8), bytes(4 * numbers[e]), bytes(4), queries[e]) for e in (0, 1)]
        assert record.bytes_up == m * sum(expected) == sum(len(h[4]) for h in heard)
        shared = (bytes(4 * m * Q), record.cohort) if form == "seeded" else (bytes(4 * d), ())
        assert {len(h[3]) for h in heard if h[1] == 1} == {length(4, record.round, 1, *shared)}
        assert record.bytes_down == sum(len(h[3]) for h in heard)
        assert record.queries == m * (K + 1) * (Q + 1) == m * algorithm.cost(record.round, Scale(d, 5)).queries


def test_type_two_asks_nothing_more_than_fedzo(tmp_path: Path) -> None:
    run, _ = federation(tmp_path, ScaffoldZO(rate=5e-3, type="II", local_steps=3, directions=4, form="seeded"))
    zo, _ = federation(tmp_path / "zo", FedZO(rate=5e-3, local_steps=3, directions=4, form="seeded"))
    run.play(7)
    zo.play(7)
    for mine, theirs in zip(run.records, zo.records, strict=True):
        assert (mine.queries, mine.bytes_up, mine.bytes_down) == (theirs.queries, theirs.bytes_up, theirs.bytes_down)
