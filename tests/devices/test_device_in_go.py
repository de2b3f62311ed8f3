"""The device in Go: built, its own tests, and a short run with the commands that people use."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from ledgers import first_bad_round, rounds_of

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "examples" / "device-go"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("go") is None, reason="go is not installed")]

RECIPE = """
name = "go"
rounds = 12
evaluate_every = 6
filters = [{{ kind = "clip", norm = 1.0 }}]

[algorithm]
kind = "decomfl"
rate = 0.05
directions = 4
distribution = "{distribution}"
difference = "{difference}"
local_steps = {steps}
optimizer = {{ kind = "{rule}" }}

[task]
kind = "devices"
widths = [6, 5, 3]
test = "{test}"
mean = 0.5
batch = 16

[federation]
clients = 2
cohort = 2

[engine]
kind = "devices"
listen = "127.0.0.1:0"
least = 2
"""


def rows(seed: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    y = draw.integers(0, 3, 40)
    return (draw.normal(size=(40, 6)) + 2 * np.eye(3, 6)[y]).astype(np.float32), y


def csv(path: Path, seed: int) -> Path:
    x, y = rows(seed)
    lines = [",".join([*map(str, row), str(label)]) for row, label in zip(x.tolist(), y, strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("go") / "device"
    subprocess.run(["go", "build", "-o", path, "."], cwd=SOURCE, check=True)
    return path


def fedzero(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "fedzero", *map(str, arguments)]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src")}


def ticket(run: Path, server: subprocess.Popen[str]) -> str:
    """The address of a ticket, once the gateway listens."""
    assert server.stdout is not None
    for line in server.stdout:
        if "devices join at" in line:
            break
    command = fedzero("devices", "ticket", run, "--no-qr")
    found = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    return found.stdout.strip()


@pytest.fixture
def begun() -> Iterator[ExitStack]:
    """Processes, of which none is left."""
    with ExitStack() as stack:
        yield stack


def begin(stack: ExitStack, command: list[str], **options: object) -> subprocess.Popen[str]:
    process = subprocess.Popen(command, text=True, **options)  # type: ignore[call-overload]
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process  # type: ignore[no-any-return]


def test_the_tests_in_go_pass() -> None:
    for command in (["go", "vet", "."], ["go", "test", "."]):
        found = subprocess.run(command, cwd=SOURCE, capture_output=True, text=True)
        assert found.returncode == 0, found.stdout + found.stderr
    unformatted = subprocess.run(["gofmt", "-l", "."], cwd=SOURCE, capture_output=True, text=True)
    assert unformatted.stdout == ""


@pytest.mark.parametrize(
    ("distribution", "difference", "steps", "rule"),
    [("rademacher", "forward", 1, "sgd"), ("rank1", "central", 3, "momentum")],
)
def test_a_run_whose_devices_are_in_go(
    begun: ExitStack, program: Path, tmp_path: Path, distribution: str, difference: str, steps: int, rule: str
) -> None:
    x, y = rows(99)
    np.savez(tmp_path / "test.npz", x=x, y=y)
    recipe = RECIPE.format(
        distribution=distribution, difference=difference, steps=steps, rule=rule, test=tmp_path / "test.npz"
    )
    (tmp_path / "go.toml").write_text(recipe)
    run = tmp_path / "run"
    server = begin(
        begun,
        fedzero("run", tmp_path / "go.toml", "--out", run),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    where = ticket(run, server)
    ways: list[list[str]] = [[], ["--socket"]]
    commands = [
        [str(program), "--data", str(csv(tmp_path / f"{n}.csv", n)), "--folder", str(tmp_path / f"device-{n}"), *way]
        for n, way in enumerate(ways)
    ]
    devices = [begin(begun, [*command, where], stderr=subprocess.DEVNULL) for command in commands]
    end = time.monotonic() + 60
    while not (tmp_path / "device-1" / "answer").exists() and time.monotonic() < end:
        time.sleep(0.02)
    devices[1].kill()  # it has answered an order at least; the folder has its place
    devices[1].wait()
    devices[1] = begin(begun, commands[1], stderr=subprocess.DEVNULL)
    assert server.wait(120) == 0
    assert [process.wait(30) for process in devices] == [0, 0]
    assert first_bad_round(run) is None
    rounds = rounds_of(run)
    assert len(rounds) == 12
    assert not any(record.refused for record in rounds)  # every reply had the digest of the server's model
