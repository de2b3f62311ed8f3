"""A recipe: a TOML file decoded straight into typed values. What decodes, runs; what does not, says why."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import tomli_w
from msgspec import UNSET, Meta, Struct, UnsetType

from fedzero import __version__, plugins
from fedzero.errors import FedzeroError, Sendable, did_you_mean
from fedzero.lines import LONGEST_SAID, printable
from fedzero.links import Chain, Gathering, Link
from fedzero.methods.contract import Cost, Federation, Method, Scale
from fedzero.methods.rules.contract import Rule
from fedzero.methods.shared.seeded import SeededMethod
from fedzero.model import files, toml
from fedzero.model.decoding import cause_of, reading
from fedzero.model.schedules import Count
from fedzero.model.value import Checked, plain
from fedzero.recipe.clock import Clock
from fedzero.recipe.engines import Engine, Wanted, chosen, local, recorded
from fedzero.recipe.explain import explain
from fedzero.recipe.privacy import Privacy
from fedzero.recipe.report import Report
from fedzero.recipe.stopping import Stop
from fedzero.tasks.contract import Task

BOUND = 1.5
"""`federation.bound` of a recipe that does not say; chosen by measurement, see docs/results/robustness.md."""
MOST_ROUNDS = 100_000_000
"""A ledger of so many has tens of gigabytes."""
LARGEST = toml.LARGEST
"""Bytes of a recipe, in a file or on a ledger."""


if TYPE_CHECKING:
    from typing import TypeAlias

    AnyMethod: TypeAlias = Method
    AnyTask: TypeAlias = Task
    AnyFilters: TypeAlias = tuple[Link, ...]
    AnyEngine: TypeAlias = Engine
    AnyGathering: TypeAlias = Gathering | UnsetType
else:  # decoded by kind, with whatever is installed (`plugins`)
    AnyMethod = AnyTask = AnyFilters = AnyEngine = AnyGathering = Any


class Recipe(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run."""

    name: Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    """Also of the folder, unless `--out` is given."""
    title: str = ""
    """Name of the run in tables and figures; default: `name`."""
    about: str = ""
    """One line, shown by `fedzero list`."""
    rounds: Annotated[int, Meta(ge=1, le=MOST_ROUNDS)]
    """R, number of rounds."""
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    """Of all random numbers: directions, cohorts, batches, partition of the data."""
    evaluate_every: Annotated[int, Meta(ge=1)] = 10
    """Rounds between two evaluations on the test data."""
    stop: Stop = Stop()
    """When to end before the last round."""
    base: str | None = None
    """A safetensors file to start from, instead of a newly initialised model."""
    algorithm: AnyMethod
    task: AnyTask
    filters: AnyFilters = ()
    """Links on what clients send, in order: clip, top-k; quantise or sign; nnm, server-clip; then one of median,
    trimmed-mean, krum and multi-krum."""
    gathering: AnyGathering = UNSET
    """How replies get to the server, if not each by itself: a secure sum, for instance."""
    federation: Federation
    """Who takes part."""
    sampling: Literal["private"] | UnsetType = UNSET
    """private: cohorts and batches are drawn from the operating system, not from the seed, and nobody can draw them
    again."""
    privacy: Privacy | UnsetType = UNSET
    """Differential privacy: what readers of the model and the ledger may learn of a client, an example or a person."""
    engine: AnyEngine = msgspec.field(default_factory=local)
    """Where the clients of `fedzero run` are evaluated; which one is not on the ledger."""
    clock: Clock | UnsetType = UNSET
    """Simulated time, in a process with all clients: how long they take, and when they are there."""
    report: Report | UnsetType = UNSET
    """Loggers that `fedzero run` tells of the run. Never on a ledger, and refused in a recipe of somebody else."""

    @property
    def needs(self) -> dict[str, str]:
        """Distributions, and their versions, that the recipe needs beside this one."""
        chosen: list[tuple[plugins.Group, object]] = [
            ("methods", self.algorithm.name),
            ("tasks", plugins.tag_of(type(self.task))),
            *(("filters", link.name) for link in self.filters),
            *(("rules", rule.name) for rule in rules_of(self.algorithm)),
        ]
        if self.gathering:
            chosen.append(("gatherings", self.gathering.name))
        return plugins.needed(*chosen)


def rules_of(algorithm: Method) -> tuple[Rule, ...]:
    """The rules that a recipe names one by one."""
    rules = algorithm.rules if isinstance(algorithm, SeededMethod) else ()
    return () if isinstance(rules, UnsetType) else rules


def canonical(recipe: Recipe) -> bytes:
    """The recipe as the ledger keeps it."""
    return msgspec.json.encode(as_recorded(recipe), order="sorted")


def as_recorded(recipe: Recipe) -> Recipe:
    """Without what a run can be resumed with another value of: who evaluates its clients, and who is told of it."""
    return msgspec.structs.replace(recipe, engine=recorded(recipe.engine), report=UNSET)


def with_noise(recipe: Recipe) -> Recipe:
    """The recipe with the noise that its privacy budget asks for, as it begins a ledger."""
    if not recipe.privacy:
        return recipe
    privacy = recipe.privacy.solved(recipe.federation, most_numbers(recipe, 1), recipe.rounds)
    return msgspec.structs.replace(recipe, privacy=privacy)


def costs_of(recipe: Recipe, size: int) -> list[Cost]:
    """All costs that a turn of the run can have. size: d."""
    method, scale = recipe.algorithm, Scale(size, recipe.federation.clients)
    fields = msgspec.structs.asdict(method).values()
    changes = (round for field in fields if isinstance(field, Count) for round, _ in field.then)
    return [method.cost(round, scale) for round in {0, recipe.rounds - 1, *changes}]


def most_numbers(recipe: Recipe, size: int) -> int:
    """The most numbers of a reply."""
    return max(max(cost.replies) for cost in costs_of(recipe, size))


def with_engine(recipe: Recipe, wanted: Wanted) -> Recipe:
    """The recipe, evaluated by another engine; see `engines.chosen`."""
    return msgspec.structs.replace(recipe, engine=chosen(recipe.engine, wanted))


def hash_of(recipe: Recipe) -> str:
    """SHA-256 of the recipe without the words about it, 64 hexadecimal digits."""
    return hashlib.sha256(canonical(msgspec.structs.replace(recipe, title="", about=""))).hexdigest()


def approval_of(recipe: Recipe) -> str:
    """The hash by which a site approves of a recipe: of the budget of [privacy], not of the σ that follows from it."""
    privacy = recipe.privacy
    if privacy and privacy.epsilon:
        recipe = msgspec.structs.replace(recipe, privacy=msgspec.structs.replace(privacy, sigma=UNSET))
    return hash_of(recipe)


def from_canonical(data: bytes, needs: Mapping[str, str] | None = None) -> Recipe:
    """The recipe of a ledger; `needs`: what its start says it was made with."""
    with written_elsewhere("the recipe of this run"):
        table = table_in(data)
        if isinstance(table, dict) and "report" in table:
            raise Sendable("the recipe of this run names loggers ([report]), which would send data out: it is refused")
        return _converted(table, needs)


def table_in(data: bytes) -> Any:
    """JSON that a recipe, or a part of one, was written as."""
    if len(data) > LARGEST:
        raise msgspec.DecodeError(f"{len(data):,} bytes of JSON where a recipe has at most {LARGEST:,}")
    return msgspec.json.decode(data)


def received(data: bytes, needs: Mapping[str, str] | None = None) -> Recipe:
    """A recipe that somebody sent, with all the checks of one's own. What is wrong with it may be sent back: nothing
    but the recipe has been looked at. Of packages all that it `needs` are named, not those that are missing here."""
    try:
        recipe = from_canonical(data, needs)
        check(recipe, "the recipe")
    except plugins.NotInstalled as error:
        wanted = " ".join(f"{name}=={version}" for name, version in (needs or {}).items())
        advice = f"is not installed: pip install {wanted}" if wanted else "is not known to this release of fedzero"
        raise Sendable(f"{error.what} {advice}") from error
    return recipe


def check(recipe: Recipe, where: str) -> None:
    """Refuse what decodes and cannot be run."""
    _refuse_infinite(msgspec.to_builtins(recipe), where, "")
    m, n = recipe.federation.cohort, recipe.federation.clients
    try:
        if m > n:
            raise FedzeroError(f"{where}: federation.cohort = {m} exceeds federation.clients = {n}: use at most {n}")
        Chain(recipe.filters).check_order()
        _check_gathering(recipe)
        _check_privacy(recipe)
        _check_schedule(recipe)
        if recipe.sampling and recipe.engine.attack is not None:
            raise FedzeroError("sampling = 'private' hides who is drawn from an attack, too: leave out engine.attack")
        recipe.task.check()
        recipe.algorithm.check(recipe.federation)
    except FedzeroError as error:
        raise Sendable(str(error)) from error


def _check_gathering(recipe: Recipe) -> None:
    """Refuse what reads, or changes, the replies of single clients where nobody has them."""
    if not recipe.gathering:
        return
    what = f"gathering: {recipe.gathering.name!r}"
    if recipe.engine.attack is not None:
        raise FedzeroError(f"{what} gets no replies on their way, which engine.attack would change: leave it out")
    if recipe.gathering.hides_replies:
        why = "federation.bound compares the reply of every client with the others'"
        remedy = "put clip among the filters, which clients do themselves"
        recipe.federation.expect(f"{what} leaves a sum of all replies, but {why}: {remedy}", bound=0.0)


def _check_privacy(recipe: Recipe) -> None:
    """Refuse what would show more of a unit than the accounting says."""
    if not recipe.privacy:
        return
    others = {"filters": recipe.filters, "gathering": recipe.gathering, "sampling": recipe.sampling}
    if found := [name for name, value in others.items() if value]:
        raise FedzeroError(f"[privacy] bounds, samples and sums by itself: leave out {found[0]}")
    if recipe.engine.attack is not None:
        raise FedzeroError("[privacy] hides the replies that engine.attack would change: leave it out")
    recipe.privacy.check(recipe.federation)


def _check_schedule(recipe: Recipe) -> None:
    """Refuse schedules that the federation cannot serve, and times where nobody may see who answered when."""
    recipe.federation.check_schedule()
    what = "federation.schedule" if recipe.federation.timed else "[clock]"
    if not recipe.federation.timed and not recipe.clock:
        return
    for name in ("privacy", "sampling"):
        if getattr(recipe, name):
            raise FedzeroError(f"{what} shows who answered when, which {name} hides: leave out one of the two")
    if recipe.federation.timed and recipe.engine.attack is not None:
        raise FedzeroError("engine.attack knows the replies of a whole cohort, and this federation.schedule has none")


@contextmanager
def written_elsewhere(what: str) -> Iterator[None]:
    """What another release wrote may have kinds and keys that this one does not know."""
    advice = "use the release that wrote it, or a later one"
    with reading(f"{what} cannot be read by fedzero {__version__} ({{}}): {advice}", Sendable):
        yield


def to_toml(recipe: Recipe) -> str:
    """The recipe as `fedzero run` takes it, without what has its default value anyway."""
    table = _given(recipe)
    table["federation"]["bound"] = recipe.federation.bound  # a recipe without it means another value than a ledger
    text = tomli_w.dumps(table)
    return "".join(c if c.isprintable() or c == "\n" else f"\\U{ord(c):08x}" for c in text)


def _given(value: Any) -> Any:
    """A value for TOML, structs without the fields that have their default; TOML has no null."""
    if isinstance(value, list | tuple):
        return [_given(item) for item in value]
    if isinstance(value, dict):
        return {key: _given(item) for key, item in value.items()}
    if not isinstance(value, Struct):
        return msgspec.to_builtins(value)
    config, kept = value.__struct_config__, {}
    for info in msgspec.structs.fields(value):
        found = getattr(value, info.name)
        default = info.default if info.default_factory is msgspec.NODEFAULT else info.default_factory()
        if found is not None and (info.required or found != default):
            kept[info.encode_name] = _given(found)
    return ({config.tag_field: config.tag} if config.tag is not None else {}) | kept


def method(table: Any, needs: Mapping[str, str] | None = None) -> Method:
    """A method from a table as in a recipe."""
    if isinstance(table, dict) and "rules" in table and _takes_rules(table.get("kind")):
        table = table | {"rules": _listed("rules", table["rules"], "algorithm.rules", needs)}
    found: Method = _part("methods", table, "algorithm", needs)
    return found


def _takes_rules(kind: Any) -> bool:
    found = plugins.kinds("methods").get(kind) if isinstance(kind, str) else None
    return found is not None and issubclass(found.type, SeededMethod)


def task(table: Any, needs: Mapping[str, str] | None = None) -> Task:
    """A task from a table as in a recipe."""
    found: Task = _part("tasks", table, "task", needs)
    return found


def _part(group: plugins.Group, table: Any, where: str, needs: Mapping[str, str] | None) -> Any:
    if not isinstance(table, dict):
        raise msgspec.ValidationError(f"Expected `object`, got `{type(table).__name__}` - at `$.{where}`")
    if "kind" not in table:
        raise msgspec.ValidationError(f"Object missing required field `kind` - at `$.{where}`")
    try:
        kind = plugins.find(group, table["kind"], needs)
    except plugins.NotInstalled as error:
        raise plugins.NotInstalled(
            f"{where}.kind = {printable(repr(table['kind']), plugins.LONGEST)}: {error}", error.what
        ) from None
    try:
        return msgspec.convert(table, kind.type)
    except msgspec.ValidationError as error:
        complaint, _, path = str(error).partition(" - at `$")
        raise msgspec.ValidationError(f"{complaint} - at `$.{where}{path or '`'}") from None


def _converted(table: Any, needs: Mapping[str, str] | None = None) -> Recipe:
    """Methods, tasks and filters by what is installed, the rest by its type."""
    if isinstance(table, dict):
        algorithm, moved = upgraded(table.get("algorithm"))
        if moved and isinstance(table.get("federation"), dict):
            table = table | {"algorithm": algorithm, "federation": moved | table["federation"]}
        decoders: dict[str, Callable[[Any, Mapping[str, str] | None], Any]] = {
            "algorithm": method,
            "task": task,
            "filters": lambda tables, needs: _listed("filters", tables, "filters", needs),
            "gathering": _gathering,
            "engine": _engine,
        }
        table = table | {name: decode(table[name], needs) for name, decode in decoders.items() if name in table}
    return msgspec.convert(table, Recipe)


def _listed(group: plugins.Group, tables: Any, where: str, needs: Mapping[str, str] | None) -> tuple[Any, ...]:
    if not isinstance(tables, list | tuple):
        raise msgspec.ValidationError(f"Expected `array`, got `{type(tables).__name__}` - at `$.{where}`")
    return tuple(_part(group, table, f"{where}[{i}]", needs) for i, table in enumerate(tables))


def _gathering(table: Any, needs: Mapping[str, str] | None) -> Gathering:
    found: Gathering = _part("gatherings", table, "gathering", needs)
    return found


def _engine(table: Any, needs: Mapping[str, str] | None) -> Engine:
    found: Engine = _part("engines", {"kind": "local"} | table if isinstance(table, dict) else table, "engine", None)
    return found


def upgraded(algorithm: Any) -> tuple[Any, dict[str, Any]]:
    """(the table of a method, what of it belongs to the federation): 0.1 had three keys of the latter in decomfl's."""
    if not isinstance(algorithm, dict) or algorithm.get("kind") != "decomfl":
        return algorithm, {}
    kept = dict(algorithm)
    moved = {name: kept.pop(name) for name in ("pull_after", "server_model") if name in kept}
    if kept.get("after") in ("revert", "sync"):
        moved["sync"] = kept.pop("after") == "sync"
    return kept, moved


def load(
    source: str | Path, overrides: Sequence[str] | None = None, engine: Wanted = None, **replacements: Any
) -> Recipe:
    """Read a recipe from a file or from those in the package, with `a.b=c` overrides; those of `engine` are of the one
    that is given, if one is."""
    path = find(source)
    table = read(path)
    of_engine = [each for each in overrides or () if engine is not None and each.startswith("engine.")]
    for each in overrides or ():
        if each not in of_engine:
            override(table, each)
    given = {key: value for key, value in replacements.items() if value is not None}
    recipe = with_engine(_decode_changed(table | given, path, changed=bool(overrides or given)), engine)
    if not of_engine:
        return recipe
    changed = {"engine": msgspec.to_builtins(recipe.engine)}
    for each in of_engine:
        override(changed, each)
    return with_engine(recipe, changed["engine"])


def _decode_changed(table: dict[str, Any], path: Path, changed: bool) -> Recipe:
    """A recipe with what was given beside its file; an error names the file alone if that is wrong by itself."""
    try:
        return decode(table, str(path))
    except FedzeroError:
        if not changed:
            raise
    decode(read(path), str(path))
    return decode(table, f"{path} with the options given")


def read(path: Path) -> dict[str, Any]:
    """The table of a recipe file."""
    try:
        return toml.parsed(files.read(path, LARGEST), str(path))
    except OSError as error:
        raise FedzeroError(f"{path}: cannot be read: {error.strerror}") from error


def find(source: str | Path) -> Path:
    path = Path(source)
    if path.is_file():
        return path
    packaged = plugins.recipes()
    if str(source) in packaged:  # also where a folder has that name
        return packaged[str(source)]
    if path.exists():
        return path
    advice = did_you_mean(source, packaged) or "`fedzero list` shows all"
    raise FedzeroError(f"{source}: no such file, and no packaged recipe of that name; {advice}")


def decode(table: dict[str, Any], where: str = "recipe") -> Recipe:
    """A recipe that somebody writes. Where it says nothing of `federation.bound` it has `BOUND` (with a gathering 0); a
    ledger has none."""
    try:
        table = plain(table)  # Python may have given numbers of numpy
        if isinstance(federation := table.get("federation"), dict):
            bound = 0.0 if "gathering" in table or "privacy" in table else BOUND  # of clients whose replies nobody has
            table = table | {"federation": {"bound": bound} | federation}
        _refuse_infinite(table, where, "")
        recipe = _converted(table)
    except msgspec.ValidationError as error:
        raise FedzeroError(f"{where}: {printable(explain(str(error), table, Recipe), LONGEST_SAID)}") from None
    except plugins.NotInstalled as error:
        raise FedzeroError(f"{where}: {error}") from None
    except (RecursionError, OverflowError) as error:
        raise FedzeroError(f"{where}: {cause_of(error)}") from None
    check(recipe, where)
    return recipe


def _refuse_infinite(value: Any, where: str, path: str) -> None:
    """TOML can write inf and nan; nothing here can use them."""
    if isinstance(value, float) and not math.isfinite(value):
        raise Sendable(f"{where}: {path} = {value}: give a finite number")
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, item in inner:
        _refuse_infinite(
            item, where, f"{path}[{key}]" if isinstance(key, int) else f"{path}.{key}" if path else str(key)
        )


def override(table: dict[str, Any], setting: str, option: str = "--set") -> None:
    """`a.b=c`, c in TOML; a bare word is taken as a string."""
    path, equals, text = setting.partition("=")
    if not equals or not path:
        example = "--stop patience=5" if option == "--stop" else "--set algorithm.directions=20"
        raise FedzeroError(f"{option} {setting}: write it as key=value, for instance {example}")
    try:
        value = toml.parsed(f"value = {text}".encode(), setting)["value"]
    except FedzeroError:
        value = text
    put(table, path, value, f"{option} {setting}")


def put(table: dict[str, Any], path: str, value: Any, where: str) -> None:
    """table[a][b] ← value, for the path `a.b`."""
    *parents, last = path.split(".")
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise FedzeroError(f"{where}: {parent} is a value, not a table")
    table[last] = value
