"""One page, one file: it asks the network for nothing, and says the same twice for the same runs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from string import Template

from fedzero import __version__
from fedzero.errors import FedzeroError
from fedzero.report import sections
from fedzero.report.compare import compare
from fedzero.report.history import History
from fedzero.report.pictures import pictures

# The policy makes a promise of it: whatever a name or a recipe holds, the browser loads and runs nothing.
SHELL = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>$title</title>
<style>
$style</style>
</head>
<body>
<main>
<header>
<p class="eyebrow">$title</p>
$headline
$tiles
</header>
$body
</main>
<footer>Made by fedzero $version from the record of the run$plural.</footer>
</body>
</html>
""")


def page(histories: Sequence[History], title: str) -> str:
    """The whole page for one run, or for several side by side."""
    if not histories:
        raise FedzeroError("A report needs at least one run.")
    histories = distinct(histories)
    comparison = compare(histories) if len(histories) > 1 else None
    body = (
        pictures(histories),
        sections.figures(histories, comparison),
        sections.totals(histories),
        sections.measures(histories),
        sections.facts(histories),
        sections.wire(histories),
        sections.events(histories),
        sections.recipes(histories),
    )
    return SHELL.substitute(
        title=sections.safe(title),
        style=(files("fedzero.report") / "style.css").read_text("utf-8"),
        headline=sections.headline(histories),
        tiles=sections.tiles(histories, comparison),
        body="\n".join(part for part in body if part),
        version=__version__,
        plural="s" if len(histories) > 1 else "",
    )


def distinct(histories: Sequence[History]) -> tuple[History, ...]:
    """Runs of the same name get a number, so that a reader can tell them apart."""
    seen: Counter[str] = Counter()
    named = []
    for history in histories:
        seen[history.name] += 1
        count = seen[history.name]
        named.append(history if count == 1 else replace(history, name=f"{history.name} ({count})"))
    return tuple(named)


def title_of(histories: Sequence[History]) -> str:
    return " against ".join(h.name for h in histories) if len(histories) < 4 else f"{len(histories)} runs"


def write(histories: Sequence[History], path: str | os.PathLike[str], title: str | None = None) -> Path:
    """The page as a file: all of it or, if anything goes wrong, the file that was there before."""
    target = Path(path)
    text = page(histories, title_of(histories) if title is None else title)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(text, "utf-8")
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return target
