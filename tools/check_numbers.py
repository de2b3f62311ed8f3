"""Whether every measured figure of README.md and docs/ is on a page of docs/results: exit 1 and a list if not.

    python tools/check_numbers.py

A figure is a number with a unit (tools/figures.py). Where its row of a table, else its paragraph, else its section
links to pages of docs/results, it must be on one of them; else it may be on any. The page of claims,
docs/results/index.md, is checked like the others and is no source. Settings, limits and facts of papers are no
measurements: they are named in tools/number_exemptions.toml, by page and phrase and with a reason. An exemption that
covers no figure is an error. `make docs` runs this as a hook of mkdocs.
"""

from __future__ import annotations

import logging
import posixpath
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from figures import Figure, figures
from prose import Block, blocks

ROOT = Path(__file__).resolve().parents[1]
RESULTS = "docs/results/"
CLAIMS = RESULTS + "index.md"
EXEMPTIONS = "tools/number_exemptions.toml"
ADVICE = f"correct it, link the page that has it, or, if it is no measurement, add it to {EXEMPTIONS}"

Measures = set[tuple[Decimal, str]]


@dataclass(frozen=True)
class Exemption:
    """Figures of `pages` that stand within `phrase` are no measurements; `reason` says what they are."""

    pages: tuple[str, ...]
    phrase: str
    reason: str


def measured(markdown: str) -> Measures:
    """Everything a page of results can vouch for."""
    found: Measures = set()
    caption = ""
    for block in blocks(markdown):
        found |= {figure.measure for figure in figures(block, lenient=True, caption=caption)}
        caption = "" if block.is_table else block.text
    return found


def linked(page: str, links: Iterable[str]) -> set[str]:
    """Pages of results among the links of a page."""
    targets = (posixpath.normpath(posixpath.join(posixpath.dirname(page), link.split("#")[0])) for link in links)
    return {target for target in targets if target.startswith(RESULTS)}


def vouching(page: str, block: Block, line: int, all_blocks: Iterable[Block]) -> set[str]:
    """Pages on which a figure on this line must be found; none named: any. The page of claims names all."""
    row = [link for at, link in block.links if block.is_table and at == line]
    section = (link for each in all_blocks if each.section == block.section for _, link in each.links)
    near = linked(page, row) or linked(page, (link for _, link in block.links)) or linked(page, section)
    return set() if CLAIMS in near else near


def _spans(text: str, phrase: str) -> list[tuple[int, int]]:
    """Lines of `text` (from 0) on which the phrase begins and ends; white space counts as one blank."""
    pattern = re.compile(r"\s+".join(re.escape(word) for word in phrase.split()))
    return [(text.count("\n", 0, found.start()), text.count("\n", 0, found.end())) for found in pattern.finditer(text)]


def covered(figure: Figure, block: Block, exemption: Exemption) -> bool:
    """The phrase has the figure's number in it and stands on the figure's line."""
    number = re.escape(figure.text.split(" ")[0])
    if not re.search(rf"(?<![\d.,]){number}(?!\d)", exemption.phrase):
        return False
    line = figure.line - block.line
    return any(first <= line <= last for first, last in _spans(block.text, exemption.phrase))


def problems(pages: Mapping[str, str], results: Mapping[str, str], exemptions: Iterable[Exemption]) -> Iterator[str]:
    """What is wrong, a line each; pages and results are texts by their path from the root."""
    known = {name: measured(text) for name, text in results.items() if name != CLAIMS}
    used: set[Exemption] = set()
    exemptions = tuple(exemptions)
    for page, text in pages.items():
        of_page = blocks(text)
        for block in of_page:
            for figure in figures(block):
                names = vouching(page, block, figure.line, of_page)
                sources = [known[name] for name in names or known if name in known]
                own = [e for e in exemptions if page in e.pages and covered(figure, block, e)]
                used.update(own)
                if own or any(figure.measure in source for source in sources):
                    continue
                where = " or ".join(sorted(names)) or RESULTS
                yield f"{page}:{figure.line}: {figure.text!r} is not in {where}: {ADVICE}"
    for each in exemptions:
        if each not in used:
            yield f"{EXEMPTIONS}: {each.phrase!r} covers no figure of {' or '.join(each.pages)}: remove it"


def read_exemptions(path: Path) -> list[Exemption]:
    listed = tomllib.loads(path.read_text(encoding="utf-8"))["exempt"]
    return [Exemption(tuple(each["pages"]), each["phrase"], each["reason"]) for each in listed]


def check(root: Path = ROOT) -> list[str]:
    texts = {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
        for path in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    }
    results = {name: text for name, text in texts.items() if name.startswith(RESULTS)}
    pages = {name: text for name, text in texts.items() if name not in results or name == CLAIMS}
    return list(problems(pages, results, read_exemptions(root / EXEMPTIONS)))


def on_pre_build(**_: Any) -> None:
    """mkdocs counts warnings; with `strict` one of them ends the build."""
    for problem in check():
        logging.getLogger("mkdocs.hooks.check_numbers").warning(problem)


if __name__ == "__main__":
    found = check()
    print("\n".join(found) or "every measured figure of README.md and docs/ is in docs/results")
    sys.exit(bool(found))
