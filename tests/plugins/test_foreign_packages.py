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
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from fedzero.cli import main
from forked import Command, Warm
from sampling import mostly_slow

PATIENCE = 300
KINDS = ("method", "task", "link", "rule", "engine", "transport")


class Environment:
    """A virtual environment of its own that sees what this one has installed, and a process of it that has loaded
    fedzero."""

    def __init__(self, folder: Path):
        venv.create(folder, with_pip=False, symlinks=True)
        self.python, self.folder = folder / "bin" / "python", folder
        (packages,) = (folder / "lib").glob("python*/site-packages")
        ours = [path for path in sys.path if path.endswith("site-packages")]
        (packages / "ours.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in ours))
        self.variables = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "400"}

    def install(self, packages: list[Path]) -> None:
        options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index")
        command = [self.python, "-m", "pip", "install", *options, *packages]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=self.variables)
        assert done.returncode == 0, (command, done.stdout, done.stderr)

    @contextmanager
    def loaded(self) -> Iterator[None]:
        streams = self.folder / "streams"
        streams.mkdir()
        with Warm(self.python, streams, ["fedzero.api", "fedzero.cli"], env=self.variables) as self.warm:
            yield

    def run(self, *commands: Command) -> str:
        """What modules printed, called one after another in one process."""
        codes, said, printed = self.warm.run(*commands, folder=self.folder)
        assert not any(codes), (commands, codes, printed, said)
        return printed

    def fedzero(self, *commands: Command) -> str:
        return self.run(*(("fedzero", *command) for command in commands))

    def summaries(self, *commands: Command) -> list[dict]:
        printed = self.fedzero(*((*command, "--json") for command in commands))
        return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Environment, Path]]:
    """An environment with a package of each kind, and the folder they lie in."""
    folder = tmp_path_factory.mktemp("foreign")
    packages = [folder / f"strange-{kind}" for kind in KINDS]
    with pytest.MonkeyPatch.context() as patch:
        for kind, package in zip(KINDS, packages, strict=True):
            patch.setattr(sys, "argv", ["fedzero", "new", kind, package.name, "--out", str(package)])
            with suppress(SystemExit):
                main()
    made = Environment(folder / "environment")
    made.install(packages)
    with made.loaded():
        yield made, folder


@pytest.mark.parametrize("kind", mostly_slow(KINDS, lambda kind: kind == "link"))
def test_generated_packages_pass_their_own_tests(there, kind: str) -> None:
    """All pass the checks of their kind, which take seconds for an engine."""
    environment, folder = there
    assert "2 passed" in environment.run(("pytest", "-q", "-p", "no:cacheprovider", folder / f"strange-{kind}"))


def test_the_list_says_where_they_come_from(there) -> None:
    environment, _ = there
    listed = environment.fedzero(("list",), ("list", "strange-method"))
    for kind in KINDS:
        lines = [line.split() for line in listed.splitlines()]
        at = next(number for number, words in enumerate(lines) if words[-2:] == [f"strange-{kind}", "0.1.0"])
        assert lines[at + 1][0] == f"strange-{kind}"
    assert "share of the slopes that count" in listed


def rounds_of(folder: Path) -> int:
    try:
        with closing(sqlite3.connect(f"file:{folder / 'ledger.db'}?mode=ro", uri=True)) as db:
            return db.execute("SELECT count(*) FROM entries").fetchone()[0]
    except sqlite3.Error:
        return 0


def test_from_a_recipe_to_a_report_with_a_kill_between(there) -> None:
    """All of them at once: run, kill, resume, verify, replay, patch, report; where they are missing, one sentence."""
    environment, folder = there
    recipe = folder / "strange-method" / "example.toml"
    recipe.write_text(
        recipe.read_text().replace('kind = "quadratic"', 'kind = "strange-task"').replace("rate = 5e-3", "rate = 1e-4")
        + '\n[[algorithm.rules]]\nkind = "strange-rule"\n[[algorithm.rules]]\nkind = "sgd"\n'
        + '\n[[filters]]\nkind = "strange-link"\n[engine]\nkind = "strange-engine"\nbandwidth = 1e9\n'
    )
    settings = ("--rounds", 400, "--set", "algorithm.keep=0.4", "--set", "engine.merge=false")
    killed = folder / "killed"
    run = ("fedzero", "run", recipe, *settings, "--out", killed)
    process = environment.warm.start(run, folder=folder)
    end = time.monotonic() + PATIENCE
    while rounds_of(killed) < 20 and time.monotonic() < end:
        time.sleep(0.005)
    os.kill(process, signal.SIGKILL)
    environment.warm.end()
    assert 20 <= rounds_of(killed) < 400
    resumed, whole = environment.summaries(("resume", killed), ("run", recipe, *settings, "--out", folder / "whole"))
    assert (resumed["ledger_head"], resumed["model_digest"]) == (whole["ledger_head"], whole["model_digest"])
    base, end_model, patched = (folder / f"{name}.safetensors" for name in ("base", "end", "patched"))
    said = environment.fedzero(
        ("verify", killed),
        ("replay", killed, "--round", 0, "--out", base),
        ("replay", killed, "--out", end_model),
        ("patch", "export", killed, "--out", folder / "small.patch"),
        ("patch", "apply", folder / "small.patch", "--base", base, "--out", patched),
        ("report", killed, "--out", folder / "page.html"),
    )
    assert "400 rounds, complete" in said and whole["model_digest"] in said
    assert patched.read_bytes() == end_model.read_bytes()
    assert "strange-method" in (folder / "page.html").read_text()
    here = subprocess.run(
        [sys.executable, "-m", "fedzero", "verify", str(killed)], capture_output=True, text=True, timeout=PATIENCE
    )
    assert here.returncode == 2
    sentence = " ".join(here.stderr.split())
    assert "is not installed: pip install" in sentence and "strange-method==0.1.0" in sentence


@pytest.mark.slow
def test_a_federation_of_two_sites(there) -> None:
    """Sites are processes of the same environment, so they have it installed: the ledger of one process."""
    environment, folder = there
    recipe = folder / "strange-link" / "example.toml"
    settings = ("--rounds", 12, "--set", "algorithm.kind=strange-method", "--set", "engine.merge=false")
    here, there = environment.summaries(
        ("run", recipe, *settings, "--out", folder / "here"),
        ("federate", recipe, *settings, "--sites", 2, "--out", folder / "sites"),
    )
    assert (there["ledger_head"], there["model_digest"]) == (here["ledger_head"], here["model_digest"])
