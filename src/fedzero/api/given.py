"""What is given to the verbs of Python, looked at before anything is done with it: a sentence names the parameter."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.inspect import type_info
from torch import nn

from fedzero import plugins
from fedzero.callbacks import METHODS
from fedzero.errors import FedzeroError, Invalid, did_you_mean
from fedzero.model import files
from fedzero.model.value import checked, plain, quoted
from fedzero.model.wanted import words_of

Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Many = Annotated[int, Meta(ge=1, le=10_000_000)]
"""Parties, or coordinates: a value is made for each."""
RowNumber = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""Of a row of a table of SQLite."""
T = TypeVar("T")
WATCHES = ("phase", "begin", "round", "evaluation", "warn", "end")


def each(kind: Any, **named: Any) -> tuple[Any, ...]:
    """Parameters as values of a type, in the order in which they are named."""
    return tuple(checked(value, kind, name) for name, value in named.items())


def path(value: Any, name: str) -> Path:
    """The path of a file or a folder."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str) or not text or "\0" in text:
        raise Invalid(f"{name} = {quoted(value)} is not valid: give a path")
    return Path(text)


def folder(value: Any, name: str = "out") -> Path:
    """A folder that is there or can be made."""
    found = path(value, name)
    files.expect_folder(found, f"{name} = {quoted(str(found))}")
    return found


def file(value: Any, name: str) -> Path:
    """A file to write."""
    found = path(value, name)
    if found.is_dir():
        raise Invalid(f"{name} = {quoted(str(found))} is a folder: name a file to write")
    files.expect_folder(found.parent, f"{name} = {quoted(str(found))}: {found.parent}")
    return found


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """What the system says of a file that cannot be written, in a sentence."""
    try:
        yield
    except OSError as error:
        raise FedzeroError(f"{place} cannot be written ({error.strerror}): choose another path") from error


def module(value: Any, name: str = "model") -> nn.Module:
    if isinstance(value, nn.Module):
        return value
    if isinstance(value, type) and issubclass(value, nn.Module):
        raise Invalid(f"{name} = {value.__name__} is a class: give a module made of it, {value.__name__}(…)")
    raise Invalid(f"{name} = {quoted(value)} is not valid: give a torch.nn.Module")


def told(**values: Any) -> dict[str, Any]:
    """The values that are not None, by name: what nobody said is not in a recipe."""
    return {name: value for name, value in values.items() if value is not None}


def function(value: Any, name: str, wanted: str, optional: bool = True) -> Any:
    """Something that can be called; None where it is optional."""
    if callable(value) or (optional and value is None):
        return value
    raise Invalid(f"{name} = {quoted(value)} is not valid: give {wanted}")


def functions(value: Any, name: str, wanted: str) -> dict[str, Callable[..., Any]]:
    """Functions by name."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise Invalid(f"{name} = {quoted(value)} is not valid: give a dictionary of names and functions")
    return {key: function(each, f"{name}[{key!r}]", wanted, optional=False) for key, each in value.items()}


def one_of(value: Any, known: Mapping[str, T], name: str, others: str) -> T:
    """What a word stands for; others: words before the list of all, for a sentence."""
    if isinstance(value, str) and value in known:
        return known[value]
    advice = isinstance(value, str) and did_you_mean(value, known)
    raise Invalid(f"{name} = {quoted(value)} is not valid: {advice or f'{others} ' + ', '.join(known)}")


def method(value: Any, default: Mapping[str, Any], name: str = "method") -> dict[str, Any]:
    """The table of a method, which is given as a value, by its name, or as a table; None: the default.

    A name alone means the default where that is of the same kind, else a rate that the method finds itself, if it can.
    """
    if value is None or (isinstance(value, str) and value == default.get("kind")):
        return dict(default)
    if not isinstance(value, str):
        return table(value, name, plugins.base_of("methods"), "fedzero.DeComFL(rate=0.05)")
    kind = one_of(value, plugins.kinds("methods"), name, "there are").type
    rates = [field for field in msgspec.structs.fields(kind) if field.name == "rate" and field.required]
    finds = any("auto" in words_of(type_info(field.type)) for field in rates)
    if rates and not finds:
        raise Invalid(f"{name} = {quoted(value)} needs a rate: give fedzero.{kind.__name__}(rate=…)")
    return {"kind": value} | ({"rate": "auto"} if finds else {})


def filters(value: Any) -> list[dict[str, Any]]:
    """The tables of filters, each given as a value, by its name, or as a table."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise Invalid(f"filters = {quoted(value)} is not valid: give a list of filters, such as [Clip(norm=1.0)]")
    base, example = plugins.base_of("filters"), "fedzero.links.Clip(norm=1.0)"
    return [
        {"kind": link} if isinstance(link, str) else table(link, f"filters[{i}]", base, example)
        for i, link in enumerate(value)
    ]


def table(value: Any, name: str, base: type[Struct], example: str) -> dict[str, Any]:
    """A value that a recipe chooses, or its table, as a table."""
    if isinstance(value, base):
        found: dict[str, Any] = msgspec.to_builtins(value)
        return found
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _built(item, f"{name}[{key!r}]") for key, item in value.items()}
    if isinstance(value, type) and issubclass(value, base):
        raise Invalid(f"{name} = {value.__name__} is a class: give a value of it, such as {value.__name__}(…)")
    raise Invalid(f"{name} = {quoted(value)} is not valid: give a value such as {example}, its name, or a table")


def _built(value: Any, name: str) -> Any:
    try:
        return msgspec.to_builtins(plain(value))
    except (TypeError, RecursionError) as error:
        raise Invalid(f"{name} = {quoted(value)} is not valid: {str(error).rstrip('.')}") from None


def rows(rows: Any, whose: str) -> list[Mapping[str, Any]]:
    """Rows as dictionaries, of a list or a frame of pandas."""
    if hasattr(rows, "to_dict") and hasattr(rows, "columns"):
        rows = rows.to_dict("records")
    if isinstance(rows, str | Mapping) or not hasattr(rows, "__iter__"):
        raise Invalid(f"{whose} has {quoted(rows)} as rows: give a list of dictionaries")
    found = list(rows)
    if not found:
        raise Invalid(f"{whose} has no rows: give at least one")
    odd = next((row for row in found if not isinstance(row, Mapping)), None)
    if odd is not None:
        raise Invalid(f"{whose} has the row {quoted(odd)}: give a list of dictionaries")
    return found


def callbacks(value: Any) -> tuple[Any, ...]:
    """Observers, each with some of the methods of `fedzero.Callback`."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise Invalid(f"callbacks = {quoted(value)} is not valid: give a list of callbacks")
    for number, each in enumerate(value):
        if isinstance(each, type):
            raise Invalid(f"callbacks[{number}] = {each.__name__} is a class: give a value of it, {each.__name__}()")
        if not any(callable(getattr(each, name, None)) for name in METHODS):
            raise Invalid(f"callbacks[{number}] = {quoted(each)} is not valid: give a value with {', '.join(METHODS)}")
    return tuple(value)


def progress(value: Any) -> Any:
    """True, False, or somebody who looks on."""
    if isinstance(value, bool) or all(callable(getattr(value, name, None)) for name in WATCHES):
        return value
    raise Invalid(f"progress = {quoted(value)} is not valid: give True, False, or a value with {', '.join(WATCHES)}")
