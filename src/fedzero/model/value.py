"""Values that a recipe chooses by a word: methods, tasks, filters, kinds of boxes."""

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
    """A frozen struct that is decoded by its tag and refuses unknown keys: `class MyTask(Task, tag="my-task"): …`."""
