"""Runs that grow: extended, they have the updates and the model of a run of so many rounds from the start."""

from __future__ import annotations

import shutil
import signal
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import crash_child
import msgspec
import pytest

from fedzero.errors import FedzeroError
from fedzero.ledger import replay
from fedzero.ledger.folder import LEDGER, MODEL
from fedzero.ledger.outline import GENESIS, LedgerSummary
from fedzero.ledger.records import End, Extended, Record, Round, Start
from fedzero.ledger.store import Ledger, Tampered, decode_record
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.stopping import Stop
from fedzero.results.export import rows
from fedzero.results.history import history
from fedzero.runs import progress, recorded, session
from fedzero.runs.growing import Growth
from fedzero.runs.progress import Silent
from fedzero.web.following import Following
from sampling import sampled
from stops import StopAt

COMMON = {
    "name": "grown",
    "rounds": 10,
    "seed": 3,
    "evaluate_every": 3,
    "task": {"kind": "quadratic", "dimension": 12, "noise": 0.1},
    "federation": {"clients": 5, "cohort": 2},
}
DECOMFL = {"kind": "decomfl", "rate": 0.01, "directions": 3, "local_steps": 2}
SURROGATE = {"kind": "fzoos", "local_steps": 2, "transfer": {"count": 16}}
SURROGATE |= {"active": {"initial": 4, "a_step": 2, "candidates": 6, "around": 2, "around_candidates": 4}}
CASES: dict[str, dict[str, Any]] = {
    "momentum": {"algorithm": DECOMFL | {"optimizer": {"kind": "momentum"}}},
    "averages": {"algorithm": DECOMFL | {"rate": "auto", "step": "rms", "average": 4}},
    "feedback": {
        "algorithm": DECOMFL | {"directions": 8},
        "filters": [{"kind": "top-k", "fraction": 0.4, "feedback": True}],
    },
    "dense": {"algorithm": {"kind": "fedavg", "rate": 0.02, "local_steps": 2, "momentum": 0.5}},
    "surrogate": {"algorithm": SURROGATE},
    "memories": {"algorithm": {"kind": "scaffold-zo", "rate": 0.01, "directions": 3, "local_steps": 2}},
}
"""Ten rounds of each; the first six end in the middle of a window, and before the first checkpoint of a dense run."""


def recipe_of(case: str, **changes: Any) -> recipes.Recipe:
    return recipes.decode(COMMON | CASES[case] | changes)


def start(recipe: recipes.Recipe, folder: Path) -> Any:
    return session.start(recipe, folder, Environment(), Silent())


def resume(folder: Path, **grown: Any) -> Any:
    return session.resume(folder, Environment(), Silent(), growth=Growth(**grown))


def told(folder: Path) -> tuple[list[Round], bytes]:
    """What must be the same, however a run came to its rounds: all of them, and the model."""
    with closing(Ledger.open(folder / LEDGER)) as ledger:
        view = replay.read(ledger)
    assert view.end is not None
    return view.rounds, view.end.identity.sha256


def kinds(folder: Path) -> list[str]:
    with closing(Ledger.open(folder / LEDGER)) as ledger:
        return [type(entry.record).__name__ for entry in ledger.entries()]


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten rounds with momentum."""
    folder = tmp_path_factory.mktemp("long")
    start(recipe_of("momentum"), folder)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_an_extended_run_is_a_longer_run(case: str, tmp_path: Path) -> None:
    start(recipe_of(case), tmp_path / "long")
    start(recipe_of(case, rounds=6), tmp_path / "grown")
    summary = resume(tmp_path / "grown", rounds=10)
    assert told(tmp_path / "grown") == told(tmp_path / "long")
    assert (tmp_path / "grown" / MODEL).read_bytes() == (tmp_path / "long" / MODEL).read_bytes()
    assert (summary.complete, summary.rounds) == (True, 10)
    assert recorded.verified(tmp_path / "grown", Environment()).outline.planned == 10
    assert kinds(tmp_path / "grown").count("Extended") == 1
    heads = {resume(tmp_path / "grown", **grown).ledger_head for grown in ({}, {"rounds": 10})}
    assert heads == {summary.ledger_head}, "the same rounds again change nothing"


def test_a_run_grows_again_and_replays_to_any_round(tmp_path: Path, long: Path) -> None:
    start(recipe_of("momentum", rounds=4, evaluate_every=5), tmp_path / "grown")
    for rounds in (5, 7, 10):
        resume(tmp_path / "grown", rounds=rounds)
    assert told(tmp_path / "grown") == told(long)
    for round in (0, 4, 6, 10):
        models = [recorded.replayed(each, Environment(), round) for each in (tmp_path / "grown", long)]
        assert models[0].identity == models[1].identity
    assert recorded.recipe_in(tmp_path / "grown") == recipes.as_recorded(recipe_of("momentum", evaluate_every=5))


def test_a_run_that_is_not_finished_reaches_its_planned_end_first(tmp_path: Path, long: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        session.start(recipe_of("momentum", rounds=6), tmp_path / "grown", Environment(), StopAt(3))
    resume(tmp_path / "grown", rounds=10, evaluate_every=2)
    assert told(tmp_path / "grown") == told(long)
    found = recorded.recipe_in(tmp_path / "grown")
    assert (found.rounds, found.evaluate_every) == (10, 2)


def test_a_run_that_ended_early_goes_on_with_another_stop(tmp_path: Path, long: Path) -> None:
    ended = start(recipe_of("momentum", stop={"above": 0.0}), tmp_path / "grown")
    assert (ended.rounds, ended.complete) == (0, True) and ended.reason
    with pytest.raises(FedzeroError, match=r"would at once end again.*give another `stop`"):
        resume(tmp_path / "grown", rounds=20)
    resume(tmp_path / "grown", stop=Stop())
    assert told(tmp_path / "grown") == told(long)
    recorded.verified(tmp_path / "grown", Environment())


def test_what_no_run_can_do_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    start(recipe_of("momentum", rounds=4), tmp_path / "run")
    before = (tmp_path / "run" / LEDGER).read_bytes()
    with pytest.raises(FedzeroError, match="has made 4 rounds, more than rounds = 3"):
        resume(tmp_path / "run", rounds=3)
    with pytest.raises(FedzeroError, match="evaluate_every = 3 there and 2 here"):
        resume(tmp_path / "run", evaluate_every=2)
    with pytest.raises(FedzeroError):
        resume(tmp_path / "run", rounds=10**9)
    assert (tmp_path / "run" / LEDGER).read_bytes() == before
    assert (tmp_path / "run" / MODEL).exists()


def test_a_private_run_goes_on_with_the_keys_of_its_start(tmp_path: Path) -> None:
    """The salt of its secret is made of the recipe's bytes at the start."""
    secret = Environment(secret=b"only the clients know this secret")
    federation = COMMON["federation"] | {"private": True, "server_model": False}
    for name, rounds in (("long", 10), ("grown", 6)):
        recipe = recipe_of("momentum", federation=federation, rounds=rounds)
        session.start(recipe, tmp_path / name, secret, Silent())
    session.resume(tmp_path / "grown", secret, Silent(), growth=Growth(rounds=10))
    assert told(tmp_path / "grown") == told(tmp_path / "long")
    recorded.verified(tmp_path / "grown", secret)


@pytest.mark.parametrize("grown", [{}, {"rounds": 7}], ids=["resumed", "extended"])
def test_a_run_that_another_process_extends_is_not_ended_by_its_old_recipe(grown, tmp_path: Path, monkeypatch) -> None:
    """Between reading the recipe and the claim on the folder."""
    start(recipe_of("momentum", rounds=4), tmp_path / "run")
    reopen = recorded.reopen

    def slow(folder: Path, *args: Any, **options: Any) -> Any:
        ledger, setup = reopen(folder, *args, **options)
        ledger.append([Extended(4, 9, 3, b"{}")], 0.0)
        return ledger, setup

    with monkeypatch.context() as patch, pytest.raises(FedzeroError, match="was changed by another process"):
        patch.setattr(session, "reopen", slow)
        resume(tmp_path / "run", **grown)
    assert resume(tmp_path / "run").rounds == 9
    recorded.verified(tmp_path / "run", Environment())


class Follower(Silent):
    """What is shown to somebody who looks on."""

    def __init__(self) -> None:
        self.planned: list[int] = []
        self.rounds: list[int] = []

    def begin(self, recipe: Any, parameters: int, done: Any) -> None:
        self.planned.append(recipe.rounds)

    def round(self, record: Round) -> None:
        self.rounds.append(record.round)


def test_readers_see_the_recipe_in_force(tmp_path: Path, monkeypatch) -> None:
    """Also those who look on while a run that was stopped ends and is extended."""
    folder, seen, shown = tmp_path / "run", Follower(), Following(tmp_path / "run")

    with pytest.raises(KeyboardInterrupt):
        session.start(recipe_of("momentum", rounds=4), folder, Environment(), StopAt(2))
    assert (history(folder).planned, history(folder).complete, shown.look()) == (4, False, 1)
    pause = SimpleNamespace(sleep=lambda seconds: resume(folder, rounds=7))
    monkeypatch.setattr(progress, "time", pause)
    progress.follow(folder, seen)
    assert (seen.planned, seen.rounds) == ([4, 7], [3, 4, 5, 6])
    assert (history(folder).planned, history(folder).complete) == (7, True)
    assert "rounds = 7" in history(folder).recipe
    assert [row.round for row in rows(folder)] == [*range(8)]
    assert shown.look(at_once=True) == 2


def test_a_patch_of_the_end_before_is_still_made(tmp_path: Path) -> None:
    from fedzero.runs.patches import export_patch

    start(recipe_of("momentum", rounds=4), tmp_path / "grown")
    before = export_patch(tmp_path / "grown", Environment())
    resume(tmp_path / "grown", rounds=7)
    assert export_patch(tmp_path / "grown", Environment(), 4) == before


# -- killed ---------------------------------------------------------------------------------------------------------


@sampled
@pytest.mark.parametrize("case", ["feedback", "dense"])
def test_killed_while_it_grows(case: str, warm_server: Any, tmp_path: Path, every: bool) -> None:
    """Killed at any step between the extension and its end: what is left is intact, and a resume ends as a run of ten
    rounds, or, where the extension was not on the ledger yet, stays the run of six."""
    six, ten = recipe_of(case, rounds=6), recipe_of(case)
    start(ten, tmp_path / "ten")
    start(six, tmp_path / "six")
    right = {6: told(tmp_path / "six"), 10: told(tmp_path / "ten")}

    def grown(name: str, at: int, when: str = "before") -> tuple[Path, int]:
        folder = shutil.copytree(tmp_path / "six", tmp_path / name)
        report = str(tmp_path / f"{name}.json")
        child = warm_server.Process(target=crash_child.grow, args=(str(folder), 10, (at, when), report), daemon=True)
        child.start()
        child.join(60)
        return folder, child.exitcode

    folder, code = grown("whole", -1)
    assert code == 0 and told(folder) == right[10]
    steps = msgspec.json.decode((tmp_path / "whole.json").read_bytes())
    changing = crash_child.changing(steps)
    first = next(step for step in changing if steps[step] == "unlink") - 4  # from the extension on
    points = [(step, "before") for step in changing if step >= first]
    if not every:
        points = [points[place] for place in (0, 2, 4, len(points) // 2, -6, -2)]
    outcomes = set()
    for step, when in points:
        folder, code = grown(f"{when}-{step}", step, when)
        assert code == -signal.SIGKILL
        recorded.verified(folder, Environment())
        resume(folder)
        recorded.verified(folder, Environment())
        rounds = len(told(folder)[0])
        assert told(folder) == right[rounds]
        assert (folder / MODEL).exists() and not (folder / "checkpoint.bin").exists()
        outcomes.add(rounds)
        shutil.rmtree(folder)
    assert 10 in outcomes


def test_a_model_that_is_left_over_is_told_from_a_truncated_ledger(tmp_path: Path, monkeypatch) -> None:
    """Between the extension and the removal of the model file: it must be the model of the end before."""
    start(recipe_of("momentum", rounds=4), tmp_path / "run")
    old = (tmp_path / "run" / MODEL).read_bytes()

    with pytest.raises(KeyboardInterrupt):
        session.resume(tmp_path / "run", Environment(), StopAt(4), growth=Growth(rounds=6))
    assert not (tmp_path / "run" / MODEL).exists(), "a folder has a model if its run is finished"
    (tmp_path / "run" / MODEL).write_bytes(old)
    recorded.verified(tmp_path / "run", Environment())
    (tmp_path / "run" / MODEL).write_bytes(old[:-1] + bytes([old[-1] ^ 1]))
    with pytest.raises(Tampered, match="is not the model of this run"):
        recorded.verified(tmp_path / "run", Environment())
    resume(tmp_path / "run")
    recorded.verified(tmp_path / "run", Environment())


# -- forged ---------------------------------------------------------------------------------------------------------

FIRST = Start(msgspec.json.encode({"rounds": 2, "federation": {"clients": 3}}), b"8 bytes.", 2, 1, None)


def made(round: int) -> Round:
    return Round(round, (0,), None, False, 0, 0, 0, None)


def summary_of(*records: Record) -> LedgerSummary:
    summary = LedgerSummary()
    for record in (FIRST, *records):
        summary.note(record, GENESIS, 0.0)
    summary.finish()
    return summary


def to(rounds: int, round: int = 2) -> Extended:
    return Extended(round, rounds, 1, b"{}")


OVER, EARLY = End(2, b"8 bytes."), End(1, b"8 bytes.", "it diverged")


def test_an_extension_opens_the_ledger_again() -> None:
    summary = summary_of(made(0), made(1), OVER, to(3))
    assert (summary.end, summary.ended, summary.planned) == (None, OVER, 3)
    summary = summary_of(made(0), made(1), OVER, to(3), made(2), End(3, b"8 bytes."), to(9, 3))
    assert (summary.planned, summary.done, summary.extended) == (9, 3, to(9, 3))
    assert summary_of(made(0), EARLY, to(2, 1), made(1), OVER).end == OVER
    assert summary_of(made(0), EARLY, to(4, 1), EARLY).end == EARLY, "no client can pay for more"


@pytest.mark.parametrize(
    "records",
    [
        (to(3, 0),),
        (made(0), to(3, 1), made(1)),
        (made(0), made(1), to(3)),
        (made(0), made(1), OVER, to(2)),
        (made(0), made(1), OVER, to(1)),
        (made(0), made(1), OVER, to(3, 1)),
        (made(0), made(1), OVER, to(3), to(4)),
        (made(0), made(1), OVER, to(3), OVER),
        (made(0), made(1), OVER, made(2)),
        (made(0), EARLY, to(1, 1)),
        (made(0), End(1, b"8 bytes."), to(3, 1)),
        (made(0), made(1), End(2, b"8 bytes.", "it diverged"), to(3)),
    ],
)
def test_a_forged_extension_is_found(records: tuple[Record, ...]) -> None:
    with pytest.raises(Tampered):
        summary_of(*records)


@pytest.mark.parametrize(("rounds", "every"), [(0, 1), (3, 0), (-1, 1), (3, -5)])
def test_an_extension_without_rounds_or_evaluations_is_not_read(rounds: int, every: int) -> None:
    with pytest.raises(FedzeroError):
        decode_record(msgspec.msgpack.encode(Extended(2, rounds, every, b"{}")))


def test_the_last_extension_is_found_without_reading_all_entries(tmp_path: Path) -> None:
    """Also behind text that looks like one."""
    decoy = Round(0, (0,), None, False, 0, 0, 0, None, ((1, "type extended"),))
    with closing(Ledger.create(tmp_path / LEDGER, FIRST)) as ledger:
        assert ledger.extended() is None
        ledger.append([decoy, made(1), OVER, to(3)], 0.0)
        assert ledger.extended() == to(3)
        ledger.append([made(2), End(3, b"8 bytes."), to(5, 3), made(3)], 0.0)
        assert ledger.extended() == to(5, 3)
