"""What every task must do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch

from fedzero.directions import Domain, Keys, Terms
from fedzero.engines.local import Local
from fedzero.methods.contract import Federation
from fedzero.methods.decomfl import DeComFL
from fedzero.oracles import ALL_DATA
from fedzero.oracles.blackbox import Unmeasured
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import recorded, session
from fedzero.runs.progress import Silent
from fedzero.tasks.contract import BuildContext, Problem, Task
from fedzero.testing.trial import Check, expect, run_checks

CLIENTS = 4


def check_task(
    task: Task, data: Path | None = None, clients: int = CLIENTS, checks: Sequence[Check] | None = None
) -> None:
    """Build a task and ask it what methods ask, and raise `CheckFailed` with what does not hold.

    Checks: the recipe survives the ledger; the same keys give the same problem; losses are finite, the same whatever
    is asked beside them, and leave the parameters alone; gradients, where there are any, agree with slopes; a short run
    replays.
    """
    run_checks(type(task), (task, data, clients), CHECKS if checks is None else checks)


Subject = tuple[Task, Path | None, int]
KEYS = Keys.of_seed(3)


def _built(subject: Subject, keys: Keys = KEYS) -> Problem:
    task, data, clients = subject
    return task.build(clients, BuildContext(keys, torch.device("cpu"), data))


def survives_the_ledger(subject: Subject, folder: Path) -> None:
    task = subject[0]
    found = recipes.task(msgspec.json.decode(msgspec.json.encode(task)))
    expect(found == task, f"the task comes back from the ledger as {found}, not as {task}")
    expect(bool(task.label), "its label is empty")


def builds_the_same_again(subject: Subject, folder: Path) -> None:
    first, second = _built(subject), _built(subject)
    expect(first.params.digest() == second.params.digest(), "the same keys give another model")
    expect(dict(first.facts) == dict(second.facts), "the same keys give other facts")
    expect(first.shards.clients == subject[2], f"data for {first.shards.clients} clients, not for {subject[2]}")
    points = _points()
    for client in range(subject[2]):
        for step in (0, 1, ALL_DATA):
            values = [
                p.objective.losses(p.params, points, [p.shards.batch(KEYS, 2, step, client)]) for p in (first, second)
            ]
            expect(
                np.array_equal(values[0], values[1]), f"client {client}, step {step}: the same keys give other losses"
            )


def _points() -> list[Terms]:
    return [Terms.of([], [], Domain.GAUSSIAN), *(Terms.of([key], [1e-3], Domain.GAUSSIAN) for key in (1, 2, 3))]


def answers_asks(subject: Subject, folder: Path) -> None:
    problem = _built(subject)
    before, points = problem.params.digest(), _points()
    batches = [problem.shards.batch(KEYS, 0, 0, client) for client in range(subject[2])]
    together = problem.objective.losses(problem.params, points, batches)
    expect(together.shape == (len(batches), len(points)), f"losses of shape {together.shape}, not {(len(batches), 4)}")
    expect(together.dtype == np.float64, f"losses of type {together.dtype}, not float64")
    expect(bool(np.isfinite(together).all()), "losses are not finite at the start")
    expect(len(np.unique(together)) > 1, "losses are the same for all clients and points")
    problem.params.changed()
    expect(problem.params.digest() == before, "asking for losses changes the parameters")
    alone = np.stack([problem.objective.losses(problem.params, points, [batch])[0] for batch in batches])
    close = np.allclose(alone, together, rtol=1e-4, atol=1e-6 * float(np.abs(together).max()))
    expect(close, "losses depend on which other batches are asked for beside them")
    try:
        metrics = problem.measure(problem.params, 0)
    except Unmeasured:
        return
    expect(math.isfinite(metrics.loss), f"the loss of the starting model is {metrics.loss}")


def gives_gradients_that_agree_with_slopes(subject: Subject, folder: Path) -> None:
    """Where the task has gradients: ⟨∇f, z⟩ against (f(x + μz) − f(x − μz)) / 2μ, in float32."""
    problem = _built(subject)
    batch = problem.shards.batch(KEYS, 0, ALL_DATA, 0)
    try:
        _, gradient = problem.objective.gradient(problem.params, batch)
    except Exception:  # tasks of values only
        return
    mu, keys = 1e-2, range(1, 9)
    ends = [Terms.of([key], [sign * mu], Domain.GAUSSIAN) for key in keys for sign in (1, -1)]
    values = problem.objective.losses(problem.params, ends, [batch])[0]
    slopes = (values[0::2] - values[1::2]) / (2 * mu)
    exact = np.array([float(gradient @ problem.params.direction(Domain.GAUSSIAN, key)) for key in keys])
    agree = np.corrcoef(slopes, exact)[0, 1] if np.std(exact) and np.std(slopes) else 0.0
    expect(agree > 0.9, f"gradients and slopes along {len(keys)} directions correlate by {agree:.2f} only")


def runs_and_replays(subject: Subject, folder: Path) -> None:
    task, data, clients = subject
    recipe = recipes.Recipe(
        name="trial",
        rounds=3,
        evaluate_every=3,
        algorithm=DeComFL(rate=1e-4, directions=2),
        task=task,
        federation=Federation(clients=clients, cohort=min(2, clients)),
        engine=Local(device="cpu"),
    )
    environment = Environment(data)
    found = session.start(recipes.decode(msgspec.to_builtins(recipe)), folder / "run", environment, Silent())
    expect(found.refused == 0 and found.complete, "clients are refused in a run of three rounds")
    recorded.verified(folder / "run", environment)


CHECKS: tuple[Check, ...] = (
    survives_the_ledger,
    builds_the_same_again,
    answers_asks,
    gives_gradients_that_agree_with_slopes,
    runs_and_replays,
)
