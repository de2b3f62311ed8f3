"""What the attacks of bench/attacks find on small models: everything where nothing protects, else chance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from bench.attacks import audit, drain, recognition
from bench.attacks.digits import Digits, Perceptron, Rows, prior_of
from bench.attacks.fitting import fitted
from bench.attacks.seeing import Noised, alone, summed
from bench.attacks.servers import directions_of, honest, pinned, prepared, recipe_for
from bench.attacks.solving import Solver, correlation, error, rows_of

from fedzero.deploy.site.terms import Terms
from fedzero.privacy.audit import audited
from fedzero.privacy.gaussian import sigma_of

SIDE, HIDDEN, CLIENTS, P = 5, 6, 4, 30
SIZE = HIDDEN * (SIDE**2 + 1) + 10 * (HIDDEN + 1)
TURNS = -(-13 * SIZE // (10 * P))
TASK = Digits(side=SIDE, hidden=HIDDEN)
SECRET = b"sixteen bytes or more"


@pytest.fixture(scope="module")
def federation():
    setup = prepared(recipe_for(TASK, CLIENTS, TURNS, P))
    model, seen = Perceptron.of(setup.problem.params), pinned(setup, TURNS)
    rows = setup.problem.shards
    assert isinstance(rows, Rows)
    x, y = rows.x[:CLIENTS].double(), rows.y[:CLIENTS]
    gradients = model.gradients(x[:, None], y[:, None]).numpy()
    Z = directions_of(setup.problem.params, setup, seen.keys)
    return setup, model, seen, x.numpy(), gradients, Z


def attacked(federation, seen, observe, client: int = 0, noise: float = 0.0):
    """The error of the gradient, and the correlation of the digit."""
    _, model, _, x, gradients, Z = federation
    others = [other for other in range(CLIENTS) if other != client]
    y = np.concatenate([observe(turn[:, [client, *others]]) for turn in seen.values])
    found = Solver(Z, prior_of(model, None)).solve(y[:, None], noise)[0]
    return error(found, gradients[client]), correlation(rows_of(model, found, 1)[0], x[client])


def test_the_known_gradient_is_that_of_the_clients(federation) -> None:
    """The slopes that clients send are products of directions and this gradient."""
    _, _, seen, _, gradients, Z = federation
    assert np.abs(Z @ gradients.T - seen.values.reshape(-1, CLIENTS)).max() < 0.05 * np.abs(seen.values).max()


def test_a_pinned_model_gives_the_gradient_and_the_row_away(federation) -> None:
    for client in range(CLIENTS):
        wrong, near = attacked(federation, federation[2], alone, client)
        assert wrong < 0.05
        assert near > 0.99


def test_fewer_measurements_than_parameters_do_not_by_least_squares_but_by_fitting(federation) -> None:
    _, model, seen, x, gradients, Z = federation
    few = seen.values.reshape(-1, CLIENTS)[: SIZE // 3]
    found = Solver(Z, prior_of(model, None)).solve(few)
    assert all(error(found[i], gradients[i]) > 0.5 for i in range(CLIENTS))
    digits = fitted(model, Z, few, torch.full((1, SIDE**2), 0.2))
    assert np.mean([correlation(digits[i], x[i]) for i in range(CLIENTS)]) > 0.9


def test_directions_of_a_secret_leave_chance(federation) -> None:
    private = prepared(recipe_for(TASK, CLIENTS, TURNS, P, private=True, server_model=False), secret=SECRET)
    seen = pinned(private, TURNS)
    assert all(attacked(federation, seen, alone, client)[0] > 1 for client in range(CLIENTS))
    known = directions_of(private.problem.params, private, seen.keys)
    found = Solver(known, prior_of(federation[1], None)).solve(seen.values.reshape(-1, CLIENTS))
    assert error(found[0], federation[4][0]) < 0.05, "who has the secret learns as much as before"


def test_a_sum_hides_a_client_until_there_are_two_of_them(federation) -> None:
    seen = federation[2]
    assert attacked(federation, seen, summed)[0] > 0.5
    assert attacked(federation, seen, lambda values: summed(values) - summed(values[:, 1:]))[0] < 0.05


def test_noise_of_a_budget_leaves_chance(federation) -> None:
    seen = federation[2]
    clip, sigma = float(np.median(np.linalg.norm(seen.values, axis=1))), sigma_of(8, TURNS, 1e-5)
    noised = Noised(clip, sigma, np.random.default_rng(0))
    wrong, near = attacked(federation, seen, lambda values: noised(values[:, :1]), noise=sigma**2 * P)
    assert wrong > 0.9
    assert near < 0.9


def test_recognition_is_within_the_bound_of_the_budget() -> None:
    """At most e^ε/pool + δ; without noise always."""
    generator = np.random.default_rng(2)
    pooled = generator.normal(size=(3, 10, 40))
    assert recognition.rate(pooled, 3.0, 1e-6, 5, generator) == 1
    found = recognition.rate(pooled, 3.0, sigma_of(1, 3, 1e-5), 500, generator)
    assert 1.2 / 40 < found < np.e / 40


def test_a_server_that_moves_the_model_gets_the_same_first_turn(federation, tmp_path: Path) -> None:
    heard, _ = honest(recipe_for(TASK, CLIENTS, 2, P), 2, tmp_path / "run")
    assert np.array_equal(heard.values[0], federation[2].values[0])
    assert not np.array_equal(heard.values[1], federation[2].values[1])


@pytest.mark.parametrize(
    ("mechanism", "above"), [(audit.gaussian(1, 1.994), False), (audit.gaussian(1, 0.997), True),
                             (audit.unclipped(1, 1.994), True), (audit.repeated(1, 1.994), True)],
    ids=["as claimed", "noise halved", "clip forgotten", "public noise"],
)  # fmt: skip
def test_replays_find_planted_faults(mechanism, above: bool) -> None:
    there, gone = np.array([[60.0, 80.0]]), np.zeros((1, 2))
    found = audited(*audit.replays(mechanism, there, gone, 60_000), 1e-5).epsilon
    assert (found > 2) == above
    assert found > 0.8


def test_a_site_counts_models_and_its_data(tmp_path: Path, capsys) -> None:
    """A model that differs in its last digits is another one; the data set is the same, whatever the run is called."""
    task, limits = drain.TASKS["quadratic"], {"projections": 15, "directions_per_run": 20, "directions_per_day": 30}
    found = {
        server: drain.drained(server, tmp_path / server, task, 5, Terms(**limits), 100) for server in drain.SERVERS
    }
    asked = {server: one.measurements for server, one in found.items()}
    assert asked == {"pins": 15, "renames": 15, "nudges": 20, "both": 30}
    for server, limit in (("pins", "projections = 15"), ("nudges", "_per_run = 20"), ("both", "_per_day = 30")):
        assert limit in found[server].refused
    assert 0 < found["nudges"].apart < 1e-3
