"""Pictures on the axes of matplotlib: what they show is what was measured."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from matplotlib import pyplot
from torch import nn

import fedzero
from fedzero.errors import FedzeroError
from fedzero.report.axes import new_axes


@pytest.fixture(autouse=True)
def without_windows() -> Iterator[None]:
    matplotlib.use("agg")
    yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[fedzero.Run]:
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    made = []
    for rate in (0.1, 0.2):
        torch.manual_seed(0)
        options = fedzero.RunOptions(
            rounds=4, evaluate_every=1, progress=False, out=tmp_path_factory.mktemp("run") / "r"
        )
        made.append(
            fedzero.train(
                nn.Linear(3, 4),
                (x, x.argmax(1)),
                loss=F.cross_entropy,
                metrics={"accuracy": fedzero.accuracy, "spread": lambda outputs, y: float(outputs.std())},
                method={"kind": "decomfl", "rate": rate, "directions": 3},
                partition="shards",
                count=4,
                validation=0.1,
                **options,
            )
        )
    return made


def test_a_run_and_others_are_drawn_on_axes(runs: list[fedzero.Run]) -> None:
    one = runs[0]
    ax = one.plot()
    (drawn,) = ax.lines
    np.testing.assert_array_equal(drawn.get_xydata(), np.stack([one.history["round"], one.history["accuracy"]], 1))
    _, mine = pyplot.subplots()
    assert one.plot(runs[1], metric="spread", axis="bytes", ax=mine) is mine and len(mine.lines) == 2
    both = [line.get_ydata() for line in mine.lines]
    for drawn, run in zip(both, runs, strict=True):
        np.testing.assert_array_equal(drawn, run.history["spread"][1:])  # no place on an axis of powers for 0 bytes
    labels = [text.get_text() for text in mine.get_legend().get_texts()]
    assert len(set(labels)) == 2 and mine.get_xscale() == "log"
    with pytest.raises(FedzeroError, match=r"metric = 'f1' was not measured: there are accuracy, loss, spread"):
        one.plot(metric="f1")
    with pytest.raises(FedzeroError, match="use one of rounds, bytes, queries"):
        one.plot(axis="seconds")  # type: ignore[arg-type]


def test_who_has_what(runs: list[fedzero.Run]) -> None:
    task = runs[0].environment.functions["Linear"]
    ax = runs[0].plot_clients()
    counts = ax.images[0].get_array()
    assert counts.shape == (4, 3) and counts.sum() == sum(map(len, task.clients)) == 36
    rows = task.clients[2].batch(np.arange(len(task.clients[2])), torch.device("cpu"))[1]
    np.testing.assert_array_equal(counts[2], torch.bincount(rows, minlength=3))
    with pytest.raises(FedzeroError, match="repeat the call that began the run"):
        fedzero.Run.open(runs[0].folder).plot_clients()


def test_who_has_what_of_a_recipe(tmp_path: Path) -> None:
    changes = {"algorithm.directions": 1, "federation.clients": 6, "federation.cohort": 2, "engine.merge": False}
    run = fedzero.run("demo", rounds=1, set=changes, out=tmp_path / "run", progress=False)
    counts = fedzero.Run.open(run.folder).plot_clients().images[0].get_array()
    assert counts.shape == (6, 10) and counts.sum() == 4000 and (counts.sum(0) == 400).all()


def test_black_boxes_have_a_history_and_slices() -> None:
    boxes = [lambda x: float(((x - 1) ** 2).sum()), lambda x: float(((x + 1) ** 2).sum() + x[2] ** 4)]
    result = fedzero.minimise(boxes, bounds=[(-3, 3)] * 3, rounds=6)
    ax = result.plot_history()
    exact = [(step.queries, step.value) for step in result.history if not step.estimated]
    drawn = [tuple(pair) for points in ax.collections for pair in points.get_offsets().tolist()]
    assert set(exact) <= set(drawn) and len(drawn) == len(result.history)
    assert len(result.plot_slice()) == 2
    (third,) = result.plot_slice([2])
    assert third.get_xlabel() == "x[2]" and [text.get_text() for text in third.get_legend().get_texts()][:2] == [
        "party 0",
        "party 1",
    ]
    for party, points in enumerate(third.collections[:2]):
        place, value = points.get_offsets()[0]
        assert -3 <= place <= 3 and value >= 0, party
    for odd in ([3], []):
        with pytest.raises(FedzeroError, match="give numbers from 0 to 2"):
            result.plot_slice(odd)
    with pytest.raises(FedzeroError, match="axes has 1 and there are 2"):
        result.plot_slice([0, 1], axs=new_axes())


def test_what_is_no_run_is_not_drawn(runs: list[fedzero.Run]) -> None:
    with pytest.raises(FedzeroError, match=r"'runs/a' is not a run: open it, fedzero.Run.open"):
        runs[0].plot("runs/a")  # type: ignore[arg-type]


def test_without_matplotlib_a_sentence_says_so(runs: list[fedzero.Run], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    monkeypatch.delattr(matplotlib, "pyplot", raising=False)
    with pytest.raises(FedzeroError, match="pictures need matplotlib, which cannot be imported"):
        runs[0].plot()
