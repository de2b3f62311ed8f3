"""What may be given for a value of a type, in words: for lists of options, and for sentences that refuse a value."""

from __future__ import annotations

import json
import re
from typing import Any

from msgspec.inspect import (
    BoolType,
    DictType,
    FloatType,
    IntType,
    LiteralType,
    NoneType,
    StrType,
    StructType,
    TupleType,
    Type,
    UnionType,
    VarTupleType,
)


def takes(shape: Type) -> str:
    """What may be written for a value of this type."""
    if isinstance(shape, UnionType):
        return ", ".join(takes(inner) for inner in shape.types if not isinstance(inner, NoneType))
    if isinstance(shape, LiteralType):
        return ", ".join(written(value) for value in shape.values)
    if isinstance(shape, StructType):
        return f'{{ kind = "{shape.tag}"{", …" if shape.fields else ""} }}' if shape.tag else "{ … }"
    if isinstance(shape, VarTupleType):
        return f"list of {takes(shape.item_type)}"
    if isinstance(shape, TupleType):
        return f"[{', '.join(map(takes, shape.item_types))}]"
    if isinstance(shape, DictType):
        return f"{{ {takes(shape.key_type)} = {takes(shape.value_type)}, … }}"
    if isinstance(shape, IntType | FloatType):
        return f"{'whole ' if isinstance(shape, IntType) else ''}number{_bounds(shape)}"
    return {BoolType: "true, false", StrType: "text"}.get(type(shape), "anything")


def _bounds(shape: IntType | FloatType) -> str:
    said = [(">", shape.gt), ("≥", shape.ge), ("<", shape.lt), ("≤", shape.le)]
    return "".join(f" {sign} {bound:g}" for sign, bound in said if bound is not None and abs(bound) < 2**62)


def words_of(shape: Type) -> list[str]:
    """The words that may be written for a value of this type, where it takes some."""
    if isinstance(shape, UnionType):
        return [word for inner in shape.types for word in words_of(inner)]
    return [value for value in shape.values if isinstance(value, str)] if isinstance(shape, LiteralType) else []


def written(value: Any) -> str:
    """A value as it is written in TOML, on one line."""
    if isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        inside = ", ".join(f"{_key(name)} = {written(item)}" for name, item in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(written, value))}]"
    return repr(value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else written(name)
