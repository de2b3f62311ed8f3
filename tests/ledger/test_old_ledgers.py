"""Ledgers written by 0.1 still verify, resume, replay, report and export.

v0_1 holds runs of 14 rounds that 0.1 was stopped in (decomfl-sync: finished), and its patch of decomfl-sync.
"""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest

from fedzero import plugins
from fedzero.errors import FedzeroError
from fedzero.ledger.folder import LEDGER
from fedzero.ledger.replay import LedgerView
from fedzero.model.checkpoint import save_model
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.results import history
from fedzero.runs import patches, recorded, session

FOLDER = Path(__file__).parent / "v0_1"
HERE = Environment()
ROUNDS = 14
STOPPED = {
    "decomfl": 8,
    "decomfl-sync": 14,
    "decomfl-blind": 8,
    "fedavg": 12,
    "fzoos": 12,
    "zofedht": 12,
    "scaffold-zo": 8,
    "dzopa": 12,
    "synthetic": 8,
}
"""How many rounds each ledger has."""
DENSE = ("fedavg", "fzoos", "zofedht", "dzopa", "synthetic")
SEEDED = sorted(STOPPED.keys() - set(DENSE))


def copied(name: str, folder: Path) -> Path:
    if name == "synthetic" and name not in plugins.kinds("tasks"):
        pytest.skip("fedzero-papers is not installed")
    shutil.copy(FOLDER / f"{name}.db", folder / LEDGER)
    return folder


def base_of(folder: Path, path: Path) -> Path:
    """The model that a run started from, as a file."""
    ledger, setup = recorded.reopen(folder, HERE)
    ledger.close()
    save_model(setup.problem.params, path)
    return path


def check_replay(folder: Path, view: LedgerView) -> None:
    """The model of every round that is on record, from the ledger alone; of a dense run, from its checkpoint on."""
    saved = view.outline.saved.round if view.outline.saved is not None else 0
    for round, model in view.marks:
        if round >= saved:
            assert recorded.replayed(folder, HERE, round).matches(model)
        else:
            with pytest.raises(FedzeroError, match="rolling checkpoint only"):
                recorded.replayed(folder, HERE, round)


def test_these_are_all() -> None:
    assert {path.stem for path in FOLDER.glob("*.db")} == STOPPED.keys()


@pytest.mark.parametrize("name", STOPPED)
def test_it_is_resumed_to_its_end(tmp_path: Path, quiet, name: str) -> None:
    folder = copied(name, tmp_path)
    before = recorded.verified(folder, HERE)
    assert len(before.rounds) == STOPPED[name]
    assert before.outline.dense == (name in DENSE)
    check_replay(folder, before)

    summary = session.resume(folder, HERE, quiet)
    assert (summary.rounds, summary.complete, summary.refused) == (ROUNDS, True, 0)
    after = recorded.verified(folder, HERE)
    assert after.entries[: len(before.entries)] == before.entries
    assert after.end is not None
    assert after.end.model.hex() == summary.model_digest
    check_replay(folder, after)


@pytest.mark.parametrize("name", STOPPED)
def test_it_is_reported(tmp_path: Path, name: str) -> None:
    folder = copied(name, tmp_path)
    found, view = history.history(folder), recorded.verified(folder, HERE)
    assert (found.rounds, found.complete) == (STOPPED[name], STOPPED[name] == ROUNDS)
    assert [point.loss for point in found.points] == [e.metrics.loss for e in view.evaluations]
    for point in found.points:
        sent = sum(r.bytes_up for r in view.rounds[: point.round])
        assert found.clients * point.bytes_up == pytest.approx(sent)
    assert recipes.decode(tomllib.loads(found.recipe)) == recorded.recipe_in(folder), "to repeat it"


@pytest.mark.parametrize("name", SEEDED)
def test_its_patch_applies(tmp_path: Path, quiet, name: str) -> None:
    folder = copied(name, tmp_path)
    digest = session.resume(folder, HERE, quiet).model_digest
    base, patch = base_of(folder, tmp_path / "base.safetensors"), tmp_path / "x.patch"
    patch.write_bytes(patches.export_patch(folder, HERE))
    assert patches.apply_patch(patch, str(base), tmp_path / "out.safetensors").digest().hex() == digest


def test_a_patch_of_0_1_applies(tmp_path: Path) -> None:
    folder = copied("decomfl-sync", tmp_path)
    view = recorded.verified(folder, HERE)
    base = base_of(folder, tmp_path / "base.safetensors")
    params = patches.apply_patch(FOLDER / "decomfl-sync.patch", str(base), tmp_path / "out.safetensors")
    assert view.end is not None
    assert params.digest() == view.end.model


@pytest.mark.parametrize(
    ("name", "moved"),
    [
        ("decomfl", {"pull_after": 3, "server_model": True, "sync": False}),
        ("decomfl-sync", {"pull_after": None, "server_model": True, "sync": True}),
        ("decomfl-blind", {"pull_after": None, "server_model": False, "sync": False}),
    ],
)
def test_what_0_1_wrote_among_the_methods_keys_is_the_federations(tmp_path: Path, name: str, moved) -> None:
    federation = recorded.recipe_in(copied(name, tmp_path)).federation
    assert {key: getattr(federation, key) for key in moved} == moved
