"""What is released: its contents are complaints' business, and a wheel is installed and run (slow)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import dist
import pytest

ROOT = Path(__file__).resolve().parents[1]
WHEEL = ["fedzero/__init__.py", "fedzero/data/x.npz", "fedzero-1.dist-info/licenses/LICENSE"]
SOURCE = ["src/fedzero/__init__.py", "src/fedzero/data/x.npz", "pyproject.toml", "README.md", "LICENSE"]
WANTED = ["fedzero/__init__.py", "fedzero/data/x.npz"]


def test_what_is_missing_and_what_should_not_be_there_is_found() -> None:
    assert dist.complaints(WHEEL, SOURCE, WANTED) == []
    assert dist.complaints(WHEEL[:1] + WHEEL[2:], SOURCE, WANTED) == ["the wheel lacks fedzero/data/x.npz"]
    assert dist.complaints(WHEEL[:2], SOURCE, WANTED) == ["the wheel has no licence"]
    assert dist.complaints([*WHEEL, "tests/test_a.py"], [*SOURCE, "tests/test_b.py"], WANTED) == [
        "the wheel has tests/test_a.py",
        "there is tests/test_a.py",
        "there is tests/test_b.py",
    ]
    assert dist.complaints(WHEEL, SOURCE[1:-1], WANTED) == [
        "the source distribution lacks src/fedzero/__init__.py",
        "the source distribution lacks LICENSE",
    ]


def test_every_file_that_the_package_reads_is_package_data() -> None:
    """Without a build: what is no module is named in pyproject.toml."""
    patterns = re.findall(
        r'"([^"]+)"', (ROOT / "pyproject.toml").read_text().partition("package-data]\n")[2].split("]")[0]
    )
    files = {name for name in dist.tracked() if not name.endswith((".py", ".md"))}
    named = {f"fedzero/{path.relative_to(dist.PACKAGE)}" for each in patterns for path in dist.PACKAGE.glob(each)}
    assert files and files <= named


def test_the_workflow_calls_what_people_call() -> None:
    said = (ROOT / ".github" / "workflows" / "test.yml").read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    called = re.findall(r"run: make (\S+)", said)
    assert called == ["test", "dist"] and set(called) <= targets and said.count("run: ") == 2


@pytest.mark.slow
def test_a_wheel_is_built_installed_and_run(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tools" / "dist.py"), "--out", str(tmp_path), "--borrow"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "installed and run: intact: 3 rounds, complete" in done.stdout
