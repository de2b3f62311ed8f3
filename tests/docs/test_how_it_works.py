"""The pictures of docs/how-it-works.md are those that their script draws, and the page has the same numbers."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("how_it_works", ROOT / "tools" / "how_it_works.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def test_pictures_are_current(script: ModuleType, tmp_path: Path) -> None:
    script.main(tmp_path)
    drawn = sorted(tmp_path.iterdir())
    assert len(drawn) == 4
    for path in drawn:
        ElementTree.parse(path)
        assert path.read_text() == (ROOT / "docs" / "figures" / path.name).read_text(), f"draw {path.name} again"


def test_bytes_of_the_page_are_those_of_messages(script: ModuleType) -> None:
    page = (ROOT / "docs" / "how-it-works.md").read_text()
    said = {int(number) for number in re.findall(r"(\d+) bytes", page)}
    assert said == {len(script.update_of(9)), len(script.work_of(9, 8)), len(script.reply_of(9))}
