"""The synthetic functions: their equations and gradients, what C does and does not change, noise, and a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedzero.directions import Domain, Keys, Terms
from fedzero.errors import FedzeroError
from fedzero.methods import FedAvg, FedZO
from fedzero.methods.contract import Federation
from fedzero.methods.rules.kernels import Adam
from fedzero.model.params import Params
from fedzero.oracles import ALL_DATA, Basis
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.report.history import History
from fedzero.results.history import history
from fedzero.runs import recorded, session
from fedzero.runs.progress import Silent
from fedzero.tasks import BuildContext, Problem
from fedzero_papers.tasks.synthetic import Synthetic

KEYS = Keys.of_seed(7)
N, D = 5, 30
NONE = Terms.of([], [], Domain.GAUSSIAN)
NAMES = ("quadratic", "ackley", "levy")
DOMAINS = {"quadratic": 10.0, "ackley": 32.768, "levy": 10.0}


def built(clients: int = N, **fields: Any) -> Problem:
    return Synthetic(**({"dimension": D} | fields)).build(clients, BuildContext(KEYS, torch.device("cpu"), None))


def bends(C: float, clients: int = N, d: int = D) -> tuple[np.ndarray, np.ndarray]:
    """a − 1/N and b − 1/N times C, (N, d), drawn again."""
    generator = KEYS.generator("synthetic")
    a, b = (generator.dirichlet([1 / clients] * clients, d).T for _ in range(2))
    return C * (a - 1 / clients), C * (b - 1 / clients)


def again(name: str, u: torch.Tensor, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """f_i at u (d,), term by term, in torch: what autograd can take apart."""
    x, total = (2 * u - 1) * DOMAINS[name], torch.zeros((), dtype=torch.float64)
    d = len(x)
    if name == "quadratic":
        for j in range(d):
            total = total + (1 + A[j]) * x[j] ** 2 + (1 + B[j]) * x[j]
        return (total + 1) / (10 * d)
    if name == "ackley":
        y = (1 + A) * (x - B)
        tip = torch.exp(-0.2 * torch.sqrt((y**2).sum() / d))
        return -20 * tip - torch.exp(torch.cos(2 * math.pi * y).sum() / d) + 20 + math.e
    w = 1 + (1 + A) * (x - 1 - B) / 4
    for j in range(d - 1):
        total = total + (w[j] - 1) ** 2 * (1 + 10 * torch.sin(math.pi * w[j] + 1) ** 2)
    first, last = torch.sin(math.pi * w[0]) ** 2, (w[-1] - 1) ** 2 * (1 + torch.sin(2 * math.pi * w[-1]) ** 2)
    return first + total + last


def by_autograd(name: str, u: np.ndarray, A: np.ndarray, B: np.ndarray) -> tuple[float, np.ndarray]:
    at = torch.from_numpy(u.astype(np.float64)).requires_grad_()
    value = again(name, at, torch.from_numpy(A), torch.from_numpy(B))
    value.backward()
    return value.item(), at.grad.numpy()


def value_at(problem: Problem, u: np.ndarray, client: int) -> float:
    """f_i where no base is needed: at zero, moved by a column."""
    zero, to = (
        Params.of_vector(torch.zeros(u.size)),
        Basis(torch.from_numpy(u.astype(np.float32))[None], np.ones((1, 1))),
    )
    return float(problem.objective.losses(zero, (NONE,), [problem.shards.batch(KEYS, 0, 0, client)], to)[0, 0])


@pytest.mark.parametrize("C", [0.0, 0.5, 5.0, 50.0])
@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients_are_those_of_the_equations(name, C) -> None:
    problem, (A, B) = built(function=name, heterogeneity=C), bends(C)
    u, total = problem.params.vector().numpy(), np.zeros(D)
    for i in range(N):
        batch = problem.shards.batch(KEYS, 0, 0, i)
        expected, slope = by_autograd(name, u, A[i], B[i])
        value, gradient = problem.objective.gradient(problem.params, batch)
        assert value == pytest.approx(expected, rel=1e-12)
        assert problem.objective.losses(problem.params, (NONE,), [batch]) == pytest.approx(expected, rel=1e-12)
        assert gradient.dtype == torch.float32
        assert np.abs(gradient.numpy() - slope).max() < 1e-6 * np.abs(slope).max()
        total += slope / N
    found = problem.objective.global_gradient(np.stack([u, u]).astype(np.float64))
    assert found.shape == (2, D)
    assert np.abs(found - total).max() < 1e-10 * np.abs(total).max()


@pytest.mark.parametrize("C", [0.0, 0.5, 5.0, 50.0])
def test_the_mean_of_the_quadratics_does_not_depend_on_c(C) -> None:
    """Eq. (99), its minimum, and ∇F in the parameters: (high − low)(2x + 1)/10d."""
    problem, rng = built(heterogeneity=C), np.random.default_rng(1)
    for u in (problem.params.vector().numpy(), *rng.uniform(-0.5, 1.5, (3, D)).astype(np.float32)):
        x = 20 * u.astype(np.float64) - 10
        F = ((x**2 + x).sum() + 1) / (10 * D)
        clients = [value_at(problem, u, i) for i in range(N)]
        assert np.mean(clients) == pytest.approx(F, rel=1e-12)
        if C:
            assert np.std(clients) > 0.01 * C, "but the clients'"
        metrics = problem.objective.evaluate(Params.of_vector(torch.from_numpy(u)))
        assert metrics.loss == pytest.approx(((x + 0.5) ** 2).sum() / (10 * D), rel=1e-10)
        gradient = problem.objective.global_gradient(u[None].astype(np.float64))
        assert gradient[0] == pytest.approx(20 * (2 * x + 1) / (10 * D), rel=1e-9)
    best = problem.objective.evaluate(Params.of_vector(torch.full((D,), 0.475)))
    assert abs(best.loss) < 1e-12


@pytest.mark.parametrize(("name", "best"), [("ackley", 0.5), ("levy", 0.55)])
def test_alike_clients_have_the_textbook_minimum(name, best) -> None:
    """0 at x = 0 (Ackley) and at x = 1 (Levy); without C, and for a client alone, whatever C."""
    for problem in (built(function=name, heterogeneity=0.0), built(1, function=name, heterogeneity=5.0)):
        at = Params.of_vector(torch.full((D,), best))
        assert abs(problem.objective.evaluate(at).loss) < 1e-10
        assert problem.objective.evaluate(problem.params).loss > 10
    alike = built(function=name, heterogeneity=0.0)
    assert np.abs(alike.objective.global_gradient(np.full((1, D), best))).max() < 1e-10


@pytest.mark.parametrize("name", ["ackley", "levy"])
def test_a_clients_minimum_lies_at_its_shift(name) -> None:
    problem, (_, B) = built(function=name, heterogeneity=0.5), bends(0.5)
    x = B[2] + (name == "levy")
    u = (x / DOMAINS[name] + 1) / 2
    assert value_at(problem, u, 2) < 1e-3 < value_at(problem, u, 3)


def test_draws_are_dirichlet_over_the_clients() -> None:
    """Scales of mean 1 and shifts of mean 0 in every coordinate, with the variance (N−1)/2N² of Dir(1/N · 1)."""
    shards = built(dimension=20_000, heterogeneity=2.0).shards
    for drawn, mean in ((shards.scales, 1.0), (shards.shifts, 0.0)):
        assert np.allclose(drawn.mean(axis=0), mean, rtol=0, atol=1e-12)
        assert (drawn >= mean - 2 / N - 1e-12).all()
        # 20,000 coordinates: the variance of a client's share is seen to about 1 %.
        assert np.allclose(drawn.var(axis=1), 4 * (N - 1) / (2 * N**2), rtol=0.05)
    assert abs(np.corrcoef(shards.scales[0], shards.shifts[0])[0, 1]) < 0.05, "two draws, not one twice"


def test_the_start_is_a_function_of_the_seed_alone() -> None:
    starts = [built(function=f, heterogeneity=C).params.vector() for f in NAMES for C in (0.5, 50.0)]
    assert all(torch.equal(starts[0], other) for other in starts[1:])
    many = built(dimension=10_000).params.vector()
    assert many.min() >= 0
    assert many.max() <= 1
    assert abs(float(many.mean()) - 0.5) < 0.02
    assert float(many.std()) == pytest.approx(1 / math.sqrt(12), rel=0.02)


@pytest.mark.parametrize("name", NAMES)
def test_points_are_where_their_terms_and_columns_say(name) -> None:
    """No term, one, several; columns with weights and without; far outside of the box; one batch and all."""
    problem, rng = built(function=name), np.random.default_rng(3)
    x, (A, B) = problem.params, bends(5.0)
    z = [x.direction(Domain.GAUSSIAN, key).double().numpy() for key in range(3)]
    single = (NONE, Terms.of([0], [1e-3], Domain.GAUSSIAN), Terms.of([1], [-2.0], Domain.GAUSSIAN))
    several = (*single, Terms.of([0, 1, 2], [0.5, -0.25, 2.0], Domain.GAUSSIAN))
    offsets = [np.zeros(D), 1e-3 * z[0], -2 * z[1], 0.5 * z[0] - 0.25 * z[1] + 2 * z[2]]
    batches = [problem.shards.batch(KEYS, 0, 0, i) for i in range(N)]
    columns = torch.from_numpy(rng.normal(size=(3, D)).astype(np.float32))
    weights = rng.normal(size=(4, 3))
    cases = [
        (single, None, offsets[:3]),
        (several, None, offsets),
        (several, Basis(columns, weights), [o + w @ columns.numpy() for o, w in zip(offsets, weights, strict=True)]),
        (single, Basis(columns), [o + column for o, column in zip(offsets[:3], columns.numpy(), strict=True)]),
    ]
    for points, basis, moved in cases:
        found = problem.objective.losses(x, points, batches, basis)
        assert found.shape == (N, len(points))
        assert found.dtype == np.float64
        for i in range(N):
            expected = [by_autograd(name, x.vector().numpy() + offset, A[i], B[i])[0] for offset in moved]
            assert found[i] == pytest.approx(expected, rel=1e-5)
            alone = problem.objective.losses(x, points, batches[i : i + 1], basis)
            assert alone[0] == pytest.approx(found[i], rel=1e-12)


def test_a_probe_loses_nothing_to_the_size_of_x() -> None:
    """x + μz in float32 would be off by 6e-8 a coordinate, a tenth of this μ's difference and more."""
    problem = built()
    batch, z = problem.shards.batch(KEYS, 0, 0, 1), problem.params.direction(Domain.GAUSSIAN, 4).double().numpy()
    points = tuple(Terms.of([4], [mu], Domain.GAUSSIAN) for mu in (1e-6, -1e-6))
    plus, minus = problem.objective.losses(problem.params, points, [batch])[0]
    _, slope = by_autograd("quadratic", problem.params.vector().numpy(), *(b[1] for b in bends(5.0)))
    assert (plus - minus) / 2e-6 == pytest.approx(float(slope @ z), rel=1e-6)


def test_noise_is_of_the_query_and_the_same_when_asked_again() -> None:
    sigma, many = 0.1, (NONE,) * 4000
    noisy, clean = built(noise=sigma), built()

    def zeta(round: int, step: int, client: int, points: Any = many) -> np.ndarray:
        batches = [problem.shards.batch(KEYS, round, step, client) for problem in (noisy, clean)]
        values, true = (
            p.objective.losses(p.params, points, [b])[0] for p, b in zip((noisy, clean), batches, strict=True)
        )
        return values - true

    first = zeta(3, 1, 2)
    assert np.array_equal(first, zeta(3, 1, 2))
    assert np.array_equal(first[:21], zeta(3, 1, 2, many[:21]))
    # 4,000 draws: mean and standard deviation are seen to σ/63 and 1.1 %; five of each.
    assert abs(first.mean()) < 5 * sigma / math.sqrt(4000)
    assert first.std() == pytest.approx(sigma, rel=0.06)
    for other in ((4, 1, 2), (3, 2, 2), (3, 1, 3), (3, ALL_DATA, 2)):
        drawn = zeta(*other)
        assert drawn.std() == pytest.approx(sigma, rel=0.06)
        assert abs(np.corrcoef(first, drawn)[0, 1]) < 5 / math.sqrt(4000)


def test_noise_stays_out_of_gradients_and_of_the_evaluation() -> None:
    noisy, clean = built(noise=0.1), built()
    assert noisy.objective.evaluate(noisy.params) == clean.objective.evaluate(clean.params)
    (value, gradient), (true, same) = (
        p.objective.gradient(p.params, p.shards.batch(KEYS, 0, 0, 1)) for p in (noisy, clean)
    )
    assert torch.equal(gradient, same)
    assert 0 < abs(value - true) < 0.6


def played(folder: Path, rounds: int, **fields: Any) -> tuple[History, torch.Tensor]:
    """A run with all clients in every round: what was measured after each of them, and the last parameters."""
    everybody = Federation(clients=N, cohort=N)
    made = recipes.Recipe(name="synthetic", rounds=rounds, evaluate_every=1, federation=everybody, **fields)
    session.start(made, folder, Environment(), Silent())
    return history(folder), recorded.replayed(folder, Environment(), None).state.params.vector()


DESCENTS = [
    ("quadratic", 1e-3, 0.5),
    pytest.param("levy", 0.03, 0.75, marks=pytest.mark.slow),
    pytest.param("ackley", 0.05, 0.985, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "radius", "left"), DESCENTS)
def test_the_baseline_of_the_paper_descends(tmp_path: Path, name, radius, left) -> None:
    """Adam with .01 on the clients' steps, in the box; with μ wider than the waves of the other two (1/65 for Ackley),
    which a small μ shows and nothing else."""
    method = FedZO(rate=0.01, directions=20, local_steps=10, radius=radius, local_optimizer=Adam(), box=(0.0, 1.0))
    task = Synthetic(function=name, dimension=100, heterogeneity=0.5, noise=1e-6)
    made, x = played(tmp_path, 6, algorithm=method, task=task)
    assert made.final_loss < left * made.first_loss
    assert x.min() >= 0
    assert x.max() <= 1
    assert [point.queries for point in made.points] == [N * 10 * 21 * round for round in range(7)]


def test_first_order_methods_can_run_it(tmp_path: Path) -> None:
    made, _ = played(tmp_path, 5, algorithm=FedAvg(rate=0.1, local_steps=5), task=Synthetic(dimension=D))
    assert made.final_loss < made.first_loss


def recipe(**task: Any) -> recipes.Recipe:
    return recipes.decode(
        {
            "name": "synthetic",
            "rounds": 4,
            "evaluate_every": 2,
            "algorithm": {"kind": "fedzo", "rate": 0.01, "local_optimizer": {"kind": "adam"}, "box": [0, 1]},
            "task": {"kind": "synthetic"} | task,
            "federation": {"clients": 5, "cohort": 5},
            "engine": {"kind": "local", "device": "cpu"},
        }
    )


def test_a_recipe_runs_and_replays(tmp_path: Path) -> None:
    made = recipe(heterogeneity=50, noise=0.01)
    assert made.task.label == "quadratic functions in 300 dimensions, C = 50"
    found = session.start(made, tmp_path / "run", Environment(), Silent())
    again = session.start(made, tmp_path / "again", Environment(), Silent())
    assert (found.complete, found.rounds, found.refused) == (True, 4, 0)
    assert found.model_digest == again.model_digest
    assert recorded.replayed(tmp_path / "run", Environment(), None).digest().hex() == found.model_digest


@pytest.mark.parametrize("task", [{"heterogeneity": -1}, {"noise": -0.1}, {"function": "rastrigin"}, {"dimension": 0}])
def test_what_makes_no_sense_is_refused(task) -> None:
    with pytest.raises(FedzeroError, match=f"task.{next(iter(task))}"):
        recipe(**task)
