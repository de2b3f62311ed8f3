"""Pictures of the README: made by scripts from kept data, in both themes, with nothing from elsewhere."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs" / "figures"
THEMES = ("light", "dark")
ELSEWHERE = re.compile(r"""(?:href|src)\s*=\s*["'](?!#)|url\((?!["']?#)|@import|<script|<image|<foreignObject""")


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load


def pictures() -> list[str]:
    """Those that the README shows."""
    return sorted(set(re.findall(r'docs/figures/([\w-]+\.svg)"', (ROOT / "README.md").read_text())))


def test_the_readme_shows_every_picture_in_both_themes() -> None:
    found = pictures()
    assert len(found) >= 6
    for name in found:
        other = name.replace("light", "dark") if "light" in name else name.replace("dark", "light")
        assert other != name and other in found


@pytest.mark.parametrize("name", pictures())
def test_a_picture_is_well_formed_and_needs_nothing_else(name: str) -> None:
    text = (FIGURES / name).read_text()
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert not ELSEWHERE.search(text)
    assert len(text.encode()) <= 300_000


@pytest.mark.parametrize("theme", THEMES)
def test_the_poster_is_what_its_script_draws(tool, theme: str) -> None:
    assert tool("poster").poster(tool("theme").THEMES[theme]) == (FIGURES / f"idea-{theme}.svg").read_text()


def test_both_sides_of_the_poster_show_the_directions_of_the_keys(tool) -> None:
    poster, theme = tool("poster"), tool("theme").THEMES["light"]
    whole = poster.poster(theme)
    for number, key in enumerate(poster.KEYS):
        inner = (poster.CARD_WIDTH - 3 * poster.TILE - 2 * poster.GAP) / 2 + number * (poster.TILE + poster.GAP)
        for left in (poster.LEFT, poster.RIGHT):
            assert poster.tile(left + inner, poster.CARD_TOP + 136, key, theme.series[number]) in whole


def session() -> dict:
    return json.loads((FIGURES / "session.json").read_text())


@pytest.mark.parametrize("theme", THEMES)
def test_the_recording_is_what_its_script_draws(tool, theme: str) -> None:
    recording, colours = tool("terminal_recording"), tool("theme").THEMES[theme]
    film = recording.frames(session())
    assert recording.drawing(session(), film, colours) == (FIGURES / f"session-{theme}.svg").read_text()
    still = (FIGURES / f"session-{theme}-still.svg").read_text()
    assert recording.drawing(session(), film[-2:], colours) == still
    assert "animation" not in still


def test_the_recording_shows_what_the_programs_wrote(tool) -> None:
    """Lines of a screen are commands or what was written; the last screen ends with the last line of all."""
    kept = session()
    written = "".join(text for entry in kept["commands"] for _, text in entry["output"])
    plain = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", written)
    film = tool("terminal_recording").frames(kept)
    lines = {"".join(letter for letter, _ in line) for _, screen in film for line in screen}
    unwrapped = re.sub(r"[\r\n]", "", plain)
    for line in lines:
        assert line.startswith("$ ") or line.strip() in unwrapped or line in unwrapped
    last = "".join("".join(letter for letter, _ in line) for line in film[-1][1])
    assert last.endswith(plain.strip().splitlines()[-1])


def test_times_of_the_recording_only_grow(tool) -> None:
    times = [at for at, _ in tool("terminal_recording").frames(session())]
    assert times == sorted(times) and len(set(times)) == len(times)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("ab\r\ncd", ["ab", "cd"]),
        ("abc\rx", ["xbc"]),
        ("abc\r\x1b[2Kx", ["x"]),
        ("a\r\nb\x1b[1A\rc", ["c", "b"]),
        ("abcdef", ["abcde", "f"]),
        ("1\r\n2\r\n3\r\n4", ["2", "3", "4"]),
    ],
)
def test_a_screen(tool, text: str, lines: list[str]) -> None:
    screen = tool("terminal_recording").Screen(columns=5, rows=3)
    screen.feed(text)
    assert ["".join(letter for letter, _ in line) for line in screen.shown()] == lines


@pytest.mark.parametrize("text", ["\x1b[5n", "\x1b[31m", "\x1b]0;title\x07", "\x1b7"])
def test_a_screen_refuses_what_it_does_not_know(tool, text: str) -> None:
    with pytest.raises(ValueError, match="knows"):
        tool("terminal_recording").Screen(columns=5, rows=3).feed(text)


def test_the_table_of_accuracy_by_bytes_is_of_the_kept_data(tool) -> None:
    script = tool("accuracy_by_bytes")
    found = script.curves(json.loads(script.KEPT.read_text()))
    assert script.table(found) in script.PAGE.read_text()


@pytest.mark.parametrize("theme", THEMES)
def test_the_figure_of_accuracy_by_bytes_is_of_the_kept_data(tool, theme: str) -> None:
    """Every method by name and price, and as many points of its curve as were kept."""
    script = tool("accuracy_by_bytes")
    text = (FIGURES / f"accuracy-by-bytes-{theme}.svg").read_text()
    for each in script.curves(json.loads(script.KEPT.read_text())):
        assert f"{each.name} · {each.price}" in text
    assert tool("theme").THEMES[theme].paper in text


def test_the_settings_of_accuracy_by_bytes_are_those_of_the_bench(tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    bench = importlib.import_module("bench.methods.peers")
    kept = json.loads(bench.KEPT.read_text())["methods"]
    assert list(kept) == list(bench.METHODS)
    for name, entry in kept.items():
        assert entry["recipe"] == bench.METHODS[name]
        assert (entry["search"] is not None) == (name in bench.RATES)


def test_the_layers_are_those_of_the_tree(tool) -> None:
    """Each package has its box; a new one asks for the picture to be drawn again."""
    layers = tool("layers")
    text = (FIGURES / "layers.svg").read_text()
    assert layers.picture().svg() == text, "python tools/layers.py docs/figures"
    assert layers.packages() >= {"cli", "loggers", "directions", "methods"}
    assert all(f">{name}<" in text for name in layers.packages())
