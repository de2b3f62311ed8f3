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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedzero.algorithms import FedZO, FZooS
from fedzero.algorithms.corrections import Constant
from fedzero.algorithms.optimizers import Adam
from fedzero.api.runs import start_or_resume, watch_of
from fedzero.errors import FedzeroError
from fedzero.estimators.surrogate import Active, Nearest, Surrogate, Transfer
from fedzero.model.schedules import InverseSqrt
from fedzero.oracles.blackbox import AnyBox, BatchedBox, CommandBox, Evaluate, HttpBox, PythonBox
from fedzero.runs import recipe as recipes
from fedzero.runs import session
from fedzero.runs.engines import Wanted
from fedzero.runs.loop import Watch
from fedzero.runs.outcome import Result, result_of
from fedzero.runs.session import Environment
from fedzero.tasks.blackbox import BlackBox

LARGE = 5000


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
    return CommandBox(argv=argv)


def http(url: str) -> HttpBox:
    """A service that answers POST {"x": [...]} with a number."""
    return HttpBox(url=url)


Box = Callable[[NDArray[np.float64]], Any] | Function | Batched | AnyBox


def default_algorithm(dimension: int, clients: int) -> FZooS | FedZO:
    """The method that is used unless another one is named; the size of the functions' values does not matter to it.

    FZooS with candidates that all clients share: every query is used again and again, and what parties differ in
    cancels. In more than 5,000 dimensions, where a history of queries would be gigabytes, FedZO.
    """
    if dimension > LARGE:
        return FedZO(
            rate=InverseSqrt(0.05), directions=20, local_steps=5, local_optimizer=Adam(0.9, 0.9), box=(0.0, 1.0)
        )
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
    rounds: int = 50,
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
    evaluate: Evaluate = "ends",
    together: bool = True,
    resume: bool = True,
    engine: Wanted = None,
    progress: bool | Watch = False,
) -> Result:
    """Minimise the mean of `boxes`, one a client, within `bounds`.

    bounds: (low, high) for every coordinate; or one such pair for all of them, with `dimension`.
    out: folder of the run; default: a temporary one. If it holds a run of the same recipe, that is resumed
    (`resume=False`: refused); a run of another recipe is never changed.
    algorithm: a method, or a table as in a recipe; default: `default_algorithm`.
    budget, timeout, retries, backoff, workers, noise, evaluate: as the fields of `[task]`, see docs/blackbox.md.
    together: boxes of different clients work at the same time, in threads of this process.
    engine: where boxes are called: this process, or "ray", "ray:16": each on any worker of a cluster.
    progress: True shows it on standard error.
    """
    named, functions = _named(boxes)
    recipe = recipe_of(
        named,
        bounds,
        dimension,
        rounds,
        algorithm,
        seed,
        together,
        start=start,
        noise=float(noise),
        budget=budget,
        timeout=None if timeout is None else float(timeout),
        retries=retries,
        backoff=float(backoff),
        workers=workers,
        evaluate=evaluate,
    )
    folder = Path(tempfile.mkdtemp(prefix="fedzero-")) if out is None else Path(out)
    if not resume and (folder / session.LEDGER).exists():
        raise FedzeroError(f"out = {str(folder)!r} already holds a run and resume = False: choose another folder")
    recipe = recipes.with_engine(recipe, engine)
    start_or_resume(recipe, folder, Environment(functions=functions), watch_of(progress))
    return result_of(folder)


def recipe_of(
    boxes: tuple[AnyBox, ...],
    bounds: Sequence[Any],
    dimension: int | None,
    rounds: int,
    algorithm: Any,
    seed: int,
    together: bool,
    *,
    start: Sequence[float] | NDArray[np.float64] | None,
    evaluate: Evaluate,
    **settings: Any,
) -> recipes.Recipe:
    """The recipe that minimises the mean of `boxes`; settings: further fields of the task."""
    low, high = _bounds(bounds, dimension)
    first = None if start is None else tuple(float(each) for each in start)
    task = BlackBox(boxes=boxes, dimension=len(low), low=low, high=high, start=first, evaluate=evaluate, **settings)
    method = default_algorithm(len(low), len(boxes)) if algorithm is None else algorithm
    table = {
        "name": "black-box",
        "rounds": rounds,
        "seed": seed,
        "evaluate_every": rounds if evaluate == "query" else 1,  # what is free may be had every round
        "algorithm": msgspec.to_builtins(method),
        "task": msgspec.to_builtins(task),
        # All functions are the caller's own, and their mean is what is minimised, however unlike they are.
        "federation": {"clients": len(boxes), "cohort": len(boxes), "bound": 0},
        "engine": {"kind": "local", "merge": together, "device": "cpu"},
    }
    return recipes.decode(table, "fedzero.minimise")


def _bounds(bounds: Sequence[Any], dimension: int | None) -> tuple[tuple[float, ...], tuple[float, ...]]:
    try:
        array = np.asarray(bounds, np.float64)
    except (TypeError, ValueError) as error:
        raise FedzeroError(f"bounds = {bounds!r}: give a pair (low, high) for every coordinate ({error})") from None
    if array.shape == (2,) and dimension is not None:
        array = np.tile(array, (dimension, 1))
    if array.ndim != 2 or array.shape[1] != 2 or not len(array) or dimension not in (None, len(array)):
        raise FedzeroError(
            f"bounds has shape {array.shape} and dimension = {dimension}: give a pair (low, high) for every "
            "coordinate, or one pair and dimension"
        )
    return tuple(array[:, 0].tolist()), tuple(array[:, 1].tolist())


def _named(boxes: Sequence[Box]) -> tuple[tuple[AnyBox, ...], Mapping[str, Callable[..., Any]]]:
    """Boxes as a recipe can name them, and the functions that go by these names: the same for the same call."""
    if isinstance(boxes, str) or not isinstance(boxes, Sequence) or not boxes:
        raise FedzeroError(f"boxes = {boxes!r}: give a list with one box for every party")
    functions: dict[str, Callable[..., Any]] = {}
    named: list[AnyBox] = []
    for box in boxes:
        if isinstance(box, AnyBox):
            named.append(box)
            continue
        given = box if isinstance(box, Function | Batched) else Function(box)
        if not callable(given.f):
            raise FedzeroError(f"boxes has {given.f!r}, which is not a function: give f(x), or a box such as http(url)")
        name = wish = given.name or str(getattr(given.f, "__qualname__", type(given.f).__qualname__))
        number = 1
        while functions.get(name, given.f) is not given.f:
            number += 1
            name = f"{wish}-{number}"
        functions[name] = given.f
        named.append(BatchedBox(name=name) if isinstance(given, Batched) else PythonBox(name=name))
    return tuple(named), functions
