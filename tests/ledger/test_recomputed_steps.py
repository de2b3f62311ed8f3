"""A run whose steps are made of replies of several rounds, recomputed by code that follows docs/ledger.md."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from recompute import decomfl, rounds, stream
from recompute.file import read
from recompute.quadratic import Quadratic

from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import session
from fedzero.runs.progress import Silent
from late import play, recipe_of

RATE = {"kind": "inverse-sqrt", "start": 0.02}


def buffered(method: dict[str, Any], folder: Path) -> None:
    """The same federation with a schedule of the recipe, on a simulated clock."""
    table = msgspec.to_builtins(recipe_of(method)) | {"clock": {"spread": 0.6, "jitter": 0.3}}
    table["federation"]["schedule"] = {"kind": "buffered", "buffer": 3, "at_work": 4}
    session.start(recipes.decode(table), folder, Environment(), Silent())


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
@pytest.mark.parametrize("schedule", ["late", "buffered"])
def test_steps_of_several_rounds(schedule: str, optimizer: str, tmp_path: Path):
    method = {"kind": "decomfl", "rate": RATE, "directions": 3, "local_steps": 2, "optimizer": {"kind": optimizer}}
    if schedule == "late":
        play(recipe_of(method), tmp_path / "run", {})
    else:
        buffered(method, tmp_path / "run")
    file = read(tmp_path / "run" / "ledger.db")
    root = stream.root_of(file.recipe["seed"])
    task = Quadratic(file.recipe, root)
    here = decomfl.DeComFL(file.recipe, root, {"x": np.zeros(12, np.float32)})
    assert stream.digest(here.model) == file.start["base"]
    answered, states, ages = list(rounds.questions(file.rounds)), list[decomfl.DeComFL](), set[int]()
    for record, parts in decomfl.replayed(file, here):
        round, given = record["round"], answered[record["round"]]
        states.append(deepcopy(here))
        assert stream.digest(here.model) == file.marks.get(round, stream.digest(here.model))
        # By the round that was asked: scalars and losses at the model of that round, along its directions.
        turns = {
            client: states[asked].client(asked, client, lambda model, r, k, c: task.value(model["x"], r, k, c))
            for client, asked in given.items()
        }
        assert [asked for asked, _ in parts] == sorted(set(given.values()))
        for asked, scalars in parts:
            weight = (1 + round - asked) ** -0.5
            wanted = sum(weight * g.astype(float) for c, (g, _, _) in turns.items() if given[c] == asked) / len(given)
            assert scalars == pytest.approx(wanted, rel=1e-4, abs=1e-4)
            ages.add(round - asked)
        assert record["loss"] == pytest.approx(np.mean([loss for _, loss, _ in turns.values()]), rel=1e-6)
        assert record["queries"] == sum(queries for _, _, queries in turns.values())
        lengths = [rounds.length_of_replies(asked, [client], 6, turns[client][2]) for client, asked in given.items()]
        assert record["bytes_up"] == sum(lengths)
        assert record["bytes_down"] == rounds.length_of_catch_up(file.rounds, round)
    assert ages >= {0, 1, 2} and (schedule == "buffered" or max(ages) == 2)
    last = file.of("end")[0]
    assert (stream.digest(here.model), stream.sha256(here.model)) == (last["model"], last["sha256"])
    kinds = {msgspec.msgpack.decode(record["update"])[0] for record in file.rounds}
    assert 3 in kinds
