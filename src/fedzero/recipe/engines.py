"""The engine of a run evaluates its clients: `[engine]` of a recipe, a value with a method `open`.

A ledger does not say which engine made it; it has only the settings that change bits (`recorded`). So a run can be
resumed in one process, or with a different number of workers. The kinds are the group `fedzero.engines` (`plugins`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import msgspec

from fedzero import plugins
from fedzero.errors import FedzeroError, Invalid
from fedzero.model.value import TaggedConfig, plain, quoted
from fedzero.protocol.attacks import Attack
from fedzero.protocol.engine import Clients

if TYPE_CHECKING:
    from fedzero.recipe.view import RunView

T = TypeVar("T")


class Engine(TaggedConfig):
    """The common base of engines; a ledger keeps only its fields."""

    answers_at_once: ClassVar[bool] = False
    """Whether clients answer in this process, when they are asked: their replies can be held until a simulated time."""

    merge: bool = True
    """Evaluate a cohort's batches together: faster, but the last bits of a loss may differ. `false` also uses a single
    thread, so that all engines give the same results."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: a GPU if there is one."""
    attack: Attack | None = None
    """An attack by some of the clients, to test what a rule withstands; only in a simulation."""

    def open(self, run: RunView) -> AbstractContextManager[Clients]:
        """The clients of a run, until it ends. Called before the run's ledger is read or made, so a failure here leaves
        nothing behind."""
        raise NotImplementedError

    def spread(
        self, work: Callable[..., T], calls: Sequence[tuple[Any, ...]], folder: Path, told: Callable[[int, T], None]
    ) -> list[T]:
        """The results of work(*call) for every call, each a whole run inside `folder`. told: is called with the number
        and the result of each call when it is done. Here calls run one after the other; on a cluster many at a time."""
        done = []
        for number, call in enumerate(calls):
            done.append(work(*call))
            told(number, done[-1])
        return done


Wanted = str | Mapping[str, Any] | Engine | None
"""How a caller names an engine; None: the present one."""
_SHARED = Engine.__struct_fields__


def local() -> Engine:
    """The engine of a recipe that names none."""
    engine: Engine = plugins.find("engines", "local").type()
    return engine


def recorded(engine: Engine) -> Engine:
    """The engine as a ledger records it: how the cohort is evaluated, not where."""
    kind: type[Engine] = plugins.find("engines", "local").type
    return engine if isinstance(engine, kind) else kind(**{name: getattr(engine, name) for name in _SHARED})


def chosen(present: Engine, wanted: Wanted) -> Engine:
    """An engine, with the present one's `merge`, `device` and `attack` unless a table says otherwise. wanted: "local",
    "ray", "ray:16" (so many workers), a table as in a recipe, a value, or None: the present one."""
    if wanted is None or isinstance(wanted, Engine):
        return present if wanted is None else wanted
    if isinstance(wanted, str):
        wanted = _table(wanted)
    if not isinstance(wanted, Mapping):
        raise Invalid(f"engine = {quoted(wanted)} is not valid: give 'local', 'ray', 'ray:16' or a table")
    kept = {name: value for name, value in msgspec.to_builtins(present).items() if name in _SHARED}
    table = kept | {"kind": "local"} | plain(wanted)
    try:
        found: Engine = msgspec.convert(table, plugins.find("engines", table["kind"]).type)
        return found
    except msgspec.ValidationError as error:
        raise Invalid(f"engine = {quoted(dict(wanted))} is not valid: {str(error).replace('`', '')}") from None
    except plugins.NotInstalled as error:
        raise Invalid(f"engine = {quoted(dict(wanted))} is not valid: {error}") from None


def _table(word: str) -> dict[str, Any]:
    """`ray:16` as a table: the number is the field `workers`, for engines with this field."""
    kind, colon, workers = word.partition(":")
    try:
        spread = "workers" in plugins.find("engines", kind).type.__struct_fields__
    except FedzeroError as error:
        advice = ", ".join(plugins.kinds("engines"))
        raise Invalid(f"engine = {quoted(word)} is not valid: use {advice}, or ray:N with N workers") from error
    if colon and not (spread and workers.isdigit() and int(workers) > 0):
        raise Invalid(f"engine = {quoted(word)} is not valid: use local, ray, or ray:N with N workers")
    return {"kind": kind, "workers": int(workers)} if colon else {"kind": kind}
