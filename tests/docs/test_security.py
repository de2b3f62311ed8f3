"""docs/security.md: every promise names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / "security.md", ROOT / "SECURITY.md"]
NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def test_the_tests_that_are_named_exist():
    found = [match.groups() for page in PAGES for match in NAMED.finditer(page.read_text(encoding="utf-8"))]
    assert len(found) > 50
    for path, function in found:
        assert (ROOT / path).is_file(), path
        assert not function or f"def {function}(" in (ROOT / path).read_text(encoding="utf-8"), (path, function)


def test_every_promise_has_a_test():
    rows = [line for line in PAGES[0].read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    promises = [row for row in rows if "shown by" not in row]
    assert len(promises) > 40
    for row in promises:
        assert NAMED.search(row), row
