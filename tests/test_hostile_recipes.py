"""Recipes that ask for more than there is: one sentence, before memory is used."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from fedzero.errors import FedzeroError
from fedzero.runs import recipe as recipes
from fedzero.tasks.language.texts import Text

TEXTS = {
    "arrays": "name = " + "[" * 5000,
    "closed arrays": "name = " + "[" * 400 + "]" * 400,
    "tables": ".".join("a" * 3000) + " = 1",
    "inline tables": "name = " + "{a=" * 2000,
    "a number": "rounds = " + "9" * 5000,
    "a large number": "rounds = " + "9" * 300,
    "bytes": "\x00",
    "a long key": "x" * 100_000 + " = 1",
    "too long": "#" * (recipes.LARGEST + 1),
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_text_that_is_no_recipe(fedzero, tmp_path: Path, text: str) -> None:
    (tmp_path / "x.toml").write_text(text)
    outcome = fedzero("run", tmp_path / "x.toml", "--out", tmp_path / "out")
    outcome.refused("x.toml")
    assert len(outcome.err) < 1000


MANY = {
    "clients": ["federation.clients=1000000000"],
    "cohort": ["federation.clients=1000000000", "federation.cohort=1000000000"],
    "clients beyond 64 bits": [f"federation.clients={10**30}"],
    "nodes": ['algorithm={kind="dzopa",rate=0.1}', "federation.clients=5000", "federation.cohort=5000"],
    "pool": ['algorithm={kind="fedkseed",rate=0.1,pool=100000000000}'],
    "history": ['algorithm={kind="zofedht",rate=0.1,tau=1000000000}'],
    "directions for a round": ["algorithm.directions={start=2,then=[[1,1000000000000],[2,3]]}"],
    "rounds beyond 64 bits": [f"rounds={10**30}"],
    "nested": ["algorithm.rate=" + "[" * 500 + "]" * 500],
}


@pytest.mark.parametrize("overrides", MANY.values(), ids=MANY)
def test_more_than_there_is(fedzero, tiny: Path, tmp_path: Path, overrides: list[str]) -> None:
    sets = [word for override in overrides for word in ("--set", override)]
    tracemalloc.start()
    outcome = fedzero("run", tiny, "--out", tmp_path / "out", *sets)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert outcome.code == 2 and "Traceback" not in outcome.err
    assert outcome.err.splitlines()[-1].startswith("fedzero: ")  # a slow machine may have said what it is doing
    assert peak < 64 << 20 and not (tmp_path / "out").exists()


PROMPTS = ["{sentence:>200000000}", "{sentence!r}", "{sentence:{width}}", "{sentence.__class__}", "{sentence[0].upper}"]
PROMPTS += ["{" + "9" * 30 + "}", "{a[" + "9" * 30 + "]}"]  # found by the fuzzer: ValueError


@pytest.mark.parametrize("prompt", PROMPTS)
def test_prompts_with_formats(prompt: str) -> None:
    text = Text(prompt=prompt, answers={"0": "no", "1": "yes"}, train="a", test="b")
    with pytest.raises(FedzeroError, match=r"task\.text"):
        text.check()


def test_prompts_with_fields() -> None:
    text = Text(prompt="{{{a} b} {c[d]} {e f}", answers={"0": "no", "1": "yes"}, train="a", test="b")
    with pytest.raises(FedzeroError):
        text.check()
    Text(prompt="{{{a}}} {c[d]} {e f}", answers={"0": "no", "1": "yes"}, train="a", test="b").check()


@pytest.mark.parametrize(("label", "unfold"), [("a.__class__", ()), ("label", ("a.b",)), ("x:y", ())])
def test_fields_beside_the_prompt(label: str, unfold: tuple[str, ...]) -> None:
    text = Text(prompt="{a}", answers={"0": "no", "1": "yes"}, train="a", test="b", label=label, unfold=unfold)
    with pytest.raises(FedzeroError, match="field"):
        text.check()
