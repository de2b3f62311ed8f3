"""`fedzero list NAME`: every key a recipe may have, read off the types, with a meaning."""

from __future__ import annotations

import re
import tomllib
from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct
from msgspec.inspect import type_info

from fedzero import plugins
from fedzero.recipe import recipe as recipes
from fedzero.recipe import schema as options

NAMES = ["recipe", *(name for _, group in options.TABLES.values() for name in plugins.kinds(group))]


@pytest.mark.parametrize("name", NAMES)
def test_every_option_has_a_meaning(name):
    """A text of its own, a common one, or the sentence about its table says what it is."""
    sections = options.named(name)
    assert sections
    for section in sections:
        assert section.about
        for option in section.options:
            assert option.meaning or re.search(rf"\b{option.name}\b", section.about), (section, option.name)


@pytest.mark.parametrize("name", sorted(plugins.recipes()))
def test_every_key_of_every_recipe_is_listed(name):
    table = tomllib.loads(plugins.recipes()[name].read_text(encoding="utf-8"))
    for place in ("algorithm", "task"):
        top = options.named(table[place]["kind"])[0]
        assert set(table[place]) - {"kind"} <= {option.name for option in top.options}
    around = options.named("recipe")
    listed = {option.name for option in around[0].options} | {"algorithm", "task", "filters"}
    assert set(table) <= listed
    (federation,) = (section for section in around if section.place == "federation")
    assert set(table["federation"]) <= {option.name for option in federation.options}


def test_defaults_are_those_that_decoding_gives():
    recipe = recipes.load("demo")
    again = "\n".join(
        f"{option.name} = {option.default}" for option in options.named("decomfl")[0].options if option.default
    )
    table = msgspec.to_builtins(recipe)
    table["algorithm"] = {"kind": "decomfl", "rate": 0.1, **tomllib.loads(again)}
    plain = {**table, "algorithm": {"kind": "decomfl", "rate": 0.1}}
    assert recipes.decode(table).algorithm == recipes.decode(plain).algorithm


@pytest.mark.parametrize(
    ("type_", "said"),
    [
        (Annotated[int, Meta(ge=1, le=9)], "whole number ≥ 1 ≤ 9"),
        (Annotated[float, Meta(gt=0)] | None, "number > 0"),
        (Annotated[int, Meta(le=2**63 - 1)], "whole number"),
        (tuple[str, ...], "list of text"),
        (tuple[int, float], "[whole number, number]"),
        (dict[str, bool], "{ text = true, false, … }"),
        (Literal["a", "b"], '"a", "b"'),
    ],
)
def test_what_may_be_written(type_, said):
    assert options.takes(type_info(type_)) == said


def test_kinds_inside_kinds_are_listed_once():
    places = [(section.place, section.kind) for section in options.named("fzoos")]
    assert ("algorithm.surrogate.kernel", "rbf") in places
    assert len(places) == len(set(places))


VALUES = st.recursive(
    st.booleans() | st.integers(-(2**60), 2**60) | st.text(st.characters(codec="ascii", exclude_categories=["C"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("ab.- é", min_size=1), inner),
    max_leaves=8,
)


@given(VALUES)
def test_what_is_written_is_toml(value):
    assert tomllib.loads(f"value = {options.written(value)}")["value"] == value


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_are_written_as_they_are(value):
    assert float(tomllib.loads(f"value = {options.written(value)}")["value"]) == value


def test_texts_of_what_is_inherited_count():
    class Base(Struct):
        """A base."""

        one: int = 1
        """of the base"""

    class Derived(Base, tag="x"):
        """More."""

        two: int = 2
        """of its
        own"""

    assert options._texts(Derived) == {"one": "of the base", "two": "of its own"}


# ---- the command


def test_one_of_each_in_full(fedzero):
    for name, wanted in {
        "decomfl": "optimizer",
        "top-k": "[[filters]]",
        "language": "[task.train]",
        "recipe": "pull_after",
    }.items():
        outcome = fedzero("list", name)
        assert outcome.code == 0
        assert wanted in outcome.out
    assert "required" in fedzero("list", "recipe").out


def test_a_recipe_in_full_is_its_text(fedzero):
    assert tomllib.loads(fedzero("list", "demo").out)["name"] == "demo"


def test_nothing_of_that_name(fedzero):
    fedzero("list", "decomf").refused("decomf", "did you mean decomfl?")
    fedzero("list", "abracadabra").refused("abracadabra", "`fedzero list`")


def test_a_wrong_key_says_where_the_right_ones_are(fedzero, tmp_path):
    fedzero("run", "demo", "--set", "algorithm.ratte=1", "--out", tmp_path / "x").refused("`fedzero list decomfl`")
    fedzero("run", "demo", "--set", "federation.m=1", "--out", tmp_path / "x").refused("`fedzero list recipe`")
