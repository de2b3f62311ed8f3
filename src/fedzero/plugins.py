"""Methods, tasks, filters, recipes and commands by name: our own, those of installed distributions, and those that a
script registers.

    [project.entry-points."fedzero.methods"]       in the pyproject.toml of any distribution
    my-method = "my_package:MyMethod"              the name is the tag of the class

The groups are `fedzero.methods`, `fedzero.tasks`, `fedzero.filters` (classes), `fedzero.recipes` (packages that contain
TOML files) and `fedzero.commands` (typer applications). Only entry points of installed distributions are imported:
nothing that travels, a recipe, a ledger or a message, can name a module.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from msgspec import Struct

from fedzero.algorithms.contract import Method
from fedzero.errors import FedzeroError
from fedzero.filters.contract import Filter
from fedzero.tasks.contract import Task

Group = Literal["methods", "tasks", "filters"]
OURS = "fedzero"
BASES: Mapping[Group, type[Struct]] = {"methods": Method, "tasks": Task, "filters": Filter}
PACKAGES: Mapping[Group, tuple[str, ...]] = {
    "methods": ("fedzero.algorithms",),
    "tasks": ("fedzero.tasks", "fedzero.tasks.language"),
    "filters": ("fedzero.filters",),
}
"""Where ours are: a class with a tag in a module of these needs no other entry."""


@dataclass(frozen=True)
class Kind:
    """A class that a recipe can choose, and where it comes from; `distribution` is empty for registered ones."""

    type: type[Any]
    distribution: str
    version: str

    @property
    def origin(self) -> str:
        return f"{self.distribution} {self.version}" if self.distribution else "registered by this process"


class NotInstalled(FedzeroError):
    """A recipe names something that no installed distribution has."""


_registered: dict[Group, dict[str, Kind]] = {"methods": {}, "tasks": {}, "filters": {}}


def register(kind: type[Any]) -> type[Any]:
    """Make a method, task or filter of a script or notebook known to this process; usable as a decorator.

    Other processes do not know it: sites of a federation, and whoever resumes the run later, must register it too, or
    install it with an entry point.
    """
    for group, base in BASES.items():
        if issubclass(kind, base):
            tag = tag_of(kind)
            if tag in _of_distributions(group):
                raise FedzeroError(
                    f"{group[:-1]} {tag!r} comes with {_of_distributions(group)[tag].origin}: take another tag"
                )
            _registered[group][tag] = Kind(kind, "", "")
            return kind
    raise FedzeroError(f"{kind!r} is no fedzero.Method, fedzero.Task or filter: derive it from one of them")


def tag_of(kind: type[Any]) -> str:
    """The word that chooses a kind in a recipe."""
    tag = str(kind.__struct_config__.tag)
    if tag == kind.__name__:
        raise FedzeroError(f'{kind.__name__} has no tag: write class {kind.__name__}(…, tag="my-name")')
    return tag


def kinds(group: Group) -> dict[str, Kind]:
    """All kinds of a group, by tag: ours first, then those of other distributions, then registered ones."""
    return {**_of_distributions(group), **_registered[group]}


def find(group: Group, tag: object, needs: Mapping[str, str] | None = None) -> Kind:
    """The kind with a tag. `needs`: distributions and versions that a ledger was written with, for the message."""
    for entry in _foreign(group):
        if entry.name == tag:
            _loaded(group, entry)  # says what is wrong with it
    known = kinds(group)
    if tag in known:
        return known[str(tag)]
    missing = [f"{name} ({version})" for name, version in (needs or {}).items() if not _installed(name)]
    if missing:
        raise NotInstalled(f"{group[:-1]} {tag!r} is not installed here: pip install {' '.join(missing)}")
    raise NotInstalled(f"there is no {group[:-1]} {tag!r}; `fedzero list` shows what there is")


def needed(*chosen: tuple[Group, object]) -> dict[str, str]:
    """Distributions other than this one that the chosen kinds come from, with their versions."""
    found = [find(group, tag) for group, tag in chosen]
    return {kind.distribution: kind.version for kind in found if kind.distribution not in (OURS, "")}


def recipes() -> dict[str, Path]:
    """All packaged recipes, by name: ours, and those of other distributions."""
    packages = [OURS + ".recipes", *(entry.value for entry in metadata.entry_points(group="fedzero.recipes"))]
    return {path.stem: path for package in packages for path in sorted(_folder(package).glob("*.toml"))}


def _folder(package: str) -> Path:
    return Path(str(resources.files(package)))


def _installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


@cache
def _of_distributions(group: Group) -> dict[str, Kind]:
    found = {tag_of(kind): Kind(kind, OURS, _version()) for kind in _ours(group)}
    for entry in _foreign(group):
        try:
            kind = _loaded(group, entry)
        except FedzeroError:
            continue  # `find` raises it when it is wanted
        if entry.name in found:
            raise FedzeroError(
                f"{group[:-1]} {entry.name!r} comes with {found[entry.name].origin} and {kind.origin}: uninstall one"
            )
        found[entry.name] = kind
    return found


def _version() -> str:
    from fedzero import __version__

    return __version__


def _ours(group: Group) -> Iterator[type[Any]]:
    """Classes with a tag of their own, in the order of their modules."""
    for package in PACKAGES[group]:
        parent = importlib.import_module(package)
        for module in pkgutil.iter_modules(parent.__path__, package + "."):
            yield from _tagged(importlib.import_module(module.name), BASES[group])


def _tagged(module: ModuleType, base: type[Struct]) -> Iterator[type[Any]]:
    for value in vars(module).values():
        mine = isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__
        if mine and value.__struct_config__.tag != value.__name__:
            yield value


@cache
def _foreign(group: Group) -> tuple[metadata.EntryPoint, ...]:
    return tuple(metadata.entry_points(group=f"fedzero.{group}"))


def _loaded(group: Group, entry: metadata.EntryPoint) -> Kind:
    origin = f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.value
    try:
        kind = entry.load()
    except Exception as error:  # whatever a module of somebody else raises when it is imported
        raise FedzeroError(f"{group[:-1]} {entry.name!r} of {origin} cannot be imported: {error!r}") from error
    if not (isinstance(kind, type) and issubclass(kind, BASES[group])):
        raise FedzeroError(f"{group[:-1]} {entry.name!r} of {origin} is no fedzero {BASES[group].__name__}")
    if tag_of(kind) != entry.name:
        raise FedzeroError(
            f"{origin} calls {group[:-1]} {tag_of(kind)!r} {entry.name!r} in its entry points: use the tag"
        )
    return Kind(
        kind, entry.dist.name if entry.dist is not None else "", entry.dist.version if entry.dist is not None else ""
    )
