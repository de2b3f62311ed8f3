"""Checkpoints beside a ledger: a resume that begins with one ends in the same bits, and one that is wrong is found."""

from __future__ import annotations

import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedzero.engines import local
from fedzero.errors import FedzeroError
from fedzero.ledger import checkpoints, replay
from fedzero.ledger.checkpoints import Checkpoint
from fedzero.ledger.folder import LEDGER
from fedzero.ledger.records import Round
from fedzero.ledger.store import Ledger, Tampered
from fedzero.model import files
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import recorded, session
from fedzero.runs.progress import Silent
from stops import StopAt

HERE = Environment()
SGD = {"kind": "decomfl", "rate": 0.01, "directions": 2}
METHODS: dict[str, dict[str, Any]] = {
    "sgd": SGD,
    "adam": {**SGD, "optimizer": {"kind": "adam"}},
    "a rate of its own": {**SGD, "rate": "auto"},
    "averages": {**SGD, "average": 4},
    "a pool of keys": {"kind": "fedkseed-pro", "rate": 0.01, "directions": 2, "pool": 64},
    "dense": {"kind": "fedavg", "rate": 0.01},
    "memories": {"kind": "scaffold-zo", "rate": 0.01, "directions": 2, "local_steps": 2},
}


def recipe_of(method: dict[str, Any], **federation: Any) -> recipes.Recipe:
    return recipes.decode(
        {
            "name": "kept",
            "rounds": 16,
            "evaluate_every": 2,
            "algorithm": method,
            "task": {"kind": "quadratic", "dimension": 6},
            "federation": {"clients": 6, "cohort": 2, **federation},
            "engine": {"kind": "local", "merge": False, "device": "cpu"},
        }
    )


def stopped(recipe: recipes.Recipe, folder: Path, after: int, resumed: bool = False) -> None:
    with pytest.raises(KeyboardInterrupt):
        if resumed:
            session.resume(folder, HERE, StopAt(after - 1))
        else:
            session.start(recipe, folder, HERE, StopAt(after - 1))


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "EVERY", 4)


def kept_in(folder: Path) -> Checkpoint | None:
    with closing(Ledger.open(folder / LEDGER)) as ledger:
        return checkpoints.found(folder, ledger)


def believed(folder: Path) -> Checkpoint | None:
    with closing(Ledger.open(folder / LEDGER)) as ledger:
        return checkpoints.own(folder, ledger)


def written(folder: Path, checkpoint: Checkpoint) -> None:
    """By this user, whatever is in it."""
    checkpoints.write(folder, checkpoint, private=False)


def written_elsewhere(folder: Path, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """By somebody who wants it to be believed, and who has another key."""
    with monkeypatch.context() as there:
        there.setenv("FEDZERO_STATE", str(folder.parent / "state of somebody else"))
        written(folder, checkpoint)


@pytest.mark.parametrize(("which", "sync"), [*((which, False) for which in METHODS), ("sgd", True)])
def test_a_resume_from_one_ends_as_an_undisturbed_run(tmp_path: Path, monkeypatch, which: str, sync: bool) -> None:
    recipe = recipe_of(METHODS[which], sync=sync)
    right = session.start(recipe, tmp_path / "right", HERE, Silent())
    stopped(recipe, tmp_path / "run", 11)
    kept = kept_in(tmp_path / "run")
    assert kept is not None and kept.outline.done == 8 and (kept.state is None) == (which in ("dense", "memories"))
    recorded.verified(tmp_path / "run", HERE)
    folded: list[int] = []
    decode = replay.decode_update

    def noted(data: bytes) -> Any:
        update = decode(data)
        folded.append(update.round)
        return update

    monkeypatch.setattr(replay, "decode_update", noted)
    found = session.resume(tmp_path / "run", HERE, Silent())
    assert min(folded) >= 8, "what is in the checkpoint is not folded again"
    assert (found.ledger_head, found.model_digest) == (right.ledger_head, right.model_digest)
    assert msgspec.structs.replace(found, seconds=0.0) == msgspec.structs.replace(right, seconds=0.0)
    assert not (tmp_path / "run" / checkpoints.FILE).exists(), "a finished run is not resumed"
    recorded.verified(tmp_path / "run", HERE)


def test_only_the_last_rounds_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no client was away: who was is sent the updates since, which the ledger has."""
    recipe = recipe_of(SGD, clients=2)
    stopped(recipe, tmp_path / "run", 11)
    seen: list[int] = []
    entries = Ledger.entries

    def counted(ledger: Ledger, first: int = 0, last: int | None = None) -> Any:
        for entry in entries(ledger, first, last):
            seen.append(entry.seq)
            yield entry

    monkeypatch.setattr(Ledger, "entries", counted)
    kept = kept_in(tmp_path / "run")
    assert kept is not None
    stopped(recipe, tmp_path / "run", 12, resumed=True)
    assert set(range(1, kept.outline.entries - 1)).isdisjoint(seen)


@pytest.mark.parametrize("harm", ["cut", "a bit", "empty", "of another run", "of another release"])
def test_one_that_does_not_fit_costs_time_and_nothing_else(tmp_path: Path, harm: str) -> None:
    recipe = recipe_of(SGD)
    right = session.start(recipe, tmp_path / "right", HERE, Silent())
    stopped(recipe, tmp_path / "run", 11)
    file = tmp_path / "run" / checkpoints.FILE
    content = bytearray(file.read_bytes())
    if harm == "of another run":
        stopped(msgspec.structs.replace(recipe, seed=1), tmp_path / "other", 11)
        content = bytearray((tmp_path / "other" / checkpoints.FILE).read_bytes())
    elif harm == "of another release":
        kept = kept_in(tmp_path / "run")
        assert kept is not None
        written(tmp_path / "run", msgspec.structs.replace(kept, version=99))
        content = bytearray(file.read_bytes())
    else:
        content[len(content) // 2] ^= 1
        content = {"cut": content[:-1], "a bit": content, "empty": bytearray()}[harm]
    file.write_bytes(bytes(content))
    assert believed(tmp_path / "run") is None
    assert session.resume(tmp_path / "run", HERE, Silent()).ledger_head == right.ledger_head


def test_a_forged_model_is_not_resumed_from(tmp_path: Path) -> None:
    stopped(recipe_of(SGD), tmp_path / "run", 11)
    kept = kept_in(tmp_path / "run")
    assert kept is not None and kept.state is not None
    written(tmp_path / "run", msgspec.structs.replace(kept, state=b"\x01" + kept.state[1:]))
    with pytest.raises(FedzeroError, match=r"checkpoint\.bin .* delete it"):
        session.resume(tmp_path / "run", HERE, Silent())
    with pytest.raises(Tampered, match="does not hold the model") as found:
        recorded.verified(tmp_path / "run", HERE)
    assert found.value.round == 8
    (tmp_path / "run" / checkpoints.FILE).unlink()
    session.resume(tmp_path / "run", HERE, Silent())


@pytest.mark.parametrize("evaluate_every", [2, 7], ids=["behind an evaluation", "behind a round without one"])
def test_one_that_somebody_else_wrote_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evaluate_every: int
) -> None:
    """A model of another's choosing behind a round without evaluation: nothing on the ledger would contradict it."""
    recipe = msgspec.structs.replace(recipe_of(SGD), evaluate_every=evaluate_every)
    right = session.start(recipe, tmp_path / "right", HERE, Silent())
    stopped(recipe, tmp_path / "run", 11)
    kept = kept_in(tmp_path / "run")
    assert kept is not None and kept.state is not None
    evaluations = kept.outline.evaluations
    assert evaluations.last is not None and (evaluations.last.round == kept.outline.done) == (evaluate_every == 2)
    forged = msgspec.structs.replace(kept, state=b"\x01" + kept.state[1:])
    written_elsewhere(tmp_path / "run", forged, monkeypatch)
    assert kept_in(tmp_path / "run") == forged and believed(tmp_path / "run") is None
    with pytest.raises(Tampered, match="does not hold the model"):
        recorded.verified(tmp_path / "run", HERE)
    found = session.resume(tmp_path / "run", HERE, Silent())
    assert (found.ledger_head, found.model_sha256) == (right.ledger_head, right.model_sha256)


def test_without_a_place_for_the_key_a_run_goes_on_without_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("FEDZERO_STATE", str(tmp_path / "file" / "state"))
    stopped(recipe_of(SGD), tmp_path / "run", 11)
    assert not (tmp_path / "run" / checkpoints.FILE).exists()
    session.resume(tmp_path / "run", HERE, Silent())


def test_the_key_is_of_this_user_and_of_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDZERO_STATE", str(tmp_path / "state"))
    key, path = files.own_key("checkpoints"), tmp_path / "state" / "checkpoints.key"
    assert len(key) == 32 and files.own_key("checkpoints") == key != files.own_key("others")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    for other in (b"", b"k" * 31, b"k" * 33):
        path.write_bytes(other)
        with pytest.raises(OSError, match="not a key of this user"):
            files.own_key("checkpoints")
    path.unlink()
    (tmp_path / "planted").write_bytes(b"k" * 32)
    path.symlink_to(tmp_path / "planted")
    with pytest.raises(OSError, match="not a key of this user"):
        files.own_key("checkpoints")


@pytest.mark.parametrize("what", ["counted", "queries"])
def test_verify_computes_what_it_says_anew(tmp_path: Path, what: str) -> None:
    stopped(recipe_of(SGD), tmp_path / "run", 11)
    kept = kept_in(tmp_path / "run")
    assert kept is not None
    if what == "counted":
        forged = msgspec.structs.replace(kept, counted=bytes(len(kept.counted)))
    else:
        forged = msgspec.structs.replace(kept, outline=msgspec.structs.replace(kept.outline, queries=1))
    written(tmp_path / "run", forged)
    with pytest.raises(Tampered, match="does not say what the ledger says"):
        recorded.verified(tmp_path / "run", HERE)


def test_of_a_private_run_nobody_else_can_read_it(tmp_path: Path) -> None:
    recipe, secret = recipe_of(SGD, private=True, server_model=False), Environment(secret=b"s" * 32)
    with pytest.raises(KeyboardInterrupt):
        session.start(recipe, tmp_path / "run", secret, StopAt(10))
    assert stat.S_IMODE((tmp_path / "run" / checkpoints.FILE).stat().st_mode) == 0o600
    session.resume(tmp_path / "run", secret, Silent())
    recorded.verified(tmp_path / "run", secret)


def test_another_run_in_the_folder_begins_without_it(tmp_path: Path) -> None:
    stopped(recipe_of(SGD), tmp_path / "run", 11)
    with pytest.raises(KeyboardInterrupt):
        session.start(recipe_of(SGD), tmp_path / "run", HERE, StopAt(0), overwrite=True)
    assert not (tmp_path / "run" / checkpoints.FILE).exists()


def test_clients_whose_memory_is_on_the_ledger_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is not kept in the process finds what it remembered, checked against the chain."""
    recipe = recipe_of(METHODS["memories"])
    right = session.start(recipe, tmp_path / "right", HERE, Silent())
    monkeypatch.setattr(local, "KEPT", 0)
    assert session.start(recipe, tmp_path / "run", HERE, Silent()).ledger_head == right.ledger_head


def test_rounds_are_found_by_halving(tmp_path: Path) -> None:
    session.start(recipe_of(METHODS["dense"]), tmp_path / "run", HERE, Silent())
    with closing(Ledger.open(tmp_path / "run" / LEDGER)) as ledger:
        places = {e.record.round: e.seq for e in ledger.entries() if isinstance(e.record, Round)}
        assert {round: ledger.place_of(round) for round in places} == places
        assert ledger.done == len(places) == 16
        assert [r.round for r in ledger.rounds(5, 9)] == [5, 6, 7, 8]
        assert list(ledger.rounds(16)) == []
