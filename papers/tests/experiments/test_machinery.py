"""What drives an experiment: it runs what is missing, whatever happened before, and shows what the ledgers say."""

from __future__ import annotations

import csv
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy import TOY, job

from fedzero.engines.ray import Ray
from fedzero.errors import FedzeroError
from fedzero.ledger.store import Claim, Ledger
from fedzero.model.device import threads
from fedzero.recipe.environment import Environment
from fedzero.results.history import history
from fedzero.runs import recorded, session
from fedzero.runs.progress import Silent
from fedzero.runs.summary import summary as of_ledger
from fedzero_papers.experiments import EXPERIMENTS
from fedzero_papers.experiments.contract import Job, Options, Stage
from fedzero_papers.experiments.display import Display, TimeEstimate
from fedzero_papers.experiments.pool import Pool, cores, failure
from fedzero_papers.experiments.reproduce import default_folder, reproduce, state_of
from fedzero_papers.experiments.worker import Done, Failed, Order, Progress, execute

SCRIPT = Path(__file__).with_name("toy.py")
ROUNDS = 250


class Notes(Display):
    """A display that notes what it was told."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.stages: list[tuple[str, int]] = []

    def stage(self, stage: Stage, todo: Sequence[Job]) -> None:
        self.stages.append((stage.title, len(todo)))

    def note(self, job: Job, message: Progress | Done) -> None:
        if isinstance(message, Done):
            self.made.append(job.folder)


def carry_out(experiment: Any, out: Path, options: Options | None = None) -> tuple[dict[str, Any], Notes]:
    kept = Notes()
    return reproduce(experiment, options or Options(), out, 2, None, kept), kept


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], Notes]:
    """The toy experiment, made once by two workers."""
    out = tmp_path_factory.mktemp("toy") / "out"
    return out, *carry_out(TOY, out)


FOLDERS = ["tune/rate-0.001", "tune/rate-0.01", "final/seed-1", "final/seed-2"]


# ---- a whole experiment


def test_every_run_is_an_ordinary_one(finished):
    out, summary, kept = finished
    assert kept.stages == [("tuning", 2), ("final", 2)]
    assert sorted(kept.made) == sorted(FOLDERS)
    assert (summary["runs"], summary["runs_made"]) == (4, 4)
    for folder in FOLDERS:
        assert recorded.verified(out / "runs" / folder, Environment()).end is not None


def test_the_stage_after_depends_on_the_stage_before(finished):
    out, summary, _ = finished
    losses = {rate: history(out / "runs" / f"tune/rate-{rate:g}").final_loss for rate in (1e-3, 1e-2)}
    best = min(losses, key=losses.__getitem__)
    assert summary["findings"] == [f"The best rate is {best:g}."]
    assert history(out / "runs" / "final/seed-1").recipe.count(f"\nrate = {best}\n") == 1


def test_the_table_says_what_the_ledgers_say(finished):
    out, summary, _ = finished
    with (out / "toy-table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2
    for row, shown in zip(rows, summary["tables"]["table"], strict=True):
        ledger = Ledger.open(out / "runs" / f"final/seed-{row['seed']}" / "ledger.db")
        found = of_ledger(ledger)
        ledger.close()
        assert float(row["loss"]) == found.final_loss == shown["loss"], "to the last digit"
        assert int(row["queries"]) == found.queries
        assert f"{found.final_loss:.4g}" in (out / "toy.md").read_text()


def test_the_figure_and_its_points(finished):
    out, summary, _ = finished
    png = (out / "toy-fig.png").read_bytes()
    assert png.startswith(b"\x89PNG\r\n")
    assert len(png) > 10_000
    with (out / "toy-fig.csv").open() as file:
        points = [row for row in csv.DictReader(file) if row["line"] == "seed 1"]
    run = history(out / "runs" / "final/seed-1")
    assert [(float(p["x"]), float(p["y"])) for p in points] == [(p.queries, p.loss) for p in run.points]
    assert all(Path(file).stat().st_size > 0 for file in summary["files"])


def test_finished_runs_are_not_made_again(finished):
    out, first, _ = finished
    before = {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*") if path.is_file()}
    (out / "toy-fig.png").unlink()
    summary, kept = carry_out(TOY, out)
    assert kept.made == []
    assert (summary["runs"], summary["runs_made"]) == (4, 0)
    assert summary["tables"] == first["tables"]
    assert (out / "toy-fig.png").exists()
    assert before == {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*") if path.is_file()}


def test_a_changed_definition_is_refused_before_anything_is_made(finished):
    out, _, _ = finished
    with pytest.raises(FedzeroError, match=r"rate-0.001 holds a run of another recipe \(rounds = 20 there and 30 here"):
        carry_out(replace(TOY, full=30), out)


def test_other_words_about_a_run_do_not_change_it(finished):
    out, _, _ = finished
    wanted = job("tune/rate-0.01", 20, 0, 1e-2)
    table = {**session.recipes.msgspec.to_builtins(wanted.recipe), "title": "Toy!", "about": "The same run"}
    renamed = replace(wanted, recipe=session.recipes.decode(table))
    assert state_of(out / "runs" / "tune/rate-0.01", renamed) == "finished"


def test_a_run_that_lacks_its_model_goes_on(finished, tmp_path):
    assert state_of(tmp_path, job("x", 20, 0, 1e-2)) == "absent"
    session.start(job("x", 20, 0, 1e-2).recipe, tmp_path, Environment(), Silent())
    (tmp_path / "model.safetensors").unlink()
    assert state_of(tmp_path, job("x", 20, 0, 1e-2)) == "unfinished"


def test_a_damaged_ledger_is_named(tmp_path):
    (tmp_path / "ledger.db").write_text("not a ledger")
    with pytest.raises(FedzeroError, match=r"remove .* to make the run again"):
        state_of(tmp_path, job("x", 20, 0, 1e-2))


# ---- things that go wrong


def order(folder: Path, **changes: Any) -> Order:
    recipe = job("x", 5, 0, 1e-2).recipe
    table = session.recipes.msgspec.to_builtins(recipe) | changes
    return Order(session.recipes.decode(table), folder, False, None)


def test_what_a_worker_answers(tmp_path, monkeypatch):
    """Done, a sentence for what people can mend, a sentence and a trace for what they cannot."""
    ours, theirs = multiprocessing.Pipe()
    assert execute(order(tmp_path / "good"), theirs.send) == Done()
    assert ours.recv() == Progress(done=0, rounds=5, begun=0)
    lacking = execute(order(tmp_path / "lacking", task={"kind": "mnist", "full": True}), theirs.send)
    assert isinstance(lacking, Failed)
    assert "--data" in lacking.sentence
    assert lacking.trace == ""
    monkeypatch.setattr(session, "start", lambda *_: 1 / 0)
    bug = execute(order(tmp_path / "bug"), theirs.send)
    assert isinstance(bug, Failed)
    assert bug.sentence == "ZeroDivisionError: division by zero"
    assert "Traceback" in bug.trace
    assert (
        str(failure(tmp_path, job("bug", 5, 0, 1e-2), bug))
        == f"run bug: ZeroDivisionError: division by zero (trace in {tmp_path / 'bug' / 'error.txt'})"
    )
    assert (tmp_path / "bug" / "error.txt").read_text() == bug.trace


@pytest.mark.slow
def test_the_runs_of_an_experiment_on_a_cluster_are_those_of_processes(finished, tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'fedzero[ray]'")
    kept, how = Notes(), Ray(workers=2)
    summary = reproduce(TOY, Options(), tmp_path / "out", how, None, kept)
    assert (summary["runs"], summary["runs_made"], summary["tables"]) == (4, 4, finished[1]["tables"])
    assert sorted(kept.made) == sorted(FOLDERS)
    assert reproduce(TOY, Options(), tmp_path / "out", how, None, kept)["runs_made"] == 0


def test_two_at_once_in_one_folder(tmp_path):
    claim = Claim(tmp_path)
    with pytest.raises(FedzeroError, match="another process"):
        carry_out(TOY, tmp_path)
    claim.release()


class Disturbing(Notes):
    """A display that strikes when a run has come some way."""

    def __init__(self, folder: str, strike: Callable[[], None]) -> None:
        super().__init__()
        self.folder, self.strike = folder, strike

    def note(self, job: Job, message: Progress | Done) -> None:
        super().note(job, message)
        if isinstance(message, Progress) and job.folder == self.folder and message.done > 0:
            self.folder = ""
            self.strike()


def kill_worker() -> None:
    (worker,) = multiprocessing.active_children()
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)


def rounds_in(folder: Path) -> int:
    """How many entries a ledger has, while somebody else writes it."""
    if not (folder / "ledger.db").exists():
        return 0
    db = sqlite3.connect(folder / "ledger.db")
    try:
        return int(db.execute("SELECT count(*) FROM entries").fetchone()[0])
    finally:
        db.close()


def workers_of(parent: int) -> list[int]:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc to find a killed parent's workers")
def test_kills_and_ctrl_c_lose_nothing(tmp_path):
    """A worker killed, Ctrl-C, the parent killed: each time the same call goes on, and ends in the same ledgers."""
    out, toy = tmp_path / "out", replace(TOY, full=ROUNDS)
    first, second, third = (out / "runs" / folder for folder in FOLDERS[:3])

    def carry_on(display: Notes) -> dict[str, Any]:
        return reproduce(toy, Options(), out, 1, None, display)

    with pytest.raises(FedzeroError, match=r"^run tune/rate-0.001: its process was killed by signal 9; .* resumes"):
        carry_on(Disturbing(FOLDERS[0], kill_worker))
    assert 1 < rounds_in(first) < ROUNDS

    with pytest.raises(KeyboardInterrupt):
        carry_on(display := Disturbing(FOLDERS[1], lambda: signal.raise_signal(signal.SIGINT)))
    assert display.made == [FOLDERS[0]], "finished, from where it was"
    assert 1 < rounds_in(second) < ROUNDS
    assert multiprocessing.active_children() == []

    command = [sys.executable, SCRIPT, ROUNDS, "reproduce", "toy", "--out", out, "--jobs", 1]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 300
    while rounds_in(third) < 5:
        assert time.monotonic() < deadline and process.poll() is None, process.communicate()
        time.sleep(0.01)
    (worker,) = workers_of(process.pid)
    process.kill()
    _, err = process.communicate(timeout=300)
    assert "toy: tuning: 1 runs to make, 1 already there" in err
    until_gone(worker)
    assert 5 <= rounds_in(third) < ROUNDS

    summary = carry_on(display := Notes())
    assert display.stages == [("tuning", 0), ("final", 2)]
    assert (summary["runs"], summary["runs_made"]) == (4, 2)
    for folder, seed, rate in ((FOLDERS[0], 0, 1e-3), (FOLDERS[2], 1, summary["tables"]["table"][0]["rate"])):
        with threads(cores()):  # as many as a single worker has: they are on the ledger
            session.start(job("", ROUNDS, seed, rate).recipe, tmp_path / folder, Environment(), Silent())
        assert head(tmp_path / folder) == head(out / "runs" / folder), "as if nobody had disturbed it"


def test_ctrl_c_on_the_command_line(fedzero, tmp_path, monkeypatch):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedzero_papers.experiments.e9.shares", stop)
    outcome = fedzero("reproduce", "e9", "--out", tmp_path)
    assert outcome.code == 130
    assert "the same command resumes it" in outcome.err


def until_gone(pid: int) -> None:
    deadline = time.monotonic() + 300
    while Path(f"/proc/{pid}").exists() and "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text():
        assert time.monotonic() < deadline, "an orphan stays"
        time.sleep(0.01)


def head(folder: Path) -> bytes:
    ledger = Ledger.open(folder / "ledger.db")
    try:
        return ledger.head
    finally:
        ledger.close()


def test_two_workers_on_two_cores_have_a_thread_each(tmp_path, monkeypatch):
    """Asked of the processes' environment: numerical libraries read it when they are loaded."""
    monkeypatch.setattr("fedzero_papers.experiments.pool.cores", lambda: 4)
    given = []

    class Fake:
        def __init__(self, threads: int):
            given.append(threads)
            raise KeyboardInterrupt

    monkeypatch.setattr("fedzero_papers.experiments.pool.Worker", Fake)
    for size in (1, 2, 3, 4, 9):
        with pytest.raises(KeyboardInterrupt), Pool(size, tmp_path, None) as pool:
            pool.run([(job("x", 1, 0, 1e-2), False)], lambda *_: None)
    assert given == [4, 2, 1, 1, 1]
    assert cores() >= 1


# ---- small pieces


def test_pace_weighs_runs_and_knows_what_comes():
    estimate = TimeEstimate(workers=2)
    small, large = (Job(name, job("x", 10, 0, 1e-2).recipe, cost) for name, cost in (("small", 10.0), ("large", 30.0)))
    estimate.stage([small, large], kept=3, ahead=(5, 60.0))
    assert (estimate.done_runs, estimate.all_runs) == (3, 10)
    assert estimate.seconds_left(0.0) == pytest.approx(50), "100 units, two workers, nothing measured yet"
    estimate.note(large, Progress(done=5, rounds=10, begun=5), now=100.0)
    estimate.note(large, Progress(done=8, rounds=10, begun=5), now=110.0)  # half of it was there: 9 units so far
    estimate.note(small, Progress(done=5, rounds=10, begun=0), now=111.0)  # 5 units
    assert estimate.seconds_left(128.0) == pytest.approx((6 + 5 + 60) * 28 / 14)
    estimate.note(small, Done(), now=140.0)
    estimate.note(large, Done(), now=150.0)
    assert estimate.seconds_left(150.0) == pytest.approx(60 * 50 / 25)
    assert estimate.share() == pytest.approx(25 / 85)
    assert (estimate.done_runs, estimate.all_runs) == (5, 10)


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        (None, ["rcv1-iid", "rcv1-shards", "mnist-iid"]),
        ("rcv1", ["rcv1-iid", "rcv1-shards"]),
        ("*-iid", ["rcv1-iid", "mnist-iid"]),
        ("mnist, *-shards", ["rcv1-shards", "mnist-iid"]),
    ],
)
def test_only(only, expected):
    assert Options(only=only).chosen(["rcv1-iid", "rcv1-shards", "mnist-iid"]) == expected


def test_only_nothing_is_refused():
    with pytest.raises(FedzeroError, match=r"--only xyz: no part of that name; there are a, b"):
        Options(only="a,xyz").chosen(["a", "b"])


# ---- the command


def test_the_list(fedzero):
    outcome = fedzero("reproduce")
    assert outcome.code == 0
    for each in EXPERIMENTS.values():
        assert each.name in outcome.out
        assert each.about in outcome.out
        assert all(time in outcome.out for time in each.times)


def test_an_unknown_experiment_is_refused_with_the_list(fedzero):
    fedzero("reproduce", "e99").refused("e99", "no such experiment", *EXPERIMENTS)


def test_bad_data_folder(fedzero, tmp_path):
    fedzero("reproduce", "e9", "--data", tmp_path / "nowhere").refused("--data", "no such folder")


@pytest.mark.parametrize("name", [name for name, each in EXPERIMENTS.items() if each.needs_data])
def test_full_experiments_ask_for_their_data_at_once(fedzero, tmp_path, name):
    fedzero("reproduce", name, "--out", tmp_path).refused("--data", "--quick")


def test_help_teaches(fedzero):
    text = " ".join(fedzero("reproduce", "--help").out.split())
    for word in ("--quick", "--out", "--data", "--seeds", "--jobs", "--only", "--json", "resumes it", "Example"):
        assert word in text


def test_default_folder():
    assert default_folder("e8", quick=True) == Path("runs/reproduce/e8-quick")
    assert default_folder("e8", quick=False) == Path("runs/reproduce/e8")
