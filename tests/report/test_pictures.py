"""Pictures with the pixels on record, a grid that stands alone and survives anything; facts and measures."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from test_report_page import SEEDED, read

from fedzero.ledger.folder import LEDGER
from fedzero.ledger.records import Shown
from fedzero.ledger.store import Ledger
from fedzero.model.params import Params
from fedzero.oracles import Metrics, Pictures
from fedzero.recipe import recipe as recipes
from fedzero.recipe import setup
from fedzero.recipe.environment import Environment
from fedzero.report.page import page
from fedzero.report.pictures import images
from fedzero.results.history import history
from fedzero.runs import session
from fedzero.runs.progress import Silent
from fedzero.tasks.quadratic import QuadraticObjective

HOSTILE = '"><script>alert(1)</script>'


def grid(channels: int = 1, title: str = "Found", rows: tuple[str, ...] = ("before", "after")) -> Pictures:
    pixels = np.random.default_rng(channels).integers(0, 256, (len(rows), 3, 4, 5, channels), np.uint8)
    return Pictures(title, rows, ("a → b", "a → a", "<c>"), 4, 5, channels, pixels.tobytes())


def test_a_grid_of_more_pictures_than_anybody_looks_at_is_left_out():
    assert len(images(Pictures("t", ("a",) * 40, ("b",) * 50, 1, 1, 1, bytes(2000)))) == 40
    assert images(Pictures("t", ("a",) * 2001, ("b",), 1, 1, 1, bytes(2001))) == []
    assert images(Pictures("t", ("a",), ("b",), 10**9, 10**9, 1, b"\0")) == []
    assert images(Pictures("t", ("a",), ("b",), -1, -1, 1, b"\0")) == []


@pytest.mark.parametrize("channels", [1, 3])
def test_every_place_of_the_grid_has_its_picture(channels):
    shown = grid(channels)
    wanted = np.frombuffer(shown.pixels, np.uint8).reshape(2, 3, 4, 5, channels)
    sources = re.findall(r'<img alt="([^"]*)" src="data:image/png;base64,([^"]*)">', page([with_pictures(shown)], "x"))
    assert [words for words, _ in sources] == [
        f"{row}, {column}" for row in shown.rows for column in ("a → b", "a → a", "&lt;c&gt;")
    ]
    for (_, data), pixels in zip(sources, wanted.reshape(6, 4, 5, channels), strict=True):
        with Image.open(io.BytesIO(base64.b64decode(data))) as image:
            assert (image.format, image.size) == ("PNG", (5, 4))
            np.testing.assert_array_equal(np.asarray(image).reshape(pixels.shape), pixels)


def with_pictures(shown: Pictures, name: str = "Attack"):
    return replace(SEEDED, name=name, pictures=shown, facts={"victim": "a CNN, 91 %", "images": "200 of 5,000"})


def test_the_page_may_show_them_and_still_loads_nothing():
    text = page([with_pictures(grid(), HOSTILE)], "x")
    reader = read(text)
    for tag, attributes in reader.tags:
        assert tag not in {"link", "iframe", "object", "embed", "base", "form"}
        assert (attributes.get("src") or "data:image/png;base64,").startswith("data:image/png;base64,")
    (policy,) = [a["content"] for _, a in reader.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert "img-src data:;" in policy and "default-src 'none'" in policy
    assert "image-rendering: pixelated" in text
    assert text.count("<script") == 2
    assert page([with_pictures(grid(), HOSTILE)], "x") == text


def test_hostile_captions_are_only_text():
    shown = Pictures(HOSTILE, (HOSTILE,), (HOSTILE, "\x00\u202e"), 1, 1, 1, b"\x00\xff")
    text = page([with_pictures(shown)], "x")
    assert text.count("<script") == 2
    assert "\u202e" not in text
    assert len(re.findall("<img ", text)) == 2
    assert all(not name.startswith("on") for _, attributes in read(text).tags for name in attributes)


@pytest.mark.parametrize(
    "changes", [{"height": 3}, {"width": 0}, {"channels": 2}, {"pixels": b""}, {"rows": ("one",)}, {"channels": -1}]
)
def test_pictures_that_do_not_fit_are_not_shown(changes):
    shown = grid()
    broken = Pictures(**{name: getattr(shown, name) for name in shown.__struct_fields__} | changes)
    assert images(broken) == []
    text = page([with_pictures(broken)], "x")
    assert "cannot be shown" in text
    assert "<img" not in text


def test_runs_are_named_where_there_are_several():
    text = page([with_pictures(grid(title="Seen"), "One"), with_pictures(grid(3), "Two"), SEEDED], "x")
    words = read(text).words
    assert "One: Seen" in words
    assert "Two: Found" in words
    assert len(re.findall("<figcaption>", text)) == 2
    assert "What came out" not in page([SEEDED], "x")


def test_facts_are_on_the_page_once():
    one, two = with_pictures(grid(), "One"), with_pictures(grid(), "Two")
    text = page([one, two], "x")
    assert text.count("<dt>victim</dt><dd>a CNN, 91 %</dd>") == 1
    other = replace(two, facts={"victim": "<b>another</b>"})
    text = page([one, other, replace(one, name="Three")], "x")
    assert text.count("a CNN, 91 %") == 1
    assert "<dt>victim</dt><dd>&lt;b&gt;another&lt;/b&gt;</dd>" in text
    assert "One, Three" in read(text).words
    assert "What the runs began with" not in page([SEEDED], "x")


def test_what_else_was_measured_is_on_the_page():
    def measuring(**others: float):
        last = replace(SEEDED.points[-1], others=others)
        return replace(SEEDED, points=(*SEEDED.points[:-1], last))

    text = page([measuring(success=0.625, distortion=1.5), replace(measuring(success=0.5), name="Two")], "x")
    cells = re.findall(r'<td data-label="(success|distortion)" class="number">([^<]*)</td>', text)
    assert cells == [("success", "0.6250"), ("distortion", "1.500"), ("success", "0.5000"), ("distortion", "–")]
    assert "What else was measured" not in page([SEEDED], "x")


class Quiet(Silent):
    pass


class Seen(QuadraticObjective):
    """A quadratic that can be seen, and measures something else."""

    def evaluate(self, params: Params) -> Metrics:
        return Metrics(super().evaluate(params).loss, others={"size": float(params.size)})

    def pictures(self, params: Params) -> Pictures:
        return grid()


def test_a_history_has_what_the_ledger_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Pictures, facts and other metrics on their way from an objective to the report."""
    prepare = setup.prepare

    def prepared(recipe: recipes.Recipe, environment: Environment, *more: Any) -> setup.Setup:
        setup = prepare(recipe, environment, *more)
        plain = setup.problem.objective
        assert isinstance(plain, QuadraticObjective)
        seen = Seen(plain.curvature, plain.optimum[None])
        return replace(
            setup, problem=replace(setup.problem, objective=seen, pictures=seen.pictures, facts={"victim": "none"})
        )

    monkeypatch.setattr(session, "prepare", prepared)
    table = {
        "name": "tiny", "rounds": 2, "evaluate_every": 1, "algorithm": {"kind": "decomfl", "rate": 0.01},
        "task": {"kind": "quadratic", "dimension": 8}, "federation": {"clients": 2, "cohort": 1},
    }  # fmt: skip
    session.start(recipes.decode(table), tmp_path / "run", Environment(), Quiet())
    found = history(tmp_path / "run")
    assert found.pictures == grid()
    assert found.facts == {"victim": "none"}
    assert [p.others for p in found.points] == [{"size": 8.0}] * 3
    ledger = Ledger.open(tmp_path / "run" / LEDGER)
    assert sum(isinstance(entry.record, Shown) for entry in ledger.entries()) == 1
    ledger.close()
