"""Recipes that ask for more than there is: one sentence, before memory is used."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path

import pytest

from fedzero.errors import FedzeroError
from fedzero.model import files, toml
from fedzero.recipe import recipe as recipes
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
    "a key of many parts": ".".join("a" * 1_000_000) + " = 1",
    "a table of many parts": "[" + ".".join("a" * 500_000) + "]\n" + "b = 1\n",
    "parts in quotes": '"=" . '.join(["", *["'#'."] * 100_000]) + "a = 1",
    "parts behind a string": 'x = """"\\""""""\ny = \'\'\'\n"\'\'\'\n' + ".".join("a" * 1_000_000) + " = 1",
    "a number in base 16": "rounds = 0x" + "f" * 3_000_000,
    "a number in base 2": "rounds = 0b" + "1_0" * 1_000_000,
    "a fraction": "rounds = 0." + "9" * 3_000_000,
    "many keys": "".join(f"a{i} = 1\n" for i in range(100_000)),
    "many tables": "".join(f"[[a]]\n[a.b{i}]\n" for i in range(20_000)),
    "a string that does not end": 'name = "' + '\\"' * 1_000_000,
    "quotes": "name = " + "'" * 2_000_001,
    "more quotes": "name = " + '"' * 2_000_001,
    "deep inline arrays of tables": "a = " + "[{b=" * 1000,
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


HUGE = "9" * 300
PRIVACY = {
    "no table": "privacy=2.0",
    "a list": "privacy=[{epsilon=2.0}]",
    "text": 'privacy="secure"',
    "empty": "privacy={}",
    "epsilon is text": 'privacy={epsilon="two"}',
    "epsilon is a table": "privacy={epsilon={value=2.0}}",
    "epsilon is nan": "privacy={epsilon=nan}",
    "epsilon is infinite": "privacy={epsilon=inf}",
    "epsilon is 0": "privacy={epsilon=0.0}",
    "epsilon is negative": "privacy={epsilon=-1.0}",
    "epsilon is huge": "privacy={epsilon=1e308}",
    "epsilon is tiny": "privacy={epsilon=1e-300}",
    "epsilon is a long integer": f"privacy={{epsilon={HUGE}}}",
    "delta is nan": "privacy={epsilon=2.0,delta=nan}",
    "delta is 1": "privacy={epsilon=2.0,delta=1.0}",
    "delta is tiny": "privacy={epsilon=2.0,delta=1e-320}",
    "sigma is nan": "privacy={sigma=nan}",
    "sigma is huge": "privacy={sigma=1e308}",
    "sigma is tiny": "privacy={sigma=1e-308}",
    "sigma is infinite": "privacy={sigma=inf}",
    "clip is nan": "privacy={sigma=1.0,clip=nan}",
    "clip is 0": "privacy={sigma=1.0,clip=0.0}",
    "clip is huge": "privacy={sigma=1.0,clip=1e308}",
    "clip is tiny": "privacy={sigma=1.0,clip=1e-308}",
    "clip is text": 'privacy={sigma=1.0,clip="none"}',
    "population is huge": f"privacy={{sigma=1.0,population={HUGE}}}",
    "population is a fraction": "privacy={sigma=1.0,population=0.5}",
    "population of 2⁶²": f"privacy={{sigma=1.0,population={2**62}}}",
    "probability is nan": "privacy={sigma=1.0,probability=nan}",
    "probability is 0": "privacy={sigma=1.0,probability=0.0}",
    "probability is above 1": "privacy={sigma=1.0,probability=1.5}",
    "probability is tiny": "privacy={sigma=1.0,probability=1e-320}",
    "unit is nobody": 'privacy={sigma=1.0,unit="family"}',
    "unit is a number": "privacy={sigma=1.0,unit=1}",
    "person without a column": 'privacy={sigma=1.0,unit="person",clip=1.0,population=9,probability=0.1}',
    "a column of no table": 'privacy={sigma=1.0,unit="person",person="id",clip=1.0,population=9,probability=0.1}',
    "examples of a quadratic": 'privacy={sigma=1.0,unit="example",clip=1.0,population=9,probability=0.1}',
    "unknown key": "privacy={sigma=1.0,epsilom=2.0}",
    "deep": "privacy=" + "{a=" * 50 + "1" + "}" * 50,
}


@pytest.mark.parametrize("override", PRIVACY.values(), ids=PRIVACY)
def test_privacy_that_nobody_can_have(fedzero, tiny: Path, tmp_path: Path, override: str) -> None:
    """One sentence; or, where the numbers are odd and no more, a run with the ε that they give."""
    outcome = fedzero("run", tiny, "--out", tmp_path / "out", "--json", "--set", override)
    assert outcome.code in (0, 2) and "Traceback" not in outcome.err
    if outcome.code == 2:
        assert outcome.err.splitlines()[-1].startswith("fedzero: ") and not (tmp_path / "out").exists()
    else:
        assert json.loads(outcome.out)["epsilon"] >= 0


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


# ---- text that is TOML


def test_what_a_recipe_may_have() -> None:
    """Nothing here is a key of many parts, or a long number: it is in strings and comments, or a list."""
    prose = ". ".join("No" for _ in range(500))
    text = f"""
about = "{prose}"
other = '{prose}' # {prose}
long = '''
{prose} "'''
basic = \"\"\"{prose}\\\"\"\"\"\"\"
floats = [{", ".join("0.5" for _ in range(1000))}]
a . "b.c" . 'd.e' = 1979-05-27T07:32:00.999999Z
key-{"x" * 900} = 1
"""
    found = toml.parsed(text.encode(), "x")
    assert found["about"] == found["other"] == prose and found["long"] == prose + ' "'
    assert found["basic"] == prose + '""""'[:3] and len(found["floats"]) == 1000 and found["a"]["b.c"]
    deep = ".".join("a" * toml.PARTS)
    assert toml.parsed(f"{deep} = 1".encode(), "x")
    with pytest.raises(FedzeroError, match="parts"):
        toml.parsed(f"{deep}.a = 1".encode(), "x")


@pytest.mark.parametrize("make", ["pipe", "folder", "device", "sparse"])
def test_settings_that_are_no_file(tmp_path: Path, make: str) -> None:
    """The file of a kit may be anything: a pipe is not waited for, and a large file is not read."""
    path = tmp_path / "fedzero.toml"
    if make == "pipe":
        os.mkfifo(path)
    elif make == "folder":
        path.mkdir()
    elif make == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)
    tracemalloc.start()
    with pytest.raises((FedzeroError, IsADirectoryError)):
        files.decoded(path, dict[str, str])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 << 20


def test_a_recipe_that_does_not_end(fedzero, tmp_path: Path) -> None:
    (tmp_path / "x.toml").symlink_to("/dev/zero")
    fedzero("run", tmp_path / "x.toml", "--out", tmp_path / "out").refused("x.toml")


# ---- JSON, as ledgers, patches and orders have it

CANONICAL = {
    "nested": b'{"task":' + b"[" * 100_000,
    "nested objects": b'{"task":' + b'{"a":' * 100_000,
    "a number": b'{"rounds":' + b"9" * 1_000_000 + b"}",
    "keys": b"{" + b",".join(b'"a%d":1' % i for i in range(200_000)) + b"}",
    "a kind": b'{"algorithm":{"kind":"' + b"x" * 3_000_000 + b'"}}',
    "filters": b'{"filters":[' + b",".join([b'{"kind":"clip","norm":1.0}'] * 100_000) + b"]}",
    "filters that are none": b'{"filters":[' + b",".join([b"{}"] * 100_000) + b"]}",
    "not UTF-8": b'{"name":"\xff"}',
    "too long": b" " * (recipes.LARGEST + 1),
}


@pytest.mark.parametrize("data", CANONICAL.values(), ids=CANONICAL)
def test_canonical_recipes(data: bytes) -> None:
    for read in (recipes.from_canonical, recipes.received):
        with pytest.raises(FedzeroError) as caught:
            read(data)
        assert len(str(caught.value)) < 1000
