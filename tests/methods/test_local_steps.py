"""Optimizers and a box for the clients' own steps: against NumPy, inside the box, and nothing new without them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from byhand import EPS, D, How, Listening, Vector, World, assert_near, federation, model, params, start
from harness import small

from fedzero.directions import Domain, Program, Terms, stream_of
from fedzero.errors import FedzeroError
from fedzero.estimators.spsa import direction_keys, points_of, slopes
from fedzero.links import mean
from fedzero.links.quantise import Quantise
from fedzero.methods import Federation, FedProxZO, FedZO, ScaffoldZO, ZOAdaFL
from fedzero.methods.contract import Scale
from fedzero.methods.rules.kernels import Adam, Moments, Momentum, Optimizer, Sgd, Sign, dense_step
from fedzero.model.params import Params

METHODS: dict[str, Any] = {
    "fedzo": (FedZO, {}),
    "fedprox-zo": (FedProxZO, {"gamma": 3.0}),
    "scaffold-zo I": (ScaffoldZO, {"type": "I", "gamma": 0.8}),
    "scaffold-zo II": (ScaffoldZO, {"type": "II", "gamma": 0.8}),
}
METHOD = pytest.mark.parametrize("name", METHODS)
BOX = (-0.5, 0.75)
LARGE = Scale(10**6, 10)

Rule = Callable[[Vector, int, dict[str, Any]], Vector]
"""(G, k, what it remembers) → what η is multiplied with."""


def adam(G: Vector, k: int, memory: dict[str, Any]) -> Vector:
    """As its paper has it: moments, each divided by 1 − βᵗ with t = k + 1, and ε outside the root."""
    m = memory["m"] = 0.9 * memory.get("m", 0) + 0.1 * G
    v = memory["v"] = 0.99 * memory.get("v", 0) + 0.01 * G**2
    return (m / (1 - 0.9 ** (k + 1))) / (np.sqrt(v / (1 - 0.99 ** (k + 1))) + 1e-8)


def momentum(G: Vector, k: int, memory: dict[str, Any]) -> Vector:
    memory["M"] = 0.6 * memory.get("M", 0) + 0.4 * G
    return memory["M"]


def sign(G: Vector, k: int, memory: dict[str, Any]) -> Vector:
    return np.sign(G)


def sgd(G: Vector, k: int, memory: dict[str, Any]) -> Vector:
    return G


RULES: dict[str, tuple[Optimizer, Rule, float]] = {
    "adam": (Adam(beta2=0.99), adam, 0.05),
    "momentum": (Momentum(beta=0.6), momentum, 0.01),
    "sign": (Sign(), sign, 0.03),
    "sgd": (Sgd(), sgd, 0.01),
}
CASES = [("adam", BOX), ("adam", None), ("momentum", None), ("momentum", BOX), ("sign", None), ("sgd", BOX)]


def by_hand(world: World, name: str, rounds: int, K: int, eta: float, how: How, rule: Rule, box: Any) -> Vector:
    """Every client walks K steps with a fresh memory, clips after each of them; the server averages."""
    gamma, x, variates = METHODS[name][1].get("gamma", 0.0), start(), np.zeros((world.N, world.d))
    for r in range(rounds):
        cohort, ends, last = world.cohort(r), [], {}
        own = {i: world.estimate(x, r, i, K, how) if name.endswith(" I") else variates[i] for i in cohort}
        c = np.mean([own[i] for i in cohort], axis=0) if name.endswith(" I") else variates.mean(axis=0)
        for i in cohort:
            y, memory, estimates = x.copy(), {}, []
            for k in range(K):
                estimates.append(world.estimate(y, r, i, k, how))
                pull = {"fedzo": 0.0, "fedprox-zo": y - x}.get(name, c - own[i])
                y = y - eta * rule(estimates[-1] + gamma * pull, k, memory)
                y = y if box is None else np.clip(y, *box)
            ends.append(y)
            last[i] = np.mean(estimates, axis=0)
        x = np.mean(ends, axis=0)
        for i, estimate in last.items():
            variates[i] = estimate
    return x


@pytest.mark.covered
@METHOD
@pytest.mark.parametrize(("rule", "box"), CASES)
def test_eight_rounds_equal_the_equations_by_hand(tmp_path: Path, name, rule, box) -> None:
    optimizer, by, eta = RULES[rule]
    rounds, K, how, (kind, fields) = 8, 4, How(), METHODS[name]
    method = kind(rate=eta, local_steps=K, local_optimizer=optimizer, box=box, **fields, **how.fields)
    run, world = federation(tmp_path, method, clients=5, replicas=True)
    run.play(rounds)
    expected = by_hand(world, name, rounds, K, eta, how, by, box)
    for other in (by_hand(world, name, rounds, K, eta, how, sgd, box), start()):
        assert rule == "sgd" or np.abs(expected - other).max() > 0.05, "the rule must be felt"
    assert_near(model(run), expected, how.bound)
    if box is not None:
        assert np.abs(expected - by_hand(world, name, rounds, K, eta, how, by, None)).max() > 0.05, "and the box"
    assert all(r.dense and not r.refused for r in run.records)


@METHOD
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nobody_leaves_the_box(tmp_path: Path, name, dtype) -> None:
    """From inside, with long steps: neither a client's end nor the mean."""
    kind, fields = METHODS[name]
    method = kind(rate=0.3, local_steps=3, local_optimizer=Adam(), box=(-1.0, 1.0), **fields, **How().fields)
    run, _ = federation(tmp_path, method, dtype, clients=5)
    run.engine = ear = Listening(run.engine)
    ends = []
    for r in range(6):
        x = model(run)
        assert np.abs(x).max() <= 1
        run.play(1)
        for _, exchange, _, _, reply in (h for h in ear.heard if h[0] == r):
            if exchange == len(method.cost(r, Scale(D, 5)).replies) - 1:
                change = np.frombuffer(msgspec.msgpack.decode(reply)[3], "<f4")[:D]
                ends.append(np.abs(x + change))
    # What travels is a difference, rounded once.
    assert np.max(ends) <= 1 + 2 * EPS
    assert (np.array(ends) > 1 - 2 * EPS).mean() > 0.1, "coordinates pile up at the walls"
    assert not any(r.refused for r in run.records)


def test_from_outside_the_first_round_leads_in(tmp_path: Path) -> None:
    run, _ = federation(tmp_path, FedZO(rate=1e-30, box=(-0.25, 0.5)))
    run.play(1)
    assert np.array_equal(model(run), np.clip(start(), -0.25, 0.5))


def test_a_filter_cannot_lead_out_of_the_box(tmp_path: Path) -> None:
    """Quantised differences overshoot by up to a level; the server clips as well."""
    method = FedZO(rate=0.3, local_steps=3, local_optimizer=Adam(), box=(-0.9, 0.9), **How().fields)
    run, _ = federation(tmp_path, method, filters=(Quantise(),))
    for _ in range(6):
        run.play(1)
        assert np.abs(model(run)).max() <= np.float32(0.9)


@METHOD
@pytest.mark.parametrize("fields", [{"local_optimizer": Adam()}, {"box": (0.0, 1.0)}], ids=str)
def test_scalars_cannot_tell_of_such_steps(tmp_path: Path, name, fields) -> None:
    kind, own = METHODS[name]
    assert kind(rate=1e-3, **own).traits(LARGE).seeded, "plain steps of a large model travel as scalars"
    for form in ("auto", "dense"):
        method = kind(rate=1e-3, form=form, **own, **fields)
        method.check(Federation(clients=10, cohort=3))
        traits = method.traits(LARGE)
        assert not traits.seeded
        assert traits.delivery == "snapshot"
    with pytest.raises(FedzeroError, match=r"form = 'seeded' .* no sum of directions: use form = 'dense'"):
        small(tmp_path, kind(rate=1e-3, form="seeded", **own, **fields))


@METHOD
@pytest.mark.parametrize("box", [(1.0, 0.0), (0.5, 0.5)])
def test_a_box_without_an_inside_is_refused(tmp_path: Path, name, box) -> None:
    kind, own = METHODS[name]
    with pytest.raises(FedzeroError, match=r"algorithm\.box = \[.*\] is empty"):
        small(tmp_path, kind(rate=1e-3, box=box, **own))


def test_others_of_the_family_take_plain_steps(tmp_path: Path) -> None:
    """Who has not the fields is asked for them all the same."""
    assert ZOAdaFL().traits(LARGE).seeded
    with pytest.raises(FedzeroError, match="private"):
        ZOAdaFL().check(Federation(clients=10, cohort=3, private=True))


@pytest.mark.parametrize("name", ["fedzo", "fedprox-zo", "scaffold-zo I"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_plain_steps_are_folds_to_the_last_bit(tmp_path: Path, name, dtype) -> None:
    """The walk as it is without the two fields, of the primitives: add the pull, fold the terms."""
    eta, K, how, (kind, fields) = 5e-3, 3, How(), METHODS[name]
    method = kind(rate=eta, local_steps=K, form="dense", local_optimizer=Sgd(), box=None, **fields, **how.fields)
    run, world = federation(tmp_path, method, dtype)
    run.play(5)
    x, gamma = params(dtype), fields.get("gamma", 0.0)
    problem, keys, stream = run.setup.problem, world.keys, stream_of(method.distribution)

    def terms(at: Params, r: int, i: int, k: int, factor: float) -> Terms:
        directions = direction_keys(keys, r, k, how.P, i)
        points, scales = points_of(at, directions, how.mu, "forward", "gaussian")
        values = problem.objective.losses(at, points, [problem.shards.batch(keys, r, k, i)])[0]
        g, _ = slopes(values, scales, how.mu, "forward")
        return Terms.of(directions, factor / how.P * g.astype(np.float64), stream)

    for r in range(5):
        cohort, changes = world.cohort(r), {}
        own = {i: x.total(terms(x, r, i, K, 1.0)) for i in cohort}
        c = torch.from_numpy(mean({i: v.numpy() for i, v in own.items()}, dict.fromkeys(cohort, 1)))
        for i in cohort:
            y = x.clone()
            for k in range(K):
                step = terms(y, r, i, k, -eta)
                if name != "fedzo":
                    pull = y.vector() - x.vector() if name == "fedprox-zo" else c - own[i]
                    y.add(pull * gamma * -eta, keys.rounding(r, K + k))
                y.fold(step, keys.rounding(r, k))
            changes[i] = (y.vector() - x.vector()).numpy()
        x.add(torch.from_numpy(mean(changes, dict.fromkeys(cohort, 1))), keys.rounding(r))
    assert x.digest() == run.replica.state.params.digest()


@pytest.mark.parametrize("rule", RULES)
def test_a_dense_step_has_the_bits_of_a_fold(rule) -> None:
    """Of one term, so that the gradient is the same to the last bit."""
    optimizer, eta = RULES[rule][0], 0.01
    x, y, moments = params(), params(), Moments()
    slots = x.slots(optimizer.kernel.slots)
    for k in range(6):
        terms = Terms.of([100 + k], [1.5 - 0.4 * k], Domain.GAUSSIAN)
        folded = Terms.of([100 + k], [-eta * (1.5 - 0.4 * k)], Domain.GAUSSIAN) if rule == "sgd" else terms
        x.advance(Program.of([folded], [0], optimizer.kernel, [optimizer.hypers(eta, k)]), slots)
        change, moments = dense_step(optimizer, moments, y.total(terms), eta, k)
        y.add(change)
        if rule == "sgd":  # a fold multiplies rate and scalar before the direction comes in
            assert_near(y.vector(), x.vector().double().numpy(), 2 * (k + 1) * EPS)
        else:
            assert y.digest() == x.digest()


@pytest.mark.parametrize("rule", RULES)
def test_a_dense_step_in_float64_keeps_its_digits(rule) -> None:
    optimizer, by, eta = RULES[rule]
    moments, memory, rng = Moments(), {}, np.random.default_rng(3)
    for k in range(5):
        G = rng.normal(size=D)
        before = tuple(m.clone() for m in moments)
        change, after = dense_step(optimizer, moments, torch.from_numpy(G), eta, k)
        assert change.dtype == torch.float64
        assert_near(change.numpy(), -eta * by(G, k, memory), 1e-14)
        assert all(torch.equal(m, b) for m, b in zip(moments, before, strict=True)), "what it is given stays"
        moments = after
