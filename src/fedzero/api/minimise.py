"""Black boxes of several parties, minimised together: functions without gradients.

    result = fedzero.minimise([f_berlin, f_lyon, f_oslo], bounds=[(-5, 5)] * 20, rounds=30, out="runs/mine")
    print(result.x, result.value, result.queries)

minimises the mean of the functions within the bounds. What a party shares is what the method's clients send, never its
function. Every query is in a ledger: after a crash the same call resumes the run, and no value is queried twice.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Unpack

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedzero.api import given
from fedzero.api.boxes import Box, Function, named_boxes
from fedzero.api.coordinates import Choice, Coordinate, coordinates_of
from fedzero.api.default_method import default_algorithm
from fedzero.api.options import Chosen, RunOptions, chosen
from fedzero.api.runs import carry_out
from fedzero.errors import Invalid
from fedzero.methods import Method, ResponseSurface
from fedzero.model.numbers import Natural, NonNegative, Positive, PositiveInt
from fedzero.model.value import quoted
from fedzero.oracles.blackbox import AnyBox, Evaluate
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.results.outcome import Result, best_known, result_of
from fedzero.rounds.silence import Unanswered
from fedzero.tasks.blackbox import BlackBox

ROUNDS = 50


def minimise(
    boxes: Sequence[Box],
    bounds: Sequence[Any],
    *,
    algorithm: Any = None,
    budget: int | None = None,
    timeout: float | None = None,
    retries: int = 2,
    backoff: float = 0.1,
    workers: int = 1,
    start: Sequence[float] | NDArray[np.float64] | None = None,
    noise: float = 0.0,
    dimension: int | None = None,
    evaluate: Evaluate | None = None,
    constraints: Sequence[Callable[..., Any]] = (),
    penalty: float = 1000.0,
    together: bool = True,
    **options: Unpack[RunOptions],
) -> Result:
    """Minimise the mean of `boxes`, one a client, within `bounds`.

    bounds: (low, high), `Integer` or `Choice` for every coordinate; or one for all of them, with `dimension`.
    constraints: functions g(x), wanted to be ≤ 0: `penalty` · max(0, g(x))² is added to the value of every box.
    algorithm: a method, or a table as in a recipe; default: `default_algorithm`.
    budget, timeout, retries, backoff, workers, noise, evaluate: as the fields of `[task]`, see docs/blackbox.md.
    together: boxes of different clients work at the same time, in threads of this process.
    options: see `fedzero.RunOptions`. out: default: a temporary folder. progress: default: False.
    rounds: default: as many as the budget pays for, or 50. Given both, the budget is spread over the rounds: fewer
    rounds are fewer exchanges, of more points each.
    """
    own = chosen(minimise, options, progress=False).of_the_run()
    if own.privacy is not None:
        raise Invalid("fedzero.minimise has no privacy: every value of a black box is on record")
    (budget,) = given.each(PositiveInt | None, budget=budget)
    (dimension,) = given.each(given.Many | None, dimension=dimension)
    (workers,), (retries,) = given.each(PositiveInt, workers=workers), given.each(Natural, retries=retries)
    noise, penalty, backoff = given.each(NonNegative, noise=noise, penalty=penalty, backoff=backoff)
    (timeout,), (together,) = given.each(Positive | None, timeout=timeout), given.each(bool, together=together)
    constraints, coordinates = _constraints(constraints), coordinates_of(bounds, dimension)
    named, functions = named_boxes(boxes, coordinates)
    limits = [Function(g, f"constraint {i}") for i, g in enumerate(constraints)]
    functions = functions | (named_boxes(limits, coordinates)[1] if limits else {})
    settings: dict[str, Any] = {"timeout": timeout, "retries": retries, "backoff": backoff, "workers": workers}
    settings |= {"noise": noise, "penalty": penalty, "constraints": tuple(each.name for each in limits)}
    place = named, coordinates, own, algorithm, together
    recipe = recipe_of(*place, start=start, evaluate=evaluate, budget=budget, **settings)
    folder = own.folder or Path(tempfile.mkdtemp(prefix="fedzero-"))
    with suppress(Unanswered):  # the result says so, and the same call goes on
        carry_out(recipe, folder, Environment(functions=functions), own)
    return best_known(result_of(folder))


def recipe_of(
    boxes: tuple[AnyBox, ...],
    coordinates: tuple[Coordinate, ...],
    options: Chosen,
    algorithm: Any,
    together: bool,
    *,
    start: Sequence[float] | NDArray[np.float64] | None,
    evaluate: Evaluate | None,
    budget: int | None,
    **settings: Any,
) -> recipes.Recipe:
    """The recipe that minimises the mean of `boxes`; settings: further fields of the task."""
    low, high = tuple(each.low for each in coordinates), tuple(each.high for each in coordinates)
    steps = tuple(each.steps for each in coordinates)
    steps = steps if any(steps) else ()
    choices = tuple(i for i, each in enumerate(coordinates) if isinstance(each, Choice))
    size = len(coordinates)
    (first,) = given.each(tuple[float, ...] | None, start=start)
    (evaluate,) = given.each(Evaluate | None, evaluate=evaluate)
    kept = 0 if evaluate in (None, "log", "shared") else 2
    paid = None if budget is None else max(1, budget - kept)
    rounds = options.rounds
    default: Method = default_algorithm(size, len(boxes), rounds, paid, steps, choices)
    if options.before is not None:  # of more rounds it would be another one
        default = options.before.algorithm
    method = given.method(algorithm, msgspec.to_builtins(default), "algorithm")
    surface = default if algorithm is None else algorithm
    surface = surface if isinstance(surface, ResponseSurface) else None
    if evaluate is None:
        evaluate = "ends" if surface is None else "shared"
    if rounds is None:
        rounds = ROUNDS if paid is None or surface is None else -(-paid // surface.batch(size, 0))
    task = BlackBox(
        boxes=boxes,
        dimension=size,
        low=low,
        high=high,
        steps=steps,
        start=first,
        evaluate=evaluate,
        budget=budget,
        **settings,
    )
    table = {
        "name": "black-box",
        "algorithm": method,
        "task": msgspec.to_builtins(task),
        # All functions are the caller's own, and their mean is what is minimised, however unlike they are.
        "federation": {"clients": len(boxes), "cohort": len(boxes), "bound": 0},
        "engine": {"kind": "local", "merge": together, "device": "cpu"},
    }
    every = rounds if evaluate == "query" else 1  # what is free may be had every round
    return recipes.decode(options.table(rounds, every) | table, "fedzero.minimise")


def _constraints(functions: Any) -> list[Callable[..., Any]]:
    if callable(functions) or isinstance(functions, str) or not isinstance(functions, Sequence):
        raise Invalid(f"constraints = {quoted(functions)} is not valid: give a list of functions")
    wanted = "a function of x, wanted to be ≤ 0"
    return [given.function(g, f"constraints[{i}]", wanted, optional=False) for i, g in enumerate(functions)]
