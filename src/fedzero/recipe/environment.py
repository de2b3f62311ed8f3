"""What a run needs from where it is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedzero.callbacks import ignore
from fedzero.errors import Invalid
from fedzero.ledger import replay


@dataclass(frozen=True)
class Environment:
    """What a run needs from where it is made and a recipe must not contain: data folder, secret, functions and other
    objects by name, who looks on while rounds of a ledger are folded again, the folder of the run, whether the
    recipe is trusted to name code and files, and, where it is not, the files and the model that it may name; whether
    this user vouches for ledgers that he has not started (--trust): what they name may be run, imported and fetched;
    and the folder with the journal of privacy budgets."""

    data: Path | None = None
    secret: bytes | None = None
    functions: Mapping[str, Any] = field(default_factory=dict)
    replaying: replay.Progress = ignore
    folder: Path | None = None
    trusted: bool = True
    files: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    vouched: bool = False
    journal: Path | None = None


def data_folder(path: str | Path | None, said: str = "data =") -> Path | None:
    """said: how the folder was named, as an error begins."""
    if path is not None and not Path(path).is_dir():
        raise Invalid(f"{said} {path}: no such folder")
    return None if path is None else Path(path)
