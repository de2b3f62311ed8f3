"""What finds each of the mistakes that make a private run worthless. Every one plays real runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
from harness import recipe_of
from slopes import Private, Slopes

from entropy import given_entropy
from fedzero.gatherings.private import central, units
from fedzero.ledger.records import spent_of
from fedzero.links.contract import F32
from fedzero.methods import DeComFL
from fedzero.model.updates import decode_update, unpack
from fedzero.privacy.audit import audited
from fedzero.privacy.integers import Grid
from fedzero.recipe import recipe as recipes
from fedzero.recipe.privacy import Privacy
from fedzero.testing.trial import Trial, trial

P = 6
CLIENTS = 8
EVERYBODY = range(CLIENTS)
_names = count()


class Wrong(AssertionError):
    """A detector's verdict."""


def expect(holds: Any, otherwise: str) -> None:
    if not holds:
        raise Wrong(otherwise)


def recipe(directions: int = P, rounds: int = 4, rows: int = 1, clients: int = CLIENTS, **privacy: Any) -> Any:
    made = recipe_of(DeComFL(rate=1e-3, directions=directions), clients, max(1, clients // 2), task=Slopes(rows=rows))
    table = msgspec.to_builtins(made) | {"rounds": rounds, "evaluate_every": rounds}
    budget = {} if "epsilon" in privacy else {"sigma": 1.0}
    return recipes.with_noise(recipes.decode(table | {"privacy": budget | privacy}))


@contextmanager
def data(private: Private) -> Iterator[None]:
    with patch.object(Slopes, "private", private):
        yield


def played(folder: Path, made: Any, rounds: int = 1, private: Private | None = None) -> Trial:
    with data(private or Private()):
        run = trial(folder / f"run-{next(_names)}", made)
        run.play(rounds)
    return run


def released(run: Trial, round: int = 0) -> F32:
    """The numbers of a round as they are on the ledger."""
    (record,) = run.ledger.rounds(round, round + 1)
    return unpack(decode_update(record.update or b"").scalars)


def summed(run: Trial, round: int = 0) -> Any:
    """The noisy sum of a round, in units of value."""
    gathering = run.setup.chain.gathering
    assert isinstance(gathering, central.PlainSum)
    return released(run, round).astype(np.float64) * gathering.expected


def only(client: int, scales: Sequence[float], clients: int = CLIENTS) -> Private:
    """Data of which all but one client's are zero."""
    rows = len(scales)
    return Private({c: list(scales) if c == client else [0.0] * rows for c in range(clients)})


# ---- noise halved


def audit(folder: Path, replays: int) -> None:
    """The claim of the ledger holds against an attacker who sees a client's turn again and again.

    One round with the client and one without it. The sampler is asked for as many draws as there are replays, by the
    code that adds them and with its deviation; a replay is the sum of the round with another draw. Each of both has a
    stream of bytes of its own, so that the bound, which holds in 99 of 100 audits, is always the same one.
    """
    made = recipe(1, 1, epsilon=2.0, delta=1e-5, probability=1.0)
    real, seen = central.rounded_gaussian, []

    def many(deviation: Any, count: int, entropy: Any) -> Any:
        seen.append(real(deviation, count * replays, entropy))
        return seen[-1][:count]

    found = []
    for scale in (1.0, 0.0):
        with patch.object(central, "rounded_gaussian", many), given_entropy(noise=b"scale %g" % scale):
            run = played(folder, made, private=only(0, [scale]))
        step = 2.0**-run.setup.chain.gathering.exponent
        without = summed(run)[0] - float(seen[-1][0]) * step
        found.append(without + seen[-1] * step)
    claim = (spent_of(run.records[0]) or (math.nan,))[0]
    there, gone = found
    sign = 1.0 if np.median(there) > np.median(gone) else -1.0
    bound = audited(sign * there, sign * gone, 1e-5).epsilon
    expect(claim == claim and abs(claim - 2.0) < 0.01, f"the ledger claims ε = {claim}")
    expect(bound <= claim, f"ε is at least {bound:.2f}, and the ledger claims {claim:.2f}")
    expect(bound > 0.5, f"an attacker who finds ε ≥ {bound:.2f} does not look at the client")


# ---- clip forgotten


def canary(folder: Path, unit: str) -> None:
    """A unit whose vector has the norm 100 C moves the sum by at most √L/s, and by C at least: it was shortened, not
    lost. Without noise, and all others are zero."""
    rows = 1 if unit == "client" else 3
    drawn = {} if unit == "client" else {"population": CLIENTS * rows}
    made = recipe(1, 1, rows, clip=0.5, unit=unit, probability=1.0, **drawn)
    norms: list[float] = []
    real = units.PrivateUnits.on_client

    def look(link: Any, mine: Any, client: Any) -> Any:
        vectors = mine.values[None] if mine.rows is None else mine.rows
        norms.append(float(np.linalg.norm(vectors.astype(np.float64), axis=1).max()))
        return real(link, mine, client)

    def silent(deviation: Any, count: int, entropy: Any) -> Any:
        return np.zeros(count, np.int64)

    def moved(scale: float) -> Any:
        norms.clear()
        scales = [scale] + [0.0] * (rows - 1)
        with (
            patch.object(units.PrivateUnits, "on_client", look),
            patch.object(central, "rounded_gaussian", silent),
            given_entropy(rounding=b"of a canary"),
        ):
            return summed(played(folder, made, private=only(2, scales)))

    moved(1.0)
    scale = 100 * 0.5 / max(norms)
    distance = float(np.linalg.norm(moved(scale) - moved(0.0)))
    moved(scale)
    expect(abs(max(norms) / 50 - 1) < 1e-3, f"the canary has the norm {max(norms)}, which is not 100 C")
    gathering = trial(folder / "grid", made).setup.chain.gathering
    grid = Grid(0.5, gathering.exponent, 1)
    most, step = math.sqrt(grid.allowance) / float(grid.scale), 1 / float(grid.scale)
    slack = 1e-6 * distance  # the ledger has float32
    expect(distance <= most + step + slack, f"a unit moved the sum by {distance}, and its bound is {most}")
    expect(distance >= 0.5 - 2 * step - slack, f"a unit longer than C counts {distance}, and not C")


# ---- keys as noise


def two_runs(folder: Path) -> None:
    """The same recipe, data and seed, twice: other noise, other rounding, other coins."""
    made = recipe(P, 6, 2, unit="example", clip=1.0, population=2 * CLIENTS, probability=0.5, sigma=50.0)
    clients = recipe(P, 6, sigma=50.0)
    found: list[dict[str, Any]] = []
    for _ in range(2):
        asked, rows = _roundings(folder, recipe(8 * P, 6, sigma=50.0)), played(folder, made, 6)
        found.append({"rounding": asked, "rows": rows.setup.problem.shards.drawn})
        silent = played(folder, clients, 6, Private({c: [0.0] for c in EVERYBODY}))
        found[-1]["noise"] = [tuple(released(silent, r).tolist()) for r in range(6)]
        found[-1]["cohort"] = [silent.server.schedule.cohort(r) for r in range(6)]
    for name in found[0]:
        expect(found[0][name] != found[1][name], f"two runs of a recipe have the same {name}")
    numbers = [number for each in found for round in each["noise"] for number in round]
    expect(len(set(numbers)) > len(numbers) // 2, "noise repeats itself")


def _roundings(folder: Path, made: Any) -> list[Any]:
    """What the integers of everybody's first turn are."""
    real, seen = units.quantised, []

    def look(rows: Any, grid: Any, draws: Any) -> Any:
        seen.append(real(rows, grid, draws).tolist())
        return np.array(seen[-1], np.int64)

    table = msgspec.to_builtins(made)
    table["privacy"]["probability"] = 1.0
    with patch.object(units, "quantised", look):
        played(folder, recipes.decode(table))
    return seen


def observer(folder: Path) -> None:
    """Somebody with the recipe and all public keys plays it without data, and subtracts what comes out. What is left of
    a run with data is still hidden: in the direction of the sum, it is no nearer to the sum than noise would be."""
    made = recipe(80, 1, probability=1.0, sigma=4.0)
    victim, own = played(folder, made), played(folder, made, private=Private({c: [0.0] for c in EVERYBODY}))
    left = summed(victim) - summed(own)
    deviation = 4.0 * math.sqrt(2)
    expect(left.std() > deviation / 2, f"what is left after a public replay deviates by {left.std():.3g} alone")


# ---- cohorts


DEVIATIONS = 6.0


def cohorts(folder: Path, rounds: int = 200) -> None:
    """Sizes are binomial, pairs are independent, and a run with another source draws others: clients of a cohort."""
    made = recipe(1, rounds, clients=16)
    drawn = []
    for name in ("one", "other"):
        with given_entropy(coins=name.encode()):
            schedule = trial(folder / name, made).server.schedule
        drawn.append(np.array([_row(schedule.cohort(round), 16) for round in range(rounds)]))
    _poisson(drawn[0], drawn[1], 0.5)


def rows(folder: Path, rounds: int = 40) -> None:
    """The same of the rows that clients of a run evaluate."""
    size = 5
    made = recipe(1, rounds, size, unit="example", clip=1.0, population=CLIENTS * size, probability=0.3, sigma=50.0)
    drawn = []
    for name in ("one", "other"):
        with given_entropy(coins=name.encode()), patch.object(Privacy, "spent", _not_computed):
            taken = played(folder, made, rounds).setup.problem.shards.drawn[CLIENTS:]  # before, units are counted once
        expect(len(taken) == rounds * CLIENTS, "a client of a run has no turn")
        drawn.append(np.array([_row(places, size) for _, places in sorted(taken, key=lambda turn: turn[0])]))
    _poisson(drawn[0], drawn[1], 0.3)


def _not_computed(privacy: Privacy, federation: Any, count: int, steps: int, total: int) -> Any:
    """An ε that grows: that of 40 steps takes longer than the run, and nobody reads it here."""
    return 0.01 * steps, None


def _row(places: Sequence[int], count: int) -> Any:
    found = np.zeros(count)
    found[list(places)] = 1
    return found


def _poisson(drawn: Any, other: Any, q: float) -> None:
    """drawn: 0 or 1 by draw and unit."""
    draws, n = drawn.shape
    variance, sizes = n * q * (1 - q), drawn.sum(1)
    expect(not np.array_equal(drawn, other), "a second run draws the same units")
    expect(abs(sizes.mean() - n * q) < DEVIATIONS * math.sqrt(variance / draws), f"{sizes.mean():.2f} of {n} units")
    # Of a binomial the fourth central moment is variance (3 variance + 1 − 6 q (1 − q)).
    spread = math.sqrt((2 * variance**2 + variance * (1 - 6 * q * (1 - q))) / draws)
    expect(abs(sizes.var() - variance) < DEVIATIONS * spread, f"sizes deviate by {sizes.std():.2f}")
    together = (drawn.T @ drawn)[np.triu_indices(n, 1)] / draws
    limit = DEVIATIONS * math.sqrt(q * q * (1 - q * q) / draws)
    expect(np.abs(together - q * q).max() < limit, "two units are drawn together too often, or too seldom")
    follows = (drawn[1:] * drawn[:-1]).mean()
    expect(abs(follows - q * q) < DEVIATIONS * q / math.sqrt(drawn.size), "a draw depends on the one before it")
    agree, chance = float((drawn == other).mean()), q * q + (1 - q) ** 2
    expect(abs(agree - chance) < DEVIATIONS * math.sqrt(chance * (1 - chance) / drawn.size), "runs draw alike")
