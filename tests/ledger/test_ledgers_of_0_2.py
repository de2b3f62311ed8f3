"""Ledgers written by 0.2.1 still verify, replay, resume to the head that 0.2.1 gave them, and report.

v0_2 holds: `attacked`, a chain of links, an attack and merged batches, stopped after 9 of 14 rounds; `variates`, dense
updates, a checkpoint and memories, after 12 of 14; `boxes`, a budget and a log of queries, after 3 of the 4 rounds that
its budget is enough for; `blind`, a private run on a server without a model, finished, and its patch.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import heads
import pytest
import torch

import fedzero
from fedzero import plugins
from fedzero.ledger.folder import LEDGER
from fedzero.model.checkpoint import save_model
from fedzero.model.params import Params
from fedzero.runs import patches

FOLDER = Path(__file__).parent / "v0_2"
ROUNDS = {"attacked": (9, 14), "variates": (12, 14), "boxes": (3, 4), "blind": (14, 14)}
"""How many rounds each ledger has, and how many at its end."""
ENDS = {  # the last link of the ledger and SHA-256 of the model, of the same runs that 0.2.1 was not stopped in
    "attacked": (
        "b6d993758afd0012a45f8c1da5a72826a03012d2321450ca908f4b71ad689167",
        "07ade7cea939b9d40b12f4bff067c5bed6de9762c0c234795c9713c059eb690d",
    ),
    "variates": (
        "cde404e141c5ba8bd2f23b821357b60737f2469bfdae6597af407ed387176238",
        "105a48777994ef2baac63111cf1495009bd62b88c72f85d1d5f60170b1a1b073",
    ),
    "boxes": (
        "d0d67f2751c85cc1d6da3aac66721c1713fe29ba748405186f21635d3aec47dd",
        "4ced5e51b1c0f985c531e1e140b8478164c21a5dac0a036242f59ff06f26c552",
    ),
    "blind": (
        "43a8e48688d764076f74583c9b59528cc81feb46557a68c86ae5fa947b159b57",
        "d3a790de8e02164a70d6420764845651d21963e6ed86ff244fecdcbc6119c459",
    ),
}
Opened = Callable[[str], fedzero.Run]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """A copy of a ledger, as a run."""
    monkeypatch.setitem(plugins._registered["tasks"], "exact-quadratic", plugins.Plugin(heads.Exact, "", ""))

    def opened(name: str) -> fedzero.Run:
        folder = tmp_path / name
        folder.mkdir()
        shutil.copy(FOLDER / f"{name}.db", folder / LEDGER)
        return fedzero.Run.open(folder, secret=heads.SECRET if name == "blind" else None)

    return opened


def resumed(run: fedzero.Run) -> None:
    """To its end; black boxes by the call that began it, since a ledger has no functions."""
    if run.folder.name == "boxes":
        heads.black_boxes(run.folder)
    else:
        run.resume(progress=False)


def test_these_are_all() -> None:
    assert {path.stem for path in FOLDER.glob("*.db")} == ROUNDS.keys()


@pytest.mark.parametrize("name", ROUNDS)
def test_it_verifies_replays_and_reports(opened: Opened, tmp_path: Path, name: str) -> None:
    run, (done, rounds) = opened(name), ROUNDS[name]
    run.verify()
    assert (run.summary.rounds, run.summary.complete) == (done, done == rounds)
    if done == rounds:
        assert Params(run.replay()).sha256().hex() == ENDS[name][1]
    assert run.report(tmp_path / "page.html").stat().st_size > 0
    if name == "variates":
        with pytest.raises(fedzero.FedzeroError, match="rolling checkpoint only"):
            run.replay(4)
    else:
        first, second = run.replay(0), run.replay(1)
        assert not all(torch.equal(first[each], second[each]) for each in first)


@pytest.mark.parametrize("name", ROUNDS)
def test_it_is_resumed_to_the_same_end(opened: Opened, name: str) -> None:
    run, (_, rounds) = opened(name), ROUNDS[name]
    resumed(run)
    assert (run.summary.rounds, run.summary.complete) == (rounds, True)
    assert (run.summary.ledger_head, run.summary.model_sha256) == ENDS[name]
    run.verify()


def test_its_patch_applies(opened: Opened, tmp_path: Path) -> None:
    base, out = tmp_path / "base.safetensors", tmp_path / "out.safetensors"
    save_model(Params(opened("blind").replay(0)), base)
    patched = patches.apply_patch(FOLDER / "blind.patch", str(base), out, secret=heads.SECRET)
    assert patched.sha256().hex() == ENDS["blind"][1]
