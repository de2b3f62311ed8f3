"""The example in examples/ runs, and its method works."""

from __future__ import annotations

import importlib
from pathlib import Path


def test_sign_voting_descends(monkeypatch, capsys) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    before, after = importlib.import_module("own_method").main()
    assert after < 0.05 * before
    assert "bytes sent by each client" in capsys.readouterr().out
