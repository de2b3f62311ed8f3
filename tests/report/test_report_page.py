"""The page stands alone, survives odd runs and hostile names, and its one sentence is arithmetic."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
import subprocess
import sys
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from io import StringIO
from math import exp, inf, nan, sin
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedzero.errors import FedzeroError
from fedzero.report import History, Point, compare, human_bytes, rows, sentence, terminal_table, write
from fedzero.report.compare import met
from fedzero.report.curves import log_ticks, of_pairs
from fedzero.report.differences import told_apart
from fedzero.report.downsample import MOST
from fedzero.report.page import page, policy
from fedzero.report.tables import columns
from fedzero.report.units import human_count, human_loss, human_seconds, human_words, times

RECIPE = 'seed = 7\n\n[algorithm]\nname   = "decomfl"  # as in the paper\n\tdirections = 5\n'


def history(
    name: str = "DeComFL", up: float = 6.0, down: float = 50.0, rate: float = 60.0, end: float = 0.9
) -> History:
    """300 rounds, evaluated every ten; `up` and `down` are bytes per client and round."""
    learned = [(k, 1 - exp(-k / rate)) for k in range(0, 301, 10)]
    points = tuple(
        Point(k, 2.3 - 2 * done, 0.1 + (end - 0.1) * done, up * k, down * k, 1000 * k) for k, done in learned
    )
    train = tuple((k, 2.3 * exp(-k / rate) + 0.3) for k in range(1, 301))
    return History(
        name,
        name.lower(),
        "MNIST, CNN",
        28_938,
        100,
        10,
        300,
        points,
        train,
        41.3,
        "9f3a6c11d0e27b48",
        RECIPE,
        (),
        True,
    )


def with_points(run: History, *points: tuple[int, float, float | None, float]) -> History:
    """The same run with other points: (round, loss, accuracy, bytes up)."""
    return replace(run, points=tuple(Point(r, loss, acc, b, 0.0, 100 * r) for r, loss, acc, b in points))


SEEDED = history()
DENSE = history("FedAvg", up=11_575.0, down=11_575.0, rate=14.0, end=0.97)
HOSTILE_NAME = '</title><script>alert("x")</script> $\\frac{a} & \x00\x1b[31m\ud800\u202e 名前 🦊 style="fill:#0000f0"'
HOSTILE = replace(
    SEEDED,
    name=HOSTILE_NAME,
    algorithm='"><img src=x onerror=alert(1)>',
    task="<svg onload=alert(1)>",
    model_digest="<b>digest</b>",
    recipe='x = "</pre><script>alert(2)</script>"\n',
    events=("<iframe src='//example.org'>", "a\nb"),
    facts={"<img src=y>": "<img src=z>"},
    points=(*SEEDED.points[:-1], replace(SEEDED.points[-1], others={'"><img src=w>': 1.0})),
)


def unlearned(run: History) -> History:
    return replace(run, points=tuple(replace(p, accuracy=None) for p in run.points))


CASES: dict[str, Sequence[History]] = {
    "one run": [SEEDED],
    "two runs": [SEEDED, DENSE],
    "eight runs": [history(f"Run {i}", up=6.0 * 4**i, rate=30.0 + 9 * i) for i in range(8)],
    "hostile": [HOSTILE, DENSE],
    "no points": [replace(SEEDED, points=(), train_loss=(), rounds=0, complete=False, recipe="", model_digest="")],
    "start only": [replace(SEEDED, points=SEEDED.points[:1], train_loss=(), complete=False)],
    "single point": [replace(SEEDED, points=SEEDED.points[4:5]), DENSE],
    "no accuracy": [unlearned(SEEDED), unlearned(DENSE)],
    "accuracy here and there": [unlearned(SEEDED), DENSE],
    "nothing counted": [
        replace(SEEDED, points=tuple(replace(p, bytes_up=0.0, bytes_down=0.0, queries=0) for p in SEEDED.points))
    ],
    "diverged": [with_points(SEEDED, (0, 2.3, 0.1, 0), (10, 900.0, 0.1, 60), (20, inf, 0.1, 120), (30, nan, nan, 180))],
    "never finite": [with_points(SEEDED, (10, nan, nan, 60), (20, inf, None, 120)), DENSE],
    "extremes": [with_points(SEEDED, (1, 1e-320, 0.0, 1), (2, 1e29, 1.0, 1e16), (3, -1e300, 1.0, 1e17))],
    "nonsense": [replace(SEEDED, parameters=0, clients=0, cohort=0, name="", seconds=nan, train_loss=((1, nan),))],
}


@cache
def made(case: str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return page(CASES[case], f"Report: {case}")


@pytest.fixture(params=sorted(CASES))
def text(request: pytest.FixtureRequest) -> str:
    return made(request.param)


def drawings(text: str) -> list[ET.Element]:
    return [ET.fromstring(found) for found in re.findall(r"<svg .*?</svg>", text, re.DOTALL)]


class Reader(HTMLParser):
    """Checks that tags nest, and collects them."""

    void = frozenset(("meta", "br", "img", "link", "hr", "input"))

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert not reader.open
    return reader


def test_page_needs_nothing_from_outside(text: str) -> None:
    beside = text.replace("http://www.w3.org/2000/svg", "").replace("http://www.w3.org/1999/xlink", "")
    assert not re.search(r"https?://", beside)
    assert "@import" not in beside and not re.search(r"url\((?!#)", beside)
    tags = read(text).tags
    for tag, attributes in tags:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base", "form"}
        assert not any(name.startswith("on") or name in {"src", "srcset"} for name in attributes)
        assert (attributes.get("href") or "#").startswith("#")
    assert [a.get("type") for tag, a in tags if tag == "script"] == ["application/json", None]


def test_the_browser_runs_our_script_and_no_other(text: str) -> None:
    """The policy names the hash of the one script there is, and comes before anything that a ledger wrote."""
    (own,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
    (found,) = [a["content"] for tag, a in read(text).tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert found == policy("saved")
    assert f"script-src 'sha256-{digest}';" in found and "default-src 'none'" in found and "connect" not in found
    assert text.index("Content-Security-Policy") < text.index("<title>")
    assert "connect-src 'self'" in policy("live")


def test_drawings_are_xml_and_share_a_page(text: str) -> None:
    found = drawings(text)
    ids = [e.attrib["id"] for d in found for e in d.iter() if "id" in e.attrib]
    assert len(ids) == len(set(ids))
    for drawing in found:
        own = {e.attrib["id"] for e in drawing.iter() if "id" in e.attrib}
        for element in drawing.iter():
            assert not element.tag.endswith(("style", "metadata", "script"))
            target = element.get("href") or element.get("clip-path", "").removeprefix("url(").removesuffix(")")
            assert not target or target.removeprefix("#") in own
            # Text, grid and lines follow the page into the dark: no colour is fixed.
            assert not re.search(r"(?<!, )#[0-9a-f]{3,6}", element.get("style", ""))


@pytest.mark.parametrize("case", ["two runs", "diverged"])
def test_page_says_the_same_twice(case: str) -> None:
    assert page(CASES[case], f"Report: {case}") == made(case)


def test_other_process_other_settings_same_page(tmp_path: Path) -> None:
    """Neither the order of hashes nor a user's matplotlibrc shows; and importing the report draws in no plotting."""
    (tmp_path / "matplotlibrc").write_text("lines.linewidth: 9\nfont.size: 30\nsvg.fonttype: path\n", "utf-8")
    code = (
        "import sys, hashlib, fedzero.report\n"
        "assert 'matplotlib' not in sys.modules\n"
        "from test_report_page import CASES, page\n"
        "print(hashlib.sha256(page(CASES['two runs'], 'Report: two runs').encode()).hexdigest())"
    )
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "77", "MPLCONFIGDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == hashlib.sha256(made("two runs").encode()).hexdigest()


def test_hostile_text_is_only_text() -> None:
    text = made("hostile")
    for bad in (
        "<script>alert",
        "<img",
        "<iframe",
        "onload=alert(1)>",
        "<b>digest",
        "\x00",
        "\x1b",
        "\u202e",
        "</pre><s",
    ):
        assert bad not in text
    text.encode("utf-8")
    words = "".join(read(text).words)
    assert '</title><script>alert("x")</script> $\\frac{a} &' in words
    assert "名前 🦊" in words and "a b" in words


def test_title_is_escaped() -> None:
    assert "<title>&lt;i&gt;</title>" in page(CASES["no points"], "<i>")


def test_recipe_keeps_its_shape() -> None:
    assert 'name   = "decomfl"  # as in the paper\n    directions = 5' in html.unescape(made("one run"))


def test_labels_stay_within_their_drawing() -> None:
    for drawing in drawings(made("two runs")):
        if "viewBox" not in drawing.attrib or drawing.get("role") != "img":
            continue
        _, _, width, height = map(float, drawing.attrib["viewBox"].split())
        for label in drawing.iter("{http://www.w3.org/2000/svg}text"):
            x, y, style = float(label.attrib["x"]), float(label.attrib["y"]), label.attrib["style"]
            size = float(re.findall(r"([\d.]+)px", style)[0])
            long = 0.6 * size * len(label.text or "")
            left = x - {"middle": 0.5, "end": 1.0}.get(re.findall(r"text-anchor: (\w+)", style)[0], 0.0) * long
            assert left >= -4 and left + long <= width + 4 and size <= y <= height


def test_one_copy_of_the_model_is_a_yardstick() -> None:
    assert "one copy of the model: 116 KB" in made("two runs")
    assert "one copy of the model: 116 KB" not in made("nothing counted")
    assert [data_of(made(case))["copy"] for case in ("two runs", "extremes")] == [115_752, 115_752]


def test_a_drawing_without_a_finite_value_says_so() -> None:
    assert ">never finite<" in page(CASES["never finite"][:1], "Alone")
    assert "<noscript>" not in made("nothing counted")


def test_events_show_only_if_there_are_any() -> None:
    assert "<h2>Events</h2>" in made("hostile")
    assert "<h2>Events</h2>" not in made("one run")


def test_unfinished_runs_say_so() -> None:
    assert "(unfinished)" in made("start only") and "Not finished yet." in made("start only")
    assert "(unfinished)" not in made("one run")


def test_runs_of_one_name_and_recipe_are_numbered() -> None:
    assert [h.name for h in told_apart([SEEDED, DENSE, SEEDED])] == ["DeComFL", "FedAvg", "DeComFL (2)"]


def test_no_runs_no_page() -> None:
    with pytest.raises(FedzeroError, match="at least one run"):
        page([], "Nothing")


def test_write_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, run = tmp_path / "new" / "report.html", CASES["no points"][0]
    assert write([run], target) == target
    before = target.read_text("utf-8")
    assert before == page([run], run.name)
    assert target.stat().st_mode & 0o777 == 0o666 & ~current_umask()

    def fail(self: Path, target: Path) -> Path:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write([run], target, "Another title")
    assert target.read_text("utf-8") == before
    assert [p.name for p in target.parent.iterdir()] == ["report.html"]


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_comparison_is_the_price_of_the_smaller_final_accuracy() -> None:
    frugal = with_points(
        SEEDED, (0, 2.3, 0.1, 0), (10, 1.0, 0.7, 40_000), (20, 0.5, 0.895, 84_000), (30, 0.5, 0.891, 120_000)
    )
    lavish = with_points(DENSE, (0, 2.3, 0.1, 0), (10, 0.9, 0.8, 11e6), (20, 0.3, 0.9, 23e6), (30, 0.1, 0.97, 46e6))
    for order in ([frugal, lavish], [lavish, frugal]):
        found = compare(order)
        assert found is not None and found.goal == 0.891
        assert (found.frugal, found.lavish) == (frugal, lavish)
        assert (found.frugal_bytes, found.lavish_bytes) == (84_000, 23e6)
        assert found.ratio == pytest.approx(23e6 / 84_000)
        assert sentence(order) == (
            "DeComFL reached 89.1 % with 84 KB per client; FedAvg needed 23 MB to get as far, 274 times as much, "
            "both with 2,000 loss evaluations."
        )
    text = page([frugal, lavish], "Both")
    assert "FedAvg ended at 97.0 % after 46 MB per client" in text
    assert "274 times the bytes" in text


def test_the_sentence_says_what_the_bytes_were_saved_with() -> None:
    """Values and gradients are named apart, and time is that at the goal, not that of the whole run."""
    frugal = replace(SEEDED, points=(Point(0, 2.3, 0.1, 0, 0, 0), Point(9, 1.0, 0.8, 4e4, 0, 80_000, seconds=58.0)))
    first, reached, last = (
        Point(0, 2.3, 0.1, 0, 0, 0),
        Point(2, 1, 0.8, 4e6, 0, 260, seconds=2.1),
        Point(9, 0.5, 0.9, 9e6, 0, 800),
    )
    lavish = replace(DENSE, points=(first, reached, last), gradients=True)
    assert sentence([frugal, lavish]) == (
        "DeComFL reached 80.0 % with 40 KB per client; FedAvg needed 4 MB to get as far, 100 times as much, "
        "but 260 gradients in 2.1 s instead of 80,000 loss evaluations in 58 s."
    )
    headings = [c.heading for c in columns([frugal, lavish])]
    assert "loss evaluations" in headings and "gradients" in headings and "queries" not in headings
    cells = dict(zip(headings, rows([frugal, lavish])[1], strict=True))
    assert (cells["gradients"], cells["loss evaluations"]) == ("800", "–")


def test_a_run_that_diverged_boasts_of_nothing() -> None:
    run = replace(with_points(SEEDED, (0, 2.3, 0.1, 0), (10, 1e29, 0.2, 600)), diverged=True)
    assert sentence([run]) == "DeComFL diverged: its loss is 1.000e+29, and was 2.300 at the start."


def test_bytes_count_both_ways() -> None:
    assert [p and p.bytes for goal in (0.1, 0.2, 0.99) for p in [met(SEEDED, "accuracy", goal)]] == [0, 560, None]


def test_comparison_without_accuracy_uses_the_loss() -> None:
    one = with_points(SEEDED, (0, 2.0, None, 0), (10, 0.5, None, 1000), (20, 0.4, None, 2000))
    two = with_points(DENSE, (0, 2.0, None, 0), (10, 0.45, None, 5000), (20, 0.1, None, 8000))
    found = compare([one, two])
    assert found is not None and (found.metric, found.goal, found.ratio) == ("loss", 0.4, 4.0)
    assert sentence([one, two]).startswith("DeComFL reached a loss of 0.4000 with 2 KB per client; FedAvg needed 8 KB")


def test_failed_run_is_no_yardstick() -> None:
    """A run that learned nothing would make any other look good; it does not take part."""
    failed = with_points(history("Failed"), (0, 2.3, 0.1, 0), (10, 2.4, 0.1, 9e9))
    found = compare([SEEDED, DENSE, failed])
    assert found is not None and {found.frugal.name, found.lavish.name} == {"DeComFL", "FedAvg"}


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ([SEEDED, replace(DENSE, task="CIFAR-10")], "different tasks"),
        (
            [SEEDED, replace(SEEDED, name="Twin")],
            "DeComFL and Twin both reached 89.5 % with about 17 KB per client, both",
        ),
        ([CASES["nothing counted"][0], replace(CASES["nothing counted"][0], name="B")], "nothing was exchanged"),
        ([CASES["nothing counted"][0], replace(DENSE, name="B")], "without exchanging a byte; B needed"),
        ([SEEDED, replace(DENSE, points=())], "Only one of these runs learned: DeComFL reached 89.5 %"),
        ([replace(SEEDED, points=()), replace(DENSE, points=())], "None of these runs has learned anything yet."),
        ([unlearned(SEEDED), replace(DENSE, points=DENSE.points[:2])], "FedAvg"),
        (CASES["no points"], "has no evaluated round yet"),
        (CASES["start only"], "is at 10.0 %; nothing was exchanged."),
        (CASES["diverged"], "diverged"),
        ([unlearned(SEEDED)], "took the loss from 2.300 to 0.3135 with 17 KB per client"),
        ([DENSE], "FedAvg reached 97.0 % with 6.9 MB per client."),
        # 30 participations × 2 × 4 × 28,938 bytes against 300 × 56 bytes.
        ([SEEDED], "sending the model back and forth would take 6.9 MB: 413 times as much."),
    ],
)
def test_sentence_when_there_is_less_to_say(runs: Sequence[History], words: str) -> None:
    assert words in sentence(runs)


def test_reply_and_dense_bytes() -> None:
    assert SEEDED.participations == 30
    assert SEEDED.reply_bytes == pytest.approx(60.0)
    assert SEEDED.dense_bytes == 30 * 2 * 4 * 28_938
    assert replace(SEEDED, points=()).reply_bytes is None


def test_totals_are_those_of_the_last_point() -> None:
    cells = dict(zip((c.heading for c in columns([SEEDED])), rows([SEEDED])[0], strict=True))
    assert cells["run"] == "DeComFL" and cells["model"] == "9f3a6c11d0e27b48"
    assert cells["up / client"] == "1.8 KB" and cells["total / client"] == "16.8 KB"
    assert cells["loss evaluations"] == "300,000" and cells["accuracy"] == "89.5 %" and cells["loss"] == "0.3135"


def test_best_is_not_final() -> None:
    run = with_points(SEEDED, (1, 1.0, 0.5, 1), (2, 1.0, 0.8, 2), (3, 1.0, 0.6, 3), (4, 1.0, None, 4))
    assert (run.final_accuracy, run.best_accuracy) == (0.6, 0.8)


def test_terminal_table_shows_names_as_they_are() -> None:
    out = StringIO()
    Console(file=out, width=220, color_system=None).print(
        terminal_table([replace(SEEDED, name="[bold]x[/bold]"), DENSE])
    )
    assert "[bold]x[/bold]" in out.getvalue() and "FedAvg" in out.getvalue() and "16.8 KB" in out.getvalue()


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (0.4, "0.4 B"), (60, "60 B"), (999.4, "999 B"), (999.6, "1 KB"), (1000, "1 KB"), (1234, "1.2 KB"),
     (9960, "10 KB"), (84_000, "84 KB"), (115_752, "116 KB"), (999_600, "1 MB"), (23e6, "23 MB"), (5.26e9, "5.3 GB"),
     (2e18, "2000 PB"), (nan, "–"), (inf, "–")],
)  # fmt: skip
def test_human_bytes(value: float, text: str) -> None:
    assert human_bytes(value) == text


def test_other_units() -> None:
    assert human_bytes(16_812, 3) == "16.8 KB" and human_bytes(7_014_571, 3) == "7.01 MB"
    assert [human_count(v) for v in (0, 950, 250_000, 1.2e6)] == ["0", "950", "250 k", "1.2 M"]
    assert [human_words(v) for v in (28_938, 999_999, 1_315_000_000)] == ["28,938", "999,999", "1.31 billion"]
    assert [human_seconds(v) for v in (0.04, 9.96, 41.3, 59.7, 185, 7815)] == [
        "0.0 s", "10 s", "41 s", "1 min 0 s", "3 min 5 s", "2 h 10 min",
    ]  # fmt: skip
    assert [times(v) for v in (1.44, 9.96, 273.8, 1240.2, 18_785_714)] == ["1.4", "10", "274", "1,240", "19 million"]
    assert [human_loss(v) for v in (0.29144, 1234.4, 1e-6, nan)] == ["0.2914", "1234", "1.000e-06", "not finite"]


def test_ticks_are_few_and_round() -> None:
    assert log_ticks(500, 2e7, 7) == [1e3, 1e4, 1e5, 1e6, 1e7]
    assert log_ticks(1, 1e12, 5) == [1.0, 1e3, 1e6, 1e9, 1e12]
    assert log_ticks(450, 1200, 5) == [500.0, 1000.0]
    assert log_ticks(2.7, 2.9, 5) == [2.7, 2.9]


def test_long_curves_keep_their_ends_and_peaks() -> None:
    values = [1.0 / (k + 1) for k in range(10_000)]
    values[7_777] = 50.0
    curve = of_pairs([(float(k), v) for k, v in enumerate(values)])
    assert MOST / 2 <= len(curve) <= MOST
    assert (curve.x[0], curve.x[-1], curve.y[0], curve.y[-1]) == (0.0, 9999.0, 1.0, 1e-4)
    assert curve.y.max() == 50.0 and curve.x[curve.y.argmax()] == 7_777


def data_of(text: str) -> dict[str, Any]:
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return json.loads(found)


def test_the_charts_have_the_numbers_of_the_runs() -> None:
    data = data_of(made("two runs"))
    (one, _), start = data["curves"], data["start"]
    assert start == {"metric": "accuracy", "axis": "bytes"}
    assert one["metrics"]["accuracy"]["bytes"] == [pytest.approx(p.bytes, rel=1e-5) for p in SEEDED.points]
    assert one["metrics"]["accuracy"]["y"] == [pytest.approx(p.accuracy, rel=1e-5) for p in SEEDED.points]
    assert one["metrics"]["train"]["queries"][99] == 100_000  # of round 100, between evaluated ones
    assert data["gap"]["low"] == pytest.approx(SEEDED.bytes) and data["copy"] == 4 * 28_938


def test_nothing_in_the_data_ends_its_block() -> None:
    run = replace(HOSTILE, name="</script><!-- <script>alert(1)</script> \u2028", found=None)
    text = page([run, DENSE], "x")
    (inside,) = re.findall(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert not set("<>&\u2028") & set(inside)
    assert data_of(text)["curves"][0]["name"].startswith("</script><!--")
    assert text.count("<script") == 2 == text.count("</script")


def test_a_page_of_a_hundred_thousand_rounds_stays_small() -> None:
    rounds = range(100_000)
    points = tuple(
        Point(k, 2 + sin(k), 0.5 + 0.4 * sin(k / 7), 6.0 * k, 50.0 * k, 9 * k, seconds=k / 3) for k in rounds
    )
    series = tuple((k, 2 + sin(k * 1.7)) for k in rounds)
    events = tuple(f"round {k}: client 3 sent NaN" for k in rounds)
    run = replace(SEEDED, points=points, train_loss=series, slopes=series, events=events, rounds=100_000)
    assert len(page([run], "Long").encode()) < 1_000_000
