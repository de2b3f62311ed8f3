"""The core in C as a library, compiled once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

CORE = Path(__file__).resolve().parents[2] / "clients" / "core"
for folder in (CORE, CORE / "vectors"):
    sys.path.insert(0, str(folder))

import native  # noqa: E402


def _needs(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")


@pytest.fixture(scope="session")
def core() -> native.Core:
    if native.compiler() is None:
        pytest.skip("needs a C compiler")
    return native.Core(native.build(["-O1"]))


@pytest.fixture
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Runs a target of the core's Makefile, if the programs that it needs are there; its output. needs: programs, and
    settings of the Makefile as NAME=value."""

    def run(target: str, *needs: str, timeout: float = 300) -> str:
        settings = [each for each in needs if "=" in each]
        _needs("make", *(each for each in needs if "=" not in each))
        build = tmp_path_factory.getbasetemp() / "core"
        command = ["make", "-s", "-j2", "-C", str(CORE), f"BUILD={build}", *settings, target]
        own = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout, env=own
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    return run
