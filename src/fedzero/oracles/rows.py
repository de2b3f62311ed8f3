"""Losses of single rows: whether an objective and its data have them, and the answer of one client.

Privacy of rows (or persons) bounds what each contributes. That says something only if a row's loss follows from the
model and that row. So everything else is refused by name: functions without rows, rewards that compare rows, weights
that follow from the other labels of a batch, norms with statistics of the batch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzero.directions import Keys, Terms
from fedzero.errors import FedzeroError
from fedzero.model.params import Params
from fedzero.oracles.contract import F64, ByRow, DependentRows, Objective, PersonShards, RowLosses, RowShards, Shards
from fedzero.oracles.poisson import Places, by_person, drawn_persons, drawn_units

NOT_A_MEAN = "the objective of this task is no mean over rows, so no row has a loss of its own"
NOT_BY_ROW = "the data of this task cannot be taken row by row"
BY_PERSON = "a unit is a person, but nobody said whose each row is: the data of this task have no such column"


def why_no_rows(objective: object, shards: object, persons: bool = False) -> str:
    """Why there are no losses of single rows; empty: there are. persons: sums by person are wanted."""
    why = _why(objective, ByRow, NOT_A_MEAN) or _why(shards, RowShards, NOT_BY_ROW)
    return why or (BY_PERSON if persons and not isinstance(shards, PersonShards) else "")


def _why(what: Any, kind: type, otherwise: str) -> str:
    """What is not of this kind may say in `no_rows` why not."""
    why: str = getattr(what, "no_rows", "")
    return why or ("" if isinstance(what, kind) else otherwise)


def units_of(shards: Any, persons: bool) -> int:
    """How many units all clients have together; clients that share rows count once."""
    clients = _with_rows_of_their_own(shards)
    return sum(len(np.unique(_persons(shards, each))) if persons else shards.held(each) for each in clients)


def _with_rows_of_their_own(shards: Any) -> Collection[int]:
    """One of those clients that share their rows, and all others."""
    part = getattr(shards, "part", lambda client: client)
    return {part(client): client for client in range(shards.clients)}.values()


def inner_row_losses(objective: Objective, base: Params, points: Sequence[Terms], batch: Any) -> F64:
    """Of an objective inside another, which has said that it gives them."""
    if not isinstance(objective, ByRow) or objective.no_rows:
        raise DependentRows(_why(objective, ByRow, NOT_A_MEAN))
    return objective.row_losses(base, points, batch)


def inner_no_rows(objective: Objective) -> str:
    return _why(objective, ByRow, NOT_A_MEAN)


def answer_by_row(
    objective: Objective,
    shards: Shards,
    ask: RowLosses,
    client: int,
    private: Keys | None,
    failures: type[Exception] = FedzeroError,
) -> F64:
    """(points, units). private: keys of this turn that nobody else has. failures: see `Oracle`."""
    if why := why_no_rows(objective, shards, ask.drawn.persons):
        raise FedzeroError(why)
    assert isinstance(shards, RowShards) and isinstance(objective, ByRow)
    ids = _persons(shards, client) if ask.drawn.persons else None
    places = _places(shards.held(client), ids, ask.drawn.rate, private)
    if not len(places):
        return np.empty((len(ask.points), 0))
    losses = _losses(objective, shards, ask, client, places, failures)
    if losses.shape != (len(ask.points), len(places)):
        raise FedzeroError(f"{len(ask.points)} points and {len(places)} rows have losses of shape {losses.shape}")
    return losses if ids is None else np.ascontiguousarray(by_person(losses.T, ids[places]).T)


def _losses(
    objective: ByRow, shards: RowShards, ask: RowLosses, client: int, places: Places, failures: type[Exception]
) -> F64:
    """Of rows at these places, (points, rows). A row whose loss fails has losses that are NaN: the others are with the
    sum whether it is there or not, as the bound of a single unit supposes."""
    try:
        return objective.row_losses(ask.base, ask.points, shards.taken(client, places))
    except DependentRows:
        raise
    except failures:
        if len(places) == 1:
            return np.full((len(ask.points), 1), np.nan)
        middle = len(places) // 2
        parts = places[:middle], places[middle:]
        halves = [_losses(objective, shards, ask, client, part, failures) for part in parts]
        return np.concatenate(halves, axis=1)


def _places(held: int, ids: NDArray[Any] | None, rate: float, private: Keys | None) -> Places:
    if rate == 1:
        return np.arange(held)
    if private is None:
        raise FedzeroError(
            "a Poisson batch is drawn in private, since everybody who knows the seed would know who is in it: "
            "set sampling = 'private'"
        )
    return drawn_units(private.root, held, rate) if ids is None else drawn_persons(private.root, ids, rate)


def _persons(shards: RowShards, client: int) -> NDArray[Any]:
    assert isinstance(shards, PersonShards)
    ids = np.asarray(shards.persons(client))
    if ids.shape != (shards.held(client),):
        raise FedzeroError(
            f"client {client} has persons of shape {ids.shape} for {shards.held(client):,} rows: give one for each row"
        )
    return ids


def persons_at_several(shards: Any) -> str:
    """Why a unit would be more than a person's rows with one client: what bounds a client's part of a person does not
    bound the person. Empty: everybody's rows lie with one client."""
    each = [np.unique(_persons(shards, client)) for client in _with_rows_of_their_own(shards)]
    if len({ids.dtype.kind for ids in each}) > 1:
        each = [np.unique(ids.astype(str)) for ids in each]
    found, times = np.unique(np.concatenate(each), return_counts=True) if each else (np.empty(0), np.empty(0))
    if not (several := np.count_nonzero(times > 1)):
        return ""
    return (
        f"{several:,} of {len(found):,} persons have rows at several clients, and a person is one unit: let all rows "
        "of a person lie with one client"
    )


class OfPersons:
    """Shards with the person of every row. ids: of each client, in the order of its rows."""

    def __init__(self, shards: Any, ids: Sequence[NDArray[Any]]):
        self.shards, self.ids = shards, ids
        self.clients, self.no_rows = shards.clients, _why(shards, RowShards, NOT_BY_ROW)
        self.batch, self.held, self.taken = shards.batch, shards.held, shards.taken
        for name in ("rows", "part", "content"):  # protocols look for what a value has by itself
            if hasattr(shards, name):
                setattr(self, name, getattr(shards, name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.shards, name)

    def persons(self, client: int) -> NDArray[Any]:
        return self.ids[client % len(self.ids)]  # of a site all clients may have the same rows
