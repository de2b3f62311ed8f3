"""Step rules, averages and held keys: against NumPy by hand, and through everything that a run may meet."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from byhand import Losing, assert_near, bound, federation, model, params, start, updates_of
from harness import small

from fedzero.directions import Keys
from fedzero.errors import FedzeroError
from fedzero.methods import Baffle, DeComFL, Federation, FeedSign, MeZO
from fedzero.methods.rules.averaging import AveragingState
from fedzero.methods.rules.kernels import Momentum
from fedzero.methods.rules.weighting import factor, longest
from fedzero.model.params import Params
from fedzero.model.schedules import Piecewise
from fedzero.model.updates import unpack
from fedzero.testing import methods as checks

MU = 0.1
SOME = Federation(clients=10, cohort=4)
G = np.array([3.0, -1.0, 0.5, 2.5], np.float32)


def test_factors_by_hand() -> None:
    assert factor("plain", G) == 1
    assert factor("normalised", G) == pytest.approx(1 / np.std(G.astype(float), ddof=1), rel=1e-15)
    assert factor("rms", G) == pytest.approx(np.sqrt(4 / np.mean(G.astype(float) ** 2)), rel=1e-15)


@pytest.mark.parametrize("step", ["normalised", "rms"])
def test_neither_the_radius_nor_the_scale_of_the_loss_matters(step) -> None:
    for scale in (2.0**-120, 2.0**-20, 2.0**30, 2.0**120):
        g = G * np.float32(scale)
        assert factor(step, g) * g == pytest.approx(factor(step, G) * G, rel=1e-12)


@pytest.mark.parametrize("step", ["normalised", "rms"])
def test_slopes_of_nothing_make_no_step(step) -> None:
    assert factor(step, np.zeros(4, np.float32)) == 0
    assert factor("normalised", np.full(4, 7, np.float32)) == 0


@pytest.mark.parametrize("step", ["normalised", "rms"])
def test_no_step_is_longer_than_gain_says(step) -> None:
    one = np.float32(1)
    for g in (G, np.ones(4, np.float32) * 1e-30, np.array([one, one, one, np.nextafter(one, 2 * one)])):
        assert np.abs(factor(step, g) * g).sum() / 4 <= longest(step, 4) * (1 + 1e-6)
    algorithm = DeComFL(rate=1e-3, directions=4, local_steps=3, step=step)
    assert algorithm.max_update_scale(algorithm.init(params(), 1), 0) == pytest.approx(7 * 1e-3 * 3 * longest(step, 4))


def by_hand(
    world, rounds: int, K: int, P: int, step: str, eta, n: int = 0, silent: tuple[int, ...] = (), first: int = 0
):
    """DeComFL with a rule for its steps, and the mean of the last n iterates after every n rounds."""

    def weighed(g: np.ndarray) -> np.ndarray:
        if step == "normalised":
            return g / np.std(g, ddof=1) / P
        return g / np.sqrt(np.mean(g**2)) / np.sqrt(P) if step == "rms" else g / P

    x, iterates = start(), []
    for r in range(rounds):
        z = np.array([[world.z(r, k, p) for p in range(P)] for k in range(K)])
        g = np.zeros((K, P))
        for i in world.cohort(r):
            y = x.copy()
            for k in range(K):
                f = world.f(r, i, k)
                own = np.array([(f(y + MU * z[k, p]) - f(y)) / MU for p in range(P)])
                g[k] += own / len(world.cohort(r))
                y = y - eta(r) * weighed(own) @ z[k]
        if r not in silent:
            for k in range(K):
                x = x - eta(r) * weighed(g[k]) @ z[k]
        iterates.append(x)
        if n and r >= first and (r + 1 - first) % n == 0 and r not in silent:
            x = np.mean(iterates[-n:], axis=0)
    return x


@pytest.mark.parametrize("step", ["normalised", "rms"])
@pytest.mark.parametrize("K", [1, 3])
def test_steps_equal_the_rule_by_hand(tmp_path: Path, step, K) -> None:
    algorithm = DeComFL(rate=2e-2, directions=4, local_steps=K, radius=MU, step=step)
    run, world = federation(tmp_path, algorithm, replicas=True)
    run.play(8)
    x = by_hand(world, 8, K, 4, step, lambda r: 2e-2)
    assert np.abs(x - start()).max() > 0.1, "the run must have moved"
    assert_near(model(run), x, bound(MU))
    assert not any(r.refused for r in run.records)


def test_rms_states_how_far_a_step_moves_a_weight(tmp_path: Path) -> None:
    """Over d weights and many rounds: Σ c z has variance Σ c²."""
    run, _ = federation(tmp_path, DeComFL(rate=1e-2, directions=5, radius=MU, step="rms"))
    moved = []
    for _ in range(40):
        before = model(run)
        run.play(1)
        moved.append(np.mean((model(run) - before) ** 2))
    assert np.sqrt(np.mean(moved)) == pytest.approx(1e-2, rel=0.05)


DECAYING = Piecewise(points=((0, 2e-2), (12, 2e-3)))


@pytest.mark.parametrize("rate", [1e-2, DECAYING], ids=["constant", "decaying"])
@pytest.mark.parametrize(("n", "K"), [(1, 1), (4, 1), (5, 2), (20, 1)])
def test_averages_equal_means_of_iterates_by_hand(tmp_path: Path, n, K, rate) -> None:
    algorithm = DeComFL(rate=rate, directions=3, local_steps=K, radius=MU, average=n)
    run, world = federation(tmp_path, algorithm, replicas=True)
    run.play(12)
    x = by_hand(world, 12, K, 3, "plain", lambda r: rate if isinstance(rate, float) else rate.at(r), n)
    assert np.abs(x - start()).max() > 0.1, "the run must have moved"
    assert_near(model(run), x, bound(MU))
    assert not any(r.refused for r in run.records)
    assert sorted(run.replica.state.carry.of(AveragingState).coefficients) == [
        r for r in range(12 - 12 % n, 12) if r % n
    ]


@pytest.mark.parametrize(("n", "first"), [(6, 6), (4, 3), (3, 2), (5, 20)])
def test_averages_that_begin_later_equal_those_by_hand(tmp_path: Path, n, first) -> None:
    algorithm = DeComFL(rate=1e-2, directions=3, radius=MU, average=n, average_from=first)
    run, world = federation(tmp_path, algorithm, replicas=True)
    run.play(12)
    assert_near(model(run), by_hand(world, 12, 1, 3, "plain", lambda r: 1e-2, n, first=first), bound(MU))
    assert not any(r.refused for r in run.records)


def test_rounds_without_an_update_are_iterates_too(tmp_path: Path) -> None:
    """One in the middle of a window, one at its end, which is then not averaged, and a whole window."""
    silent = (1, 7, 8, 9, 10, 11)
    algorithm = DeComFL(rate=1e-2, directions=3, radius=MU, average=4)
    run, world = federation(tmp_path, algorithm)
    run.engine = Losing(run.engine, lambda round, exchange, client: round in silent)
    run.play(16)
    assert [r.round for r in run.records if r.update is None] == list(silent)
    x = by_hand(world, 16, 1, 3, "plain", lambda r: 1e-2, 4, silent)
    assert_near(model(run), x, bound(MU))


@pytest.mark.parametrize("kind", [MeZO, Baffle, FeedSign])
def test_every_method_with_plain_steps_can_average(tmp_path: Path, kind) -> None:
    """The mean of the iterates of the same updates, folded without averaging."""
    alone = {"clients": 1, "cohort": 1} if kind is MeZO else {}
    run, world = federation(tmp_path, kind(rate=1e-2, directions=2, radius=MU, average=3), **alone)
    run.play(3)
    plain, iterates = kind(rate=1e-2, directions=2, radius=MU), []
    state = plain.init(params(), 10)
    for update in updates_of(run):
        state = plain.apply(state, [update], world.keys)
        iterates.append(state.params.vector().double().numpy())
    assert_near(model(run), np.mean(iterates, axis=0), bound(1.0))


ODD = [
    DeComFL(rate=2e-3, directions=5, local_steps=2, average=4),
    DeComFL(rate=2e-3, directions=5, step="rms", average=3),
    DeComFL(rate=2e-3, directions=5, local_steps=2, step="normalised"),
    Baffle(rate=2e-3, directions=5, average=4, average_from=2),
]


@pytest.mark.covered
@pytest.mark.parametrize("algorithm", ODD, ids=["average", "rms", "normalised", "sent"])
@pytest.mark.parametrize(
    "check",
    [
        *(checks.replays_and_counts, checks.resumes, checks.replays_short_floats, checks.runs_at_sites),
        *(checks.serves_the_federations_it_accepts, checks.weighs_who_is_drawn_twice, checks.runs_with_a_rate_of_zero),
    ],
    ids=lambda check: check.__name__,
)
def test_everything_a_run_may_meet(tmp_path: Path, algorithm, check) -> None:
    check(algorithm, tmp_path)


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("algorithm", ODD, ids=["average", "rms", "normalised", "sent"])
def test_extreme_numbers(tmp_path: Path, algorithm) -> None:
    checks.survives_extreme_numbers(algorithm, tmp_path)


def test_a_client_that_pulls_in_the_middle_of_a_window_is_sent_it(tmp_path: Path) -> None:
    algorithm = DeComFL(rate=2e-3, directions=5, average=6)
    run = small(tmp_path, algorithm, clients=12, cohort=2, replicas=True, pull_after=2)
    run.play(31)
    assert not any(r.refused for r in run.records)
    assert any(r.bytes_down > 4 * 50 for r in run.records), "somebody was sent the model"


def test_a_window_that_is_empty_again_empties_that_of_others() -> None:
    window = AveragingState({3: b"abcd"})
    assert window.with_numbers(window.numbers()) == window
    assert window.with_numbers(AveragingState().numbers()) == AveragingState()


def test_what_a_window_carries_is_small() -> None:
    g = np.arange(10, dtype=np.float32)
    window = AveragingState()
    for round in range(8, 15):
        window = window.after(round, g, 8)
    assert sorted(window.coefficients) == [9, 10, 11, 12, 13, 14]
    assert len(window.numbers()) < 6 * 4 * 10 + 40
    assert np.array_equal(unpack(window.coefficients[9]), g)


@pytest.mark.parametrize("hold", [2, 5])
def test_held_keys_have_the_low_half_of_the_first_of_the_rounds(hold) -> None:
    keys, algorithm = Keys.of_seed(3), DeComFL(rate=1e-3, directions=4, hold=hold)
    state, plain = algorithm.init(Params.of_vector(torch.zeros(3)), 1), DeComFL(rate=1e-3, directions=4)
    found = {r: algorithm.directions_of(state, keys, r, 0, 4) for r in range(3 * hold)}
    for r, mine in found.items():
        fresh, first = (plain.directions_of(state, keys, of, 0, 4) for of in (r, r // hold * hold))
        assert [key >> 32 for key in mine] == [key >> 32 for key in fresh]
        assert [key % 2**32 for key in mine] == [key % 2**32 for key in first]
        assert mine == fresh or r % hold
    assert len({key for mine in found.values() for key in mine}) == 4 * len(found)


def test_held_keys_need_directions_with_two_factors() -> None:
    with pytest.raises(FedzeroError, match=r"algorithm\.hold = 50 .* algorithm\.distribution = 'rank1' \(not 'gauss"):
        DeComFL(rate=1e-3, hold=50).check(SOME)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"rate": 1e-3, "hold": 0}, DeComFL)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"step": "normalised", "directions": 1}, "deviation over directions"),
        ({"rate": "auto", "optimizer": Momentum()}, "needs plain steps, .* momentum is no sum"),
        ({"average_from": 5}, "set algorithm.average"),
        ({"average": 5, "optimizer": Momentum()}, "needs plain steps, .* momentum is no sum"),
    ],
)
def test_what_has_no_meaning_is_refused(options, why) -> None:
    with pytest.raises(FedzeroError, match=why):
        DeComFL(**{"rate": 1e-3} | options).check(SOME)
