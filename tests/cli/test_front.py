"""What a newcomer meets first: start-up, help, version, completion, lists, misspelt words."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedzero as package

SLOW = ("torch", "numba", "numpy", "msgspec", "matplotlib", "transformers", "nvflare", "triton")


def process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(filter(None, sys.path))
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("arguments", [("-c", "import fedzero"), ("-m", "fedzero", "--help")])
def test_nothing_slow_is_imported_to_begin_with(arguments: tuple[str, ...]) -> None:
    """Which modules are imported decides how long it takes; time itself depends on who else uses the machine."""
    done = process("-X", "importtime", *arguments)
    assert done.returncode == 0, done.stderr
    loaded = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert "fedzero" in loaded
    assert loaded.isdisjoint(SLOW)


def test_help_lists_commands_of_other_distributions(fedzero) -> None:
    pytest.importorskip("fedzero_papers")
    assert "reproduce" in fedzero("--help").out


def test_version_as_an_option(fedzero) -> None:
    outcome = fedzero("--version")
    assert (outcome.code, outcome.out.strip(), outcome.err) == (0, package.__version__, "")


@pytest.mark.parametrize("command", ["", "run", "export", "patch apply"])
def test_flags_take_no_value(fedzero, command: str) -> None:
    assert "bool" not in fedzero(*command.split(), "--help").out


def test_the_shell_completes_commands() -> None:
    done = process("-m", "fedzero", _FEDZERO_COMPLETE="complete_bash", COMP_WORDS="fedzero re", COMP_CWORD="1")
    assert {"resume", "replay", "report"} <= set(done.stdout.split())


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("algorithm.direction=3", ["algorithm.direction", "did you mean directions?", "fedzero list decomfl"]),
        ("round=3", ["unknown key round", "did you mean rounds?"]),
        ("federation.cohrt=3", ["federation.cohrt", "did you mean cohort?"]),
        ('algorithm.optimizer={kind="momentum",betta=0.5}', ["algorithm.optimizer.betta", "did you mean beta?"]),
        ('filters=[{kind="clip",nrm=1.0}]', ["filters[0].nrm", "did you mean norm?", "fedzero list clip"]),
        ("stop={patienc=3}", ["stop.patienc", "did you mean patience?"]),
        ("task.kind=quadratc", ["task.kind", "did you mean quadratic?"]),
        ("algorithm.kind=decomfll", ["algorithm.kind", "did you mean decomfl?"]),
        ("algorithm.zzz=3", ["algorithm.zzz", "correct its spelling", "fedzero list decomfl"]),
        ("stop={patience=0}", ["stop.patience = 0"]),
    ],
)
def test_a_misspelt_word(fedzero, tiny: Path, tmp_path: Path, override: str, words: list[str]) -> None:
    fedzero("run", tiny, "--out", tmp_path / "out", "--set", override).refused(*words)


def test_a_misspelt_recipe(fedzero, tmp_path: Path) -> None:
    fedzero("run", "dmo", "--out", tmp_path / "out").refused("dmo", "did you mean demo?")


def test_experiments_are_listed_apart(fedzero) -> None:
    pytest.importorskip("fedzero_papers")
    short, full = fedzero("list").out, fedzero("list", "recipes").out
    assert "e4-dzopa" not in short and "e4-dzopa" in full
    assert "demo" in short and "demo" in full
    assert "fedzero list recipes" in short
    assert len(short.splitlines()) < 80, "at a width that wraps nothing"


def test_a_summary_says_where_it_is_and_what_can_be_done_next(fedzero, tiny: Path, tmp_path: Path) -> None:
    outcome = fedzero("run", tiny, "--out", tmp_path / "run")
    for word in (f"in {tmp_path / 'run'}", f"fedzero report {tmp_path / 'run'}", f"fedzero verify {tmp_path / 'run'}"):
        assert word in outcome.out
