"""Black boxes of several parties, minimised together: functions without gradients.

    import fedzero
    result = fedzero.minimise([f_berlin, f_lyon, f_oslo], bounds=[(-5, 5)] * 20, rounds=30, out="runs/mine")
    print(result.x, result.value, result.queries)

minimises the mean of the functions within the bounds. What a party shares is what the method's clients send, never its
function. Every query is in a ledger: after a crash the same call resumes the run, and no value is queried twice.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fedzero.api import given
from fedzero.api.runs import start_or_resume, watch_of
from fedzero.errors import FedzeroError, Invalid
from fedzero.estimators.surrogate import Active, Nearest, Surrogate, Transfer
from fedzero.ledger.folder import LEDGER
from fedzero.methods import FedZO, FZooS, ResponseSurface
from fedzero.methods.rules.optimizers import Adam
from fedzero.methods.shared.corrections import Constant
from fedzero.model.numbers import Natural, NonNegative, Positive, PositiveInt
from fedzero.model.schedules import Count, Counts, InverseSqrt
from fedzero.model.value import checked, quoted
from fedzero.oracles.blackbox import AnyBox, BatchedBox, CommandBox, Evaluate, HttpBox, PythonBox
from fedzero.recipe import recipe as recipes
from fedzero.recipe.engines import Wanted
from fedzero.recipe.environment import Environment
from fedzero.results.outcome import Result, best_known, result_of
from fedzero.rounds.loop import Watch
from fedzero.rounds.silence import Unanswered
from fedzero.tasks.blackbox import BlackBox

MODERATE, LARGE = 200, 5000
ROUNDS = 50


@dataclass(frozen=True)
class Function:
    """f(x), x an array of d numbers, returns a number. `name`: how the recipe calls it; default: its own name."""

    f: Callable[[NDArray[np.float64]], Any]
    name: str | None = None


@dataclass(frozen=True)
class Batched:
    """f(X), X an array (n, d), returns n numbers: for functions that are quicker with many points at once."""

    f: Callable[[NDArray[np.float64]], Any]
    name: str | None = None


def command(*argv: str) -> CommandBox:
    """A program that reads the point as a JSON list and prints a number as the last line of its output."""
    if not argv:
        raise Invalid("command() has no program: name it, and its arguments")
    return CommandBox(argv=argv)


def http(url: str) -> HttpBox:
    """A service that answers POST {"x": [...]} with a number."""
    return HttpBox(url=url)


@dataclass(frozen=True)
class Real:
    """Any number from low to high."""

    low: float
    high: float
    steps: int = 0

    def shown(self, value: float) -> Any:
        return float(value)


@dataclass(frozen=True)
class Integer:
    """A whole number from low to high, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            object.__setattr__(self, name, checked(getattr(self, name), int, f"Integer: {name}"))
        if self.low > self.high:
            raise Invalid(f"Integer({self.low}, {self.high}): low is above high")

    @property
    def steps(self) -> int:
        return self.high - self.low + 1

    def shown(self, value: float) -> Any:
        return round(value)


class Choice:
    """One of several options that have no order. Functions get the option itself; `Result.x` has its number."""

    low = 0

    def __init__(self, *options: Any):
        if len(options) < 2:
            raise Invalid(f"Choice{quoted(options)}: give two options or more")
        self.options = options

    @property
    def high(self) -> int:
        return len(self.options) - 1

    @property
    def steps(self) -> int:
        return len(self.options)

    def shown(self, value: float) -> Any:
        return self.options[round(value)]


Coordinate = Real | Integer | Choice
Box = Callable[[NDArray[np.float64]], Any] | Function | Batched | AnyBox


def default_algorithm(
    dimension: int,
    clients: int,
    rounds: int | None = None,
    budget: int | None = None,
    steps: tuple[int, ...] = (),
    choices: tuple[int, ...] = (),
) -> ResponseSurface | FZooS | FedZO:
    """The method that is used unless another one is named; the size of the functions' values does not matter to it.

    Up to 200 dimensions the response surface: all parties are asked at the same points, d + 1 a round, or as many as
    spread a budget over the rounds. Above, where that is too many for a round, `fzoos`; in more than 5,000 dimensions,
    where a history of queries would be gigabytes, FedZO.
    """
    if dimension > LARGE:
        return FedZO(
            rate=InverseSqrt(0.05), directions=20, local_steps=5, local_optimizer=Adam(0.9, 0.9), box=(0.0, 1.0)
        )
    if dimension > MODERATE and not steps:
        return shared_fzoos(dimension)
    method = ResponseSurface(steps=steps, choices=choices)
    return method if budget is None else replace(method, points=_spread(method.batch(dimension, 0), rounds, budget))


def _spread(usual: int, rounds: int | None, budget: int) -> Counts:
    """Points a round: the usual number, more where the budget would last longer than the rounds, and fewer where it
    would not last for four; what remains of the budget is for the last round."""
    count = max(min(usual, max(1, budget // 4)), budget // (rounds or budget))
    whole, rest = divmod(budget, count)
    return Count(start=count, then=((whole, rest),)) if rest else count


def shared_fzoos(dimension: int) -> FZooS:
    """FZooS with candidates that all clients share: every query is used again and again, and what parties differ in
    cancels."""
    window = Nearest(150)
    return FZooS(
        gamma=Constant(1.0),
        surrogate=Surrogate(window=window),
        transfer=Transfer(count=2000, window=window),
        active=Active(
            initial=min(2 * dimension + 2, 50),
            a_step=min(dimension, 5),
            around=min(dimension + 1, 20),
            reach=0.02,
            shared=True,
        ),
        rate=InverseSqrt(0.03),
        local_steps=5,
    )


def minimise(
    boxes: Sequence[Box],
    bounds: Sequence[Any],
    *,
    rounds: int | None = None,
    out: str | Path | None = None,
    algorithm: Any = None,
    budget: int | None = None,
    timeout: float | None = None,
    retries: int = 2,
    backoff: float = 0.1,
    workers: int = 1,
    start: Sequence[float] | NDArray[np.float64] | None = None,
    noise: float = 0.0,
    seed: int = 0,
    dimension: int | None = None,
    evaluate: Evaluate | None = None,
    constraints: Sequence[Callable[..., Any]] = (),
    penalty: float = 1000.0,
    together: bool = True,
    resume: bool = True,
    engine: Wanted = None,
    progress: bool | Watch = False,
) -> Result:
    """Minimise the mean of `boxes`, one a client, within `bounds`.

    bounds: (low, high), `Integer` or `Choice` for every coordinate; or one for all of them, with `dimension`.
    rounds: default: as many as the budget pays for, or 50. Given both, the budget is spread over the rounds: fewer
    rounds are fewer exchanges, of more points each.
    constraints: functions g(x), wanted to be ≤ 0: `penalty` · max(0, g(x))² is added to the value of every box.
    out: folder of the run; default: a temporary one. If it holds a run of the same recipe, that is resumed
    (`resume=False`: refused); a run of another recipe is never changed.
    algorithm: a method, or a table as in a recipe; default: `default_algorithm`.
    budget, timeout, retries, backoff, workers, noise, evaluate: as the fields of `[task]`, see docs/blackbox.md.
    together: boxes of different clients work at the same time, in threads of this process.
    engine: where boxes are called: this process, or "ray", "ray:16": each on any worker of a cluster.
    progress: True shows it on standard error.
    """
    rounds, budget = given.each(PositiveInt | None, rounds=rounds, budget=budget)
    (dimension,) = given.each(given.Many | None, dimension=dimension)
    (workers,), (retries,) = given.each(PositiveInt, workers=workers), given.each(Natural, retries=retries)
    noise, penalty, backoff = given.each(NonNegative, noise=noise, penalty=penalty, backoff=backoff)
    (timeout,), (seed,) = given.each(Positive | None, timeout=timeout), given.each(given.Seed, seed=seed)
    together, resume = given.each(bool, together=together, resume=resume)
    progress, constraints = given.progress(progress), _constraints(constraints)
    folder = Path(tempfile.mkdtemp(prefix="fedzero-")) if out is None else given.folder(out)
    coordinates = coordinates_of(bounds, dimension)
    named, functions = _named(boxes, coordinates)
    limits = {f"constraint {i}": g for i, g in enumerate(constraints)}
    if limits:
        functions = {**functions, **_named([Function(g, name) for name, g in limits.items()], coordinates)[1]}
    recipe = recipe_of(
        named,
        coordinates,
        rounds,
        algorithm,
        seed,
        together,
        constraints=tuple(limits),
        penalty=penalty,
        start=start,
        noise=noise,
        budget=budget,
        timeout=timeout,
        retries=retries,
        backoff=backoff,
        workers=workers,
        evaluate=evaluate,
    )
    if not resume and (folder / LEDGER).exists():
        raise FedzeroError(f"out = {str(folder)!r} already holds a run and resume = False: choose another folder")
    recipe = recipes.with_engine(recipe, engine)
    with suppress(Unanswered):  # the result says so, and the same call goes on
        start_or_resume(recipe, folder, Environment(functions=functions), watch_of(progress))
    return best_known(result_of(folder))


def recipe_of(
    boxes: tuple[AnyBox, ...],
    coordinates: tuple[Coordinate, ...],
    rounds: int | None,
    algorithm: Any,
    seed: int,
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
    default = default_algorithm(size, len(boxes), rounds, paid, steps, choices)
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
        "rounds": rounds,
        "seed": seed,
        "evaluate_every": rounds if evaluate == "query" else 1,  # what is free may be had every round
        "algorithm": method,
        "task": msgspec.to_builtins(task),
        # All functions are the caller's own, and their mean is what is minimised, however unlike they are.
        "federation": {"clients": len(boxes), "cohort": len(boxes), "bound": 0},
        "engine": {"kind": "local", "merge": together, "device": "cpu"},
    }
    return recipes.decode(table, "fedzero.minimise")


def coordinates_of(bounds: Sequence[Any], dimension: int | None) -> tuple[Coordinate, ...]:
    """Bounds as users give them: pairs, `Integer` and `Choice`; one of them for all coordinates, with `dimension`."""
    if isinstance(bounds, Integer | Choice) and dimension is not None:
        return (bounds,) * dimension
    try:
        found = tuple(_coordinate(each) for each in bounds)
    except (TypeError, ValueError):
        try:
            found = (_coordinate(bounds),) * (dimension or 0)
        except (TypeError, ValueError):
            found = ()
    if not found or dimension not in (None, len(found)):
        raise Invalid(
            f"bounds = {quoted(bounds)} and dimension = {dimension}: give a pair (low, high), an Integer or a Choice "
            "for every coordinate, or one pair and dimension"
        )
    return found


def _constraints(functions: Any) -> list[Callable[..., Any]]:
    if callable(functions) or isinstance(functions, str) or not isinstance(functions, Sequence):
        raise Invalid(f"constraints = {quoted(functions)} is not valid: give a list of functions")
    wanted = "a function of x, wanted to be ≤ 0"
    return [given.function(g, f"constraints[{i}]", wanted, optional=False) for i, g in enumerate(functions)]


def _coordinate(pair: Any) -> Coordinate:
    if isinstance(pair, Integer | Choice):
        return pair
    low, high = pair
    return Real(float(low), float(high))


def _named(
    boxes: Sequence[Box], coordinates: tuple[Coordinate, ...]
) -> tuple[tuple[AnyBox, ...], Mapping[str, Callable[..., Any]]]:
    """Boxes as a recipe can name them, and the functions that go by these names: the same for the same call."""
    if isinstance(boxes, str) or not isinstance(boxes, Sequence) or not boxes:
        raise Invalid(f"boxes = {quoted(boxes)} is not valid: give a list with one box for every party")
    functions: dict[str, Callable[..., Any]] = {}
    named: list[AnyBox] = []
    for box in boxes:
        if isinstance(box, AnyBox):
            named.append(box)
            continue
        own = box if isinstance(box, Function | Batched) else Function(box)
        if not callable(own.f):
            raise Invalid(f"boxes has {quoted(own.f)}, which is not a function: give f(x), or a box such as http(url)")
        name = wish = own.name or str(getattr(own.f, "__qualname__", type(own.f).__qualname__))
        number = 1
        while functions.get(name, own.f) is not own.f:
            number += 1
            name = f"{wish}-{number}"
        functions[name] = own.f
        named.append(BatchedBox(name=name) if isinstance(own, Batched) else PythonBox(name=name))
    if any(isinstance(each, Choice) for each in coordinates):
        functions = {name: partial(_with_options, f, coordinates) for name, f in functions.items()}
    return tuple(named), functions


def _with_options(f: Callable[..., Any], coordinates: tuple[Coordinate, ...], x: NDArray[np.float64]) -> Any:
    """f at numbers (d,) or (n, d), with the options themselves in the place of their numbers."""
    rows = [[each.shown(value) for each, value in zip(coordinates, row, strict=True)] for row in np.atleast_2d(x)]
    return f(rows[0] if x.ndim == 1 else rows)
