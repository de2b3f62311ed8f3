"""Values that a recipe chooses by a word: frozen structs, decoded by their tag, that refuse keys they do not know.

Methods, tasks and filters derive from `Value`. What holds for all of them need not be said again by each:

    class MyMethod(SeededMethod, tag="my-method"): …
"""

from __future__ import annotations

from typing import Any, dataclass_transform

import msgspec
from msgspec import Struct, StructMeta


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class _ValueMeta(StructMeta):
    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **config: Any) -> Any:
        settings: dict[str, Any] = {"frozen": True, "kw_only": True, "forbid_unknown_fields": True, "tag_field": "kind"}
        return super().__new__(mcls, name, bases, namespace, **(settings | config))


class Value(Struct, metaclass=_ValueMeta):
    """Derive with `tag="…"`, the word by which a recipe chooses the value."""
