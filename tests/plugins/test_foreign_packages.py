"""Packages outside the repository, as `fedzero new` writes them: installed in an environment of their own, they work
like ours."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import venv
from contextlib import closing
from pathlib import Path

import pytest

PATIENCE = 300
KINDS = ("method", "task", "filter")


class Environment:
    """A virtual environment of its own that sees what this one has installed."""

    def __init__(self, folder: Path):
        venv.create(folder, with_pip=False, symlinks=True)
        self.python = folder / "bin" / "python"
        (packages,) = (folder / "lib").glob("python*/site-packages")
        ours = [path for path in sys.path if path.endswith("site-packages")]
        (packages / "ours.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in ours))

    def run(self, *arguments: object, code: int = 0, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        command = [str(self.python), "-m", *map(str, arguments)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "400"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=cwd, env=environment)
        assert done.returncode == code, (command, done.stdout, done.stderr)
        return done

    def fedzero(self, *arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        return self.run("fedzero", *arguments, code=code)

    def summary(self, *arguments: object) -> dict:
        return json.loads(self.fedzero(*arguments, "--json").stdout.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> tuple[Environment, Path]:
    """An environment with three packages, and the folder they lie in."""
    folder = tmp_path_factory.mktemp("foreign")
    made = Environment(folder / "environment")
    for kind in KINDS:
        made.fedzero("new", kind, f"strange-{kind}", "--out", folder / f"strange-{kind}")
    packages = [folder / f"strange-{kind}" for kind in KINDS]
    made.run("pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", *packages)
    return made, folder


@pytest.mark.parametrize("kind", KINDS)
def test_generated_packages_pass_their_own_tests(there, kind) -> None:
    environment, folder = there
    done = environment.run("pytest", "-q", "-p", "no:cacheprovider", folder / f"strange-{kind}")
    assert "2 passed" in done.stdout


def test_the_list_says_where_they_come_from(there) -> None:
    environment, _ = there
    listed = environment.fedzero("list").stdout
    for kind in KINDS:
        lines = [line.split() for line in listed.splitlines()]
        at = next(number for number, words in enumerate(lines) if words[-2:] == [f"strange-{kind}", "0.1.0"])
        assert lines[at + 1][0] == f"strange-{kind}"
    assert "share of the slopes that count" in environment.fedzero("list", "strange-method").stdout


def rounds_of(folder: Path) -> int:
    try:
        with closing(sqlite3.connect(f"file:{folder / 'ledger.db'}?mode=ro", uri=True)) as db:
            return db.execute("SELECT count(*) FROM entries").fetchone()[0]
    except sqlite3.Error:
        return 0


def test_from_a_recipe_to_a_report_with_a_kill_between(there) -> None:
    """All three at once: run, kill, resume, verify, replay, patch, report; where they are missing, one sentence."""
    environment, folder = there
    recipe = folder / "strange-method" / "example.toml"
    recipe.write_text(
        recipe.read_text().replace('kind = "quadratic"', 'kind = "strange-task"').replace("rate = 5e-3", "rate = 1e-4")
        + '\n[[filters]]\nkind = "strange-filter"\n'
    )
    settings = ("--rounds", 400, "--set", "algorithm.keep=0.4", "--set", "engine.merge=false")
    whole = environment.summary("run", recipe, *settings, "--out", folder / "whole")
    killed = folder / "killed"
    process = subprocess.Popen(
        [str(environment.python), "-m", "fedzero", "run", str(recipe), *map(str, settings), "--out", str(killed)],
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    end = time.monotonic() + PATIENCE
    while rounds_of(killed) < 20 and process.poll() is None and time.monotonic() < end:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait(PATIENCE)
    assert 20 <= rounds_of(killed) < 400
    resumed = environment.summary("resume", killed)
    assert (resumed["ledger_head"], resumed["model_digest"]) == (whole["ledger_head"], whole["model_digest"])
    assert "400 rounds, complete" in environment.fedzero("verify", killed).stdout
    base, end_model = folder / "base.safetensors", folder / "end.safetensors"
    environment.fedzero("replay", killed, "--round", 0, "--out", base)
    assert whole["model_digest"] in environment.fedzero("replay", killed, "--out", end_model).stdout
    environment.fedzero("patch", "export", killed, "--out", folder / "small.patch")
    patched = folder / "patched.safetensors"
    environment.fedzero("patch", "apply", folder / "small.patch", "--base", base, "--out", patched)
    assert patched.read_bytes() == end_model.read_bytes()
    environment.fedzero("report", killed, "--out", folder / "page.html")
    assert "strange-method" in (folder / "page.html").read_text()
    here = subprocess.run(
        [sys.executable, "-m", "fedzero", "verify", str(killed)], capture_output=True, text=True, timeout=PATIENCE
    )
    assert here.returncode == 2
    sentence = " ".join(here.stderr.split())
    assert "is not installed: pip install" in sentence and "strange-method==0.1.0" in sentence


def test_a_federation_of_three_sites(there) -> None:
    """Sites are processes of the same environment, so they have it installed: the ledger of one process."""
    environment, folder = there
    recipe = folder / "strange-filter" / "example.toml"
    settings = ("--rounds", 12, "--set", "algorithm.kind=strange-method", "--set", "engine.merge=false")
    here = environment.summary("run", recipe, *settings, "--out", folder / "here")
    there = environment.summary("federate", recipe, *settings, "--sites", 3, "--out", folder / "sites")
    assert (there["ledger_head"], there["model_digest"]) == (here["ledger_head"], here["model_digest"])
