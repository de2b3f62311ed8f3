"""The settings of a site: the places of its data, models and functions, and the terms on which it serves."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from fedzero import plugins
from fedzero.deploy.site import tasks as site_tasks
from fedzero.deploy.site.terms import Terms
from fedzero.errors import FedzeroError, did_you_mean
from fedzero.model import files
from fedzero.model.device import device_of
from fedzero.recipe import engines
from fedzero.recipe.environment import Environment, data_folder
from fedzero.recipe.secret import secret_of
from fedzero.runs.spending.charges import Policy


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A site's own decisions, in a file that never leaves it."""

    data: str | None = None
    """Folder with this site's data."""
    model: str | None = None
    """Where this site has the model that a recipe names, whatever its name."""
    files: dict[str, str] = {}
    """Files and folders that recipes may name (rows, models, tokenizers, base models), and where they are here."""
    secret: str | None = None
    """File with the secret that clients share and the server has not (or set FEDZERO_SECRET)."""
    roster: str = ""
    """The fingerprint of the hosts of a secure sum, as people compared it by another way than the server; default: the
    roster that the server sends is taken."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where this site computes."""
    threads: Annotated[int, Meta(ge=1)] | None = None
    """Threads of the CPU; default: all. The last bits of a loss depend on it: 1 gives those of the local engine."""
    engine: str | dict[str, Any] = ""
    """Where this site's clients work: an engine, such as ray:2, or a table as in a recipe; default: in its process."""
    tasks: dict[str, str] = {}
    """This site's own tasks, by name: module:attribute; "*" stands for any name."""
    terms: Terms = Terms()
    """The conditions on which the site serves."""
    privacy: Policy = Policy()
    """What differential privacy may be spent on each data set."""
    keep: str | None = None
    """Folder for data that outlasts a restart; default: next to the settings."""

    @staticmethod
    def read(path: Path) -> Settings:
        return files.decoded(path, Settings) if path.exists() else Settings()

    def with_values(self, **given: Any) -> Settings:
        try:
            return msgspec.convert(msgspec.to_builtins(self) | given, Settings)
        except msgspec.ValidationError as error:
            raise FedzeroError(f"settings of the site: {error}") from error

    def without(self, names: Sequence[str]) -> Settings:
        """The settings with some of them reset to their defaults: `data`, `terms.methods`, `files.rows`, `all`; names
        of command-line options work, too."""
        values = msgspec.to_builtins(self)
        known = [*Settings.__struct_fields__, *(f"terms.{name}" for name in Terms.__struct_fields__), "all"]
        known += [f"{table}.{name}" for table in ("files", "tasks") for name in values.get(table, ())]
        for name in names:
            place = _place(name)
            if place not in known:
                advice = did_you_mean(place, known) or f"there are {', '.join(known)}"
                raise FedzeroError(f"--forget {name}: a site has no such setting; {advice}")
            table, _, entry = place.partition(".")
            if place == "all":
                values.clear()
            elif entry:
                values.get(table, {}).pop(entry, None)
            else:
                values.pop(table, None)
        return msgspec.convert(values, Settings)

    def check(self) -> None:
        """Refuse settings with which no run could be served, such as names of things that do not exist."""
        self.environment()
        self.privacy.check()
        device_of(self.device)
        self.engine_for(engines.local())
        chosen: dict[plugins.Group, Sequence[str]] = {"methods": self.terms.methods, "tasks": self.terms.tasks}
        for group, names in chosen.items():
            for name in names:
                try:
                    plugins.find(group, name)
                except FedzeroError as error:
                    raise FedzeroError(f"terms.{group}: {error}") from None

    def engine_for(self, present: engines.Engine) -> engines.Engine | None:
        """This site's engine, with the recipe's `merge`, `device` and `attack`; None: none was chosen."""
        return engines.chosen(present, self.engine) if self.engine else None

    def environment(self) -> Environment:
        return Environment(
            data_folder(self.data),
            secret_of(self.secret_bytes()),
            site_tasks.loaded(self.tasks),
            trusted=False,
            files=self.files,
            model=self.model,
        )

    def secret_bytes(self) -> bytes | None:
        """The secret from the file or from FEDZERO_SECRET; None: there is none."""
        if self.secret is None:
            return os.fsencode(os.environ.get("FEDZERO_SECRET", "")) or None
        try:
            return files.read(Path(self.secret), files.SMALL).strip() or None
        except OSError as error:
            raise FedzeroError(f"the secret {self.secret} cannot be read: {error.strerror}") from error


OPTIONS = {
    "file": "files",
    "task": "tasks",
    "only_method": "terms.methods",
    "only_task": "terms.tasks",
    "approve": "terms.approved",
}
"""Options of the command line whose names differ from the settings that they change."""


def _place(name: str) -> str:
    """The place in the file of a setting or command-line option."""
    head, dot, entry = name.partition(".")
    head = head.replace("-", "_")
    head = OPTIONS.get(head, head)
    if head in Terms.__struct_fields__ and head not in Settings.__struct_fields__:
        head = f"terms.{head}"
    return f"{head}{dot}{entry.replace('-', '_') if head == 'terms' else entry}"
