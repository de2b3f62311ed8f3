"""A client of the core beside the method of fedzero: whole turns and rounds."""

from __future__ import annotations

from typing import Any

import native
import numpy as np
import pytest
import torch

from fedzero.directions import Keys
from fedzero.links.clip import Clip
from fedzero.methods import DeComFL
from fedzero.methods.contract import State, Turn
from fedzero.methods.rules.kernels import Momentum, Sgd
from fedzero.model.params import Params
from fedzero.model.updates import Group, Seeded, Stepped, pack

KEYS = Keys.of_seed(4)
SHAPES = {"a.weight": (6, 5), "a.bias": (6,), "b.weight": (3, 6)}
RATE, RADIUS = 0.03, 1e-2


def start() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(2)
    return {name: generator.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


def value(x: np.ndarray, round: int, step: int) -> float:
    """Any function of the parameters, with data of its own in each step."""
    return float(np.sum(np.cos(x.astype(np.float64) + round + 0.5 * step)))


def method(distribution: Any, optimizer: Any, difference: Any, steps: int) -> DeComFL:
    return DeComFL(
        rate=RATE, directions=4, local_steps=steps, radius=RADIUS, difference=difference, distribution=distribution,
        optimizer=optimizer,
    )  # fmt: skip


def plan(own: DeComFL, clip: float = 0.0) -> native.Plan:
    momentum = isinstance(own.optimizer, Momentum)
    return native.Plan(
        native.RANK_ONE if own.distribution == "rank1" else native.RADEMACHER,
        native.MOMENTUM if momentum else native.SGD,
        native.CENTRAL if own.difference == "central" else native.FORWARD,
        own.local_steps, 4, 12, RADIUS, own.optimizer.beta if isinstance(own.optimizer, Momentum) else 0.0, clip,
    )  # fmt: skip


def python_turn(own: DeComFL, state: State, round: int) -> Any:
    work = own.client(state, Turn(round=round, client=0, keys=KEYS))
    ask = next(work)
    while True:
        x = [ask.base.view(terms).vector().numpy() for terms in ask.points]
        try:
            ask = work.send(np.array([value(each, round, ask.step) for each in x]))
        except StopIteration as done:
            return done.value


def core_values(core: native.Core, model: native.Model) -> Any:
    """The same function, called by the core: at views that the core makes."""

    def found(points: native.Points, round: int, step: int) -> list[float]:
        values = []
        for j in range(points.count):
            term, parts = points.terms[j], []
            for i in range(points.tensor_count):
                out = np.empty(model.values[i].size, np.float32)
                core.lib.fz_view(native.C.byref(points.tensors[i]), i, points.stream, term, out.ctypes.data)
                parts.append(out)
            values.append(value(np.concatenate(parts), round, step))
        return values

    return found


@pytest.mark.parametrize("distribution", ["rademacher", "rank1"])
@pytest.mark.parametrize("optimizer", [Sgd(), Momentum(beta=0.9)], ids=["sgd", "momentum"])
@pytest.mark.parametrize("difference", ["forward", "central"])
@pytest.mark.parametrize("steps", [1, 3])
def test_turns_and_rounds(core: native.Core, distribution: Any, optimizer: Any, difference: Any, steps: int) -> None:
    own = method(distribution, optimizer, difference, steps)
    params = Params({name: torch.from_numpy(x) for name, x in start().items()})
    model = native.Model(start(), momentum=isinstance(optimizer, Momentum))
    client, state = native.Client(core, plan(own), KEYS.direction_root, model), own.init(params, 2)
    for round in range(4):
        before = core.digest(model)
        scalars, loss = client.turn(round, RATE, 4, core_values(core, model))
        expected = python_turn(own, state, round)
        assert scalars.tobytes() == np.asarray(expected.values, np.float32).tobytes()
        assert loss == expected.loss and core.digest(model) == before == state.params.digest()
        mean = (scalars * np.float32(0.7)).astype(np.float32)
        client.apply(RATE, [(round, mean)])
        state = own.apply(state, [Seeded(round, pack(mean.reshape(-1)))], KEYS)
        assert core.digest(model) == state.params.digest()


@pytest.mark.parametrize("optimizer", [Sgd(), Momentum(beta=0.9)], ids=["sgd", "momentum"])
def test_stepped_updates_of_any_number_of_terms(core: native.Core, optimizer: Any) -> None:
    own = method("rank1", optimizer, "forward", 2)
    params = Params({name: torch.from_numpy(x) for name, x in start().items()})
    model = native.Model(start(), momentum=isinstance(optimizer, Momentum))
    client, state = native.Client(core, plan(own), KEYS.direction_root, model), own.init(params, 2)
    generator = np.random.default_rng(0)
    groups = [(asked, generator.standard_normal(8).astype(np.float32)) for asked in (3, 5, 6)]
    update = Stepped(6, tuple(Group(asked, pack(g)) for asked, g in groups))
    state = own.apply(state, [update], KEYS)
    client.apply(RATE, groups)
    assert core.digest(model) == state.params.digest()


def test_a_report_is_clipped(core: native.Core) -> None:
    own, model = method("rademacher", Sgd(), "forward", 2), native.Model(start())
    free = native.Client(core, plan(own), KEYS.direction_root, model)
    bound = native.Client(core, plan(own, clip=0.5), KEYS.direction_root, model)
    whole, _ = free.turn(1, RATE, 4, core_values(core, model))
    short, _ = bound.turn(1, RATE, 4, core_values(core, model))
    assert short.tobytes() == Clip(norm=0.5).shape(whole.reshape(-1)).tobytes()


def test_what_is_refused(core: native.Core) -> None:
    own, model = method("rademacher", Sgd(), "forward", 2), native.Model(start())
    client = native.Client(core, plan(own), KEYS.direction_root, model)
    digest = core.digest(model)
    for groups, why in (
        ([(0, np.full(8, np.nan, np.float32))], "number"),
        ([(0, np.ones(7, np.float32))], "argument"),
        ([(0, np.ones(0, np.float32))], "argument"),
        ([(0, np.ones(8 * 13, np.float32))], "memory"),
    ):
        with pytest.raises(native.Failed, match=why):
            client.apply(RATE, groups)
    assert core.digest(model) == digest
    with pytest.raises(native.Failed, match="argument"):
        client.turn(0, RATE, 5, core_values(core, model))
    with pytest.raises(native.Failed, match="number"):
        client.turn(0, RATE, 4, lambda points, *_: [np.nan] * points.count)
    wrong = plan(own)
    wrong.radius = 0.0
    with pytest.raises(native.Failed, match="argument"):
        native.Client(core, wrong, KEYS.direction_root, model)
