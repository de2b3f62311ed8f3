"""Settings of several runs: every combination of several values, seeds among them, and a name for each.

    --set algorithm.rate=1e-3,3e-3 --set algorithm.directions=5,20 --seeds 0..2      2 × 2 × 3 runs

A comma separates values where it stands outside of brackets and quotes, no blank is beside it, and the whole is no
value of TOML. So [1,2] is one list, [1],[2] are two lists, "a,b" is one text, and a text such as "one, two" stays one.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fedzero.errors import FedzeroError, Invalid
from fedzero.lines import printable
from fedzero.model import toml
from fedzero.recipe import recipe as recipes

Setting = dict[str, Any]
"""Values by key, of one run."""
MOST = 10_000
"""Runs of a sweep."""
LONGEST = 120
"""Characters of the name of a folder; a longer one ends with a digest."""
SEED = "seed"


def split(overrides: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """`--set` options: those with one value as they are, and the values of the others by key, as text."""
    single, grid = [], dict[str, list[str]]()
    for each in overrides:
        key, equals, text = each.partition("=")
        values = pieces(text) if equals else []
        if len(values) > 1:
            if key in grid:
                raise FedzeroError(f"--set {key}: values are given twice")
            grid[key] = values
        else:
            single.append(each)
    return single, grid


def pieces(text: str) -> list[str]:
    """The values of a list with commas; the text alone where it is one value."""
    if "," not in text or is_toml(text):
        return [text]
    parts, depth, quote, begin = [], 0, "", 0
    for i, character in enumerate(text):
        if quote:
            quote = "" if character == quote and text[i - 1] != "\\" else quote
        elif character in "\"'":
            quote = character
        elif character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        elif character == "," and not depth:
            parts.append(text[begin:i])
            begin = i + 1
    parts.append(text[begin:])
    whole = all(part and part == part.strip() and (is_toml(part) or _is_word(part)) for part in parts)
    return parts if whole and not quote and not depth else [text]


def value_of(text: str) -> Any:
    """A value of TOML; a bare word is a string, as of `--set`."""
    table: dict[str, Any] = {}
    recipes.override(table, f"value={text}")
    return table["value"]


def is_toml(text: str) -> bool:
    try:
        toml.parsed(f"value = {text}".encode(), "")
    except FedzeroError:
        return False
    return True


def _is_word(text: str) -> bool:
    return re.fullmatch(r"[\w.:/+-]+", text) is not None


def seeds_of(text: str) -> list[int]:
    """0,1,5 or 0..4, both ends included, or several of these."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,18})(?:\.\.(\d{1,18}))?\s*", part)
        if match is None or (match[2] and not 0 <= int(match[2]) - int(match[1]) < MOST):
            raise FedzeroError(f"--seeds {printable(text, 80)}: write numbers such as 0,1,2 or 0..4")
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return list(dict.fromkeys(found))


def combinations(grid: Mapping[str, Sequence[Any]]) -> list[Setting]:
    """Every combination, the last key varying fastest."""
    count = 1
    for key, values in grid.items():
        if isinstance(values, str | Mapping) or not hasattr(values, "__len__") or not len(values):
            raise Invalid(f"{printable(repr(key), 80)}: give a list of values")
        count *= len(values)
    if count > MOST:
        raise Invalid(f"{count:,} runs are too many: give at most {MOST:,} combinations of values")
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def named(settings: Sequence[Setting]) -> dict[str, Setting]:
    """Settings by the names of their folders: rate=0.001,seed=2."""
    keys = dict.fromkeys(key for setting in settings for key in setting)
    shorts = [key.rpartition(".")[2] for key in keys]
    words = {key: short if shorts.count(short) == 1 else key for key, short in zip(keys, shorts, strict=True)}
    found = {_name({words[key]: value for key, value in setting.items()}): setting for setting in settings}
    if len(found) < len(settings):
        raise Invalid("a value is given twice: every run of a sweep has its own setting")
    return found


def _name(setting: Setting) -> str:
    text = ",".join(f"{key}={_value(value)}" for key, value in setting.items()) or "run"
    plain = re.sub(r"[^A-Za-z0-9=,._+-]+", "-", text)
    if plain == text and len(text) <= LONGEST:
        return text
    return f"{plain[: LONGEST - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
