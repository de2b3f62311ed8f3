"""A recipe as a flat table, to see in what two of them differ."""

from __future__ import annotations

from typing import Any

import msgspec

from fedzero.recipe.recipe import Recipe

SECTIONS = ("algorithm", "task", "federation", "stop", "engine")


def settings_of(recipe: Recipe) -> dict[str, str]:
    """`section.key` → value as text, with what has its default value; tables within a section stay in one piece."""
    table: dict[str, Any] = msgspec.to_builtins(recipe)
    flat: dict[str, str] = {}
    for section in SECTIONS:
        inner = table.pop(section)
        flat |= {f"{section}.{key}": text_of(value) for key, value in inner.items()}
    return {key: text_of(value) for key, value in table.items()} | flat


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
