"""The page as a reader has it: charts, cursor, legend, axes, downloads, keys, a screen reader's view, a live run."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
from test_differences import run as seeded_run
from test_report_page import CASES, DENSE, HOSTILE, SEEDED, history

from fedzero.recipe import recipe as recipes
from fedzero.report import History, Point, write
from fedzero.report.history import Found, Party, Slice
from fedzero.report.page import Mode, page
from fedzero.web import serving

TIMED = replace(SEEDED, points=tuple(replace(p, seconds=p.round / 10) for p in SEEDED.points))
GRADIENTS = replace(DENSE, gradients=True, points=tuple(replace(p, seconds=p.round / 100) for p in DENSE.points))
BOX = replace(
    SEEDED,
    name="Boxes",
    points=tuple(Point(k, 5.0 / (k + 1), None, 9.0 * k, 9.0 * k, 40 * k) for k in range(9)),
    train_loss=(),
    found=Found(
        x=(0.5, -1.25),
        values=(0.5, 0.7),
        by_party=tuple((k, (5.0 / (k + 1), 6.0 / (k + 1))) for k in range(0, 9, 2)),
        surrogate=(Slice(0, (0.0, 0.5, 1.0), (0.9, 0.6, 0.8), (0.2, 0.0, 0.1)),),
        queried=80,
    ),
)


class Opened:
    """A page in a tab that may ask nobody but its own server; errors of its script fail the test."""

    def __init__(self, browser: Any, address: str, width: int = 1180, scheme: str = "light"):
        self.errors: list[str] = []
        self.asked: list[str] = []
        self.tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.tab.on("pageerror", lambda error: self.errors.append(str(error)))
        self.tab.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        self.tab.on("dialog", lambda dialog: self.errors.append(f"a dialog: {dialog.message}"))
        self.tab.on("request", lambda request: self.asked.append(request.url))
        self.tab.goto(address)
        self.tab.wait_for_selector("#large svg")

    def close(self) -> None:
        self.tab.close()
        assert self.errors == []


@pytest.fixture
def opened(chromium: Any, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    pages: list[Opened] = []

    def show(runs: list[History], **how: Any) -> Opened:
        file = write(runs, tmp_path / f"page{len(pages)}.html")
        pages.append(Opened(chromium, file.as_uri(), **how))
        assert pages[-1].asked == [file.as_uri()]  # one file, and nothing else
        return pages[-1]

    yield show
    for each in pages:
        each.close()


def lines(tab: Any) -> int:
    return tab.locator("#large path.line").count()


def test_hover_legend_and_axes(opened: Callable[..., Opened]) -> None:
    tab = opened([TIMED, GRADIENTS]).tab
    assert lines(tab) == 2 and tab.locator("#small svg").count() == 6
    assert "times the bytes" in tab.locator("#large").text_content()
    box = tab.locator("#large svg").bounding_box()
    tab.locator("#large").hover(position={"x": box["width"] / 3, "y": 150})
    values = tab.locator("#large .values")
    assert values.is_visible() and "DeComFL" in values.text_content() and "%" in values.text_content()
    tab.get_by_role("button", name="FedAvg").click()
    assert lines(tab) == 1 and tab.get_by_role("button", name="FedAvg").get_attribute("aria-pressed") == "false"
    tab.get_by_role("button", name="FedAvg").click()
    assert lines(tab) == 2
    for axis, words in {"Rounds": "rounds", "Time": "time", "Loss evaluations or gradients": "gradients"}.items():
        tab.get_by_label(axis, exact=True).check()
        assert words in tab.locator("#large").get_attribute("aria-label")
    drawn = tab.locator("#large path.line").first.get_attribute("d")
    tab.get_by_label("Loss", exact=True).check()
    tab.get_by_label("upward").check()
    assert tab.locator("#large path.line").first.get_attribute("d") != drawn
    assert "Loss against" in tab.locator("#large").get_attribute("aria-label")


def test_the_cursor_reads_the_values_that_are_in_the_data(opened: Callable[..., Opened]) -> None:
    """By keys, point by point, and as a screen reader hears it."""
    tab = opened([TIMED]).tab
    tab.get_by_label("Rounds", exact=True).check()
    tab.locator("#large").focus()
    for key, at in (("Home", 0), ("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", -1)):
        tab.keyboard.press(key)
        point = TIMED.points[at]
        spoken = tab.locator("#large .spoken").text_content()
        assert spoken.startswith(f"{point.round} rounds"), (key, spoken)
        assert f"{100 * point.accuracy:.4g} %" in spoken
    tab.keyboard.press("Escape")
    assert not tab.locator("#large .values").is_visible()


def test_the_cursor_gives_nobody_a_value_of_later(opened: Callable[..., Opened]) -> None:
    """Where a run was not evaluated, its last value before is shown, with its place; none before its first."""
    often = replace(TIMED, points=tuple(Point(k, 2.0 - k / 100, k / 100, 9.0 * k, 0.0, k) for k in range(50)))
    rare = replace(GRADIENTS, points=tuple(Point(k, 2.0, 0.5 + k / 1000, 9.0 * k, 0.0, k) for k in (10, 40, 300)))
    tab = opened([often, rare]).tab
    tab.get_by_label("Rounds", exact=True).check()
    tab.locator("#large").focus()
    for rounds, words in ((5, None), (25, "51 % at 10"), (40, "54 %")):
        tab.keyboard.press("Home")
        for _ in range(rounds):
            tab.keyboard.press("ArrowRight")
        spoken = tab.locator("#large .spoken").text_content()
        assert spoken.startswith(f"{rounds} rounds")
        assert ("FedAvg" in spoken) == (words is not None) and (words or "") in spoken


def test_files_of_the_page(opened: Callable[..., Opened], tmp_path: Path) -> None:
    table = {
        "name": "again", "rounds": 3, "algorithm": {"kind": "decomfl", "rate": 0.01},
        "task": {"kind": "quadratic", "dimension": 8}, "federation": {"clients": 2, "cohort": 2},
    }  # fmt: skip
    recipe = recipes.decode(table)
    hostile = replace(TIMED, name='=cmd("x"),1', recipe=recipes.to_toml(recipe))
    tab = opened([hostile, DENSE]).tab

    def saved(name: str) -> Path:
        with tab.expect_download() as waiting:
            tab.get_by_role("button", name=name).first.click()
        target = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(target)
        return target

    rows = list(csv.DictReader(saved("Curves as CSV").read_text("utf-8").splitlines()))
    mine = [row for row in rows if row["run"] == '\'=cmd("x"),1' and row["metric"] == "accuracy"]  # no formula
    assert [float(row["value"]) for row in mine] == pytest.approx([p.accuracy for p in TIMED.points], rel=1e-5)
    assert [float(row["seconds"]) for row in mine] == pytest.approx([p.seconds for p in TIMED.points], rel=1e-5)
    curves = json.loads(saved("Curves as JSON").read_text("utf-8"))
    assert curves[1]["metrics"]["loss"]["rounds"] == [p.round for p in DENSE.points]
    table_rows = list(csv.reader(saved("Table as CSV").read_text("utf-8").splitlines()))
    assert [row[0] for row in table_rows] == ["run", '\'=cmd("x"),1', "FedAvg"]
    tab.locator("summary", has_text="Recipe of").first.click()
    assert recipes.load(saved("Save ")) == recipe


def test_what_a_ledger_says_is_never_markup(opened: Callable[..., Opened]) -> None:
    party = Party("<img src=x onerror=alert(1)>", 1, 1, 1, 1e300, 1, "<script>alert(1)</script>")
    tab = opened([replace(HOSTILE, parties=(party,), refusals=(("<b>x</b>", 9),)), DENSE]).tab
    assert tab.locator("img, iframe, main script, b b").count() == 0
    tab.locator("#large").hover(position={"x": 300, "y": 150})
    tab.keyboard.press("Tab")
    assert "<script>" in tab.locator(".legend").text_content()  # its name, as text


def test_seeds_are_a_band_and_black_boxes_have_their_charts(opened: Callable[..., Opened]) -> None:
    shifted = replace(seeded_run(seed="2"), points=history(end=0.8).points)
    tab = opened([seeded_run(), shifted]).tab
    assert tab.locator("#large path.band").count() == 1
    boxes = opened([BOX]).tab
    assert boxes.locator("#parts svg").count() == 2 and boxes.locator("#parts path.band").count() == 1
    assert "party 1" in boxes.locator("#parts").text_content()


@pytest.mark.parametrize("case", ["no points", "nothing counted", "diverged", "never finite", "extremes", "nonsense"])
def test_odd_runs_are_drawn_without_an_error(opened: Callable[..., Opened], case: str) -> None:
    tab = opened(list(CASES[case])).tab
    tab.locator("#large").hover(position={"x": 200, "y": 100})
    for label in tab.locator("#controls label:visible").all():
        label.click()


@pytest.mark.parametrize("width", [1180, 390])
def test_headings_sort_the_runs(opened: Callable[..., Opened], width: int) -> None:
    """By the numbers behind the cells, with the mouse or a key; what a run does not have is last either way."""
    sizes = [(100, 3.0), (3, 20.0), (20, 1.0)]
    runs = [
        replace(SEEDED, name=f"rate {rate}", points=tuple(replace(p, loss=p.loss * loss) for p in SEEDED.points))
        for rate, loss in sizes
    ]
    silent = replace(SEEDED, name="just begun", points=(), train_loss=())
    tab = opened([*runs, silent, replace(DENSE, name="whole")], width=width).tab

    def names() -> list[str]:
        return [each.split("\n")[-1] for each in tab.locator("#totals tbody tr td:first-child").all_inner_texts()]

    def headed(text: str) -> Any:
        return tab.locator("#totals th").filter(has_text=re.compile(f"^{text}$"))

    as_they_came = names()
    assert as_they_came == ["rate 100", "rate 3", "rate 20", "just begun", "whole"]
    headed("loss").get_by_role("button").click()
    upward = names()
    assert headed("loss").get_attribute("aria-sort") == "ascending" and upward[-1] == "just begun"
    assert [name for name in upward if name.startswith("rate")] == ["rate 20", "rate 100", "rate 3"]
    tab.keyboard.press("Enter")
    assert headed("loss").get_attribute("aria-sort") == "descending"
    assert names() == [*reversed(upward[:-1]), "just begun"]
    tab.keyboard.press("Space")
    assert names() == as_they_came and headed("loss").get_attribute("aria-sort") is None
    headed("run").get_by_role("button").click()
    assert names() == ["just begun", "rate 3", "rate 20", "rate 100", "whole"]
    tab.locator("#filter").fill("rate")
    shown = tab.locator("#totals tbody tr:visible td:first-child").all_inner_texts()
    assert [each.split("\n")[-1] for each in shown] == ["rate 3", "rate 20", "rate 100"]


@pytest.mark.parametrize(
    ("width", "scheme"), [pytest.param(1180, "light", marks=pytest.mark.slow), (1180, "dark"), (390, "light")]
)
def test_no_serious_finding_of_axe(opened: Callable[..., Opened], width: int, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")
    party = Party("north", 3, 9, 8, 1.7e9, 1, "sent NaN")
    for runs in ([replace(TIMED, events=("a", "b"), parties=(party,)), GRADIENTS], [BOX]):
        page = opened(runs, width=width, scheme=scheme)
        assert page.tab.evaluate("document.documentElement.scrollWidth") <= width  # nothing to scroll sideways
        page.tab.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
        found = axe.Axe().run(page.tab).response["violations"]
        serious = [(v["id"], [n["html"] for n in v["nodes"]]) for v in found if v["impact"] in ("serious", "critical")]
        assert serious == []


def test_an_update_leaves_the_runs_sorted_and_the_key_where_it_was(chromium: Any) -> None:
    def told(rounds: int, mode: Mode) -> str:
        runs = [replace(SEEDED, name=name, points=SEEDED.points[:rounds]) for name in ("c", "a", "b")]
        return page(runs, "runs", mode)

    tab, updates = chromium.new_page(), [f"data: {json.dumps(told(5, 'update'))}\n\n"]
    waiting: list[Any] = []
    tab.route("http://runs/", lambda route: route.fulfill(body=told(3, "live"), content_type="text/html"))
    tab.route("http://runs/events", lambda route: waiting.append(route))
    tab.goto("http://runs/")
    heading = tab.locator("#totals .sort").filter(has_text="run").first
    heading.click()
    names, loss = "#totals tbody td:first-child", "#totals tbody tr:first-child td:nth-child(4)"
    assert tab.locator(names).all_inner_texts() == ["a", "b", "c"]
    before = tab.locator(loss).inner_text()
    waiting[0].fulfill(body=updates[0], content_type="text/event-stream")
    tab.wait_for_function("([place, before]) => document.querySelector(place).innerText !== before", arg=[loss, before])
    assert tab.locator(names).all_inner_texts() == ["a", "b", "c"]
    assert heading.evaluate("each => each === document.activeElement")
    tab.close()


@pytest.mark.slow
def test_a_live_page_survives_the_end_and_the_restart_of_its_run(chromium: Any, tmp_path: Path) -> None:
    """A real process, killed and resumed; the reader's axis stays what it was."""
    pytest.importorskip("uvicorn")
    recipe = tmp_path / "slow.toml"
    recipe.write_text(
        'name = "slow"\nrounds = 100000\nevaluate_every = 20\n[algorithm]\nkind = "decomfl"\nrate = 1e-4\n'
        '[task]\nkind = "quadratic"\ndimension = 2000\n[federation]\nclients = 4\ncohort = 4\n',
        "utf-8",
    )
    folder, environment = tmp_path / "run", {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "fedzero"]
    with serving(folder, "127.0.0.1:0") as address:
        first = subprocess.Popen(
            [*command, "run", str(recipe), "--out", str(folder)], env=environment, stderr=subprocess.DEVNULL
        )
        try:
            wait_for(lambda: (folder / "ledger.db").exists())
            page = Opened(chromium, address)
            tab = page.tab
            tab.get_by_label("Rounds", exact=True).check()
            tab.wait_for_function("page => Number(document.querySelector('progress').value) > 20", timeout=30_000)
        finally:
            first.send_signal(signal.SIGKILL)
            first.wait()
        stood = rounds_on(tab)
        second = subprocess.Popen([*command, "resume", str(folder)], env=environment, stderr=subprocess.DEVNULL)
        try:
            tab.wait_for_function(f"() => Number(document.querySelector('progress').value) > {stood}", timeout=30_000)
        finally:
            second.send_signal(signal.SIGKILL)
            second.wait()
        assert tab.locator("#connection").text_content() == "live"
        assert "rounds" in tab.locator("#large").get_attribute("aria-label")
        assert tab.locator("#large path.line").first.get_attribute("d").count("L") >= 1
        page.close()


def rounds_on(tab: Any) -> int:
    return int(tab.locator("progress").get_attribute("value"))


def wait_for(done: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "nothing came"
        time.sleep(0.05)
