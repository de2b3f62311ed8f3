"""The example in examples/ runs against its real web server, and finds what suits all parties."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np

from fedzero.recipe.environment import Environment
from fedzero.runs import recorded


def test_three_services_agree(tmp_path, capsys) -> None:
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "own_function.py"))
    result = example["main"](rounds=4, budget=300, out=tmp_path)
    ideal = np.array(list(example["IDEAL"].values()))
    before, after = (((x - ideal.mean(axis=0)) ** 2).sum() for x in (np.zeros(4), result.x))
    assert after < 0.1 * before
    assert "queries" in capsys.readouterr().out
    view = recorded.verified(tmp_path, Environment())
    assert [len(record.refused) for record in view.rounds] == [0] * 4
