"""Runs are read back on machines they were not made on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from harness import small

from fedzero.engines.local import Local
from fedzero.errors import FedzeroError
from fedzero.ledger import Ledger
from fedzero.ledger.folder import LEDGER
from fedzero.methods import DeComFL
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import recorded, session
from fedzero.runs.progress import Silent
from fedzero.testing.trial import recipe_of
from stops import StopAt


def test_a_ledger_from_a_gpu_replays_without_one(tmp_path: Path) -> None:
    run = small(tmp_path / "cpu", DeComFL(rate=1e-3))
    run.play(5)
    elsewhere = msgspec.structs.replace(run.setup.recipe, engine=Local(device="cuda"))
    start = msgspec.structs.replace(run.ledger.start(), recipe=recipes.canonical(elsewhere))
    (tmp_path / "gpu").mkdir()
    ledger = Ledger.create(tmp_path / "gpu" / LEDGER, start)
    ledger.append(run.records, 0.0)
    ledger.close()
    assert recorded.replayed(tmp_path / "gpu", Environment(), None).digest() == run.replica.digest()
    assert len(recorded.verified(tmp_path / "gpu", Environment()).rounds) == 5
    if not torch.cuda.is_available():
        try:
            recorded.reopen(tmp_path / "gpu", Environment(), writable=True)
        except session.FedzeroError as error:
            assert "no CUDA device" in str(error)
        else:
            raise AssertionError("going on with a GPU run needs a GPU")


def test_a_resume_that_is_refused_keeps_no_ledger_from_the_next_one(tmp_path: Path, tiny: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        session.start(recipes.load(str(tiny)), tmp_path / "run", Environment(), StopAt(3))
    with pytest.raises(FedzeroError, match="rey") as refused:
        session.resume(tmp_path / "run", Environment(), Silent(), engine="rey")
    assert session.resume(tmp_path / "run", Environment(), Silent()).complete
    del refused  # whose traceback had held the ledger


class Broken(Exception):
    pass


@pytest.mark.parametrize("where", ["note", "base"])
def test_a_start_that_fails_keeps_no_ledger_from_the_next_one(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, which lives on."""

    def fails(*_: Any) -> None:
        raise Broken

    recipe = recipe_of(DeComFL(rate=2e-3), rounds=2)
    setup = session.prepare(recipe, Environment())
    with monkeypatch.context() as broken, pytest.raises(Broken):
        if where == "note":
            broken.setattr(session.trust, "note", fails)
            session.start(recipe, tmp_path / "run", Environment(), Silent())
        else:
            broken.setattr(session, "save_base", fails)
            session.create(tmp_path / "run", setup.start, base=setup.problem)
    found = session.start(recipe, tmp_path / "run", Environment(), Silent(), overwrite=True)
    assert found.rounds == 2
