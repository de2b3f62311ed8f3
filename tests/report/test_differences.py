"""Runs are told apart by what differs in their recipes; those that differ in their seed alone are one mean."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_pictures import Quiet
from test_report_page import DENSE, SEEDED, data_of, read

from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.report import History, Point
from fedzero.report.differences import differences, mean_of, merged, title_of, told_apart
from fedzero.report.page import page
from fedzero.results.history import history
from fedzero.runs import session


def run(recipe: str = "", **settings: str) -> History:
    keys = {key.replace("__", "."): value for key, value in settings.items()}
    return replace(SEEDED, settings={"rounds": "300", "seed": "1", "name": "x"} | keys, recipe=recipe)


def names(runs: list[History]) -> list[str]:
    return [h.name for h in told_apart(merged(runs))]


def test_names_say_what_differs() -> None:
    runs = [run(algorithm__directions=p) for p in ("5", "20", "50")]
    assert names(runs) == [f"DeComFL (directions {p})" for p in (5, 20, 50)]
    assert title_of(runs) == "DeComFL: directions 5 against directions 20 against directions 50"
    assert title_of([*runs, DENSE]) == "4 runs" and title_of([SEEDED, DENSE]) == "DeComFL against FedAvg"
    assert names([runs[0], DENSE]) == ["DeComFL", "FedAvg"]


def test_names_have_no_more_settings_than_they_need() -> None:
    runs = [run(algorithm__directions="5", rounds="100"), run(algorithm__directions="20", rounds="400")]
    assert names(runs) == ["DeComFL (directions 5)", "DeComFL (directions 20)"]
    third = run(algorithm__directions="20", rounds="100")
    assert names([*runs, third])[1:] == ["DeComFL (directions 20, rounds 400)", "DeComFL (directions 20, rounds 100)"]


def test_runs_that_nothing_else_tells_apart_have_the_names_of_their_folders() -> None:
    runs = [replace(run(), folder=folder) for folder in ("/x/a/run", "/x/b/run", "/y/b/run", "/x/a/run")]
    assert [h.name for h in told_apart(runs)] == [
        "DeComFL (x/a/run)", "DeComFL (x/b/run)", "DeComFL (y/b/run)", "DeComFL (x/a/run) (2)",
    ]  # fmt: skip
    assert names([runs[0]]) == ["DeComFL"] and names([runs[0], DENSE]) == ["DeComFL", "FedAvg"]
    again = [replace(run(seed=seed), folder=folder) for seed, folder in (("1", "/x/a"), ("2", "/x/b"), ("1", "/x/c"))]
    assert [h.name for h in told_apart(again)] == ["DeComFL (seed 1, a)", "DeComFL (seed 2)", "DeComFL (seed 1, c)"]


def test_every_run_of_a_comparison_has_a_heading_of_its_own(
    fedzero: Callable[..., Any], tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {"north": (1, 3), "south": (1, 3), "east": (2, 3), "west": (1, 4), "up": (1, 4)}
    for folder, (seed, directions) in runs.items():
        options = ["--seed", seed, "--set", f"algorithm.directions={directions}", "--rounds", 2]
        assert fedzero("run", tiny, "--out", tmp_path / folder, *options).code == 0
    done = fedzero("report", *(tmp_path / folder for folder in runs), "--out", tmp_path / "all.html")
    heading = done.out.partition("method")[0]
    wide = ["tiny (directions 3, seed 1, north)", "tiny (directions 3, seed 1, south)", "tiny (directions 3, seed 2)",
            "tiny (directions 4, seed 1, west)", "tiny (directions 4, seed 1, up)"]  # fmt: skip
    assert sorted(heading.split()) == sorted(" ".join(wide).split())
    found = [h.name for h in told_apart([history(tmp_path / folder) for folder in runs])]
    assert found == wide
    text = (tmp_path / "all.html").read_text("utf-8")
    assert all(f'<td data-label="run">{name}</td>' in text for name in wide[3:])


def test_a_setting_that_somebody_chose_comes_first() -> None:
    chosen = "[algorithm]\nradius = 0.1\n"
    runs = [
        run(chosen, algorithm__beta="1", algorithm__radius="0.1"),
        run(algorithm__beta="2", algorithm__radius="0.2"),
    ]
    assert names(runs) == ["DeComFL (radius 0.1)", "DeComFL (radius 0.2)"]


def test_the_table_has_every_difference_and_no_words() -> None:
    a = run(name="a", title="A", algorithm__rate="0.1", task__kind="mnist", algorithm__only="7")
    b = run("[algorithm]\nmine = 3\n", name="b", algorithm__rate="0.2", task__kind="mnist", algorithm__mine="3")
    found = {d.setting: d.values for d in differences([a, b])}
    # `only` has its default value, and the other method has no such setting: it says nothing
    assert found == {"algorithm.rate": ("0.1", "0.2"), "algorithm.mine": (None, "3")}


@pytest.mark.parametrize("count", [2, 5])
def test_runs_of_several_seeds_are_a_mean_with_its_standard_error(count: int) -> None:
    rng = np.random.default_rng(count)
    table = rng.normal(0.5, 0.1, (count, 4))
    runs = [
        replace(
            run(seed=str(seed)),
            points=tuple(Point(k, 2 - v, v, 10.0 * k, 0.0, 100 * k, seconds=seed + k) for k, v in enumerate(values)),
        )
        for seed, values in enumerate(table)
    ]
    (mean,) = merged(runs)
    assert mean.runs == count
    np.testing.assert_allclose([p.accuracy for p in mean.points], table.mean(0))
    wanted = table.std(0, ddof=1) / np.sqrt(count)
    np.testing.assert_allclose([p.errors["accuracy"] for p in mean.points], wanted)
    np.testing.assert_allclose([p.errors["loss"] for p in mean.points], wanted)
    text = page(runs, "Seeds")
    (curve,) = data_of(text)["curves"]
    np.testing.assert_allclose(curve["metrics"]["accuracy"]["error"], wanted, rtol=1e-5)
    assert curve["name"] == f"DeComFL (mean of {count} seeds)"
    words = "".join(read(text).words)
    assert f"± {100 * wanted[-1]:.1f} %" in words and "The single runs" in words
    assert len(re.findall(r"<summary>Recipe of", text)) == count


def test_a_mean_is_over_the_rounds_that_all_have() -> None:
    short = replace(run(seed="2"), points=SEEDED.points[:5])
    assert [p.round for p in mean_of([run(), short]).points] == [p.round for p in SEEDED.points[:5]]
    assert len(merged([run(), replace(run(seed="2"), points=())])) == 2  # nothing in common


def test_the_same_seed_twice_is_no_second_sample() -> None:
    assert len(merged([run(), run()])) == 2


def test_settings_of_real_runs(tmp_path: Path) -> None:
    """From recipes to labels: two runs that differ in one key, and a seed."""
    table = {
        "name": "q", "rounds": 4, "evaluate_every": 2, "algorithm": {"kind": "decomfl", "rate": 0.01, "directions": 2},
        "task": {"kind": "quadratic", "dimension": 8}, "federation": {"clients": 2, "cohort": 2},
    }  # fmt: skip
    for folder, change in {
        "a": {},
        "b": {"seed": 3},
        "c": {"algorithm": table["algorithm"] | {"directions": 4}},
    }.items():
        session.start(recipes.decode(table | change), tmp_path / folder, Environment(), Quiet())
    runs = [history(tmp_path / folder) for folder in "abc"]
    assert names(runs) == ["q (directions 2, mean of 2 seeds)", "q (directions 4)"]
    assert [d.setting for d in differences(merged(runs))] == ["algorithm.directions", "seed"]
    assert not runs[0].gradients and runs[0].planned == 4
    assert [r for r, _ in runs[0].slopes] == [0, 1, 2, 3] and all(s > 0 for _, s in runs[0].slopes)
    assert [(p.name, p.turns, p.answered, p.refused) for p in runs[0].parties] == [
        ("client 0", 4, 3, 0),
        ("client 1", 4, 3, 0),
    ]
