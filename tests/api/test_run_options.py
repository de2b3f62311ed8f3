"""The keywords that all verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_bad_arguments import PAIR, TABLE
from torch import nn

import fedzero
from fedzero.errors import FedzeroError, Misnamed

RECIPE = TABLE | {"rounds": 4}


def train(**options: Any) -> fedzero.Run:
    torch.manual_seed(0)
    return fedzero.train(nn.Linear(4, 3), [PAIR, PAIR], loss=F.cross_entropy, progress=False, **options)


def test_one_set_of_options_serves_every_verb(tmp_path: Path) -> None:
    options = fedzero.RunOptions(rounds=2, seed=5, evaluate_every=1, progress=False)
    trained = train(out=tmp_path / "train", **{key: options[key] for key in ("rounds", "seed", "evaluate_every")})
    ran = fedzero.run(RECIPE, out=tmp_path / "run", **options)
    found = fedzero.minimise([lambda x: float(x @ x)], [(-1, 1)] * 2, out=tmp_path / "minimise", **options)
    for recipe in (trained.recipe, ran.recipe, fedzero.Run.open(tmp_path / "minimise").recipe):
        assert (recipe.rounds, recipe.seed, recipe.evaluate_every) == (2, 5, 1)
    assert found.queries


def test_none_is_the_default_of_the_verb(tmp_path: Path) -> None:
    run = fedzero.run(RECIPE, out=tmp_path / "run", rounds=None, seed=None, stop=None, engine=None, progress=False)
    assert run.recipe.rounds == 4


def test_a_run_ends_early(tmp_path: Path) -> None:
    run = train(out=tmp_path / "run", rounds=30, evaluate_every=1, stop={"above": 0.0})
    assert run.summary.rounds == 0 and "above stop.above = 0" in run.summary.reason


def test_a_run_that_is_there_is_resumed_or_refused(tmp_path: Path) -> None:
    first = train(out=tmp_path / "run", rounds=2).summary.model_digest
    assert train(out=tmp_path / "run", rounds=2).summary.model_digest == first
    with pytest.raises(FedzeroError, match="already holds a run"):
        train(out=tmp_path / "run", rounds=2, resume=False)


@pytest.mark.parametrize(
    ("name", "advice"), [("round", "did you mean rounds?"), ("filter", "did you mean filters?"), ("xyz", "'xyz'")]
)
def test_what_no_verb_has_is_refused_before_anything_is_written(tmp_path: Path, name: str, advice: str) -> None:
    with pytest.raises(Misnamed, match=r"fedzero\.train has no argument") as caught:
        train(out=tmp_path / "run", **{name: 1})
    assert advice in str(caught.value) and not (tmp_path / "run").exists()


def test_a_folder_is_needed_to_train() -> None:
    with pytest.raises(TypeError, match=r"fedzero\.train: missing required argument 'out'"):
        train()
