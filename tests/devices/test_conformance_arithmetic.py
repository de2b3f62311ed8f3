"""What `fedzero conformance` holds replies against is fedzero's arithmetic, and finds each mistake that it knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from fedzero_client import plan as device_plan
from fedzero_client.model import Model
from fedzero_client.turn import Rows, Worker

from fedzero.directions import Rule
from fedzero.engines.devices.plan import encode
from fedzero.protocol.messages import Reply, decode_reply
from fedzero.testing.devices import judging
from fedzero.testing.devices.model import FOLDING, followed, state_of
from fedzero.testing.devices.scenarios.turns import IN_TRANSCRIPTS, SETTINGS
from fedzero.testing.devices.settings import Run, Setting
from fedzero.testing.devices.turn import TURNS, Turn, losses, turn
from fedzero.testing.devices.wrong import Wrong

BY_NAME = {name: setting for name, _, setting in SETTINGS} | IN_TRANSCRIPTS
SMALL = [name for name in BY_NAME if not name.startswith("wide")]
PLACE, ROUNDS = 1, 3


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    @cache
    def make(name: str) -> Run:
        run = Run(BY_NAME[name], tmp_path_factory.mktemp(name))
        run.advance(ROUNDS)
        return run

    return make


def replied(run: Run, found: Turn) -> Reply:
    values = found.values.astype("<f4").tobytes()
    return Reply(
        run.round, 0, run.replica.digest(), values, np.float32(found.loss).astype("<f4").tobytes(), found.queries
    )


def turned(run: Run, mistake: str) -> Turn:
    state = state_of(run.plan, run.replica.state.to_bytes())
    return turn(run.plan, state, (run.x, run.y), PLACE, run.round, run.rate(run.round), None, mistake)


@pytest.mark.parametrize("name", BY_NAME)
def test_the_model_is_that_of_the_server(made: Callable[[str], Run], name: str) -> None:
    run = made(name)
    state = followed(run.plan, state_of(run.plan, run.first), run.history())
    assert state.to_bytes() == run.replica.state.to_bytes()


@pytest.mark.parametrize("name", BY_NAME)
def test_the_client_in_python_passes(made: Callable[[str], Run], name: str) -> None:
    """Its turn, whose model is in float32, on the same model."""
    run = made(name)
    plan = device_plan.read(encode(run.plan))
    model = Model(plan)
    model.load(run.replica.state.to_bytes(), run.round)
    reply = Worker(plan, Rows(*run.setting.data), PLACE).reply(model, run.round, 0, run.rate(run.round))
    judging.judge_values(run, PLACE, decode_reply(reply, 4096))


def explained(run: Run, mistake: str) -> str:
    try:
        judging.judge_values(run, PLACE, replied(run, turned(run, mistake)))
    except Wrong as wrong:
        return str(wrong)
    return ""


@pytest.mark.parametrize("mistake", TURNS)
def test_a_mistake_in_a_turn_is_found_and_named(made: Callable[[str], Run], mistake: str) -> None:
    assert any(TURNS[mistake] in explained(made(name), mistake) for name in SMALL)


@pytest.mark.parametrize("mistake", FOLDING)
def test_a_mistake_in_a_fold_is_found_and_named(made: Callable[[str], Run], mistake: str) -> None:
    def found(run: Run) -> str:
        try:
            judging.judge_digest(run, judging.digest_with(run, mistake), "Ready")
        except Wrong as wrong:
            return str(wrong)
        return ""

    assert any(FOLDING[mistake] in found(made(name)) for name in SMALL)


def test_an_exact_setting_has_one_value_whatever_the_order_of_sums(made: Callable[[str], Run]) -> None:
    """Logits summed in float32 and in float64, forwards and backwards, are the same, to the bit."""
    run = made("everything")
    assert run.plan.method.rule == Rule.MOMENTUM
    state = state_of(run.plan, run.replica.state.to_bytes())
    W, b = state.x[0].reshape(run.plan.tensors[0].shape), state.x[1]
    for x, y in zip(run.x, run.y, strict=True):
        terms = [*(W * x).T, b]
        wide = sum(each.astype(np.float64) for each in terms)
        for order in (terms, terms[::-1]):
            total = np.zeros_like(b)
            for each in order:
                total = total + each
            assert (total == wide).all()
        top = wide.max()
        assert np.log(np.exp((wide - top).astype(np.float32)).sum(dtype=np.float32)) == 0
        f, _ = losses(run.plan, state.x, x[None], np.array([y]))
        assert f == np.float32(top) - np.float32(wide[y]) == top - wide[y]


@pytest.mark.parametrize("name", ["hidden-layers", "linear", "wide"])
def test_the_bound_of_float32_holds_and_says_something(made: Callable[[str], Run], name: str) -> None:
    """Sums in float32 in 20 random orders stay within the bound, which is below 10⁻³ of the loss."""
    run, draw = made(name), np.random.default_rng(1)
    state = state_of(run.plan, run.replica.state.to_bytes())
    right, bound = losses(run.plan, state.x, run.x, run.y)
    assert bound < 1e-3 * max(1.0, right)
    for _ in range(20):
        h: np.ndarray = run.x
        for layer in range(len(state.x) // 2):
            W, order = state.x[2 * layer].reshape(run.plan.tensors[2 * layer].shape), draw.permutation(h.shape[1])
            total = np.zeros((len(h), len(W)), np.float32)
            for i in order:
                total = total + h[:, i, None] * W[:, i]
            h = total + state.x[2 * layer + 1]
            h = np.maximum(h, 0) if 2 * layer + 2 < len(state.x) else h
        top = h.max(axis=1)
        each = top + np.log(np.exp(h - top[:, None]).sum(axis=1)) - h[np.arange(len(h)), run.y]
        assert each.dtype == np.float32
        assert abs(float(each.mean(dtype=np.float32)) - right) <= bound


def test_rows_are_normalised_in_float32(tmp_path: Path) -> None:
    setting = replace(Setting(), mean=0.1, deviation=0.3)
    run = Run(setting, tmp_path)
    x = setting.data[0]
    assert ((x - np.float32(0.1)) / np.float32(0.3) == run.x).all()
