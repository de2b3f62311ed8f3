"""What the page prints under "To repeat it" is a recipe that `fedzero run` reads, and that gives the same run."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path

import pytest
from test_pictures import Quiet
from test_report_page import SEEDED

from fedzero import plugins
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.recipe import Recipe
from fedzero.report.page import page
from fedzero.results.history import history
from fedzero.runs import session

QUADRATIC = {"kind": "quadratic", "dimension": 8}
TWO = {"clients": 2, "cohort": 2}
WRITTEN = {
    "filters": {
        "name": "links", "rounds": 3, "task": QUADRATIC, "federation": {"clients": 5, "cohort": 5},
        "algorithm": {"kind": "decomfl", "rate": 0.01, "directions": 3},
        "filters": [{"kind": "clip", "norm": 2.0}, {"kind": "quantise"}, {"kind": "trimmed-mean", "fraction": 0.3}],
    },
    "schedules": {
        "name": "schedules", "rounds": 40, "task": QUADRATIC, "federation": TWO,
        "algorithm": {"kind": "decomfl", "rate": {"kind": "piecewise", "points": [[0, 0.0], [10, 1e-2], [40, 1e-3]]},
                      "directions": {"start": 2, "then": [[10, 4], [20, 8]]}},
    },
    "black box": {
        "name": "box", "rounds": 2, "federation": TWO, "algorithm": {"kind": "fedzo", "rate": 0.01},
        "task": {"kind": "black-box", "dimension": 3, "low": [-1.0, 0.0, -2.5], "high": 3.0, "timeout": 2.5,
                 "boxes": [{"kind": "python", "name": "mine"},
                           {"kind": "command", "argv": ["./score", "--at", "{x}"]}]},
    },
    "odd text": {
        "name": "odd", "title": 'tab\t "quoted" \\ </pre><script>', "about": "rlo \u202e, nbsp \u00a0, \x00\r\n, 🦊",
        "rounds": 1, "task": QUADRATIC, "federation": TWO, "algorithm": {"kind": "fedzo", "rate": 1e-300},
    },
}  # fmt: skip


def printed(text: str) -> list[str]:
    """The recipes of a page, as a browser shows them."""
    return [html.unescape(found) for found in re.findall(r"<pre[^>]*>(.*?)</pre>", text, re.DOTALL)]


def all_recipes() -> dict[str, Recipe]:
    packaged = {name: recipes.load(path) for name, path in plugins.recipes().items()}
    return packaged | {name: recipes.decode(table) for name, table in WRITTEN.items()}


def test_every_recipe_on_a_page_decodes_to_itself(tmp_path: Path) -> None:
    known = all_recipes()
    runs = [
        replace(SEEDED, name=name, points=(), train_loss=(), recipe=recipes.to_toml(recipe))
        for name, recipe in known.items()
    ]
    file = tmp_path / "again.toml"
    for (name, recipe), text in zip(known.items(), printed(page(runs, "All")), strict=True):
        file.write_text(text, "utf-8")
        assert recipes.load(file) == recipe, name


@pytest.mark.parametrize("case", ["filters", "schedules"])
def test_a_printed_recipe_repeats_the_run(tmp_path: Path, case: str) -> None:
    summary = session.start(recipes.decode(WRITTEN[case]), tmp_path / "first", Environment(), Quiet())
    (text,) = printed(page([history(tmp_path / "first")], "First"))
    (tmp_path / "again.toml").write_text(text, "utf-8")
    again = session.start(recipes.load(tmp_path / "again.toml"), tmp_path / "again", Environment(), Quiet())
    assert (again.ledger_head, again.model_digest) == (summary.ledger_head, summary.model_digest)
