"""The settings of a site: where its data, models and functions are, and on which terms it serves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from fedzero.deploy import site_tasks
from fedzero.deploy.terms import Terms
from fedzero.errors import FedzeroError
from fedzero.model import files
from fedzero.runs import session
from fedzero.runs.session import Environment


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a site decides for itself, in a file that never leaves it."""

    data: str | None = None
    """Folder with this site's data."""
    model: str | None = None
    """Where this site has the model that a recipe names, whatever its name."""
    files: dict[str, str] = {}
    """Files and folders that recipes may name (rows, models, tokenizers, base models), and where they are here."""
    secret: str | None = None
    """File with the secret that clients share and the server has not (or set FEDZERO_SECRET)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where this site computes."""
    threads: Annotated[int, Meta(ge=1)] | None = None
    """Of a CPU; default: all. The last bits of a loss depend on it: with 1 a run equals that of the local engine."""
    tasks: dict[str, str] = {}
    """Tasks of this site's own, by name: module:attribute; "*" stands for any name."""
    terms: Terms = Terms()
    """What is served."""
    keep: str | None = None
    """Folder for what outlasts a restart; default: beside the settings."""

    @staticmethod
    def read(path: Path) -> Settings:
        return files.decoded(path, Settings) if path.exists() else Settings()

    def with_values(self, **given: Any) -> Settings:
        try:
            return msgspec.convert(msgspec.to_builtins(self) | given, Settings)
        except msgspec.ValidationError as error:
            raise FedzeroError(f"settings of the site: {error}") from error

    def environment(self) -> Environment:
        return Environment(
            session.data_folder(self.data),
            session.secret_of(self.secret_bytes()),
            site_tasks.loaded(self.tasks),
            trusted=False,
            files=self.files,
            model=self.model,
        )

    def secret_bytes(self) -> bytes | None:
        """The secret as it was given."""
        if self.secret is None:
            return os.fsencode(os.environ.get("FEDZERO_SECRET", "")) or None
        try:
            return files.read(Path(self.secret), files.SMALL).strip() or None
        except OSError as error:
            raise FedzeroError(f"the secret {self.secret} cannot be read: {error.strerror}") from error
