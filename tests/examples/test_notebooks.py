"""The notebooks are those of the files beside them, and an executor shows what a notebook shows."""

from __future__ import annotations

import copy
import json

import notebooks
import pytest

FILES = {file.stem: file for file in sorted(notebooks.FOLDER.glob("*.py"))}
SMALL = "# %% [markdown]\n# # Title\n#\n# text\n\n# %%\nx = 2\nprint(x)\nx + 1\n\n# %%\nx\n"


@pytest.mark.parametrize("name", FILES)
def test_a_notebook_is_that_of_its_file(name: str) -> None:
    notebook = json.loads(FILES[name].with_suffix(".ipynb").read_text("utf-8"))
    assert notebooks.problem(name, FILES[name].read_text("utf-8"), notebook) == ""


def test_cells_are_executed_and_changes_are_found() -> None:
    assert len(FILES) == 3
    made = notebooks.executed("small", SMALL)
    text, first, second = made["cells"]
    assert "".join(text["source"]) == "# Title\n\ntext" and "outputs" not in text
    assert first["outputs"][0]["text"] == ["2\n"] and first["outputs"][1]["data"]["text/plain"] == ["3"]
    assert [cell["execution_count"] for cell in (first, second)] == [1, 2]
    assert notebooks.problem("small", SMALL, made) == ""
    assert "other cells" in notebooks.problem("small", SMALL.replace("x + 1", "x + 2"), made)
    odd = copy.deepcopy(made)
    odd["cells"][2]["execution_count"] = 7
    assert "not executed in order" in notebooks.problem("small", SMALL, odd)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_notebook_runs(name: str) -> None:
    text = FILES[name].read_text("utf-8")
    made = notebooks.executed(name, text)
    assert notebooks.problem(name, text, made) == ""
    assert any("image/png" in output.get("data", {}) for cell in made["cells"] for output in cell.get("outputs", ()))
