"""FZooS against its equations written down again in NumPy: fresh factors, d×d uncertainties, no memory but lists."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from byhand import EPS, D, Losing, assert_near, federation, model, start

from fedzero.directions import SHARED
from fedzero.errors import FedzeroError
from fedzero.estimators.surrogate import Active, Matern, Nearest, Recent, Surrogate, Transfer
from fedzero.methods import Federation, FZooS
from fedzero.methods.rules.kernels import Adam, Sgd
from fedzero.methods.shared.corrections import Constant, Corollary, Inverse
from fedzero.tasks import Quadratic

NOISE, FEATURE_NOISE, M, T, REACH = 1e-4, 0.1, 30, 3, 0.3
"""More observations than features: with less noise float32's share in w would be as large as the tolerances here."""
FEW = Active(initial=6, a_step=2, candidates=7, around=4, around_candidates=9, reach=REACH)


def rbf(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.exp(-0.5 * ((a[:, None] - b[None]) ** 2).sum(-1))


class ByHand:
    """One client's half: lists of queries, everything made anew whenever it is needed."""

    def __init__(self, world, client: int, active: Active, box: tuple[float, float] | None):
        self.world, self.i, self.active, self.box = world, client, active, box
        self.X: list[np.ndarray] = []
        self.y: list[float] = []
        self.w: np.ndarray | None = None

    def _scaled(self) -> tuple[np.ndarray, np.ndarray, float]:
        X, y = np.array(self.X, np.float64), np.array(self.y)
        return X, (y - y.min()) / (y.max() - y.min()), y.max() - y.min()

    def gradient(self, x: np.ndarray) -> np.ndarray:
        X, y, spread = self._scaled()
        alpha = np.linalg.solve(rbf(X, X) + NOISE * np.eye(len(X)), y)
        return spread * sum(a * -k * (x - p) for a, k, p in zip(alpha, rbf(x[None], X)[0], X, strict=True))

    def uncertainty(self, x: np.ndarray) -> float:
        X, _, _ = self._scaled()
        J = -rbf(x[None], X)[0][:, None] * (x - X)  # ∂k(x), (n, d)
        return float(np.trace(np.eye(len(x)) - J.T @ np.linalg.solve(rbf(X, X) + NOISE * np.eye(len(X)), J)))

    def ask(self, centre: np.ndarray, r: int, step: int, count: int, candidates: int) -> None:
        who = SHARED if self.active.shared else self.i
        draw = self.world.keys.generator("candidates", r, step, who).uniform(-REACH, REACH, (candidates, len(centre)))
        points = (centre + draw).astype(np.float32)
        if self.box is not None:
            points = points.clip(*self.box)
        chosen = list(range(candidates))
        if self.X and candidates > count:
            chosen = sorted(range(candidates), key=lambda j: -self.uncertainty(points[j].astype(np.float64)))
        f = self.world.f(r, self.i, step)
        for j in sorted(chosen[:count]):
            self.X.append(points[j])
            self.y.append(f(points[j].astype(np.float64)))

    def weights(self, V: np.ndarray, b: np.ndarray) -> np.ndarray:
        X, y = np.array(self.X, np.float64), np.array(self.y)
        Phi = np.sqrt(2 / M) * np.cos(X @ V.T + b)
        return Phi.T @ np.linalg.solve(Phi @ Phi.T + FEATURE_NOISE * np.eye(len(X)), y - y.mean())


def travelled(values: np.ndarray) -> np.ndarray:
    """As they are received: what travels, and the model, is float32. All else is float64, here and there."""
    return values.astype(np.float32).astype(np.float64)


def by_hand(
    world, rounds: int, eta: float, gamma, active: Active, at: str, box, adam: bool, gone=lambda r, e, i: False
):
    generator = world.keys.generator("features")
    V = generator.standard_normal((M, world.d), np.float32).astype(np.float64)
    b = (generator.random(M, np.float32) * np.float32(2 * np.pi)).astype(np.float64)
    people = [ByHand(world, i, active, box) for i in range(world.N)]

    def clip(x: np.ndarray) -> np.ndarray:
        return x if box is None else x.clip(*box)

    def by_features(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return -np.sqrt(2 / M) * (w * np.sin(V @ x + b)) @ V

    x, w = start(), np.zeros(M)
    for r in range(rounds):
        ends, kept = {}, {}
        for i in world.cohort(r):
            me = people[i]
            kept[i] = len(me.X)
            if me.w is None:
                me.ask(x, r, 0, active.initial, active.initial)
            u, m, v = x.copy(), np.zeros(world.d), np.zeros(world.d)
            for t in range(1, T + 1):
                g = me.gradient(u)
                if me.w is not None:
                    g = g + gamma(t, r + 1) * by_features(u if at == "iterate" else x, w - me.w)
                if adam:
                    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
                    g = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
                u = clip(u - eta * g)
                me.ask(u, r, t, active.a_step, active.candidates)
            ends[i] = travelled(u - x)
        shared = [i for i in ends if not gone(r, 0, i)]
        if shared:
            ahead = clip(travelled(x + travelled(np.mean([ends[i] for i in shared], axis=0))))
            fresh = {}
            for i in shared:
                people[i].ask(ahead, r, T + 1, active.around, active.around_candidates)
                fresh[i] = travelled(people[i].weights(V, b))
            finished = [i for i in shared if not gone(r, 1, i)]
            if finished:
                x, w = ahead, travelled(np.mean([fresh[i] for i in finished], axis=0))
                for i in finished:
                    people[i].w = fresh[i]
        for i in ends:  # whose turn did not count forgets it
            if not (shared and i in finished):
                del people[i].X[kept[i] :], people[i].y[kept[i] :]
    return x, w


SETTINGS = [
    (Inverse(), lambda t, r: 1 / t, FEW, "iterate", None),
    (Constant(0.7), lambda t, r: 0.7, FEW, "start", None),
    (
        Corollary(heterogeneity=2.0, error=3.0, decay=0.8, features_error=0.1),
        lambda t, r: 2 / (2 + 2 * 3 * 0.8 ** ((r - 1) * T) + 2 * 0.1),
        FEW,
        "iterate",
        (-0.5, 0.9),
    ),
    (
        Constant(1.0),
        lambda t, r: 1.0,
        Active(initial=6, a_step=2, candidates=7, around=4, around_candidates=9, reach=REACH, shared=True),
        "iterate",
        None,
    ),
]


def method(gamma, active: Active, at: str, box, adam: bool, eta: float) -> FZooS:
    return FZooS(
        gamma=gamma,
        surrogate=Surrogate(noise=NOISE),
        transfer=Transfer(count=M, noise=FEATURE_NOISE),
        active=active,
        rate=eta,
        optimizer=Adam() if adam else Sgd(),
        local_steps=T,
        correction_at=at,
        box=box,
    )


@pytest.mark.covered
@pytest.mark.parametrize("adam", [False, True], ids=["sgd", "adam"])
@pytest.mark.parametrize(("gamma", "length", "active", "at", "box"), SETTINGS, ids=lambda v: type(v).__name__)
def test_five_rounds_equal_the_paper_by_hand(tmp_path: Path, gamma, length, active, at, box, adam: bool) -> None:
    """Four of five clients a round. What is left is how a sum is rounded to float32 once in a while."""
    eta = 0.05 if adam else 0.02
    run, world = federation(tmp_path, method(gamma, active, at, box, adam, eta), clients=5, cohort=4, replicas=True)
    run.play(5)
    x, w = by_hand(world, 5, eta, length, active, at, box, adam)
    plain, _ = by_hand(world, 5, eta, lambda t, r: 0.0, active, at, box, adam)
    assert np.abs(x - plain).max() > 1e-3, "the correction must be felt"
    assert_near(model(run), x, 1e-6)
    found = run.replica.state.carry.w.double().numpy()
    assert np.abs(found - w).max() < 1e-6 * np.abs(w).max()
    assert not any(r.refused for r in run.records)


def test_clients_that_leave_in_the_middle(tmp_path: Path) -> None:
    """x is where those went who shared, w of those who finished; whose turn did not count has forgotten it."""

    def gone(r: int, exchange: int, i: int) -> bool:
        return (r + 2 * i + exchange) % 4 == 0

    gamma, length, active, at, box = SETTINGS[1]
    run, world = federation(tmp_path, method(gamma, active, at, box, False, 0.02), clients=5, cohort=4, replicas=True)
    run.engine = Losing(run.engine, gone)
    run.play(6)
    x, w = by_hand(world, 6, 0.02, length, active, at, box, False, gone)
    assert sum(len(r.refused) for r in run.records) > 5
    assert_near(model(run), x, 1e-6)
    assert np.abs(run.replica.state.carry.w.double().numpy() - w).max() < 1e-6 * np.abs(w).max()


def test_shared_candidates_cancel_what_clients_differ_in(tmp_path: Path) -> None:
    """f_i = F + linear parts that cancel in the mean. Over the same points w = mean w_i is F's own."""
    active = SETTINGS[3][2]
    algorithm = method(Constant(1.0), active, "iterate", None, False, 1e-30)  # nobody moves: all query the same points
    run, world = federation(tmp_path, algorithm, clients=4, cohort=4)
    run.play(2)
    mine = ByHand(world, 0, active, None)
    points = {}
    for i in range(4):
        client = ByHand(world, i, active, None)
        for r in range(2):
            if r == 0:
                client.ask(start(), r, 0, active.initial, active.initial)
            for t in range(1, T + 1):
                client.ask(start(), r, t, active.a_step, active.candidates)
            client.ask(start(), r, T + 1, active.around, active.around_candidates)
        points[i] = np.array(client.X)
        mine.X = client.X
        mine.y = client.y if i == 0 else [a + b for a, b in zip(mine.y, client.y, strict=True)]
    assert all(np.array_equal(points[0], points[i]) for i in range(4))
    mine.y = [value / 4 for value in mine.y]
    generator = world.keys.generator("features")
    V = generator.standard_normal((M, world.d), np.float32).astype(np.float64)
    b = (generator.random(M, np.float32) * np.float32(2 * np.pi)).astype(np.float64)
    expected = mine.weights(V, b)
    found = run.replica.state.carry.w.double().numpy()
    assert np.abs(found - expected).max() < 2e-3 * np.abs(expected).max()


def test_presets_hold_where_a_field_is_not_given() -> None:
    text, authors, shared = (FZooS(preset=preset).settled for preset in ("text", "authors", "shared"))
    assert isinstance(text.gamma, Inverse)
    assert text.surrogate.kernel.scale == 1.0
    assert not text.surrogate.fit_scale
    assert authors.surrogate == Surrogate(kernel=Matern(), fit_scale=True, window=Nearest(150))
    assert authors.active.around == 50
    assert shared.active.shared
    assert FZooS(preset="authors", gamma=Constant(0.3)).settled.gamma == Constant(0.3)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"surrogate": Surrogate(fit_scale=True)}, "fit_scale"),
        ({"surrogate": Surrogate(fit_scale=True, window=Recent(50))}, "nearest"),
        ({"active": Active(a_step=9, candidates=5)}, "candidates"),
        ({"active": Active(around=9, around_candidates=5)}, "around_candidates"),
        ({"box": (1.0, 0.0)}, "box"),
    ],
)
def test_what_cannot_work_is_refused(fields, words: str) -> None:
    with pytest.raises(FedzeroError, match=words):
        FZooS(**fields).check(Federation(clients=4, cohort=4))


def test_a_large_history_is_not_written_anew_every_round(tmp_path: Path) -> None:
    """What a round adds to a client's memory on the ledger is that round's queries, and w_i."""
    gamma, _, active, at, box = SETTINGS[0]
    run, world = federation(tmp_path, method(gamma, active, at, box, False, 0.02), clients=2, cohort=2)
    run.play(3)
    sizes = []
    real = run.engine.receive

    def weighed(seconds):
        events = real(seconds)
        kept = [event.memory for event in events if event.memory is not None]
        if kept:
            sizes.append(sum(len(body) for change in kept for body in change.changed.values()))
        return events

    run.engine.receive = weighed
    run.play(4)
    queries = T * active.a_step + active.around
    assert all(size < 2 * (queries * (4 * world.d + 8) + 4 * M + 400) for size in sizes), sizes
    assert sizes[0] == pytest.approx(sizes[-1], abs=64)


def test_values_are_those_of_the_very_points_that_are_remembered(tmp_path: Path) -> None:
    """Points travel to the function as float32 numbers, and the surrogate knows them as that."""
    gamma, _, active, at, box = SETTINGS[0]
    run, world = federation(
        tmp_path, method(gamma, active, at, box, False, 0.02), clients=2, cohort=2, task=Quadratic(dimension=D)
    )
    run.play(1)
    (_, points, values, cuts, rebuilds) = run.engine.clients[0]._tried[1].memory
    assert points.dtype == np.float32
    assert rebuilds.shape == (0, 2)
    assert cuts.tolist() == [active.initial, *[active.a_step] * T, active.around]
    f = world.f(0, 0, None)
    expected = np.array([f(p.astype(np.float64)) for p in points])
    assert np.abs(values - expected).max() <= 50 * EPS * np.abs(expected).max()
