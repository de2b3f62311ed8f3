"""A run that is stopped and resumed, beside one that is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from cases import federation_for
from harness import small

from fedzero.run import session
from fedzero.run.session import Environment


class StopError(Exception):
    """The process dies between two rounds."""


class Watch:
    def __init__(self, stop: int | None = None):
        self.stop = stop

    def begin(self, *_: Any) -> None: ...
    def evaluation(self, *_: Any) -> None: ...
    def end(self) -> None: ...
    def round(self, record: Any) -> None:
        if record.round == self.stop:
            raise StopError


def resumes(folder: Path, recipe: Any, *stops: int) -> None:
    """However often a run is interrupted, it ends in the ledger of one that was not."""
    whole = session.start(recipe, folder / "whole", Environment(), Watch())
    with pytest.raises(StopError):
        session.start(recipe, folder / "stopped", Environment(), Watch(stops[0]))
    for stop in stops[1:]:
        with pytest.raises(StopError):
            session.resume(folder / "stopped", Environment(), Watch(stop))
    resumed = session.resume(folder / "stopped", Environment(), Watch())
    assert resumed["model_digest"] == whole["model_digest"]
    assert resumed["ledger_head"] == whole["ledger_head"]
    session.verified(folder / "stopped", Environment())


def recipe_of(folder: Path, algorithm: Any, rounds: int, replicas: bool = False, **options: Any) -> Any:
    made = small(folder, algorithm, replicas=replicas, **federation_for(algorithm), **options)
    made.ledger.close()
    return msgspec.structs.replace(made.setup.recipe, rounds=rounds, evaluate_every=5)
