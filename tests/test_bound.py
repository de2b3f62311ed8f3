"""`federation.bound`: what a recipe means that lacks it, what is on record, who is named; and models stay finite."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from fedzero import plugins
from fedzero.ledger.records import Round, decode_record, encode_record
from fedzero.links.krum import Krum, MultiKrum
from fedzero.links.nnm import NearestNeighbours
from fedzero.links.server_clip import ServerClip
from fedzero.methods import DeComFL, FedAvg
from fedzero.methods.contract import Federation
from fedzero.methods.rules.kernels import Adam
from fedzero.model.params import Params
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.rounds import guard
from fedzero.rounds.refusals import OFTEN, Refusals
from fedzero.runs import session, summary
from fedzero.runs.progress import Silent
from fedzero.testing import check_filter
from fedzero.testing.engines import Changing, Replies
from fedzero.testing.methods import altered, first_replaced
from fedzero.testing.trial import Trial, recipe_of, trial

TABLE = {
    "name": "small",
    "rounds": 3,
    "algorithm": {"kind": "decomfl", "rate": 1e-3},
    "task": {"kind": "quadratic", "dimension": 20},
    "federation": {"clients": 6, "cohort": 5},
    "engine": {"device": "cpu"},
}


def test_what_somebody_writes_has_the_default_and_a_ledger_has_none() -> None:
    written = recipes.decode(TABLE)
    assert written.federation.bound == recipes.BOUND > 0
    kept = msgspec.json.decode(recipes.canonical(written))
    assert kept["federation"]["bound"] == recipes.BOUND
    assert recipes.from_canonical(recipes.canonical(written)) == written
    del kept["federation"]["bound"]  # as 0.1 wrote it
    assert recipes.from_canonical(msgspec.json.encode(kept)).federation.bound == 0
    assert Federation(clients=3, cohort=3).bound == 0


@pytest.mark.parametrize("bound", [0, 2.0, 3.5])
def test_a_printed_recipe_says_it(tmp_path: Path, bound) -> None:
    recipe = recipes.decode(TABLE | {"federation": {"clients": 6, "cohort": 5, "bound": bound}})
    (tmp_path / "again.toml").write_text(recipes.to_toml(recipe))
    assert recipes.load(tmp_path / "again.toml") == recipe


def test_recipes_of_papers_have_none() -> None:
    """They reproduce what was published."""
    origins = plugins.recipes_by_origin()
    others = [path for origin, paths in origins.items() if origin != plugins.OURS for path in paths]
    if not others:
        pytest.skip("fedzero-papers is not installed")
    assert {recipes.load(path).federation.bound for path in others} == {0}


# ---- who was shortened is on record, and named


def huge(value: float):
    def lie(reply, data):
        values = np.full(len(reply.values) // 4, value, "<f4")
        return [altered(reply, values=values.tobytes(), loss=np.ones(1, "<f4").tobytes())]

    return lie


def test_who_was_shortened_is_on_record_and_counted(tmp_path: Path) -> None:
    run = trial(tmp_path, recipe_of(DeComFL(rate=1e-3), Federation(clients=5, cohort=5, bound=2.0)))
    run.engine = Changing(run.engine, first_replaced(huge(1e30)), None, range(1, OFTEN + 9))
    run.play(OFTEN + 2)
    assert [record.bounded or () for record in run.records] == [(), *[(0,)] * (OFTEN + 1)]
    assert summary.summary(run.ledger).bounded == OFTEN + 1
    refusals = Refusals()
    assert [refusals.news(record) for record in run.records[:OFTEN]] == [[]] * OFTEN
    (line,) = refusals.news(run.records[OFTEN])
    assert "client 0 sent numbers far larger" in line and "federation.bound" in line
    assert refusals.news(run.records[OFTEN + 1]) == []


def test_records_of_rounds_without_are_those_of_0_1() -> None:
    record = Round(0, (1,), None, False, 1, 1, 1, None)
    assert b"bounded" not in encode_record(record)
    assert decode_record(encode_record(record)) == record


# ---- a model stays finite


def finite_after(run: Trial) -> None:
    assert guard.finite(run.replica.state)
    assert run.replayed().digest() == run.replica.digest()


def everybody(value: float):
    def change(replies: Replies, round: int, exchange: int) -> Replies:
        alone = (first_replaced(huge(value))([reply], round, exchange) for reply in replies)
        return [reply for found in alone for reply in found]

    return change


@pytest.mark.parametrize("method", [DeComFL(rate=10), DeComFL(rate=1e-3, optimizer=Adam())], ids=["sgd", "adam"])
def test_a_liar_is_refused_where_its_round_would_make_the_model_infinite(tmp_path: Path, method) -> None:
    """Without any bound: the round goes on without it, and honest clients are heard to the end."""
    run = trial(tmp_path, recipe_of(method, Federation(clients=4, cohort=4)))
    run.engine = Changing(run.engine, first_replaced(huge(3.3e38)), None, range(1, 2))
    with np.errstate(all="ignore"):
        run.play(3)
    assert [[client for client, _ in record.refused] for record in run.records] == [[], [0], []]
    assert "would have made the model infinite" in run.records[1].refused[0][1]
    assert all(record.update is not None for record in run.records)
    finite_after(run)


def test_dense_updates_that_add_up_end_before_they_are_infinite(tmp_path: Path) -> None:
    run = trial(tmp_path, recipe_of(FedAvg(rate=1e-3), Federation(clients=4, cohort=4)))
    run.engine = Changing(run.engine, everybody(1e38))
    with np.errstate(all="ignore"):
        run.play(6)
    assert [record.update is None for record in run.records] == [False] * 3 + [True] * 3
    finite_after(run)


@pytest.mark.parametrize("method", [DeComFL(rate=1e3), DeComFL(rate=1e-3, optimizer=Adam())], ids=["sgd", "adam"])
def test_where_nobody_can_be_told_the_round_has_no_update(tmp_path: Path, method) -> None:
    run = trial(tmp_path, recipe_of(method, Federation(clients=4, cohort=4)))
    run.engine = Changing(run.engine, everybody(3.3e38), None, range(1, 3))
    with np.errstate(all="ignore"):
        run.play(4)
    assert [record.update is None for record in run.records] == [False, True, True, False]
    assert all("with its whole round" in reason for _, reason in run.records[1].refused)
    assert len(run.records[1].refused) == 4
    finite_after(run)


def test_short_floats_have_a_lower_ceiling(tmp_path: Path) -> None:
    """float16 ends at 65,504."""

    def recast(params: Params) -> Params:
        return Params({"x": params.vector().to(torch.float16)})

    run = trial(tmp_path, recipe_of(DeComFL(rate=1e-3), Federation(clients=4, cohort=4)), recast=recast)
    run.engine = Changing(run.engine, first_replaced(huge(1e9)), None, range(1, 2))
    run.play(3)
    assert [len(record.refused) for record in run.records] == [0, 1, 0]
    finite_after(run)


def test_a_server_without_a_model_bounds_the_update(tmp_path: Path) -> None:
    run = trial(tmp_path, recipe_of(DeComFL(rate=1e-3), Federation(clients=4, cohort=4, server_model=False)))
    run.engine = Changing(run.engine, first_replaced(huge(1e30)), None, range(1, 2))
    run.play(3)
    assert [len(record.refused) for record in run.records] == [0, 1, 0]
    assert guard.finite(run.engine.replica.state)


def test_a_copy_is_made_only_where_it_matters(tmp_path: Path) -> None:
    """Ordinary rounds look at the update alone, and now and then at the model."""
    run = trial(tmp_path, recipe_of(FedAvg(rate=1e-3), Federation(clients=4, cohort=4)))
    tried = []
    apply = type(run.server.algorithm).apply

    class Counted:
        def __getattr__(self, name):
            return getattr(run.server.algorithm, name)

        def apply(self, *given):
            tried.append(given)
            return apply(run.server.algorithm, *given)

    run.server.aggregation.guard.method = Counted()
    run.play(30)
    assert not tried
    run.engine = Changing(run.engine, first_replaced(huge(1e30)))
    run.play(1)
    assert len(tried) == 1


@pytest.mark.parametrize(
    "link", [Krum(), MultiKrum(), NearestNeighbours(), ServerClip(norm=0.1)], ids=lambda link: link.name
)
@pytest.mark.slow
def test_the_published_rules_conform(link) -> None:
    check_filter(link)


def test_a_recipe_with_the_published_rules_runs(tmp_path: Path) -> None:
    chain = [{"kind": "nnm"}, {"kind": "server-clip", "norm": 1.0}, {"kind": "multi-krum"}]
    summary = session.start(recipes.decode(TABLE | {"filters": chain}), tmp_path / "run", Environment(), Silent())
    assert summary.refused == 0 and summary.complete
