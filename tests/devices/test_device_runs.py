"""Runs of devices that are processes, over sockets of this machine, beside the same run computed without a gateway."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from devices.fleet import CLIENT, fleet, head_of, made, recipe_of, without_gateway
from fedzero.cli.federation import _for_devices
from fedzero.engines.devices import Devices
from fedzero.errors import FedzeroError
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import session
from fedzero.runs.progress import Silent
from ledgers import first_bad_round, rounds_of
from outcome import Outcome


def test_three_devices_make_the_ledger_of_the_same_run_without_a_gateway(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path)
    with fleet(tmp_path / "run", tmp_path) as processes:
        session.start(recipe, tmp_path / "run", Environment(), Silent())
    assert [process.returncode for process in processes] == [0, 0, 0]
    without_gateway(recipe, tmp_path / "right")
    assert first_bad_round(tmp_path / "run") is None
    rounds = rounds_of(tmp_path / "run")
    assert [record.cohort for record in rounds] == [(0, 1, 2)] * 8
    assert not any(record.refused for record in rounds)  # every reply had the digest of the server's model
    assert head_of(tmp_path / "run") == head_of(tmp_path / "right")


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"distribution": "rank1", "difference": "central", "local_steps": 3},
        {"optimizer": {"kind": "momentum"}, "local_steps": 2, "rate": {"kind": "inverse-sqrt", "start": 0.2}},
    ],
)
def test_the_whole_profile(tmp_path: Path, changes: dict[str, object]) -> None:
    recipe = recipe_of(tmp_path, **changes)
    with fleet(tmp_path / "run", tmp_path):
        session.start(recipe, tmp_path / "run", Environment(), Silent())
    without_gateway(recipe, tmp_path / "right")
    assert head_of(tmp_path / "run") == head_of(tmp_path / "right")


def test_the_client_imports_neither_torch_nor_fedzero() -> None:
    """Not even where they are installed."""
    names = ["session", "cli", "websocket", "polling", "model", "turn", "store", "signing"]
    imports = "; ".join(f"import fedzero_client.{name}" for name in names)
    heavy = {"torch", "fedzero", "msgspec"}
    program = f"import sys; {imports}; print(sorted({heavy} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": str(CLIENT)}, capture_output=True)
    assert found.stdout.strip() == b"[]", found.stderr


def test_a_device_without_torch_installed_still_imports(tmp_path: Path) -> None:
    """A folder with a torch that cannot be imported, before all others."""
    for name in ("torch", "fedzero"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not here')\n")
    path = f"{tmp_path}:{CLIENT}"
    program = "import fedzero_client.cli as cli; cli.main(['--version'])"
    found = subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": path}, capture_output=True)
    assert found.stdout.strip() == b"0.1.0", found.stderr


def test_no_other_engine_plays_rounds_without_rows(tmp_path: Path) -> None:
    recipe = recipes.with_engine(recipe_of(tmp_path), "local")
    with pytest.raises(FedzeroError, match=r"use engine\.kind = 'devices' \(not 'local'\)"):
        session.start(recipe, tmp_path / "run", Environment(), Silent())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        ({"listen": "0.0.0.0:0"}, "reached from other machines"),
        ({"listen": "nonsense"}, "is no address"),
        ({"certificate": "c.pem"}, "go together"),
        ({"certificate": "c.pem", "key": "k.pem"}, "no such file"),
        ({"least": 4}, "exceeds federation.clients"),
    ],
)
def test_gateways_that_cannot_be_are_refused_before_a_run_begins(
    tmp_path: Path, engine: dict[str, object], why: str
) -> None:
    with pytest.raises(FedzeroError, match=why):
        session.start(recipe_of(tmp_path, engine), tmp_path / "run", Environment(), Silent())
    assert not (tmp_path / "run" / "ledger.db").exists()


def test_serve_opens_a_gateway_and_goes_on_with_what_is_there(fedzero: Callable[..., Outcome], tmp_path: Path) -> None:
    """The same command again finds that the run has ended."""
    (tmp_path / "recipe.toml").write_text(recipes.to_toml(recipe_of(tmp_path)))
    run = tmp_path / "school" / "runs" / "fleet"
    command = ["serve", tmp_path / "school", tmp_path / "recipe.toml", "--devices", "--json"]
    with fleet(run, tmp_path) as processes:
        assert fedzero(*command).code == 0
    assert [process.returncode for process in processes] == [0, 0, 0]
    without_gateway(recipe_of(tmp_path), tmp_path / "right")
    assert head_of(run) == head_of(tmp_path / "right")
    assert fedzero(*command).code == 0 and len(rounds_of(run)) == 8


def test_serve_for_devices_takes_a_gateway_where_the_recipe_names_no_engine(tmp_path: Path) -> None:
    local = recipes.with_engine(recipe_of(tmp_path), "local")
    for recipe, listen in ((recipe_of(tmp_path), "127.0.0.1:0"), (local, "127.0.0.1:8470")):
        (tmp_path / "recipe.toml").write_text(recipes.to_toml(recipe))
        found, folder = _for_devices(tmp_path / "p", str(tmp_path / "recipe.toml"), None, None, None, None)
        assert isinstance(found.engine, Devices) and found.engine.listen == listen
        assert folder == tmp_path / "p" / "runs" / "fleet"


def test_serve_for_devices_needs_a_recipe(fedzero: Callable[..., Outcome], tmp_path: Path) -> None:
    done = fedzero("serve", tmp_path, "--devices")
    assert done.code == 2 and "--devices serves one run: name its recipe" in done.err


def test_rows_are_not_on_the_server(tmp_path: Path) -> None:
    setup = made(recipe_of(tmp_path), tmp_path)
    with pytest.raises(Exception, match="are on devices"):
        setup.problem.shards.batch(setup.keys, 0, 0, 0)
