"""The example in examples/ runs, and its method works."""

from __future__ import annotations

import runpy
from pathlib import Path


def test_sign_voting_descends(capsys) -> None:
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "own_method.py"))
    before, after = example["main"]()
    assert after < 0.05 * before
    assert "bytes sent by each client" in capsys.readouterr().out
