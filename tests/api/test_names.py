"""The names of the package: completion and type checkers know all of them, and importing it stays quick."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedzero
from fedzero import plugins

HEAVY = {"torch", "numba", "numpy", "msgspec", "typer"}
TYPED = """
import fedzero
from fedzero import DeComFL, Run, train

reveal_type(fedzero.DeComFL(rate=0.1))
reveal_type(DeComFL.check)
reveal_type(fedzero.Optimiser)
reveal_type(Run.open)
fedzero.DeComFL(rat=0.1)
"""


def test_completion_knows_every_method() -> None:
    ours = {kind.type.__name__ for kind in plugins.kinds("methods").values()}
    assert {"DeComFL", "FedZO", "FZooS"} <= ours <= set(dir(fedzero)) and set(fedzero.__all__) <= set(dir(fedzero))
    assert {kind.type.__name__ for kind in plugins.kinds("methods").values() if kind.distribution == "fedzero"} <= set(
        fedzero.__all__
    )


def test_every_name_is_there_and_is_what_type_checkers_are_told() -> None:
    tree = ast.parse(Path(fedzero.__file__).read_text("utf-8"))
    told = dict(names_for_type_checkers(tree))
    assert set(told) == set(fedzero.__all__) - {"__version__"}
    for name, module in told.items():
        assert getattr(fedzero, name) is getattr(importlib.import_module(module), name)


def names_for_type_checkers(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for each in node.body:
                assert isinstance(each, ast.ImportFrom) and each.module is not None
                if each.module == "typing":
                    continue
                for alias in each.names:
                    assert alias.asname == alias.name, "or the name is not for others"
                    yield alias.name, each.module


def test_nothing_heavy_is_imported_to_complete_a_name() -> None:
    code = (
        "import sys, fedzero; names = dir(fedzero); print(*names); print(*{n.partition('.')[0] for n in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names, modules = done.stdout.splitlines()
    assert "DeComFL" in names.split() and not HEAVY & set(modules.split())
    assert not [line for line in names.split() if line.startswith("_") and line != "__version__"]


def test_methods_of_other_distributions_are_completed_without_importing_them(tmp_path: Path) -> None:
    package = tmp_path / "others-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[fedzero.methods]\nmine = no_such_module:Mine\n")
    code = f"import sys; sys.path.append({str(tmp_path)!r}); import fedzero; print('Mine' in dir(fedzero))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_a_registered_method_is_completed() -> None:
    @fedzero.register
    class Completed(fedzero.SeededMethod, tag="completed"): ...

    try:
        assert "Completed" in dir(fedzero) and fedzero.Completed is Completed
    finally:
        plugins._registered["methods"].pop("completed")


def test_a_misspelt_name_is_no_name_and_python_may_guess_the_right_one() -> None:
    with pytest.raises(AttributeError, match="no attribute 'DeComFl'") as caught:
        _ = fedzero.DeComFl
    assert caught.value.name == "DeComFl" and caught.value.obj is fedzero


@pytest.mark.slow
def test_type_checkers_see_the_types(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    script = tmp_path / "script.py"
    script.write_text(TYPED)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--follow-imports=silent", "--ignore-missing-imports", "--cache-dir",
         tmp_path / "cache", script], capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert 'Revealed type is "fedzero.methods.decomfl.DeComFL"' in done.stdout, done.stdout + done.stderr
    assert 'Unexpected keyword argument "rat" for "DeComFL"' in done.stdout
    assert 'Revealed type is "Any"' not in done.stdout
