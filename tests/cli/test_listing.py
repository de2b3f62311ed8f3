"""`fedzero list` names the distributions that things come from, and survives those that cannot be imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

METHOD = '''
from fedzero import SeededMethod


class Acme(SeededMethod, tag="acme"):
    """A method of another distribution [not markup]."""


class Other(SeededMethod, tag="other"):
    """Its entry point has another name."""


class Copy(SeededMethod, tag="mezo"):
    """Comes with fedzero, too."""
'''
RECIPE = """
name = "acme-recipe"
about = "a recipe of another distribution"
rounds = 1
algorithm = { kind = "acme", rate = 0.1 }
task = { kind = "quadratic", dimension = 4 }
federation = { clients = 2, cohort = 1 }
"""
ENTRIES = """
[fedzero.methods]
acme = acme.method:Acme
acme-gone = acme.gone:Gone
acme-misnamed = acme.method:Other
mezo = acme.method:Copy

[fedzero.tasks]
decoder = json:JSONDecoder

[fedzero.recipes]
acme = acme
acme-recipes-gone = acme.gone

[fedzero.commands]
acme-command = acme.gone:app
"""


@pytest.fixture
def acme(tmp_path: Path) -> Path:
    """An installed distribution, as pip leaves it: a package and its metadata in a folder that Python searches."""
    files = {
        "acme/__init__.py": "",
        "acme/method.py": METHOD,
        "acme/gone.py": "import no_such_module",
        "acme/acme-recipe.toml": RECIPE,
        "acme/broken-recipe.toml": RECIPE.replace('"acme"', '"acme-gone"'),
        "acme_kit-1.5.dist-info/METADATA": "Metadata-Version: 2.1\nName: acme-kit\nVersion: 1.5\n",
        "acme_kit-1.5.dist-info/entry_points.txt": ENTRIES,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    return tmp_path


def fedzero(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([*filter(None, sys.path), str(folder)])
    return subprocess.run(
        [sys.executable, "-m", "fedzero", *arguments],
        env={**os.environ, "PYTHONPATH": paths, "COLUMNS": "300"},
        cwd=folder,
        capture_output=True,
        text=True,
    )


def table(text: str, title: str) -> dict[str, str]:
    """Lines below a title, name to text."""
    lines = text.splitlines()
    rows = lines[[line.strip() for line in lines].index(title) + 1 :]
    end = next((n for n, row in enumerate(rows) if not row.startswith(" ")), len(rows))
    return {name: rest.strip() for name, _, rest in (row.strip().partition(" ") for row in rows[:end])}


def test_what_comes_from_where_and_what_cannot_be_used(acme: Path) -> None:
    done = fedzero(acme, "list")
    assert done.returncode == 0, done.stderr
    assert table(done.stdout, "Methods: acme-kit 1.5") == {"acme": "A method of another distribution [not markup]."}
    ours = table(done.stdout, "Methods")
    assert "decomfl" in ours and "acme" not in ours
    broken = table(done.stdout, "Methods: cannot be used")
    assert set(broken) == {"acme-gone", "acme-misnamed", "mezo"}
    assert "acme-kit 1.5 cannot be imported: ModuleNotFoundError" in broken["acme-gone"]
    assert "has the tag 'other'" in broken["acme-misnamed"]
    assert "comes with fedzero" in broken["mezo"] and "and acme-kit 1.5: uninstall one" in broken["mezo"]
    assert "not derived from" in table(done.stdout, "Tasks: cannot be used")["decoder"]
    assert "no_such_module" in table(done.stdout, "Recipes: cannot be used")["acme-recipes-gone"]
    found = table(done.stdout, "Recipes: acme-kit 1.5")
    assert found["acme-recipe"] == "a recipe of another distribution"
    assert "acme-gone" in found["broken-recipe"] and "cannot be used" in found["broken-recipe"]
    assert done.stderr == "", "commands of others are imported where they may be meant"


def test_a_command_that_cannot_be_imported_leaves_the_others(acme: Path) -> None:
    done = fedzero(acme, "--help")
    assert done.returncode == 0
    assert "'acme-command' cannot be imported" in done.stderr
    assert "resume" in done.stdout


@pytest.mark.slow
def test_a_foreign_method_runs_and_a_broken_one_says_why(acme: Path) -> None:
    done = fedzero(acme, "run", "acme-recipe", "--json")
    assert done.returncode == 0, done.stderr
    assert '"algorithm":"acme"' in done.stdout
    for arguments in (["run", "broken-recipe"], ["list", "acme-gone"]):
        done = fedzero(acme, *arguments)
        assert done.returncode == 2
        assert "method 'acme-gone' of acme-kit 1.5 cannot be imported" in done.stderr
        assert "Traceback" not in done.stderr
