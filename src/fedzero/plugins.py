"""Methods, tasks, filters, gatherings, rules, engines, transports, recipes and commands by name: our own, of installed
distributions, and those that a script registers.

    [project.entry-points."fedzero.methods"]       in the pyproject.toml of any distribution
    my-method = "my_package:MyMethod"              the name is the tag of the class

The groups are `fedzero.methods`, `fedzero.tasks`, `fedzero.links` (0.2 said `fedzero.filters`, which is read for ever),
`fedzero.rules`, `fedzero.gatherings`, `fedzero.engines`, `fedzero.transports` (classes), `fedzero.recipes` (packages of
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

from fedzero.errors import FedzeroError, did_you_mean
from fedzero.lines import printable
from fedzero.model import distributions

Group = Literal["methods", "tasks", "filters", "gatherings", "rules", "engines", "transports"]
OURS = "fedzero"
BASES: Mapping[Group, str] = {
    "methods": "fedzero.methods.contract:Method",
    "tasks": "fedzero.tasks.contract:Task",
    "filters": "fedzero.links.contract:Link",
    "rules": "fedzero.methods.rules.contract:Rule",
    "gatherings": "fedzero.links.gathering:Gathering",
    "engines": "fedzero.recipe.engines:Engine",
    "transports": "fedzero.engines.remote.transport:Transport",
}
"""What the classes of a group derive from. By name, like `PACKAGES`: they are looked for when somebody asks."""
PACKAGES: Mapping[Group, tuple[str, ...]] = {
    "methods": ("fedzero.methods",),
    "tasks": ("fedzero.tasks", "fedzero.tasks.language"),
    "filters": ("fedzero.links",),
    "rules": ("fedzero.methods.rules",),
    "gatherings": ("fedzero.gatherings",),
    "engines": ("fedzero.engines",),
    "transports": ("fedzero.engines.remote", "fedzero.deploy"),
}
"""Where ours are: a class with a tag in a module of these needs no other entry."""
GROUPS: Mapping[Group, tuple[str, ...]] = {
    "methods": ("fedzero.methods",),
    "tasks": ("fedzero.tasks",),
    "filters": ("fedzero.links", "fedzero.filters"),
    "rules": ("fedzero.rules",),
    "gatherings": ("fedzero.gatherings",),
    "engines": ("fedzero.engines",),
    "transports": ("fedzero.transports",),
}
"""Of entry points. A recipe's table of links is called `filters`."""
LONGEST = 80
"""Characters of a name that are repeated to whoever wrote it."""


@dataclass(frozen=True)
class Plugin:
    """A class that a recipe can choose, and where it comes from; `distribution` is empty for registered ones."""

    type: type[Any]
    distribution: str
    version: str

    @property
    def origin(self) -> str:
        return f"{self.distribution} {self.version}" if self.distribution else "registered by this process"


class NotInstalled(FedzeroError):
    """A recipe names something that no installed distribution has; `what`: in a word or two."""

    def __init__(self, sentence: str, what: str):
        super().__init__(sentence)
        self.what = what


_registered: dict[Group, dict[str, Plugin]] = {group: {} for group in BASES}


@cache
def base_of(group: Group) -> type[Struct]:
    """What all classes of a group derive from."""
    found: type[Struct] = pkgutil.resolve_name(BASES[group])
    return found


def register(kind: type[Any]) -> type[Any]:
    """Make a class of a script or notebook, derived from one of `BASES`, known to this process; also a decorator.

    Other processes do not know it: sites of a federation, and a process that resumes the run later, must register it
    too, or have it installed with an entry point.
    """
    for group in BASES:
        if isinstance(kind, type) and issubclass(kind, base_of(group)):
            tag = tag_of(kind)
            installed, _ = _of_distributions(group)
            if tag in installed:
                raise FedzeroError(f"{group[:-1]} {tag!r} comes with {installed[tag].origin}: choose another tag")
            _registered[group][tag] = Plugin(kind, "", "")
            return kind
    bases = "Method, Task, Link, Gathering, Rule, Engine and Transport"
    raise FedzeroError(f"{kind!r} derives from none of fedzero.{bases}")


def registered() -> list[type[Any]]:
    """Classes that are known to this process alone."""
    return [kind.type for known in _registered.values() for kind in known.values()]


def tag_of(kind: type[Any]) -> str:
    """The word that chooses a kind in a recipe."""
    tag = str(kind.__struct_config__.tag)
    if tag == kind.__name__:
        raise FedzeroError(f'{kind.__name__} has no tag: write class {kind.__name__}(…, tag="my-name")')
    return tag


def kinds(group: Group) -> dict[str, Plugin]:
    """All kinds of a group, by tag: ours first, then those of other distributions, then registered ones."""
    return {**_of_distributions(group)[0], **_registered[group]}


def broken(group: Group | Literal["recipes"]) -> dict[str, str]:
    """Entry points of installed distributions that cannot be used, and why."""
    return dict(_recipe_folders()[1] if group == "recipes" else _of_distributions(group)[1])


def find(group: Group, tag: object, needs: Mapping[str, str] | None = None) -> Plugin:
    """The kind with a tag. `needs`: distributions and versions that a ledger was written with, for the message."""
    known, unusable = kinds(group), broken(group)
    if isinstance(tag, str) and tag in known:
        return known[tag]
    if isinstance(tag, str) and tag in unusable:
        raise FedzeroError(unusable[tag])
    what = f"{group[:-1]} {printable(repr(tag), LONGEST)}"
    missing = [f"{name}=={version}" for name, version in (needs or {}).items() if not _installed(name)]
    if missing:
        advice = f"pip install {' '.join(missing)} (if you trust whoever published it)"
        raise NotInstalled(f"{what} is not installed: {advice}", what)
    raise NotInstalled(
        f"there is no {what}; {did_you_mean(str(tag)[:LONGEST], known) or '`fedzero list` shows all'}", what
    )


def needed(*chosen: tuple[Group, object]) -> dict[str, str]:
    """Distributions other than this one that the chosen kinds come from, with their versions."""
    found = [find(group, tag) for group, tag in chosen]
    needs = {kind.distribution: kind.version for kind in found if kind.distribution not in (OURS, "")}
    try:
        distributions.check(needs)
    except ValueError as error:  # nobody could read a ledger that says so
        raise FedzeroError(
            f"the recipe has parts of other distributions, but {error}: install a proper release"
        ) from None
    return needs


def recipes() -> dict[str, Path]:
    """All packaged recipes, by name: ours, and those of other distributions."""
    return {path.stem: path for paths in recipes_by_origin().values() for path in paths}


def recipes_by_origin() -> dict[str, list[Path]]:
    """All packaged recipes, by the distribution that they come with."""
    found: dict[str, list[Path]] = {}
    for origin, folder in _recipe_folders()[0]:
        found.setdefault(origin, []).extend(sorted(folder.glob("*.toml")))
    return found


@cache
def _recipe_folders() -> tuple[list[tuple[str, Path]], dict[str, str]]:
    folders, broken = [(OURS, Path(str(resources.files("fedzero.recipes"))))], {}
    for entry in metadata.entry_points(group="fedzero.recipes"):
        try:
            folders.append((_origin(entry), Path(str(resources.files(entry.value)))))
        except Exception as error:  # whatever a package of somebody else raises when it is imported
            broken[entry.name] = f"recipes of {_origin(entry)} cannot be imported: {error!r}"
    return folders, broken


def _installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


@cache
def _of_distributions(group: Group) -> tuple[dict[str, Plugin], dict[str, str]]:
    """Kinds by tag, and what is wrong with entry points that are none."""
    found, broken = {tag_of(kind): [Plugin(kind, OURS, _version())] for kind in _ours(group)}, {}
    for entry in (each for name in GROUPS[group] for each in metadata.entry_points(group=name)):
        try:
            kind = _loaded(group, entry)
        except FedzeroError as error:
            broken[entry.name] = str(error)
        else:
            if kind not in (same := found.setdefault(entry.name, [])):  # once, where it is in an old group, too
                same.append(kind)
    for tag, same in found.items():
        if len(same) > 1:
            origins = " and ".join(kind.origin for kind in same)
            broken[tag] = f"{group[:-1]} {tag!r} comes with {origins}: uninstall one of them"
    # Whoever else takes a tag of ours, ours stays.
    return {tag: same[0] for tag, same in found.items() if len(same) == 1 or same[0].distribution == OURS}, broken


def _version() -> str:
    from fedzero import __version__

    return __version__


def _ours(group: Group) -> Iterator[type[Any]]:
    """Classes with a tag of their own, in the order of their modules."""
    for package in PACKAGES[group]:
        parent = importlib.import_module(package)
        for module in pkgutil.iter_modules(parent.__path__, package + "."):
            yield from _tagged(importlib.import_module(module.name), base_of(group))


def _tagged(module: ModuleType, base: type[Struct]) -> Iterator[type[Any]]:
    for value in vars(module).values():
        mine = isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__
        if mine and value.__struct_config__.tag != value.__name__:
            yield value


def _origin(entry: metadata.EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.value


def _loaded(group: Group, entry: metadata.EntryPoint) -> Plugin:
    what = f"{group[:-1]} {entry.name!r} of {_origin(entry)}"
    try:
        kind = entry.load()
    except Exception as error:  # whatever a module of somebody else raises when it is imported
        raise FedzeroError(f"{what} cannot be imported: {error!r}") from error
    if not (isinstance(kind, type) and issubclass(kind, base_of(group))):
        raise FedzeroError(f"{what} is not derived from fedzero's {base_of(group).__name__}")
    if tag_of(kind) != entry.name:
        raise FedzeroError(f"{what} has the tag {tag_of(kind)!r}: its entry point must have the same name")
    return Plugin(kind, entry.dist.name if entry.dist else "", entry.dist.version if entry.dist else "")
