"""The kept corpus, and cases made of it, in every decoder: no exception but those that are declared."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from mutating import CORPUS, kept, mutated
from targets import TARGETS, attempt

CASES = {"ledger": 60, "queries": 100, "file": 60, "patch": 400, "update": 1000, "toml": 500, "shown": 1000}
CASES |= {"sum": 300, "statement": 1000, "budget": 60}
"""Of slow targets; 3,000 of all others."""


@pytest.mark.parametrize("target", TARGETS)
def test_no_case_raises_what_is_not_declared(target: str) -> None:
    corpus = kept(target)
    assert corpus, "python tests/fuzz/seeds.py makes it"
    for case in [*corpus, *mutated(corpus, CASES.get(target, 3000), seed=19)]:
        attempt(target, case)


def test_the_corpus_is_small() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)
    assert sum(path.stat().st_size for path in CORPUS.rglob("*.bin")) < 300_000
