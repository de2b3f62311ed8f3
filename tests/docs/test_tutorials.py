"""Every tutorial, from an empty folder and by its text alone: its files are written, its commands run, in order."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
PATIENCE = 600
INSTALL = "python -m pip install --quiet --no-deps --no-build-isolation --no-index"


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: `title` is the file that it is, if it is one."""

    language: str
    title: str
    text: str


def blocks(page: str) -> list[Block]:
    return [Block(*found) for found in FENCE.findall(page)]


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A virtual environment of its own that sees what this one has installed; what is left running is ended."""
    folder = tmp_path / "environment"
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    ours = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "ours.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in ours))
    command = folder / "bin" / "fedzero"
    command.write_text(f"#!{folder / 'bin' / 'python'}\nfrom fedzero.cli import main\nmain()\n")
    command.chmod(0o755)
    yield {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}


def commands(block: Block) -> list[str]:
    """Those of a console block. fedzero itself is there; packages of the page are installed without a network."""
    lines = [line.removeprefix("$ ") for line in block.text.splitlines() if line.startswith("$ ")]
    wanted = [line for line in lines if not line.startswith("pip install 'fedzero")]
    return [re.sub(r"^pip install", INSTALL, line) for line in wanted]


def play(name: str, folder: Path, environment: dict[str, str]) -> None:
    background: list[subprocess.Popen[bytes]] = []
    try:
        for block in blocks((TUTORIALS / f"{name}.md").read_text()):
            if block.title:
                path = folder / block.title
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.text)
                continue
            assert block.language == "console", "a block that is neither a file nor commands"
            for line in commands(block):
                if line.endswith(" &"):
                    words = line.removesuffix(" &").split()
                    background.append(
                        subprocess.Popen(words, cwd=folder, env=environment, start_new_session=True,
                                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                    )  # fmt: skip
                    continue
                done = subprocess.run(
                    line, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE
                )
                assert done.returncode == 0, (line, done.stdout[-2000:], done.stderr[-4000:])
    finally:
        for process in background:
            os.killpg(process.pid, signal.SIGINT)
        for process in background:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("name", ["model", "blackbox", pytest.param("method", marks=pytest.mark.slow)])
def test_a_tutorial(name: str, tmp_path: Path, environment: dict[str, str]) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    play(name, folder, environment)
    assert list(folder.glob("*.html")), "every tutorial ends with a page to look at"


@pytest.mark.slow
def test_the_federation(tmp_path: Path, environment: dict[str, str]) -> None:
    pytest.importorskip("nvflare")
    folder = tmp_path / "empty"
    folder.mkdir()
    play("federation", folder, environment)
    assert (folder / "try.html").exists()


def test_all_tutorials_are_played() -> None:
    assert {path.stem for path in TUTORIALS.glob("*.md")} == {"model", "blackbox", "method", "federation"}
