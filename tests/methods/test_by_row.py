"""Slopes of single rows: their definition, what a link makes of them in a run, and what cannot serve them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from harness import recipe_of
from rowwise import Clipped

from entropy import given_entropy
from fedzero import plugins
from fedzero.directions import Keys
from fedzero.errors import FedzeroError, Refused
from fedzero.estimators.spsa import points_of, slopes, slopes_by_row
from fedzero.ledger.answers import Answers
from fedzero.links import Chain
from fedzero.links.contract import ClientContext, Contribution
from fedzero.links.topk import TopK
from fedzero.methods import Baffle, DeComFL, FedAvg, FedKSeed, FedZO, FeedSign, FZooS, HiSo, MeZO, ScaffoldZO
from fedzero.methods.contract import Scale, Turn
from fedzero.methods.shared.by_row import why_not_by_row
from fedzero.model.params import Params
from fedzero.model.updates import decode_update
from fedzero.oracles import Poisson, RowLosses
from fedzero.oracles.contract import ByRow, RowShards
from fedzero.oracles.poisson import drawn_units
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.sampling import PrivateBatches
from fedzero.recipe.setup import prepare
from fedzero.tasks import Mnist
from fedzero.testing.trial import trial


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plugins._registered["filters"], "test-rows", plugins.Plugin(Clipped, "", ""))


def recipe(method: Any, **link: Any) -> recipes.Recipe:
    """Four clients with a thousand digits each."""
    made = recipe_of(method, clients=4, cohort=2, task=Mnist(), filters=(Clipped(**link),))
    return recipes.decode(msgspec.to_builtins(made) | {"rounds": 4, "sampling": "private"})


@pytest.mark.parametrize("distribution", ["gaussian", "sphere", "rank1"])
@pytest.mark.parametrize("difference", ["forward", "central", "mean"])
def test_the_slope_of_a_row_is_that_of_its_own_loss(difference: Any, distribution: Any) -> None:
    """In float64, each row alone; and the mean of all slopes is the slope of the mean."""
    torch.manual_seed(1)
    x, b = torch.randn(7, 12, dtype=torch.float64), torch.randn(12)
    params = Params.of_vector(b)
    method = DeComFL(rate=0.1, directions=4, radius=1e-2, difference=difference, distribution=distribution)
    work = method.client(method.init(params, 2), Turn(3, 0, Keys.of_seed(5), rows=Poisson(0.5)))
    ask = next(work)
    assert isinstance(ask, RowLosses) and ask.drawn == Poisson(0.5)

    def losses(at: Any, rows: Any) -> Any:
        return torch.stack([((rows @ p.double()) ** 2 / 2).flatten() for p in at]).numpy()

    values = losses(params.at(ask.points), x)
    with pytest.raises(StopIteration) as done:
        work.send(values)
    found = done.value.value
    assert found.loss is None and not found.values.any() and found.values.shape == (4,)
    assert found.rows.shape == (7, 4) and found.rows.dtype == np.float32 and found.rows.flags.c_contiguous

    keys = method.direction_keys(Keys.of_seed(5), 3, 0, 4)
    points, scales = points_of(params, keys, 1e-2, difference, distribution)
    for i in range(7):
        alone, _ = slopes(losses(params.at(points), x[i : i + 1])[:, 0], scales, 1e-2, difference)
        assert np.array_equal(found.rows[i], alone)
    mean, _ = slopes(values.mean(1), scales, 1e-2, difference)
    assert np.allclose(found.rows.mean(0), mean, rtol=1e-4, atol=1e-4 * np.abs(mean).max())
    assert slopes_by_row(values[:, :0], scales, 1e-2, difference).shape == (0, 4)


def test_a_link_gets_the_rows_and_nothing_else_leaves(tmp_path: Path) -> None:
    """The update is the mean of sums of clipped rows, of the batches that the roots on disk give; there is no loss."""
    method = DeComFL(rate=1e-3, directions=3, difference="central", radius=1e-2)
    with given_entropy(coins=b"coins"):  # of which some rows are clipped, and some are not
        run = trial(tmp_path, recipe(method, rate=0.02, expected=20.0, most=20.0))
    setup, before = run.setup, run.replica.state.params.clone()
    run.play(2)
    first = run.records[0]
    assert first.refused == () and first.loss is None and first.queries == 2 * 6
    objective, shards, wanted, kept = setup.problem.objective, setup.problem.shards, np.zeros(3), []
    assert isinstance(objective, ByRow) and isinstance(shards, RowShards)
    points, scales = points_of(before, method.direction_keys(setup.keys, 0, 0, 3), 1e-2, "central", "gaussian")
    for client in first.cohort:
        root = PrivateBatches(lambda: Answers(tmp_path), True)(0, client).root
        batch = shards.taken(client, drawn_units(root, shards.held(client), 0.02))
        v = slopes_by_row(objective.row_losses(before, points, batch), scales, 1e-2, "central")
        kept.append(np.minimum(1, 20 / np.linalg.norm(v, axis=1)))
        wanted += (v * kept[-1][:, None]).sum(0) / 20 / 2
    assert 0 < (np.concatenate(kept) < 1).mean() < 1, "some rows are clipped, and some are not"
    assert not np.array_equal(kept[0], kept[1]), "each client has a root of its own"
    assert first.update is not None
    assert np.allclose(method.decode_update(decode_update(first.update)), wanted, rtol=1e-5)
    assert run.replayed().identity.digest == run.replica.identity.digest


def test_a_batch_of_nobody_is_a_contribution_of_noughts(tmp_path: Path) -> None:
    run = trial(tmp_path, recipe(DeComFL(rate=1e-3, directions=2), rate=1e-15))
    before = run.replica.identity.digest
    run.play(1)
    assert run.records[0].refused == () and run.records[0].queries == 2 * 3
    assert run.replica.identity.digest == before


SERVED = [
    DeComFL(rate=0.1, directions=2),
    DeComFL(rate=0.1, directions=2, step="rms", distribution="rank1", hold=2, difference="mean"),
    MeZO(rate=0.1),
    FedKSeed(rate=0.1),
    Baffle(rate=0.1, directions=2),
]
NOT_SERVED = [
    (DeComFL(rate=0.1, directions=2, local_steps=3), "algorithm.local_steps = 1 (not 3)"),
    (FedAvg(rate=0.1), "get gradients"),
    (FZooS(rate=0.1), "several exchanges"),
    (ScaffoldZO(rate=0.1, type="II"), "keep a memory"),
    (FedZO(rate=0.1), "more than sums"),
    (HiSo(rate=0.1), "more than sums"),
    (FeedSign(rate=0.1), "more than sums"),
]


def test_methods_serve_rows_or_say_why_not() -> None:
    scale, chain = Scale(30, 4), Chain((Clipped(),))
    for method in SERVED:
        given = msgspec.structs.replace(method, local_steps=1)
        assert why_not_by_row(given, scale, chain) == "", method.name
    for method, why in NOT_SERVED:
        assert why in why_not_by_row(method, scale, chain), method.name
    feedback = Chain((Clipped(), TopK(fraction=0.5, feedback=True)))
    assert "feedback = false" in why_not_by_row(SERVED[0], scale, feedback)


def refused(given: recipes.Recipe) -> str:
    with pytest.raises(FedzeroError) as error:
        prepare(given, Environment())
    return str(error.value)


def test_recipes_that_cannot_serve_rows_are_refused_before_they_run() -> None:
    good = recipe(DeComFL(rate=0.1, directions=2), rate=0.5)
    prepare(good, Environment())
    table = msgspec.to_builtins(good)
    assert "sampling = 'private'" in refused(recipes.decode({k: table[k] for k in table if k != "sampling"}))
    assert "no mean over rows" in refused(recipes.decode(table | {"task": {"kind": "quadratic"}}))
    assert "whose each row is" in refused(recipe(DeComFL(rate=0.1, directions=2), rate=0.5, persons=True))
    assert "local_steps = 1" in refused(recipe(DeComFL(rate=0.1, directions=2, local_steps=2), rate=0.5))
    late = table | {"filters": [{"kind": "clip", "norm": 1.0}, *table["filters"]]}
    with pytest.raises(FedzeroError, match="put it first"):
        recipes.check(recipes.decode(late), "here")


def test_without_rows_nothing_is_sent() -> None:
    """A method that ignores what it is asked for must not have its values pass."""
    with pytest.raises(Refused, match="there are none"):
        Chain((Clipped(),)).on_client(Contribution(np.ones(2, np.float32), 1.0), None, ClientContext(lambda: None))
