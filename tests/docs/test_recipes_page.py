"""Every recipe of docs/recipes.md is short: at most five lines of Python, and one command."""

from __future__ import annotations

import re

import pytest
from doc_blocks import blocks, pages

TEXT = pages()["recipes"].read_text(encoding="utf-8")
SECTIONS = {part.partition("\n")[0]: part for part in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]}


@pytest.mark.parametrize("name", SECTIONS)
def test_a_recipe_is_short(name: str) -> None:
    found = [block for block in blocks(SECTIONS[name]) if not block.hidden]
    code, commands = ([block for block in found if block.language == kind] for kind in ("python", "console"))
    assert [block.language for block in found] == ["python", "console"], name
    assert len([line for line in code[0].text.splitlines() if line.strip()]) <= 5, name
    assert commands[0].text.count("$ ") == 1 and "not run" not in commands[0].notes, name
