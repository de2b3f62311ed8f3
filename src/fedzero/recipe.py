"""A recipe: a TOML file decoded straight into typed values. What decodes, runs; what does not, says why."""

from __future__ import annotations

import math
import os
import re
import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from fedzero.algorithms import AnyAlgorithm
from fedzero.errors import FedzeroError
from fedzero.federation import Federation
from fedzero.filters import AnyFilter, Chain
from fedzero.tasks import AnyTask


class Local(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="local"):
    """All clients in this process."""

    merge: bool = True
    """Evaluate a cohort's batches together: faster, but the last bits of a loss may differ. `false` also keeps to one
    thread, so that all engines give the same."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: a GPU if there is one."""
    replicas: bool = False
    """Give every client a model of its own (slow; to see that they agree)."""


class Recipe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run."""

    name: Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    """Also the folder's, unless `--out` says otherwise."""
    title: str = ""
    """How tables and figures call the run; default: its name."""
    about: str = ""
    """One line for `fedzero list`."""
    rounds: Annotated[int, Meta(ge=1)]
    """R, how often the server hears from a cohort."""
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    """Of everything random: directions, cohorts, batches, who gets which samples."""
    evaluate_every: Annotated[int, Meta(ge=1)] = 10
    """Rounds between two looks at the test data, which are costly and teach nobody anything."""
    base: str | None = None
    """A safetensors file to start from instead of a fresh model."""
    algorithm: AnyAlgorithm
    task: AnyTask
    filters: tuple[AnyFilter, ...] = ()
    """Links on what clients send, in order: clip, top-k; quantise or sign; median or trimmed-mean."""
    federation: Federation
    """Who takes part."""
    engine: Local = Local()
    """Where the clients of `fedzero run` are evaluated."""


def canonical(recipe: Recipe) -> bytes:
    """The recipe as the ledger keeps it."""
    return msgspec.json.encode(recipe, order="sorted")


def from_canonical(data: bytes) -> Recipe:
    return msgspec.json.decode(data, type=Recipe)


def load(source: str | Path, overrides: list[str] | None = None, **replacements: Any) -> Recipe:
    """Read a recipe from a file or from those in the package, with `a.b=c` overrides."""
    path = find(source)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FedzeroError(f"{path}: not valid TOML: {error}") from error
    except OSError as error:
        raise FedzeroError(f"{path}: cannot be read: {error.strerror}") from error
    for override in overrides or []:
        _override(table, override)
    table |= {key: value for key, value in replacements.items() if value is not None}
    return decode(table, str(path))


def find(source: str | Path) -> Path:
    path = Path(source)
    if path.exists():
        return path
    packaged = recipes()
    if str(source) in packaged:
        return packaged[str(source)]
    raise FedzeroError(f"{source}: no such file, and no recipe of that name; `fedzero list` shows what there is")


def recipes() -> dict[str, Path]:
    """The recipes that travel with the package, by name."""
    folder = Path(os.fspath(resources.files("fedzero") / "recipes"))  # type: ignore[call-overload]
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def decode(table: dict[str, Any], where: str = "recipe") -> Recipe:
    _refuse_infinite(table, where, "")
    try:
        recipe = msgspec.convert(table, Recipe)
    except msgspec.ValidationError as error:
        raise FedzeroError(f"{where}: {_explain(str(error), table)}") from None
    m, n = recipe.federation.cohort, recipe.federation.clients
    if m > n:
        raise FedzeroError(
            f"{where}: federation.cohort = {m} is more than federation.clients = {n}: sample at most all of them"
        )
    Chain(recipe.filters).check_order()
    recipe.algorithm.check(n, m, recipe.federation.private, recipe.federation.replacement)
    return recipe


def _refuse_infinite(value: Any, where: str, path: str) -> None:
    """TOML can write inf and nan; nothing here can use them."""
    if isinstance(value, float) and not math.isfinite(value):
        raise FedzeroError(f"{where}: {path} = {value}: give a finite number")
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, item in inner:
        _refuse_infinite(
            item, where, f"{path}[{key}]" if isinstance(key, int) else f"{path}.{key}" if path else str(key)
        )


def _override(table: dict[str, Any], override: str) -> None:
    """`a.b=c`, c in TOML; a bare word is taken as a string."""
    path, equals, text = override.partition("=")
    if not equals or not path:
        raise FedzeroError(f"--set {override}: write it as key=value, for instance --set algorithm.directions=20")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *parents, last = path.split(".")
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise FedzeroError(f"--set {override}: {parent} is a value, not a table")
    table[last] = value


_PATTERNS = [
    (r"Object contains unknown field `(.+?)`", r"unknown key {}: remove it or correct its spelling{}"),
    (r"Object missing required field `(.+?)`", r"{} is missing: add it{}"),
]


def _advice(field: str, table: dict[str, Any]) -> str:
    """Which `fedzero list` names the keys of the table that `field` is, or is in."""
    place = field.split(".", 1)[0]
    part = table.get(place) if place in ("algorithm", "task") else None
    kind = part.get("kind") if isinstance(part, dict) else None
    return f"; `fedzero list {kind or 'recipe'}` names all keys"


def _explain(message: str, table: dict[str, Any]) -> str:
    """msgspec's message as one sentence that names the field, what was found, and the mend."""
    complaint, _, path = message.partition(" - at `")
    field = path.rstrip("`").removeprefix("$").strip(".")
    prefix = f"{field}." if field else ""
    for pattern, template in _PATTERNS:
        if match := re.search(pattern, complaint):
            return template.format(prefix + match[1], _advice(field, table))
    found: Any = table
    for part in re.findall(r"[^.\[\]]+", field):
        try:
            found = found[int(part)] if isinstance(found, list) else found[part]
        except (KeyError, IndexError, TypeError, ValueError):
            return f"{field}: {complaint}"
    if complaint.startswith("Invalid value") and field.rsplit(".", 1)[-1] == "kind":
        return f"{field} = {found!r}: there is no such kind; `fedzero list` shows what there is"
    return f"{field} = {found!r} does not fit: {complaint[0].lower()}{complaint[1:]}".replace("`", "")
