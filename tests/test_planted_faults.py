"""Faults of tools/planted_faults.py can be planted: the right string is in its file once, the wrong one is Python."""

from __future__ import annotations

import ast

import pytest
from planted_faults import FAULTS, ROOT


@pytest.mark.parametrize(("name", "right", "wrong"), FAULTS, ids=[f"{i}-{fault[0]}" for i, fault in enumerate(FAULTS)])
def test_it_can_be_planted(name: str, right: str, wrong: str) -> None:
    text = (ROOT / "src" / "fedzero" / name).read_text()
    assert text.count(right) == 1
    planted = text.replace(right, wrong, 1)
    assert ast.dump(ast.parse(planted)) != ast.dump(ast.parse(text))
