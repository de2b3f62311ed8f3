"""`kill -9` at any instant: real processes, real SIGKILL, and the run ends as if nothing had happened.

Children come from a fork server that has fedzero loaded. A fuse inside the child (see crash_child.py) kills it just
before or just after its n-th step: a step is an SQL statement, a closing of the database, or a file made, renamed or
removed. Whatever is left on disk is resumed by a fresh process and compared with a run nobody disturbed.

Each step costs two processes: the default run has a sample of them, `make test-all` every one.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from multiprocessing import connection
from pathlib import Path
from typing import Any, TypeVar

import crash_child
import pytest

from sampling import sampled

WORKERS = 3
SEEDED = ["rounds=4", "evaluate_every=2", "task.dimension=6", "algorithm.directions=2", "federation.clients=3"]
REPLICAS = [*SEEDED, "engine.replicas=true"]
DENSE = ["rounds=11", "evaluate_every=4", "task.dimension=4"]
T = TypeVar("T")
Steps = Generator[Any, Any, T]
"""A task that yields processes, is sent their exit codes, and returns something."""
SAME = ("rounds", "head", "bodies", "model")


@dataclass(frozen=True)
class Run:
    """A recipe, and what it gives when nobody disturbs it."""

    server: Any
    recipe: Path
    right: dict[str, Any]
    every: int = crash_child.checkpoints.EVERY
    """rounds between checkpoints"""

    def process(self, folder: Path, at: int = -1, when: str = "before") -> Any:
        report = str(folder) + ".json"
        process = self.server.Process(
            target=crash_child.go, args=(str(self.recipe), str(folder), (at, when), report, self.every), daemon=True
        )
        process.start()
        return process

    def wrong(self, folder: Path) -> Steps[list[str]]:
        """Resume in a fresh process; what is not as it should be."""
        if (code := (yield self.process(folder))) != 0:
            return [f"exit code {code} on resume"]
        found = json.loads(Path(str(folder) + ".json").read_text())
        wrong = [name for name in (*SAME, "working") if found[name] != self.right[name]]
        return wrong if found["summary"]["complete"] else [*wrong, "not complete"]

    def killed_at(self, folder: Path, at: int, when: str) -> Steps[list[str]]:
        if (code := (yield self.process(folder, at, when))) != -signal.SIGKILL:
            return [f"not killed, exit code {code}"]
        left = sorted(path.name for path in folder.glob("*")) if folder.exists() else []
        wrong = yield from self.wrong(folder)
        return [*wrong, f"there was: {left}"] if wrong else []


def together(tasks: Iterable[Steps[T]]) -> list[T]:
    """Run tasks that yield processes and are sent their exit codes, a few at a time.

    In one thread: `Process.start` also polls all others, so two threads would take each other's exit codes.
    """
    todo, waiting, results = deque(enumerate(tasks)), {}, {}

    def go_on(index: int, task: Steps[T], code: int | None) -> None:
        try:
            process = task.send(code)
            waiting[process.sentinel] = index, task, process
        except StopIteration as done:
            results[index] = done.value

    while todo or waiting:
        while todo and len(waiting) < WORKERS:
            go_on(*todo.popleft(), None)
        ready = connection.wait(list(waiting), timeout=300)
        assert ready or not waiting, "a process hangs"
        for sentinel in ready:
            index, task, process = waiting.pop(sentinel)
            process.join()
            go_on(index, task, process.exitcode)
    return [results[index] for index in range(len(results))]


@pytest.fixture(scope="module")
def undisturbed(warm_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, list[str]], Run]:
    """The reference for a recipe with overrides, made once."""
    made: dict[tuple[str, ...], Run] = {}

    def make(path: Path, overrides: list[str]) -> Run:
        from fedzero.recipe import recipe as recipes

        name = (str(path), *overrides)
        if name not in made:
            folder = tmp_path_factory.mktemp("undisturbed")
            table = json.loads(recipes.canonical(recipes.load(path, overrides)))
            recipe = folder / "recipe.toml"
            recipe.write_text(_toml(table))
            process = Run(warm_server, recipe, {}).process(folder / "run")
            process.join(60)
            assert process.exitcode == 0
            made[name] = Run(warm_server, recipe, json.loads((folder / "run.json").read_text()))
        return made[name]

    return make


def _toml(table: dict[str, Any]) -> str:
    return "".join(f"{key} = {_inline(value)}\n" for key, value in table.items() if value is not None)


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {_inline(v)}" for k, v in value.items() if v is not None) + "}"
    return json.dumps(value)


def all_of(run: Run, folder: Path, points: list[tuple[int, str]]) -> dict[tuple[int, str], list[str]]:
    """Kill and resume at every point; what went wrong where."""
    results = together(run.killed_at(folder / f"{when}-{step}", step, when) for step, when in points)
    return {point: wrong for point, wrong in zip(points, results, strict=True) if wrong}


def sample(kinds: list[str], steps: list[int], more: int = 2) -> list[int]:
    """Of the steps the first, the last, one of every kind and a few more, the same in every run of the tests."""
    choose, of_kind = random.Random(len(kinds)), dict[str, list[int]]()
    for step in steps:
        of_kind.setdefault(kinds[step], []).append(step)
    return sorted({steps[0], steps[-1], *map(choose.choice, of_kind.values()), *choose.sample(steps, more)})


@sampled
def test_killed_at_every_step(undisturbed, tiny, tmp_path, every):
    """Between two SQL statements nothing reaches the disk, so after one is before the next. Where a run begins and
    ends, files are written between two steps: there also just after a step."""
    run = undisturbed(tiny, SEEDED)
    steps = list(range(run.right["steps"]))
    before, after = steps, [*steps[:8], *steps[-8:]]
    assert len(before) + len(after) >= 60
    if not every:
        before, after = sample(run.right["kinds"], before), sample(run.right["kinds"], after, 0)
        assert len(before) >= 12
    assert all_of(run, tmp_path, [(step, "before") for step in before] + [(step, "after") for step in after]) == {}


@sampled
def test_dense_run_killed_around_its_checkpoint(undisturbed, dense, tmp_path, every):
    """Killed now and then, and at every step around its checkpoint and its end: the same run and checkpoint in the
    end."""
    run = undisturbed(dense, DENSE)
    steps = run.right["steps"]
    points = sorted({*range(0, steps - 30, 9), *range(steps - 30, steps)})
    if not every:
        points = sample(run.right["kinds"], points[-30:], 0)
    assert all_of(run, tmp_path, [(step, "before") for step in points]) == {}


@sampled
@pytest.mark.parametrize("which", ["tiny", pytest.param("dense", marks=pytest.mark.slow)])
def test_killed_around_every_checkpoint_beside_the_ledger(request, undisturbed, tmp_path, which, every):
    """Checkpoints after rounds 2 and 4 of 6: killed at every step from before the first to behind the last (of a dense
    run at every fourth), also while the file is synced and renamed, and when it is removed at the end."""
    overrides = [*(SEEDED if which == "tiny" else DENSE), "rounds=6", "evaluate_every=2"]
    plain = undisturbed(request.getfixturevalue(which), overrides)
    process = (run := replace(plain, every=2)).process(tmp_path / "whole")
    process.join(60)
    found = json.loads((tmp_path / "whole.json").read_text())
    assert found["steps"] > plain.right["steps"] and all(found[name] == plain.right[name] for name in SAME)
    points = list(range(20, found["steps"], 1 if which == "tiny" else 4))
    if not every:
        points = sample(found["kinds"], list(range(20, found["steps"])), 0)
    assert all_of(run, tmp_path, [(step, "before") for step in points]) == {}
    assert not list(tmp_path.glob("*/checkpoint.bin"))


def test_clients_with_models_of_their_own_are_rebuilt(undisturbed, tiny, tmp_path):
    run = undisturbed(tiny, REPLICAS)
    assert all_of(run, tmp_path, [(step, "after") for step in range(20, run.right["steps"], 16)]) == {}


@sampled
@pytest.mark.parametrize("which", ["tiny", "dense"])
def test_resume_that_is_killed_too(request, undisturbed, tmp_path, which, every):
    """Killed in the run, in the resume, and in the resume of that."""
    run = undisturbed(request.getfixturevalue(which), SEEDED if which == "tiny" else DENSE)
    choose = random.Random(1)
    cases = [
        [choose.randrange(12, run.right["steps"] - 8), *choose.choices(range(2, 18), k=2)]
        for _ in range(5 if every else 3)
    ]

    def case(fuses: list[int]) -> Steps[list[str]]:
        folder, codes = tmp_path / "-".join(map(str, fuses)), []
        for fuse in fuses:
            codes += [(yield run.process(folder, fuse))]
        if codes[:2] != [-signal.SIGKILL, -signal.SIGKILL]:
            return [f"exit codes {codes}"]
        wrong = yield from run.wrong(folder)
        return [name for name in wrong if name != "working"]

    assert together(case(fuses) for fuses in cases) == [[]] * len(cases)


@sampled
def test_killed_from_outside_at_random_times(undisturbed, tiny, tmp_path, every):
    """No fuse: the parent shoots at whatever instant, again and again."""
    run, choose, shots, runs = undisturbed(tiny, [*SEEDED, "rounds=150"]), random.Random(2), 0, 3 if every else 2
    for number in range(runs):
        for _ in range(6):
            process = run.process(tmp_path / str(number))
            time.sleep(choose.uniform(0.01, 0.12))
            process.kill()
            process.join(60)
            shots += process.exitcode == -signal.SIGKILL
    assert shots >= 2 * runs
    assert together(run.wrong(tmp_path / str(number)) for number in range(runs)) == [[]] * runs


@sampled
def test_two_runs_begun_at_once_in_one_folder(undisturbed, tiny, tmp_path, every):
    """One of them gets the folder, the other is refused."""
    run = undisturbed(tiny, [*SEEDED, "rounds=40"])
    for number in range(5 if every else 3):
        folder = tmp_path / str(number)
        arguments = (str(run.recipe), str(folder))
        both = [run.server.Process(target=crash_child.begin, args=arguments, daemon=True) for _ in range(2)]
        for process in both:
            process.start()
        for process in both:
            process.join(60)
        assert sorted(process.exitcode for process in both) == [0, 2]
        found = crash_child.looked_at(folder)
        assert {name: found[name] for name in SAME} == {name: run.right[name] for name in SAME}


def test_before_the_ledger_exists_a_kill_leaves_a_folder_in_which_run_works(undisturbed, tiny, tmp_path, fedzero):
    """…and after it exists, `run` says so and `resume` works. The file gets its name by the first `replace`."""
    run, early = undisturbed(tiny, SEEDED), 0
    there = run.right["kinds"].index("replace") + 1
    for step in [*sample(run.right["kinds"], list(range(there)), 0), there]:
        folder = tmp_path / str(step)
        process = run.process(folder, step)
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
        outcome = fedzero("run", run.recipe, "--out", folder, "--json")
        if outcome.code == 2:
            outcome.refused("resume")
            break
        early += 1
        assert outcome.json["model_digest"] == run.right["summary"]["model_digest"]
        assert outcome.json["ledger_head"] == run.right["head"]
        assert fedzero("verify", folder).code == 0
    assert early >= 3 and step == there
    outcome = fedzero("resume", folder, "--json")
    assert (outcome.code, outcome.json["ledger_head"]) == (0, run.right["head"])


def test_the_command_itself(undisturbed, tiny, tmp_path, fedzero):
    """`fedzero run` as a user starts it, killed once some rounds are durable."""
    run = undisturbed(tiny, [*SEEDED, "rounds=300"])
    folder = tmp_path / "run"
    command = [
        sys.executable,
        "-c",
        "from fedzero.cli import main; main()",
        "run",
        str(run.recipe),
        "--out",
        str(folder),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 300
        while _entries(folder) < 30 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL
    assert 30 <= _entries(folder) < len(run.right["bodies"])
    half = shutil.copytree(folder, tmp_path / "half")
    assert "unfinished" in fedzero("verify", half).out
    outcome = fedzero("resume", folder, "--json")
    assert outcome.code == 0
    assert outcome.json["model_digest"] == run.right["summary"]["model_digest"]
    found = crash_child.looked_at(folder)
    assert {name: found[name] for name in SAME} == {name: run.right[name] for name in SAME}


def _entries(folder: Path) -> int:
    if not (folder / "ledger.db").exists():
        return 0
    db = sqlite3.connect(folder / "ledger.db")
    try:
        count: int = db.execute("SELECT count(*) FROM entries").fetchone()[0]
        return count
    finally:
        db.close()
