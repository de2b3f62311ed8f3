"""Values that a recipe chooses by a word: methods, tasks, filters, kinds of boxes; and values that check themselves.

msgspec checks types and bounds where it decodes, not where Python makes a value. `Checked` does it there, too, so that
`DeComFL(rate=-1)` is refused where it is written and not, rounds later, where it is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, dataclass_transform, get_args

import msgspec
import numpy as np
import torch
from msgspec import UNSET, Struct, StructMeta, UnsetType
from msgspec.inspect import StructType, type_info

from fedzero.errors import Invalid, Misnamed, did_you_mean
from fedzero.lines import printable
from fedzero.model.wanted import takes, words_of

LONGEST = 100
"""Characters that are quoted of a value that is refused."""


def checked(found: Any, kind: Any, what: str) -> Any:
    """`found` as a value of a type: a number of numpy becomes Python's, 1 becomes 1.0 where a float is wanted.

    what: the parameter, for the sentence that refuses anything else.
    """
    if kind is Any or (found is UNSET and UnsetType in get_args(kind)):
        return found
    try:
        value = msgspec.convert(plain(found), kind)
    except (msgspec.ValidationError, RecursionError, OverflowError) as error:
        complaint = str(error).partition(" - at `")[0].replace("`", "")
        said = f"{what} = {quoted(found)} is not valid: {complaint[:1].lower()}{complaint[1:]}"
        raise Invalid(f"{said}; {_advice(found, kind)}") from None
    if not _finite(value):
        raise Invalid(f"{what} = {quoted(found)} is not valid: give a finite number")
    return value


def _advice(found: Any, kind: Any) -> str:
    shape = type_info(kind)
    if isinstance(shape, StructType) and isinstance(found, Mapping):
        names = [field.encode_name for field in shape.fields]
        if unknown := [key for key in found if key not in names]:
            return did_you_mean(str(unknown[0]), names) or f"it has {', '.join(names)}"
    meant = did_you_mean(found, words_of(shape)) if isinstance(found, str) else ""
    return f"{meant}{' ' if meant else ''}it takes {takes(shape)}"


def quoted(found: Any) -> str:
    """What was given, on one line of a sentence."""
    return printable(repr(found), LONGEST)


def plain(value: Any) -> Any:
    """Numbers and arrays of numpy and torch as Python has them, also inside of lists and tables."""
    if isinstance(value, np.generic | np.ndarray | torch.Tensor):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value)) if type(value) in (list, tuple) else [plain(item) for item in value]
    return value


def _finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return all(map(_finite, inner))


@cache
def _kinds(struct: type[Struct]) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, field.type) for field in msgspec.structs.fields(struct))


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class _CheckedMeta(StructMeta):
    if not TYPE_CHECKING:

        def __call__(cls, *given: Any, **named: Any) -> Any:  # noqa: N805 - of a metaclass
            """Arguments that do not fit are said in a sentence; values are looked at by `__post_init__`."""
            fields = cls.__struct_fields__
            for name in named:
                if name not in fields:
                    some = did_you_mean(name, fields) or f"it has {', '.join(fields) or 'none'}"
                    raise Misnamed(f"{cls.__name__} has no argument {name!r}: {some}")
            try:
                return super().__call__(*given, **named)
            except Misnamed:
                raise
            except TypeError as error:
                complaint = f"{cls.__name__}: {str(error)[:1].lower()}{str(error)[1:]}"
                raise Misnamed(f"{complaint}; name them: {cls.__name__}({'=…, '.join(fields)}=…)") from None


class Checked(Struct, metaclass=_CheckedMeta):
    """A struct whose values are of the types of its fields, whoever makes it. What else they must be is checked in a
    `__post_init__` that calls this one first."""

    def __post_init__(self) -> None:
        for name, kind in _kinds(type(self)):
            found = getattr(self, name)
            value = checked(found, kind, f"{type(self).__name__}: {name}")
            if value is not found:
                msgspec.structs.force_setattr(self, name, value)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class _ValueMeta(_CheckedMeta):
    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **config: Any) -> Any:
        settings: dict[str, Any] = {"frozen": True, "kw_only": True, "forbid_unknown_fields": True, "tag_field": "kind"}
        return super().__new__(mcls, name, bases, namespace, **(settings | config))


class TaggedConfig(Checked, metaclass=_ValueMeta):
    """A frozen struct that is decoded by its tag and refuses unknown keys: `class MyTask(Task, tag="my-task"): …`."""


class Named(TaggedConfig):
    """A value with its tag as its name."""

    @property
    def name(self) -> str:
        """The tag, by which recipes choose it."""
        return str(self.__struct_config__.tag)
