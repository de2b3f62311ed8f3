"""The packages of fedzero as layers: `python tools/layers.py docs/figures` writes layers.svg.

Which there are, the tree says; which lies on which, the contract in pyproject.toml that the import linter checks.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from how_it_works import WIDTH, Picture

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fedzero"
LEFT, RIGHT, TOP, HIGH, GAP = 44, WIDTH - 150, 18, 32, 7
WORDS = {
    "cli": "the command line",
    "api": "train, finetune, run, sweep, tune",
    "testing": "conformance checks",
    "loggers": "TensorBoard, MLflow, W&B",
    "web": "the page of a run",
    "deploy": "servers, sites, NVIDIA FLARE",
    "results": "histories, curves, exports",
    "runs": "start, resume, tune, patch",
    "engines": "local, ray, remote",
    "rounds": "cohorts, admission, the loop",
    "recipe": "a run written down and prepared",
    "report": "draws what it is given",
    "tasks": "an objective and its data",
    "ledger": "a run as one file",
    "protocol": "messages, a client's half",
    "methods": "one paper, one file",
    "estimators": "slopes, surrogates",
    "links": "what changes contributions",
    "oracles": "counted values",
    "privacy": "noise, accounting, audits",
    "model": "view, fold, digest",
    "directions": "keys, the stream, kernels",
}
"""What is said of a package; of others the name alone."""


def layers() -> list[list[str]]:
    """Packages side by side, from the top to the bottom."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = (each for each in contracts if each["type"] == "layers")
    named = [[name.strip().removeprefix("fedzero.") for name in row.split("|")] for row in contract["layers"]]
    rows = [[name for name in row if (SOURCE / name).is_dir()] for row in named]
    return [row for row in rows if row]


def packages() -> set[str]:
    """Those with code of their own."""
    return {file.parent.name for file in SOURCE.glob("*/__init__.py") if len(list(file.parent.rglob("*.py"))) > 1}


def picture() -> Picture:
    rows = layers()
    if missing := packages() - {name for row in rows for name in row}:
        raise SystemExit(f"not among the layers in pyproject.toml: {', '.join(sorted(missing))}")
    says = "Packages of fedzero as layers, from the command line down to directions; imports go downward only"
    drawn, step = Picture("layers", 2 * TOP + len(rows) * (HIGH + GAP) - GAP, says), HIGH + GAP
    for place, row in enumerate(rows):
        y, wide = TOP + place * step, (RIGHT - LEFT - (len(row) - 1) * GAP) / len(row)
        for number, name in enumerate(row):
            x = LEFT + number * (wide + GAP)
            drawn.box(x, y, wide, HIGH)
            drawn.text(x + 12, y + 21, name, "title")
            drawn.text(x + wide - 12, y + 21, WORDS.get(name, ""), "small muted", "end")
    bottom = TOP + len(rows) * step - GAP
    drawn.line(f"M26 {TOP} V{bottom}")
    above = next(place for place, row in enumerate(rows) if "methods" in row)
    drawn.box(RIGHT + 36, TOP, 92, above * step + HIGH, "open")
    middle = TOP + (above * step + HIGH) / 2
    for line, (words, look) in enumerate((("papers", "title"), ("a distribution", "small"), ("of its own", "small"))):
        drawn.text(RIGHT + 82, middle - 12 + 18 * line, words, look, "middle")
    drawn.line(f"M{RIGHT + 36} {middle:g} H{RIGHT + 8}")
    return drawn


def main(folder: Path) -> None:
    (folder / "layers.svg").write_text(picture().svg(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
