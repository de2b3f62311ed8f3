"""Ask and tell: for loops that are yours, in any number of processes.

    optimiser = fedzero.Optimiser(bounds=[(-5, 5)] * 20, out="runs/mine", rounds=30)
    while not optimiser.finished:
        for point in optimiser.ask() or wait():
            optimiser.tell(point, f(point.x))

The folder is the state. Whoever asks when all values are there plays the run on, through the ordinary ledger, to the
next points that the method wants; a value that was told is on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzero.api import given
from fedzero.api.coordinates import coordinates_of
from fedzero.api.minimise import recipe_of
from fedzero.api.options import chosen
from fedzero.errors import FedzeroError, Invalid
from fedzero.ledger.folder import LEDGER, MODEL
from fedzero.ledger.told import ToldTable
from fedzero.model.device import threads
from fedzero.model.files import locked
from fedzero.model.numbers import Natural, Positive, PositiveInt
from fedzero.oracles.blackbox import Evaluate, ToldBox, Waiting
from fedzero.oracles.blackbox.attempts import Unusable, numbers, short
from fedzero.recipe.environment import Environment
from fedzero.recipe.setup import prepare
from fedzero.results.outcome import Result, best_known, result_of
from fedzero.runs import growing, session
from fedzero.runs.progress import Silent

TOLD = "told.db"


@dataclass(frozen=True, eq=False)
class Point:
    """Where a party's function is to be evaluated: x within the bounds, (d,). `id` is all that `tell` needs."""

    id: int
    party: int
    x: NDArray[np.float64]


class Optimiser:
    """A run that is told its values. Any number of processes may open the same folder, with the same arguments.

    bounds: (low, high), `Integer` or `Choice` for every coordinate; or one for all of them, with `dimension`.
    out: the folder of the run; what is there is gone on with, with more `rounds` extended; a run of another recipe is
        refused.
    parties: how many functions there are; their mean is minimised.
    lease: seconds after which a point that was asked for and not told is handed out again.
    algorithm, budget, retries, start, evaluate: as of `minimise`; a point that failed is asked again, `retries` times.
    """

    def __init__(
        self,
        bounds: Sequence[Any],
        *,
        out: str | Path,
        rounds: int | None = None,
        algorithm: Any = None,
        parties: int = 1,
        budget: int | None = None,
        retries: int = 2,
        start: Sequence[float] | NDArray[np.float64] | None = None,
        seed: int | None = None,
        dimension: int | None = None,
        evaluate: Evaluate | None = None,
        lease: float = 600.0,
    ):
        own = chosen(Optimiser, {"out": out, "rounds": rounds, "seed": seed}, folder=True).of_the_run()
        (budget,), (retries,) = given.each(PositiveInt | None, budget=budget), given.each(Natural, retries=retries)
        (dimension,) = given.each(given.Many | None, dimension=dimension)
        (parties,) = given.each(given.Many, parties=parties)
        (lease,) = given.each(Positive, lease=lease)
        recipe = recipe_of(
            (ToldBox(),) * parties,
            coordinates_of(bounds, dimension),
            own,
            algorithm,
            True,
            start=start,
            evaluate=evaluate,
            budget=budget,
            retries=retries,
        )
        assert own.folder is not None
        self.folder, self.parties, self.lease = own.folder, parties, lease
        self._table, self._growth = ToldTable(self.folder / TOLD), growing.UNCHANGED
        ledger = self.folder / LEDGER
        if not ledger.exists():
            prepare(recipe, self._environment)  # what is wrong shows before anything is written
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FedzeroError(
                f"out = {str(out)!r} cannot be made ({error.strerror}): choose another folder"
            ) from error
        with locked(self._table.path), threads(1):
            begun = ledger.exists()
            if begun:
                self._growth = growing.asked(self.folder, recipe, own.said)
                growing.unfinished(self.folder, self._growth)
            self._table.create(fresh=not begun)
            if not begun:
                with suppress(Waiting):
                    session.start(recipe, self.folder, self._environment, Silent())

    @property
    def _environment(self) -> Environment:
        return Environment(functions={ToldBox.SOURCE: self._table.outcomes})

    @property
    def finished(self) -> bool:
        """Whether the run has ended: `ask` gives no more points."""
        return (self.folder / MODEL).exists() and growing.finished(self.folder, self._growth)

    def ask(self, count: int = 1, party: int | None = None) -> list[Point]:
        """Up to `count` points (of one party) that nobody else holds; none while values of others are awaited."""
        (count,), (party,) = given.each(given.Many, count=count), given.each(Natural | None, party=party)
        if party is not None and party >= self.parties:
            raise Invalid(f"ask(count={count}, party={party}): ask for one point or more, of {self.parties} parties")
        points = self._table.lease(count, party, self.lease)
        if not points and not self.finished and not self._table.awaited():
            self._advance()
            points = self._table.lease(count, party, self.lease)
        return [Point(number, client, np.frombuffer(x, "<f8").copy()) for number, client, x in points]

    def tell(self, point: Point | int, value: Any) -> None:
        """The value of a point, from any process, in any order; durable on return.

        The first counts: the same again is ignored, another one refused.
        """
        number = _number(point)
        try:
            (found,) = numbers(value, 1)
        except Unusable as error:
            raise FedzeroError(f"point {number}: {error}: tell a finite number, or call tell_failed") from None
        self._table.tell(number, found)

    def tell_failed(self, point: Point | int, why: str = "it failed") -> None:
        """That a point has no value: it is asked again `retries` times, then its party has no value there."""
        (why,) = given.each(str, why=why)
        self._table.tell(_number(point), short(why) or "it failed")

    def result(self) -> Result:
        """What has come out so far."""
        with locked(self._table.path):
            return best_known(result_of(self.folder))

    def _advance(self) -> None:
        """Play on to where the method needs values that nobody told yet, or to the end.

        A round that was begun is played again from its start. Points must come out the same, to the last bit, in every
        process: hence one thread.
        """
        with locked(self._table.path), threads(1):
            if not self.finished and not self._table.awaited():  # or somebody was quicker
                with suppress(Waiting):
                    session.resume(self.folder, self._environment, Silent(), trusted=True, growth=self._growth)


def _number(point: Any) -> int:
    number: int
    (number,) = given.each(given.RowNumber, point=point.id if isinstance(point, Point) else point)
    return number
