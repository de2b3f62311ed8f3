"""The notebooks in examples/notebooks: made of the Python files beside them, and executed.

    python tools/notebooks.py            # execute all, write them
    python tools/notebooks.py --check    # whether they have the cells of their files, and ran without an error

A file has cells that begin with `# %%`, text with `# %% [markdown]`. A cell is executed as a notebook does it: what is
printed, the value of a last expression, and the figures. Neither Jupyter nor a kernel is needed.
"""

from __future__ import annotations

import argparse
import ast
import base64
import io
import json
import os
import re
import sys
import tempfile
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "notebooks"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def cells(text: str) -> list[tuple[str, str]]:
    """(markdown or code, source) of every cell of a file."""
    found = []
    for part in re.split(r"^# %%", text, flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n")
        body = body.strip("\n")
        if head.strip() == "[markdown]":
            found.append(("markdown", re.sub(r"^# ?", "", body, flags=re.MULTILINE)))
        else:
            found.append(("code", body))
    return found


def executed(name: str, text: str) -> dict[str, Any]:
    """A notebook (nbformat 4.5) of a file, its cells run in a temporary folder."""
    import matplotlib

    matplotlib.use("agg")
    names: dict[str, Any] = {"__name__": "__main__"}
    made: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place, chdir(place):
        for number, (kind, source) in enumerate(cells(text)):
            cell = {"cell_type": kind, "id": f"{name}-{number}", "metadata": {}, "source": source.splitlines(True)}
            if kind == "code":
                count = 1 + sum(each["cell_type"] == "code" for each in made)
                cell |= {"execution_count": count, "outputs": outputs(source, names, count)}
            made.append(cell)
    return {"cells": made, "metadata": {"kernelspec": KERNEL}, "nbformat": 4, "nbformat_minor": 5}


def outputs(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Run a cell; what it shows."""
    tree, said, value = ast.parse(source), io.StringIO(), None
    last: Any = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with redirect_stdout(said):
        exec(compile(tree, "<cell>", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    found: list[dict[str, Any]] = []
    if said.getvalue():
        found.append({"output_type": "stream", "name": "stdout", "text": said.getvalue().splitlines(True)})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(True)}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = value._repr_html_().splitlines(True)
        found.append({"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": data})
    return found + figures()


def figures() -> list[dict[str, Any]]:
    """All open figures as pictures; they are closed."""
    from matplotlib import pyplot

    found = []
    for number in pyplot.get_fignums():
        picture = io.BytesIO()
        pyplot.figure(number).savefig(picture, format="png", dpi=72)
        data = {"image/png": base64.b64encode(picture.getvalue()).decode(), "text/plain": ["<Figure>"]}
        found.append({"output_type": "display_data", "metadata": {}, "data": data})
    pyplot.close("all")
    return found


def problem(name: str, text: str, notebook: dict[str, Any]) -> str:
    """Why a notebook is not that of a file; empty: it is."""
    has = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    if has != cells(text):
        return f"{name}.ipynb has other cells than {name}.py: run tools/notebooks.py"
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    if [cell["execution_count"] for cell in code] != [*range(1, len(code) + 1)]:
        return f"{name}.ipynb was not executed in order: run tools/notebooks.py"
    shows = [output["output_type"] for cell in code for output in cell["outputs"]]
    return f"{name}.ipynb shows an error or nothing" if "error" in shows or not shows else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true")
    check, found = parser.parse_args().check, []
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for file in sorted(FOLDER.glob("*.py")):
        text, target = file.read_text(encoding="utf-8"), file.with_suffix(".ipynb")
        if not check:
            target.write_text(json.dumps(executed(file.stem, text), indent=1, ensure_ascii=False) + "\n", "utf-8")
            print(f"{target.name}: {target.stat().st_size / 1e3:.0f} KB")
        found.append(problem(file.stem, text, json.loads(target.read_text("utf-8"))))
    sys.exit("\n".join(filter(None, found)) or None)


if __name__ == "__main__":
    main()
