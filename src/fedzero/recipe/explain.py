"""What is wrong with a recipe, in words."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct
from msgspec.inspect import StructType, Type, UnionType, VarTupleType, type_info

from fedzero import plugins
from fedzero.errors import did_you_mean

_GROUPS: dict[str, plugins.Group] = {
    "algorithm": "methods",
    "task": "tasks",
    "filters": "filters",
    "gathering": "gatherings",
    "engine": "engines",
}
_UNKNOWN = re.compile(r"Object contains unknown field `(.+?)`")
_MISSING = re.compile(r"Object missing required field `(.+?)`")


def structs_in(shape: Type) -> list[StructType]:
    """The kinds of table that a value of this type can be."""
    if isinstance(shape, StructType):
        return [shape]
    if isinstance(shape, UnionType):
        return [found for inner in shape.types for found in structs_in(inner)]
    if isinstance(shape, VarTupleType):
        return structs_in(shape.item_type)
    return []


def _keys(path: list[str], table: Any, root: type[Struct]) -> set[str]:
    """The keys that may stand in a recipe at a place, as far as its kinds are known."""
    choices, part, group = structs_in(type_info(root)), table, _GROUPS.get(path[0]) if path else None
    for name in path:
        try:
            part = part[int(name) if isinstance(part, list) else name]
        except (KeyError, IndexError, TypeError, ValueError):  # of a dictionary, whose keys are free
            return set()
        if group is not None and isinstance(part, dict):
            choices, group = structs_in(type_info(plugins.find(group, part.get("kind", "local")).type)), None
        elif group is None and not name.isdigit():
            inner = [field.type for choice in choices for field in choice.fields if field.encode_name == name]
            choices = [found for shape in inner for found in structs_in(shape)]
            tagged = [c for c in choices if isinstance(part, dict) and c.tag is not None and c.tag == part.get("kind")]
            choices = tagged or choices
            group = "rules" if name == "rules" and path[0] == "algorithm" else None
    return {field.encode_name for choice in choices for field in choice.fields}


def _advice(path: list[str], table: dict[str, Any]) -> str:
    """Which `fedzero list` names the keys of the table at a place, or of the one it is in."""
    part = table.get(path[0]) if path and path[0] in _GROUPS and path[0] != "engine" else None
    if isinstance(part, list) and len(path) > 1:
        part = part[int(path[1])]
    kind = part.get("kind") if isinstance(part, dict) else None
    return f"`fedzero list {kind or 'recipe'}` names all keys"


def explain(message: str, table: dict[str, Any], root: type[Struct]) -> str:
    """msgspec's message as one sentence that names the field, what was found, and what to do; root: type of it all."""
    complaint, _, path = message.partition(" - at `")
    field = path.rstrip("`").removeprefix("$").strip(".")
    prefix, place = f"{field}." if field else "", re.findall(r"[^.\[\]]+", field)
    if unknown := _UNKNOWN.search(complaint):
        meant = did_you_mean(unknown[1], _keys(place, table, root)) or "remove it or correct its spelling;"
        return f"unknown key {prefix}{unknown[1]}: {meant} {_advice(place, table)}"
    if missing := _MISSING.search(complaint):
        return f"{prefix}{missing[1]} is missing: add it; {_advice(place, table)}"
    found: Any = table
    for part in place:
        try:
            found = found[int(part)] if isinstance(found, list) else found[part]
        except (KeyError, IndexError, TypeError, ValueError):
            return f"{field}: {complaint}"
    if complaint.startswith("Invalid value") and field.rsplit(".", 1)[-1] == "kind":
        return f"{field} = {found!r}: there is no such kind; `fedzero list` shows all"
    return f"{field} = {found!r} is not valid: {complaint[0].lower()}{complaint[1:]}".replace("`", "")
