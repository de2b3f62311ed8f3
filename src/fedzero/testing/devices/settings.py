"""Runs that a device is put into: the recipe, the rows of the device, the plan, and the model as the server has it.

An *exact* setting has rows and a model with which each operation of a turn is exact in float32, whatever the order of
sums: rows are one-hot, weights and biases lie in one binade (multiples of 2⁻¹⁴ between 512 and 1,024), and the two
largest logits are 180 apart, so that the logarithm of the loss is that of 1. A reply has then one right value, to the
bit. μ is such that x + μ in float32 is a tie and x + μ in float64 is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from fedzero.directions.terms import F32
from fedzero.engines.devices.plan import ALL, DevicePlan, Rates, plan_of
from fedzero.methods.shared.seeded import SeededMethod
from fedzero.model.schedules import rate_at
from fedzero.model.updates import Seeded, encode_update, pack
from fedzero.protocol.replica import Replica
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.setup import Setup, prepare
from fedzero.testing.devices.turn import I64

ROUNDS = 10_000
EXACT_MU = 3277 / 2**15 - 3e-9
"""Rounded to float32 it is an odd multiple of 2⁻¹⁵."""
FOUND = 0.03
"""Scalars of updates: small enough that an exact model stays in its binade."""


@dataclass(frozen=True)
class Setting:
    """algorithm: fields of decomfl beside the usual ones. all_rows: an evaluation takes all rows."""

    widths: tuple[int, ...] = (6, 5, 3)
    algorithm: Mapping[str, Any] = field(default_factory=dict)
    clip: float = 0.0
    batch: int = 16
    rows: int = 40
    mean: tuple[float, ...] | float = 0.5
    deviation: tuple[float, ...] | float = 1.25
    least_rows: int = 1
    all_rows: bool = False
    exact: bool = False
    seed: int = 37

    @cached_property
    def data(self) -> tuple[F32, I64]:
        """x (n, inputs) as the device reads it, y (n,)."""
        inputs, labels = self.widths[0], self.widths[-1]
        if self.exact:
            return np.eye(inputs, dtype=np.float32), np.arange(inputs) % labels
        draw = np.random.default_rng(self.seed)
        y = draw.integers(0, labels, self.rows)
        x = draw.normal(size=(self.rows, inputs)) + 2 * np.eye(labels, inputs)[y]
        return x.astype(np.float32), y.astype(np.int64)

    def recipe(self, folder: Path) -> recipes.Recipe:
        test = folder / "test.npz"
        np.savez(test, x=self.data[0], y=self.data[1])
        usual: dict[str, Any] = {"kind": "decomfl", "distribution": "rademacher", "directions": 5}
        usual |= {"rate": 0.3, "radius": 1e-2}
        if self.exact:
            usual |= {"rate": 0.05, "radius": EXACT_MU, "directions": 4}
        task = {"kind": "devices", "widths": self.widths, "test": str(test), "batch": self.batch}
        columns = {"mean": 0.0, "deviation": 1.0} if self.exact else {"mean": self.mean, "deviation": self.deviation}
        table: dict[str, Any] = {
            "name": "conformance",
            "rounds": ROUNDS,
            "seed": self.seed,
            "algorithm": usual | dict(self.algorithm),
            "task": task | columns | {"least_rows": self.least_rows},
            "federation": {"clients": 3, "cohort": 3},
            "engine": {"kind": "devices", "listen": "127.0.0.1:0", "merge": False},
        }
        if self.clip:
            table["filters"] = [{"kind": "clip", "norm": self.clip}]
        return recipes.decode(table)


def exact_model(inputs: int, labels: int) -> tuple[F32, F32]:
    """W (labels, inputs) and b (labels,): the logit of a row's label is about 0, of the next one 480, of others 180."""
    i, j = np.arange(inputs)[None, :], np.arange(labels)[:, None]
    role = (j - i) % labels
    W = np.select([role == 0, role == 1], [520.0, 1000.0], 700.0) + (3 * i + 5 * j) * 2.0**-14
    b = -520.0 - np.arange(labels) / 4 - 2.0**-14
    return W.astype(np.float32), b.astype(np.float32)


class Run:
    """A setting made: the plan for devices, and the server's model, which follows the updates that the run invents."""

    def __init__(self, setting: Setting, folder: Path):
        self.setting = setting
        self.setup: Setup = prepare(setting.recipe(folder), Environment(folder=folder))
        method = self.setup.recipe.algorithm
        assert isinstance(method, SeededMethod)
        self.method, self.rates = method, Rates(method)
        if setting.exact:
            self._load_exact()
        self.replica: Replica = self.setup.replica()
        self.first = self.replica.state.to_bytes()
        self.plan = self._plan()
        self.updates: list[bytes] = []
        self.scalars: list[bytes] = []
        mean, deviation = (np.asarray(each, np.float32) for each in (self.plan.task.mean, self.plan.task.deviation))
        self.x: F32 = (setting.data[0] - mean) / deviation
        self.y = setting.data[1]

    def _load_exact(self) -> None:
        params = self.setup.problem.params
        found = exact_model(self.setting.widths[0], self.setting.widths[-1])
        params.load(dict(zip(params.names, map(torch.from_numpy, found), strict=True)))

    def _plan(self) -> DevicePlan:
        plan = plan_of(self.setup)
        if self.setting.exact:  # devices cannot make this model: it is sent
            tensors = tuple(msgspec.structs.replace(tensor, scale=0.0) for tensor in plan.tensors)
            plan = msgspec.structs.replace(plan, tensors=tensors)
        if self.setting.all_rows:
            plan = msgspec.structs.replace(plan, method=msgspec.structs.replace(plan.method, samples=ALL))
        return plan

    @property
    def round(self) -> int:
        return self.replica.round

    def rate(self, round: int) -> float:
        assert not isinstance(self.method.rate, str)
        return rate_at(self.method.rate, round)

    def pairs(self, rounds: Sequence[int]) -> bytes:
        """The rates of rounds, as they are sent."""
        return self.rates.of(rounds)

    def advance(self, rounds: int = 1) -> None:
        """Make so many rounds, with scalars that follow from their number."""
        for _ in range(rounds):
            draw = np.random.default_rng([self.setting.seed, self.round])
            size = FOUND if self.setting.exact else 1.0
            count = self.plan.method.steps * self.plan.method.directions
            update = Seeded(self.round, pack((size * draw.normal(size=count)).astype(np.float32)))
            self.replica.follow([update])
            self.updates.append(encode_update(update))
            self.scalars.append(update.scalars)

    def history(self, first: int = 0) -> list[tuple[int, bytes, float]]:
        """(round, scalars, rate) of the updates from a round on."""
        return [(r, self.scalars[r], self.rate(r)) for r in range(first, self.round)]
