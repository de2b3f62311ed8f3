"""FedKSeed-Pro: against the rule by hand, what is drawn more often, and what the state holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from byhand import SIZES, How, assert_near, bound, drawn, federation, model, start, steps_along

from fedzero.directions import Keys
from fedzero.methods.fedkseedpro import FedKSeedPro, exponential
from fedzero.model.params import Params

S, K, ETA, CLIP = 6, 3, 5e-3, 8.0
CASES = [How(P=1, central=True), How(P=3)]


def method(how: How, **options) -> FedKSeedPro:
    fields = how.fields
    del fields["samples"]
    return FedKSeedPro(rate=ETA, pool=S, local_steps=K, clip=CLIP, **fields, **options)


def probabilities(history: list[list[float]]) -> np.ndarray:
    """softmax(minmax(mean |clip(history)|)), as the paper's code writes it."""
    a = np.array([np.mean(np.abs(np.clip(each, -CLIP, CLIP))) for each in history])
    b = (a - a.min()) / (a.max() - a.min()) if a.max() > a.min() else np.zeros(S)
    return np.exp(b) / np.exp(b).sum()


def by_hand(world, rounds: int, how: How) -> tuple[np.ndarray, list[list[float]]]:
    pool = [drawn(world.keys.direction(0, 0, s), SIZES, False) for s in range(S)]
    x, history = start(), [[0.0] for _ in range(S)]
    for r in range(rounds):
        edges = np.cumsum(probabilities(history))
        chosen = [np.searchsorted(edges, world.keys.generator("pool", r, k).random(how.P)) for k in range(K)]
        x, g = steps_along(world, r, x, [[pool[s] for s in each] for each in chosen], how, ETA)
        for c, s in zip(g.flat, np.array(chosen).flat, strict=True):
            history[s].append(c)
    return x, history


@pytest.mark.parametrize("order", ["pool", "rounds"])
@pytest.mark.parametrize("how", CASES, ids=str)
def test_rounds_equal_the_rule_by_hand(tmp_path: Path, how, order) -> None:
    run, world = federation(tmp_path, method(how, order=order), replicas=True)
    run.play(6)
    x, history = by_hand(world, 6, how)
    assert np.abs(x - start()).max() > 0.1, "the run must have moved"
    assert max(abs(g) for each in history for g in each) > CLIP > min(abs(g) for each in history for g in each[1:])
    assert_near(model(run), x, bound(how.mu))
    carry = run.replica.state.carry
    assert carry.count.tolist() == [len(each) - 1 for each in history]
    assert_near(carry.total, np.array([np.abs(np.clip(each, -CLIP, CLIP)).sum() for each in history]), bound(how.mu))
    assert not any(r.refused for r in run.records)


def test_keys_are_drawn_as_often_as_their_weights_say() -> None:
    algorithm, keys = method(How(P=1)), Keys.of_seed(3)
    state = algorithm.init(Params.of_vector(torch.zeros(5)), 1)
    state.carry.total[:] = torch.tensor([0.0, 8, 6, 4, 2, 0])
    state.carry.count[:] = 1
    b = np.array([0, 1, 0.75, 0.5, 0.25, 0])
    assert np.allclose(algorithm.weights(state), np.exp(b), rtol=1e-15)
    n = 200_000
    found = np.bincount(algorithm.drawn(state, keys, 0, 0, n), minlength=S) / n
    expected = np.exp(b) / np.exp(b).sum()
    assert np.abs(found - expected).max() < 5 * np.sqrt(expected.max() / n)


def test_the_series_is_the_exponential() -> None:
    b = np.linspace(0, 1, 1001)
    assert np.abs(exponential(b) / np.exp(b) - 1).max() < 1e-15
