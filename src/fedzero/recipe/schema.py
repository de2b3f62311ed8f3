"""What may be written in a recipe, read off the types it is decoded into: every key, what it takes, what it means.

A meaning is the text below a field; words that mean the same everywhere have theirs here.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import msgspec
from msgspec import Struct
from msgspec.inspect import Field, StructType, type_info

from fedzero import plugins
from fedzero.model.wanted import takes as takes
from fedzero.model.wanted import written as written
from fedzero.recipe.explain import structs_in
from fedzero.recipe.recipe import Recipe

Kind = type[Struct]

TABLES: dict[str, tuple[str, plugins.Group]] = {
    "Methods": ("algorithm", "methods"),
    "Filters": ("filters", "filters"),
    "Rules": ("algorithm.rules", "rules"),
    "Gatherings": ("gathering", "gatherings"),
    "Tasks": ("task", "tasks"),
    "Engines": ("engine", "engines"),
    "Transports": ("engine.transport", "transports"),
}
"""Where in a recipe kinds can be chosen: the table's name, and the group they are registered in."""

COMMON = {
    "rate": "η, step size: a number, or a schedule over rounds",
    "directions": "P, number of directions of one estimate",
    "local_steps": "K, local steps of a client in one round",
    "radius": "μ, smoothing radius: evaluations are at x + μz",
    "difference": "of values: at x + μz and x; at x ± μz; or at x + μz and its mean over the other directions",
    "distribution": "of directions; sphere: of radius √d; unit-sphere: of radius 1, with the factor d",
    "samples": "an evaluation uses a mini-batch, or all of the client's data",
    "form": "what is sent: dense, parameters; seeded, scalars of directions; auto, whichever is fewer bytes",
    "box": "[low, high], to which every coordinate is clipped after every step",
    "window": "which observations are used",
    "batch": "mini-batch size",
    "partition": "how samples are divided among clients",
    "dimension": "d, number of coordinates",
}

TAKES = {"rules": "list of { kind = … }"}
"""Of fields whose values are decoded by kind."""


@dataclass(frozen=True)
class Option:
    """A key, as a person would ask about it; `default` is None where a value must be given."""

    name: str
    takes: str
    default: str | None
    meaning: str


@dataclass(frozen=True)
class Section:
    """Keys of one table of a recipe: `place` is its name (`task.train`), `kind` what makes it this one, if anything."""

    place: str
    kind: str | None
    about: str
    options: tuple[Option, ...]


def named(name: str) -> list[Section] | None:
    """All there is to know about an algorithm, filter, task or engine; `recipe`: about what surrounds them."""
    if name == "recipe":
        seen, engines = set[Kind](), plugins.kinds("engines").values()
        around = _sections("", Recipe, seen, skip=("algorithm", "task", "filters", "gathering"))
        return [*around, *(each for kind in engines for each in _sections("engine", kind.type, seen))]
    found = [(place, known[name]) for place, group in TABLES.values() if name in (known := plugins.kinds(group))]
    return [each for place, kind in found for each in _sections(place, kind.type, set())] or None


def of_struct(kind: Kind) -> list[Section]:
    """All there is to know about a file that is decoded into this."""
    return [*_sections("", kind, set())]


def first_line(kind: Kind) -> str:
    return (kind.__doc__ or "").split("\n")[0]


def _sections(place: str, kind: Kind, seen: set[Kind], skip: tuple[str, ...] = ()) -> Iterator[Section]:
    """The table of a kind, then the tables that can stand in it; each kind once."""
    seen.add(kind)
    shape = type_info(kind)
    assert isinstance(shape, StructType)
    fields, texts = [field for field in shape.fields if field.name not in skip], _texts(kind)
    options = (Option(f.name, TAKES.get(f.name) or takes(f.type), _default(f), _meaning(f.name, texts)) for f in fields)
    tag = None if shape.tag is None else str(shape.tag)
    yield Section(place, tag, inspect.cleandoc(kind.__doc__ or ""), tuple(options))
    for field in fields:
        for inner in structs_in(field.type):
            if inner.fields and inner.cls not in seen:
                yield from _sections(f"{place}.{field.name}".strip("."), inner.cls, seen)


def _meaning(name: str, texts: dict[str, str]) -> str:
    """The field's own text, unless it is only the symbol that a common word's begins with."""
    own, common = texts.get(name, ""), COMMON.get(name, "")
    return common if common.startswith(own) else own


def _texts(kind: Kind) -> dict[str, str]:
    """The text below each field, of the kind and of what it inherits from."""
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        found |= _own_texts(owner)
    return found


@cache
def _own_texts(owner: type) -> dict[str, str]:
    """The text below each field that a class itself has. Cached, because finding its source parses the whole file."""
    try:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    except (OSError, TypeError):  # of a language's own types there is no source
        return {}
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for field, text in pairwise(definition.body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            assert isinstance(field.target, ast.Name)
            found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def _default(field: Field) -> str | None:
    if field.required:
        return None
    if field.default is field.default_factory is msgspec.NODEFAULT:  # msgspec.UNSET: it is not there
        return ""
    value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    absent = value is None or value is msgspec.NODEFAULT  # so says msgspec of UNSET
    return "" if absent else written(msgspec.to_builtins(value))
