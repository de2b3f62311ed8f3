"""The client of examples/device-java, built and played beside one in Python; a killed one goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from devices.fleet import address_of, data_of, device, recipe_of, ticket_of
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import session
from fedzero.runs.progress import Silent
from ledgers import first_bad_round, rounds_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "device-java"
CORE = Path(__file__).parents[2] / "clients" / "core"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (shutil.which("javac") and shutil.which("cc")), reason="needs javac and cc"),
]


def make(build: Path, *targets: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    subprocess.run(["make", f"BUILD={build}", *targets], cwd=EXAMPLE, env=environment, check=True, capture_output=True)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("java")
    make(folder)
    return folder


def in_java(build: Path, where: str, folder: Path, place: int) -> subprocess.Popen[bytes]:
    x, y = data_of(place)
    np.savetxt(folder / f"{place}.csv", np.column_stack([x, y]), delimiter=",", fmt=["%.9g"] * x.shape[1] + ["%d"])
    options = ["-Xmx64m", f"-Djava.library.path={build}", "-cp", str(build / "classes")]
    arguments = [where, str(folder / f"{place}.csv"), str(folder / f"java-{place}")]
    return subprocess.Popen(["java", *options, "fedzero.device.Main", *arguments], stderr=subprocess.PIPE)


@pytest.mark.parametrize(
    "changes",
    [
        {"difference": "central", "clip": 1.0},
        {"distribution": "rank1", "local_steps": 3},
        {"optimizer": {"kind": "momentum"}, "local_steps": 2, "rate": {"kind": "inverse-sqrt", "start": 0.2}},
    ],
)
def test_the_client_in_java(build: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    changes = dict(changes)
    clip = changes.pop("clip", 0.0)
    table = msgspec.to_builtins(recipe_of(tmp_path, **changes)) | {"rounds": 40}
    recipe = recipes.decode(table | ({"filters": [{"kind": "clip", "norm": clip}]} if clip else {}))
    registry, ticket = ticket_of(tmp_path / "run")
    processes, killed = dict[int, subprocess.Popen[bytes]](), threading.Event()

    def begin() -> None:
        where = address_of(registry, ticket)
        for place in range(3):
            start = device(where, tmp_path, 0) if not place else in_java(build, where, tmp_path, place)
            processes[place] = start
            while len(registry.places()) <= place:
                time.sleep(0.02)
        answers = tmp_path / "java-2" / "answers"
        while len(list(answers.glob("*"))) < 10:
            time.sleep(0.01)
        processes[2].kill()
        processes[2].communicate()
        processes[2] = in_java(build, where, tmp_path, 2)
        killed.set()

    beginning = threading.Thread(target=begin, daemon=True)
    beginning.start()
    session.start(recipe, tmp_path / "run", Environment(), Silent())
    assert killed.is_set()
    for process in processes.values():
        said = process.communicate(timeout=30)[1]
        assert process.returncode == 0 and b"the run has ended after 40 rounds" in said, said.decode()
    registry.close()
    assert first_bad_round(tmp_path / "run") is None
    rounds = rounds_of(tmp_path / "run")
    assert not any(record.refused for record in rounds)
    assert {client for record in rounds for client in record.cohort} == {0, 1, 2}


def test_a_ticket_and_rows_that_are_none(build: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("1,2,x\n")
    command = ["java", f"-Djava.library.path={build}", "-cp", str(build / "classes"), "fedzero.device.Main"]
    for ticket, rows, why in (
        ("http://x/join#AB", "rows.csv", b"is no ticket"),
        ("nonsense", "rows.csv", b"is no ticket"),
    ):
        found = subprocess.run([*command, ticket, tmp_path / rows, tmp_path / "own"], capture_output=True, timeout=30)
        assert found.returncode == 2 and why in found.stderr


@pytest.mark.skipif(not (shutil.which("clang") and shutil.which("ld.lld")), reason="needs clang and lld")
def test_the_library_for_a_phone_asks_for_four_functions(build: Path) -> None:
    make(build, "android")
    for machine in ("arm64-v8a", "x86_64"):
        library = build / "android" / machine / "libfedzero_device.so"
        found = subprocess.run(["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True)
        assert {line.split()[-1] for line in found.stdout.splitlines()} == {"free", "malloc", "memcpy", "memset"}
