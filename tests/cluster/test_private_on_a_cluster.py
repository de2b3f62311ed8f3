"""[privacy] and gatherings on workers of a Ray cluster: the ledger of one process, whatever dies."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from same_ledger import content_of, same_as_local

import fedzero
from entropy import given_entropy
from fedzero.engines.ray import engine as cluster_engine
from fedzero.errors import FedzeroError
from fedzero.gatherings.private import central, secure
from fedzero.ledger.answers import Answers
from fedzero.ledger.records import Round
from fedzero.ledger.store import Ledger
from fedzero.model.updates import decode_update, unpack
from fedzero.protocol.messages import decode_reply
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.setup import prepare
from fedzero.runs import session
from fedzero.runs.progress import Silent
from sampling import mostly_slow

DECOMFL = {"kind": "decomfl", "rate": 0.01, "directions": 3}
ROUNDING = b"rounding"


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The private draws of all runs in this test: coins, rounding, and noise of the server and of hosts."""

    def noise(variance: Any, count: int, entropy: Any) -> Any:
        return np.arange(count) * 1000

    monkeypatch.setattr(secure, "discrete_gaussian", noise)
    seed = lambda round, client: ROUNDING + repr((round, client)).encode()  # noqa: E731 - as `entropy._entropy` has it
    monkeypatch.setattr(cluster_engine, "seed_of", seed)
    with given_entropy(b"coins", ROUNDING, b"noise"):
        yield


PRIVATE = {
    "clients": {"sigma": 1.0},
    "few": {"sigma": 1.0, "probability": 0.05},
    "secure": {"sigma": 1.0, "sum": "secure"},
    "distributed": {"sigma": 1.0, "sum": "secure", "noise": "distributed"},
}


@pytest.mark.parametrize("kind", mostly_slow(PRIVATE, lambda kind: kind in ("few", "distributed")))
def test_a_private_run_leaves_the_ledger_of_one_process(
    cluster: Any, recipe: Any, tmp_path: Path, chosen: None, kind: str
) -> None:
    same_as_local(recipe(DECOMFL, privacy=PRIVATE[kind]), tmp_path, Environment(), Silent())


def test_a_secure_sum_leaves_the_ledger_of_one_process(cluster: Any, recipe: Any, tmp_path: Path) -> None:
    """Without injected draws: sums are exact, whatever hides the summands."""
    same_as_local(recipe(DECOMFL, gathering={"kind": "secure-sum"}), tmp_path, Environment(), Silent())


def test_examples_are_drawn_by_the_driver(cluster: Any, recipe: Any, tmp_path: Path, chosen: None) -> None:
    rows = {"unit": "example", "sigma": 1.0, "clip": 1.0, "population": 4000, "probability": 0.01}
    made = recipe(DECOMFL, rounds=2, task={"kind": "mnist", "model": "mlp"}, privacy=rows)
    same_as_local(made, tmp_path, Environment(), Silent(), {"kind": "ray", "slices": 2})


def test_persons_are_drawn_by_the_driver(cluster: Any, tmp_path: Path, chosen: None) -> None:
    """The persons of a program's own data go to the workers as numbers."""
    generator = np.random.default_rng(0)
    who = [[f"{client}-{i % 7}" for i in range(20)] for client in range(3)]
    frames = [pandas.DataFrame(generator.normal(size=(20, 3)), columns=list("abc")) for _ in who]
    frames = [each.assign(y=np.arange(20) % 2, who=mine) for each, mine in zip(frames, who, strict=True)]
    for engine in ("local", "ray"):
        torch.manual_seed(0)
        fedzero.train(
            torch.nn.Linear(3, 2),
            frames,
            label="y",
            test=frames[0],
            loss=torch.nn.functional.cross_entropy,
            method=DECOMFL,
            privacy={
                "unit": "person",
                "person": "who",
                "sigma": 1.0,
                "clip": 1.0,
                "population": 21,
                "probability": 0.5,
            },
            rounds=3,
            out=tmp_path / engine / "run",
            engine=engine,
            merge=False,
            progress=False,
        )
    assert content_of(tmp_path / "ray" / "run") == content_of(tmp_path / "local" / "run")


@pytest.mark.slow
def test_a_worker_killed_in_a_private_round_changes_no_bit(
    cluster: Any, recipe: Any, tmp_path: Path, chosen: None, killing: list[tuple[int, int]]
) -> None:
    killing += [(1, 0), (3, 0)]
    same_as_local(recipe(DECOMFL, privacy=PRIVATE["secure"]), tmp_path, Environment(), Silent())
    assert not killing


class Stopped(Exception):
    """In the place of a driver that is killed."""


@pytest.mark.parametrize("engine", ["ray", "local"])
def test_what_clients_rounded_is_durable_before_it_is_used(
    cluster: Any, recipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """The driver stops right before a round is written; its update is the sum of the integers that were kept then."""
    monkeypatch.setattr(central, "rounded_gaussian", lambda deviation, count, entropy: np.zeros(count, np.int64))
    made, append = recipe(DECOMFL, privacy={"sigma": 1.0, "probability": 0.7}), Ledger.append

    def stopping(self: Any, records: Any, *others: Any, **named: Any) -> None:
        if any(isinstance(record, Round) and record.round == 1 for record in records):
            raise Stopped
        append(self, records, *others, **named)

    with monkeypatch.context() as patched, pytest.raises(Stopped), given_entropy(coins=b"coins"):
        patched.setattr(Ledger, "append", stopping)
        session.start(recipes.with_engine(made, "ray"), tmp_path / "run", Environment(), Silent())
    with closing(Answers(tmp_path / "run")) as answers:
        kept = [decode_reply(data, len(data)).values for data in answers.of_exchange(1, 0).values()]
    assert kept, "somebody took part"
    assert session.resume(tmp_path / "run", Environment(), Silent(), engine=engine).complete
    chain = prepare(made, Environment()).chain
    with closing(Ledger.open(tmp_path / "run" / "ledger.db")) as ledger:
        update = next(record.update for record in ledger.rounds() if record.round == 1)
    total = sum(chain.decode(values, 3).astype(np.float64) for values in kept)
    np.testing.assert_array_equal(unpack(decode_update(update).scalars), (total / (0.7 * 7)).astype(np.float32))


def test_what_must_outlast_a_worker_is_refused_at_a_site(cluster: Any, recipe: Any, tmp_path: Path) -> None:
    made = recipes.with_engine(recipe(DECOMFL, privacy={"sigma": 1.0}), "ray")
    environment = Environment(folder=tmp_path, trusted=False)
    with (
        pytest.raises(FedzeroError, match="private sampling keeps what was drawn"),
        session.opened(prepare(made, environment), environment, Silent()),
    ):
        pass


def test_hosts_that_draw_their_own_units_are_refused(cluster: Any, recipe: Any, tmp_path: Path) -> None:
    """A worker would have to keep what a host drew."""
    made = recipes.with_engine(recipe(DECOMFL, privacy={"sigma": 1.0, "hosts": 7}), "ray")
    with pytest.raises(FedzeroError, match="hosts draw their own units"):
        session.start(made, tmp_path / "run", Environment(), Silent())
