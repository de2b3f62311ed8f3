"""Loggers, the real ones: what they get, what they cannot do to a run, and who may name them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import logged_child
import msgspec
import pytest

import fedzero
from fedzero import loggers
from fedzero.errors import FedzeroError
from fedzero.ledger.folder import LEDGER
from fedzero.ledger.store import Ledger
from fedzero.loggers import reporter
from fedzero.loggers.reporter import Point, Written
from fedzero.recipe import recipe as recipes
from told import RECIPE, ROUNDS

TOML = """
name = "told"
rounds = 3
[algorithm]
kind = "decomfl"
rate = 0.01
[task]
kind = "quadratic"
dimension = 4
[federation]
clients = 3
cohort = 2
[report]
to = "tensorboard"
"""


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(reporter, "EVERY", 0.02)
    monkeypatch.chdir(tmp_path)


class PausesAfter:
    def __init__(self, rounds: int):
        self.rounds = rounds

    def round(self, result: Any) -> fedzero.Pause | None:
        return fedzero.Pause() if result.rounds == self.rounds else None


class Hearing:
    """A progress that keeps warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def phase(self, *_: object) -> None: ...

    begin = round = evaluation = end = phase


def run(folder: Path, to: Any = None, *callbacks: Any, progress: Any = False) -> fedzero.Run:
    return fedzero.run(RECIPE, out=folder, progress=progress, callbacks=callbacks, report_to=to)


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of the run without a logger."""
    return fedzero.run(RECIPE, out=tmp_path_factory.mktemp("plain"), progress=False).summary.ledger_head


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (place,) = (folder / "tensorboard").iterdir()
    found = EventAccumulator(str(place), purge_orphaned_data=False).Reload()
    return {tag: [(each.step, each.value) for each in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def steps(series: Sequence[tuple[int, float]]) -> list[int]:
    return [step for step, _ in series]


def test_tensorboard_has_what_the_run_has(tmp_path: Path, head: str) -> None:
    found = run(tmp_path / "run", "tensorboard")
    assert found.summary.ledger_head == head
    series, history = scalars(tmp_path / "run"), found.history
    assert steps(series["test/loss"]) == list(history["round"]) == [0, 3, 6, 9]
    assert [value for _, value in series["test/loss"]] == pytest.approx(history["loss"])
    with closing(Ledger.open(tmp_path / "run" / LEDGER)) as ledger:
        losses = [record.loss for record in ledger.rounds()]
    assert series["train/loss"] == [(n + 1, pytest.approx(loss)) for n, loss in enumerate(losses)]
    assert series["queries"][-1] == (ROUNDS, history["queries"][-1])
    assert [series[f"bytes/{way}"][-1][1] for way in ("up", "down")] == pytest.approx(
        [history[f"bytes_{way}"][-1] for way in ("up", "down")]
    )
    assert [value for _, value in series["seconds"]] == sorted(value for _, value in series["seconds"])


def test_a_resume_continues_the_series(tmp_path: Path, head: str) -> None:
    folder = tmp_path / "run"
    run(folder, None, PausesAfter(2))
    run(folder, "tensorboard", PausesAfter(4))  # what was made without it is filled in
    assert steps(scalars(folder)["queries"]) == [1, 2, 3, 4]
    run(folder, None, PausesAfter(6))
    names = [[*path.name.split(".")] for path in sorted((folder / "tensorboard").glob("*/*"))]
    assert names and len({name[3] for name in names}) == len(names), "files of one second have an order too"
    folder = folder.rename(tmp_path / "moved")
    assert fedzero.Run.open(folder).resume(progress=False, report_to=["tensorboard"]).summary.ledger_head == head
    assert steps(scalars(folder)["queries"]) == [*range(1, ROUNDS + 1)]
    assert steps(scalars(folder)["test/loss"]) == [0, 3, 6, 9]
    run(folder, "tensorboard")  # a finished run has no more points
    assert steps(scalars(folder)["queries"]) == [*range(1, ROUNDS + 1)]


def test_a_killed_process_loses_no_point(tmp_path: Path, head: str, warm_server: Any) -> None:
    child = warm_server.Process(target=logged_child.play, args=(RECIPE, str(tmp_path / "run")))
    child.start()
    child.join(60)
    assert child.exitcode == -9
    found = run(tmp_path / "run", "tensorboard")
    assert found.summary.ledger_head == head
    found.verify()
    assert steps(scalars(tmp_path / "run")["queries"]) == [*range(1, ROUNDS + 1)]


def test_a_full_disk_ends_the_logger_alone(tmp_path: Path, head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedzero.loggers import to_tensorboard

    opened = to_tensorboard.Sink.open

    def full(self: Any, *of: Any) -> Written:
        written = opened(self, *of)
        self._file.close()
        self._file = Path("/dev/full").open("wb")  # noqa: SIM115 - a real ENOSPC, in place of the file
        self._records._writer = self._file
        return written

    monkeypatch.setattr(to_tensorboard.Sink, "open", full)
    shown = Hearing()
    assert run(tmp_path / "run", "tensorboard", progress=shown).summary.ledger_head == head
    (warning,) = shown.warnings
    assert warning.startswith("tensorboard gets no more of this run, which goes on (OSError:") and "space" in warning


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A local store of MLflow, which takes seconds to make."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/ml.db"


def test_mlflow_on_a_local_store(tmp_path: Path, head: str, store: str) -> None:
    from mlflow import MlflowClient

    to = {"to": "mlflow", "uri": store, "project": "tests"}
    run(tmp_path / "run", to, PausesAfter(4))
    found = run(tmp_path / "run", to)
    assert found.summary.ledger_head == head
    client = MlflowClient(to["uri"])
    experiment = client.get_experiment_by_name("tests")
    assert experiment is not None
    (kept,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(kept.info.run_id, "queries")
    assert sorted(each.step for each in history) == [*range(1, ROUNDS + 1)]
    assert kept.data.metrics["test/loss"] == found.history["loss"][-1]
    assert (kept.data.params["algorithm.rate"], kept.info.run_name, kept.info.status) == ("0.01", "told", "FINISHED")
    assert [each.path for each in client.list_artifacts(kept.info.run_id)] == ["report.html"]


def records(file: Path) -> Iterator[Any]:
    """The records of a .wandb file: blocks of 32 KiB, in them pieces with a checksum, a length and a type."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole = data[at + 7 : at + 7 + size] if kind in (1, 2) else whole + data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            record = Record()
            record.ParseFromString(whole)
            yield record


def test_wandb_without_a_network(tmp_path: Path, head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    run(tmp_path / "run", "wandb", PausesAfter(4))
    found = run(tmp_path / "run", "wandb")
    assert found.summary.ledger_head == head
    seen, losses, config = list[int](), list[float](), {}
    for file in sorted((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"), key=os.path.getmtime):
        for record in records(file):
            config |= {item.key: item.value_json for item in record.run.config.update}
            items = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
            if "queries" in items:
                seen.append(record.history.step.num)
            losses += [float(items["test/loss"])] if "test/loss" in items else []
    assert seen == [*range(1, ROUNDS + 1)]
    assert losses == pytest.approx(list(found.history["loss"]))
    assert config["algorithm.rate"] == '"0.01"'
    assert [*(tmp_path / "run" / "wandb").glob("offline-run-*/files/report.html")]
    assert not [*(tmp_path / "run" / "wandb").glob("offline-run-*/files/requirements.txt")]


# -- the thread ----------------------------------------------------------------------------------------------------


class Slow:
    """A logger that writes nothing before it is let go."""

    def __init__(self) -> None:
        self.go, self.points = threading.Event(), list[Point]()

    def open(self, info: fedzero.callbacks.RunInfo, series: str) -> Written:
        self.go.wait()
        return Written()

    def write(self, points: Sequence[Point]) -> None:
        self.points += points

    def page(self, path: Path) -> None:
        assert path.stat().st_size

    def close(self, complete: bool) -> None: ...


def test_a_slow_logger_waits_for_nobody_and_loses_the_oldest(
    tmp_path: Path, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, shown = Slow(), Hearing()
    monkeypatch.setattr(reporter, "LONGEST", 4)
    monkeypatch.setattr(loggers, "_sink", lambda *_: sink)

    class LetsGo:
        def end(self, result: Any) -> None:
            sink.go.set()

    found = run(tmp_path / "run", "tensorboard", LetsGo(), progress=shown)
    assert found.summary.ledger_head == head
    assert [(point.step, point.evaluated) for point in sink.points] == [(7, False), (8, False), (9, False), (9, True)]
    assert shown.warnings == ["tensorboard was too slow: 9 points of rounds were left out"]


def test_a_logger_that_hangs_does_not_hold_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink, shown = Slow(), Hearing()
    monkeypatch.setattr(reporter, "PATIENCE", 0.05)
    monkeypatch.setattr(loggers, "_sink", lambda *_: sink)
    assert run(tmp_path / "run", "tensorboard", progress=shown).summary.complete
    assert shown.warnings == ["tensorboard has not finished after 0.05 s; its last points may be missing"]
    sink.go.set()


# -- who may name them ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["wandbe", 3, [], {"to": "tensorboard", "folders": "x"}])
def test_what_is_no_logger(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(FedzeroError, match="report_to"):
        run(tmp_path / "run", wrong)
    assert not (tmp_path / "run").exists()


def test_a_logger_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loggers, "find_spec", lambda name: None)
    with pytest.raises(FedzeroError, match=r"pip install 'fedzero\[mlflow\]'"):
        run(tmp_path / "run", "mlflow")
    assert not (tmp_path / "run").exists()


def test_a_table_of_a_recipe_is_never_recorded() -> None:
    plain, told = recipes.decode(dict(RECIPE)), recipes.decode(RECIPE | {"report": {"to": ["mlflow", "wandb"]}})
    assert told.report and told.report.loggers == ("mlflow", "wandb")
    assert recipes.canonical(told) == recipes.canonical(plain) and recipes.hash_of(told) == recipes.hash_of(plain)
    assert b"report" not in recipes.canonical(told)


@pytest.mark.parametrize("read", [recipes.from_canonical, recipes.received])
def test_that_of_somebody_else_is_refused(read: Any) -> None:
    table = msgspec.json.decode(recipes.canonical(recipes.decode(dict(RECIPE))))
    read(msgspec.json.encode(table))
    with pytest.raises(FedzeroError, match="names loggers"):
        read(msgspec.json.encode(table | {"report": {"to": "mlflow", "uri": "https://evil.example"}}))


def test_a_ledger_that_names_one_is_refused_by_all_that_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody writes what no release does."""
    real, told = recipes.canonical, []
    with monkeypatch.context() as patched:
        patched.setattr(
            recipes,
            "canonical",
            lambda recipe: msgspec.json.encode(msgspec.json.decode(real(recipe)) | {"report": {"to": "tensorboard"}}),
        )
        with pytest.raises(FedzeroError):  # its summary is not read either
            run(tmp_path / "run", None, PausesAfter(2))
    monkeypatch.setattr(loggers, "_sink", lambda *_: told.append("told"))
    theirs = fedzero.Run.open(tmp_path / "run")
    for read in (lambda: theirs.summary, lambda: theirs.resume(progress=False), theirs.verify, lambda: theirs.history):
        with pytest.raises(FedzeroError, match="names loggers"):
            read()
    assert not told


def test_a_recipe_that_the_user_runs_is_obeyed(fedzero: Any, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(TOML)
    assert fedzero("run", tmp_path / "x.toml", "--out", tmp_path / "run").code == 0
    assert steps(scalars(tmp_path / "run")["queries"]) == [1, 2, 3]
    plain = TOML.partition("[report]")[0]
    (tmp_path / "y.toml").write_text(plain)
    assert fedzero("run", tmp_path / "y.toml", "--out", tmp_path / "plain").code == 0
    assert not (tmp_path / "plain" / "tensorboard").exists()
    assert fedzero("resume", tmp_path / "plain", "--report-to", "tensorboard").code == 0
    assert steps(scalars(tmp_path / "plain")["queries"]) == [1, 2, 3]


def test_mlflow_takes_names_of_all_kinds(tmp_path: Path, store: str) -> None:
    from mlflow import MlflowClient

    from fedzero.loggers.to_mlflow import Sink
    from fedzero.recipe.report import Report

    run(tmp_path / "run")
    begun = list[Any]()
    run(tmp_path / "run", None, type("Keeps", (), {"begin": lambda self, info: begun.append(info)})())
    sink = Sink(Report(to="mlflow", uri=store, project="names"))
    sink.open(begun[0], "0123")
    sink.write([Point(3, 0.0, {"test/f1@5 (β)": 0.5, "test/loss": float("nan")}, True)])
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("names")
    assert experiment is not None
    (kept,) = client.search_runs([experiment.experiment_id])
    assert kept.data.metrics["test/f1_5 _β_"] == 0.5
