"""One round of FZooS on E5 (N = 5, T = 10, d = 300, M = 10,000) beside the straightforward round.

The straightforward one does what the equations say: a fresh factor of K + σ²I wherever the process is asked, a d×d
covariance for every candidate, gradients by central differences of the predicted mean (of the process, and of the
random features), features of all observations made anew; all of it in vectorised code that leaves the work to BLAS.

Two histories: the 150 nearest of 3,000 queries, and all 3,000. Of the straightforward round with 3,000 one step of one
client, with ten candidates of the hundred, and the end of its turn with ten of two hundred are timed, and multiplied;
everything else is timed as it is. Both sides use the same number of threads, in one process. Memory of the surrogate is
printed below the table.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from bench.table import best, show
from torch import Tensor

from fedzero.directions import Keys
from fedzero.estimators.surrogate import Active, Everything, Nearest, Rbf, Surrogate, Transfer, Window, features_of
from fedzero.estimators.surrogate.kernels import squares_between
from fedzero.methods import FZooS
from fedzero.methods.contract import Intermediate, IntermediateResult, State, Turn
from fedzero.methods.shared.corrections import Inverse
from fedzero.oracles import Losses
from fedzero.tasks import BuildContext
from fedzero_papers.tasks.synthetic import Synthetic

N, T, D, M, HISTORY, CANDIDATES, A_STEP, AROUND, AROUND_CANDIDATES = 5, 10, 300, 10_000, 3000, 100, 5, 20, 200
NOISE, FEATURE_NOISE = 1e-6, 1e-5
quickest = partial(best, warm=0)
KEYS = Keys.of_seed(1)
PROBLEM = Synthetic(dimension=D).build(N, BuildContext(KEYS, torch.device("cpu"), None))


def history(client: int) -> tuple[np.ndarray, np.ndarray]:
    """Queries as a run leaves them: a walk from the start, a few around every place."""
    generator = np.random.default_rng(client)
    x, points = PROBLEM.params.vector().numpy(), []
    while len(points) < HISTORY:
        x = (x + 0.01 * generator.choice([-1, 1], D) * generator.random(D)).clip(0, 1)
        points += list((x + generator.uniform(-0.01, 0.01, (A_STEP, D))).clip(0, 1))
    x32 = np.array(points[:HISTORY], np.float32)
    return x32, ask(client, x32)


def ask(client: int, points: np.ndarray) -> np.ndarray:
    batch = PROBLEM.shards.batch(KEYS, 0, 0, client)
    function = PROBLEM.objective.function
    return function.values(function.place(points.astype(np.float64)), batch.scale[None], batch.shift[None])[0]


def method(window: Window) -> FZooS:
    active = Active(
        initial=AROUND, a_step=A_STEP, candidates=CANDIDATES, around=AROUND, around_candidates=AROUND_CANDIDATES
    )
    return FZooS(
        gamma=Inverse(),
        surrogate=Surrogate(noise=NOISE, window=window),
        transfer=Transfer(count=M, noise=FEATURE_NOISE, window=window),
        active=active,
        local_steps=T,
    )


@dataclass
class Ours:
    """Clients of the package, driven as an engine does."""

    window: Window

    def __post_init__(self) -> None:
        self.method = method(self.window)
        self.state = self.method.init(PROBLEM.params.clone(), N)
        self.memories, self.cache = {}, {}
        for i in range(N):
            x, y = history(i)
            cuts = np.full(HISTORY // A_STEP, A_STEP)
            self.memories[i] = (np.zeros(M, np.float32), x, y, cuts, np.zeros((0, 2)))
        self.round_number = 0
        self.round()  # makes the surrogates from the memories, which a run does only when it is resumed

    def round(self) -> None:
        self.round_number += 1
        for i in range(N):
            turn = Turn(self.round_number, i, KEYS, self.memories[i], self.cache)
            self.memories[i] = _turn(self.method, self.state, turn)


def _turn(algorithm: FZooS, state: State, turn: Turn) -> tuple[np.ndarray, ...]:
    work, answer = algorithm.client(state, turn), None
    while True:
        try:
            asked = work.send(answer)
        except StopIteration as done:
            return done.value.remember(done.value.values)
        if isinstance(asked, Intermediate):
            answer = IntermediateResult(asked.values)
        else:
            assert isinstance(asked, Losses)
            assert asked.basis is not None
            answer = ask(turn.client, asked.basis.columns.numpy())


class Straightforward:
    """One client, by the equations; `window` as in `Ours`."""

    def __init__(self, client: int, window: Window):
        self.client, self.window, self.kernel = client, window, Rbf(1.0)
        x, y = history(client)
        self.x, self.y = torch.from_numpy(x).double(), torch.from_numpy(y)
        self.features = features_of(KEYS, M, D, 1.0)
        self.w = torch.zeros(M, dtype=torch.float64)

    def _held(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(self.window, Nearest):
            near = ((self.x - x) ** 2).sum(1).argsort()[: self.window.count]
            return self.x[near], self.y[near]
        return self.x, self.y

    def _factor(self, points: Tensor) -> Tensor:
        covariance = self.kernel.value(squares_between(points, points))
        return torch.linalg.cholesky(covariance + NOISE * torch.eye(len(points), dtype=torch.float64))

    def gradient(self, x: Tensor) -> Tensor:
        points, y = self._held(x)
        alpha = torch.cholesky_solve((y - y.min())[:, None], self._factor(points))[:, 0]
        h = 1e-5 * torch.eye(D, dtype=torch.float64)
        up, down = (self.kernel.value(squares_between(x + s * h, points)) @ alpha for s in (1, -1))
        return (up - down) / 2e-5

    def correction(self, x: Tensor) -> Tensor:
        h = 1e-3 * torch.eye(D, dtype=torch.float64)
        up, down = (self.features.values(x + s * h).double() @ self.w for s in (1, -1))
        return (up - down) / 2e-3

    def uncertainty(self, candidates: Tensor) -> Tensor:
        points, _ = self._held(candidates.mean(0))
        factor, norms = self._factor(points), []
        for z in candidates:
            to_z = z - points
            slopes = -self.kernel.slope((to_z * to_z).sum(1))[:, None] * to_z
            known = torch.linalg.solve_triangular(factor, slopes, upper=False)
            norms.append((torch.eye(D, dtype=torch.float64) - known.T @ known).trace())
        return torch.stack(norms)

    def queries(self, x: Tensor, count: int, candidates: int) -> None:
        points = (x + 0.01 * (2 * torch.rand(candidates, D, dtype=torch.float64) - 1)).clamp(0, 1)
        chosen = points[torch.topk(self.uncertainty(points), count).indices]
        self.x = torch.cat([self.x, chosen])
        self.y = torch.cat([self.y, torch.from_numpy(ask(self.client, chosen.numpy()))])

    def weights(self, x: Tensor) -> None:
        points, y = self._held(x)
        rows = self.features.values(points).double()
        gram = rows @ rows.T + FEATURE_NOISE * torch.eye(len(points), dtype=torch.float64)
        self.w = torch.linalg.solve(gram, y - y.mean()) @ rows

    def step(self, x: Tensor) -> Tensor:
        gradient = self.gradient(x) + self.correction(x)
        x = (x - 0.01 * gradient.sign()).clamp(0, 1)
        self.queries(x, A_STEP, CANDIDATES)
        return x

    def finish(self, x: Tensor) -> None:
        self.queries(x, AROUND, AROUND_CANDIDATES)
        self.weights(x)

    def round(self) -> None:
        x = PROBLEM.params.vector().double()
        for _ in range(T):
            x = self.step(x)
        self.finish(x)

    def estimated(self, x: Tensor) -> float:
        """Seconds of a round, from its parts: a candidate costs what any other does."""
        ten = x + 0.01 * torch.rand(10, D, dtype=torch.float64)
        factor = quickest(lambda: self._factor(self._held(x)[0]), 1)
        candidate = (quickest(lambda: self.uncertainty(ten), 1) - factor) / 10
        gradient = quickest(lambda: self.gradient(x), 1) + quickest(lambda: self.correction(x), 1)
        step = gradient + factor + CANDIDATES * candidate
        return T * step + factor + AROUND_CANDIDATES * candidate + quickest(lambda: self.weights(x), 1)


def main() -> None:
    rows, notes = [], []
    for window, words in ((Nearest(150), "150 nearest of 3,000"), (Everything(), "all of 3,000")):
        ours = Ours(window)
        mine = quickest(ours.round, 3)
        plain, x = Straightforward(0, window), PROBLEM.params.vector().double()
        theirs = N * quickest(plain.round, 1) if isinstance(window, Nearest) else N * plain.estimated(x)
        rows.append((words, f"{mine:.2f} s", f"{theirs:.1f} s", f"{theirs / mine:.0f}×"))
        held = _surrogate_bytes(ours)
        notes.append(f"{words}: the surrogate of one client takes {held / 1e6:.0f} MB ({HISTORY}+ queries, d = {D})")
    show("One round of FZooS, five clients", rows, ("history", "fedzero", "straightforward", "ratio"))
    print(*notes, f"random features of all clients together: {4 * M * (D + 1) / 1e6:.0f} MB", sep="\n")


def _surrogate_bytes(ours: Ours) -> int:
    cache = ours.cache["fzoos"]
    history = cache.take(0, ours.memories[0][1:])
    assert history is not None
    cache.put(0, history)
    return history.bytes


if __name__ == "__main__":
    if len(sys.argv) > 1:
        torch.set_num_threads(int(sys.argv[1]))
    main()
