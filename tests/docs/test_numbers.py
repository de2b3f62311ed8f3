"""Measured figures of the documentation are found in the results, and the check that says so finds what is not."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from check_numbers import ROOT, Exemption, check, measured, problems
from figures import figures
from prose import blocks

RESULTS = {
    "docs/results/index.md": "# Claims\n\n[Demo](demo.md): 83.9 %\n",
    "docs/results/demo.md": "# Demo\n\nAfter 53 KB, FedAvg after 3 MB: 57 times. It took 4:21.\n\n"
    "| | accuracy, % | ms a round | time |\n|---|---|---|---|\n| DeComFL | 83.9 | 12.5 | 108 s |\n",
    "docs/results/speed.md": "17,107 client replies a second; 8.9, 9.0 and 11.0 ms.\n\nTest accuracy in %:\n\n"
    "| rule | none | flip |\n|---|---|---|\n| mean | 82.5 | 78.5 |\n",
}


def found(text: str) -> list[str]:
    return [figure.text for block in blocks(text) for figure in figures(block)]


def complaints(page: str, *exemptions: Exemption, name: str = "docs/page.md") -> list[str]:
    return list(problems({name: page}, RESULTS, exemptions))


def test_every_figure_of_the_documentation_is_among_the_results() -> None:
    assert check() == []


@pytest.mark.parametrize(
    "text",
    [
        "It reached 83.9 % with 53 KB.",
        "It reached 83.9% after 0.053 MB.",
        "![The page: FedAvg needed 3 MB,\n57 times as much](figures/demo.png)",
        "A round takes 8.9 to 11.0 ms.",
        "17,107 replies a second",
        "`make demo` takes 261 s.",
        "| | accuracy, % |\n|---|---|\n| mean | 82.5 |",
    ],
)
def test_right_figures_pass(text: str) -> None:
    assert found(text)
    assert not complaints(text)


@pytest.mark.parametrize(
    ("text", "wrong", "line"),
    [
        ("# Page\n\nIt reached 84.9 % with 53 KB.", "84.9 %", 3),
        ("It took 53 MB.", "53 MB", 1),  # the right number with another unit
        ("from 78.5 → 79.5 %", "79.5 %", 1),
        ("A round takes 8.9 to\n11.5 ms.", "11.5 ms", 2),
        ("17,108 client replies a second", "17,108 client", 1),
        ("- one\n- [a page](other.md): 58 times as much", "58 times", 2),
        ("![The page: 54 KB](figures/demo.png)", "54 KB", 1),
        ("| | accuracy, % |\n|---|---|\n| mean | 82.6 |", "82.6 (accuracy, %)", 3),
    ],
)
def test_a_wrong_figure_is_named_with_page_and_line(text: str, wrong: str, line: int) -> None:
    (complaint,) = complaints(text)
    assert complaint.startswith(f"docs/page.md:{line}: {wrong!r} is not in docs/results/")


def test_a_linked_page_must_have_the_figure() -> None:
    (complaint,) = complaints("It reached 83.9 % ([speed](results/speed.md)).")
    assert "'83.9 %' is not in docs/results/speed.md" in complaint
    section = "## One\n\nIt reached 83.9 %.\n\nSee [speed](results/speed.md#top).\n\n## Two\n\nIt reached 83.9 %."
    (complaint,) = complaints(section)
    assert complaint.startswith("docs/page.md:3:"), "another section may take it from anywhere"
    assert not complaints("It reached 83.9 % ([demo](results/demo.md)).")
    assert not complaints("It reached 83.9 % ([demo](docs/results/demo.md)).", name="README.md")
    assert not complaints("A round takes 12.5 ms ([claims](results/index.md))."), "the claims link to all pages"
    (complaint,) = complaints("It reached 83.9 % ([demo](results/gone.md)).")
    assert "'83.9 %' is not in docs/results/gone.md" in complaint


def test_claims_are_checked_row_by_row() -> None:
    claims = "| | what |\n|---|---|\n| [Demo](demo.md) | 83.9 % |\n| [Speed](speed.md) | 83.9 % |"
    (complaint,) = complaints(claims, name="docs/results/index.md")
    assert complaint.startswith("docs/results/index.md:4: '83.9 %' is not in docs/results/speed.md")
    only = {"docs/results/index.md": "97.1 %", "docs/results/e1.md": "96.1 %"}
    assert list(problems({"README.md": "It has 97.1 %."}, only, ())), "a claim is no source"


def test_an_exemption_covers_its_phrase_and_nothing_else() -> None:
    limit = Exemption(("docs/page.md",), "at most 5 minutes", "a limit")
    assert not complaints("Sites wait for at most\n5 minutes.", limit)
    (complaint,) = complaints("Sites wait for at most 5 minutes.\n\nIt took 5 minutes.", limit)
    assert complaint.startswith("docs/page.md:3:")
    (complaint,) = complaints("Sites wait 7 s, at most 5 minutes.", limit)
    assert "'7 s'" in complaint


def test_a_stale_exemption_is_an_error() -> None:
    gone = Exemption(("docs/page.md",), "at most 5 minutes", "a limit")
    (complaint,) = complaints("Sites wait for a while.", gone)
    assert "'at most 5 minutes' covers no figure of docs/page.md: remove it" in complaint


def test_what_is_no_figure() -> None:
    assert not found("Two to five minutes, 2 × 32 prompts, 1e-3 s, 2⁵ s, 64 points of an objective, 28,938 parameters")
    assert not found("Text.\n\n    fedzero run --timeout 7 s\n\n```\n8 ms\n```\n\nSay `9 KB`, or `10` s.")
    assert found("[3 ms](4ms.md#5-ms)") == ["3 ms"]
    assert found("- a list\n\n    of 11 KB in its item") == ["11 KB"], "indented, but no code"


def test_units_of_lists_and_tables() -> None:
    assert found("between 29.0 → 78.1 % and 0.4 points") == ["29.0 %", "78.1 %", "0.4 points"]
    assert found("1, 2 and 3 KB") == ["1 KB", "2 KB", "3 KB"]
    assert found("in round 100, 84 %") == ["84 %"], "a bare comma is no list"
    assert found("after 3 rounds, 97.12, 97.24 %") == ["97.12 %", "97.24 %"], "but between decimals it is"
    assert (Decimal("12.5") / 1000, "second") in measured(RESULTS["docs/results/demo.md"])
    assert (Decimal("78.5"), "%") in measured(RESULTS["docs/results/speed.md"]), "the caption's unit"
    assert (Decimal("108"), "%") not in measured(RESULTS["docs/results/demo.md"]), "a unit of its own"


def test_the_check_reads_the_files(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "number_exemptions.toml").write_text("exempt = []\n")
    for name, text in {**RESULTS, "README.md": "84.9 %", "docs/guides/one.md": "83.9 %"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (complaint,) = check(tmp_path)
    assert complaint.startswith("README.md:1: '84.9 %'")
    assert (ROOT / "mkdocs.yml").read_text().count("tools/check_numbers.py") == 1, "the build runs it"
