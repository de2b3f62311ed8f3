"""The command line end to end, through its entry point: what it writes, what it prints, and how it refuses."""

from __future__ import annotations

import gc
import hashlib
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedzero.directions import Domain, reference
from fedzero.ledger import Ledger, Round
from fedzero.ledger.replay import read
from fedzero.model.checkpoint import load_model
from fedzero.model.params import Params
from fedzero.model.updates import decode_update
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import session
from fedzero.runs.progress import Silent

ENTRY = [sys.executable, "-c", "from fedzero.cli import main; main()"]


def digest_of(path: Path) -> str:
    """Digest of a model file of the quadratic (one tensor)."""
    return Params(load_model(path)).digest().hex()


def files(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder, but for what SQLite keeps beside a file while it is open."""
    found = [p for p in folder.rglob("*") if not p.name.endswith(("-shm", "-wal"))]
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in found}


class Live(Silent):
    """Notes the digest of the model after every round while the run goes."""

    def __init__(self) -> None:
        self.digests: dict[int, str] = {}

    def evaluation(self, record: Any) -> None:
        self.digests[record.round] = record.model.hex()


@pytest.fixture(scope="module")
def seen(tiny, tmp_path_factory) -> tuple[Path, dict[int, str]]:
    """A finished seeded run that looked at its model after each of its 12 rounds."""
    folder, live = tmp_path_factory.mktemp("seen") / "run", Live()
    session.start(recipes.load(tiny, ["evaluate_every=1"]), folder, Environment(), live)
    assert sorted(live.digests) == list(range(13))
    assert len(set(live.digests.values())) == 13
    return folder, live.digests


@pytest.fixture(scope="module")
def dense_run(dense, tmp_path_factory, run_recipe) -> Path:
    folder = tmp_path_factory.mktemp("dense") / "run"
    run_recipe(dense, folder)
    return folder


# ---- run


def test_run_writes_ledger_and_model_and_prints_a_table(fedzero, tiny, tmp_path):
    outcome = fedzero("run", tiny, "--out", tmp_path / "new" / "run")
    assert outcome.code == 0
    assert "decomfl" in outcome.out
    assert "{" not in outcome.out
    assert sorted(files(tmp_path / "new" / "run")) == ["ledger.db", "model.safetensors"]
    (tmp_path / "ordinary").touch()
    modes = {path.stat().st_mode for path in [tmp_path / "ordinary", *(tmp_path / "new" / "run").iterdir()]}
    assert len(modes) == 1, "whoever may read other files here may read these"


def test_json_contract(fedzero, tiny, tmp_path):
    outcome = fedzero("run", tiny, "--out", tmp_path / "run", "--json")
    assert outcome.code == 0
    assert len(outcome.out.splitlines()) == 1, "only the object on standard output"
    found = outcome.json
    assert (found["algorithm"], found["rounds"], found["final_accuracy"]) == ("decomfl", 12, None)
    assert 0 < found["final_loss"] < 100
    assert found["queries"] == 12 * 2 * 2 * (3 + 1), "rounds × cohort × local steps × (directions + 1)"
    assert found["bytes_up_per_client"] > 12 * 2 * 2 * 3 * 4 / 5, "more than the bare scalars"
    assert found["bytes_down_per_client"] > 0
    assert found["seconds"] > 0
    assert found["model_digest"] == digest_of(tmp_path / "run" / "model.safetensors")


def strict_json(text: str) -> Any:
    """As other languages read it: no NaN, no Infinity."""

    def never(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=never)


@pytest.mark.parametrize("rate", ["1e3", "1e10", "1e30", "1e300"])
def test_run_that_diverges(fedzero, tiny, tmp_path, rate):
    """Replies that are not finite are refused; the run goes on to its end, and its summary is JSON."""
    outcome = fedzero("run", tiny, "--out", tmp_path / "run", "--json", "--set", f"algorithm.rate={rate}")
    assert outcome.code == 0
    assert strict_json(outcome.out.splitlines()[-1])["rounds"] == 12
    assert fedzero("verify", tmp_path / "run").code == 0


def test_json_of_a_model_whose_loss_is_not_a_number(fedzero, digits, tmp_path):
    outcome = fedzero("run", digits, "--out", tmp_path / "run", "--json", "--set", "algorithm.rate=1e25")
    assert outcome.code == 0
    assert strict_json(outcome.out.splitlines()[-1])["final_loss"] is None


def test_digits_have_an_accuracy(fedzero, digits, tmp_path):
    outcome = fedzero("run", digits, "--out", tmp_path / "run", "--json")
    assert outcome.code == 0
    assert outcome.json["parameters"] == 28_938
    assert 0 <= outcome.json["final_accuracy"] <= 1
    assert fedzero("verify", tmp_path / "run").code == 0


def test_same_recipe_same_model_and_ledger(fedzero, tiny, tmp_path):
    a, b = (fedzero("run", tiny, "--out", tmp_path / name, "--json").json for name in "ab")
    assert a["model_digest"] == b["model_digest"]
    assert a["ledger_head"] == b["ledger_head"]


def test_same_recipe_same_model_file(fedzero, tiny, tmp_path):
    """Twelve files of the same model: `sha256sum` must agree, too."""
    fedzero("run", tiny, "--out", tmp_path / "run")
    for round in range(12):
        assert fedzero("replay", tmp_path / "run", "--out", tmp_path / str(round)).code == 0
    assert len({(tmp_path / str(round)).read_bytes() for round in range(12)}) == 1


def test_rounds_seed_and_set_change_the_run(fedzero, tiny, tmp_path):
    plain = fedzero("run", tiny, "--out", tmp_path / "0", "--json").json
    short = fedzero("run", tiny, "--out", tmp_path / "1", "--json", "--rounds", 3).json
    other = fedzero("run", tiny, "--out", tmp_path / "2", "--json", "--seed", 4).json
    wide = fedzero(
        "run", tiny, "--out", tmp_path / "3", "--json", "--set", "algorithm.directions=5", "--set", "name=wide"
    ).json
    assert short["rounds"] == 3
    assert other["model_digest"] != plain["model_digest"]
    assert (wide["name"], wide["queries"]) == ("wide", 12 * 2 * 2 * 6)


def test_default_folder_is_named_after_the_recipe(fedzero, tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert fedzero("run", tiny, "--rounds", 1).code == 0
    assert (tmp_path / "runs" / "tiny" / "ledger.db").exists()


def test_packaged_recipe_by_name(fedzero, tmp_path):
    outcome = fedzero("run", "demo", "--rounds", 1, "--out", tmp_path / "run", "--json")
    assert (outcome.code, outcome.json["name"]) == (0, "demo")


def test_existing_run_is_kept_unless_overwritten(fedzero, tiny, tmp_path):
    folder = tmp_path / "run"
    first = fedzero("run", tiny, "--out", folder, "--json").json
    before = files(folder)
    fedzero("run", tiny, "--out", folder, "--seed", 9).refused(str(folder), "resume", "--overwrite", "--out")
    assert files(folder) == before
    second = fedzero("run", tiny, "--out", folder, "--seed", 9, "--overwrite", "--json")
    assert second.code == 0
    assert second.json["model_digest"] != first["model_digest"]
    assert fedzero("verify", folder).code == 0


def test_overwrite_with_a_bad_recipe_keeps_the_old_run(fedzero, tiny, tmp_path):
    folder = tmp_path / "run"
    fedzero("run", tiny, "--out", folder)
    before = files(folder)
    fedzero("run", tiny, "--out", folder, "--overwrite", "--set", "base=nowhere").refused("nowhere")
    fedzero("run", tiny, "--out", folder, "--overwrite", "--set", "algorithm.rate=0").refused("algorithm.rate")
    assert files(folder) == before


# ---- bad input: exit status 2, one sentence that names the field, nothing written

BAD_VALUES = {
    "unknown key": ("algorithm.momentum=0.9", "algorithm.momentum"),
    "unknown key at the top": ("round=3", "round"),
    "unknown table": ("extra.deep.key=3", "extra"),
    "no directions": ("algorithm.directions=0", "algorithm.directions"),
    "negative rate": ("algorithm.rate=-0.1", "algorithm.rate"),
    "zero rate": ("algorithm.rate=0", "algorithm.rate"),
    "rate not a number": ("algorithm.rate=nan", "algorithm.rate"),
    "rate of the wrong type": ("algorithm.rate=fast", "algorithm.rate"),
    "rate true": ("algorithm.rate=true", "algorithm.rate"),
    "schedule without start": ('algorithm.rate={kind="inverse-sqrt"}', "algorithm.rate.start"),
    "zero radius": ("algorithm.radius=0", "algorithm.radius"),
    "no local steps": ("algorithm.local_steps=0", "algorithm.local_steps"),
    "half a step": ("algorithm.local_steps=1.5", "algorithm.local_steps"),
    "zero in a schedule": ("algorithm.directions={start=1,then=[[3,0]]}", "algorithm.directions.then"),
    "unknown method": ("algorithm.kind=sorcery", "algorithm.kind"),
    "unknown task": ("task.kind=sorcery", "task.kind"),
    "unknown optimizer": ("algorithm.optimizer.kind=sorcery", "algorithm.optimizer.kind"),
    "beta above one": ("algorithm.optimizer.beta=1.5", "algorithm.optimizer.beta"),
    "method not a table": ("algorithm=decomfl", "algorithm"),
    "no rounds": ("rounds=0", "rounds"),
    "rounds of the wrong type": ("rounds=many", "rounds"),
    "negative seed": ("seed=-1", "seed"),
    "no clients": ("federation.clients=0", "federation.clients"),
    "no cohort": ("federation.cohort=0", "federation.cohort"),
    "cohort above clients": ("federation.cohort=6", "federation.cohort"),
    "no dimension": ("task.dimension=0", "task.dimension"),
    "negative noise": ("task.noise=-1.0", "task.noise"),
    "name with a slash": ("name=a/b", "name"),
    "unknown device": ("engine.device=abacus", "engine.device"),
    "private but the server has the model": ("federation.private=true", "federation.private"),
    "sync with momentum": ("federation.sync=true", "federation.sync"),
    "no MNIST files": ('task={kind="mnist",full=true}', "task.full"),
    "alpha zero": ('task={kind="mnist",partition={kind="dirichlet",alpha=0.0}}', "task.partition.alpha"),
    "missing base": ("base=nowhere.safetensors", "base ="),
    "infinite rate": ("algorithm.rate=inf", "algorithm.rate"),
    "infinite radius": ("algorithm.radius=inf", "algorithm.radius"),
    "infinite condition": ("task.condition=inf", "task.condition"),
    "seed of 64 bits": (f"seed={2**63}", "seed"),
    "seed of 80 bits": (f"seed={2**80}", "seed"),
}


@pytest.mark.parametrize(("override", "field"), [pytest.param(*case, id=name) for name, case in BAD_VALUES.items()])
def test_bad_value(fedzero, tiny, tmp_path, override, field):
    fedzero("run", tiny, "--out", tmp_path / "out", "--set", override).refused(field)
    assert files(tmp_path) == {}


@pytest.mark.parametrize(
    ("partition", "clients", "field"),
    [
        ("iid", 4001, "federation.clients"),
        ("dirichlet", 4001, "federation.clients"),
        ("shards", 4000, "task.partition.per_client"),
    ],
)
def test_more_shares_than_samples(fedzero, digits, tmp_path, partition, clients, field):
    changes = (f'task={{kind="mnist",partition={{kind="{partition}"}}}}', f"federation.clients={clients}")
    sets = [word for change in changes for word in ("--set", change)]
    fedzero("run", digits, "--out", tmp_path / "out", *sets).refused(field)
    assert files(tmp_path) == {}


@pytest.mark.parametrize("key", ["name", "rounds", "algorithm", "task", "federation"])
def test_missing_key(fedzero, tiny, tmp_path, key):
    import tomllib

    table = tomllib.loads(tiny.read_text())
    del table[key]
    recipe = tmp_path / "recipe.json.toml"
    recipe.write_text("\n".join(f"{k} = {inline(v)}" for k, v in table.items()))
    fedzero("run", recipe, "--out", tmp_path / "out").refused(f"{key} is missing")
    assert sorted(files(tmp_path)) == [recipe.name]


def inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {inline(v)}" for k, v in value.items()) + "}"
    return json.dumps(value)


@pytest.mark.parametrize(("option", "value"), [("--rounds", 0), ("--rounds", -3), ("--seed", -3), ("--seed", 2**70)])
def test_bad_number_as_option(fedzero, tiny, tmp_path, option, value):
    fedzero("run", tiny, "--out", tmp_path / "out", option, value).refused(option.strip("-"), str(value))
    assert files(tmp_path) == {}


@pytest.mark.parametrize("text", ["algorithm.rate", "=3", "", "name.deeper=3"])
def test_malformed_set(fedzero, tiny, tmp_path, text):
    fedzero("run", tiny, "--out", tmp_path / "out", "--set", text).refused(f"--set {text}")
    assert files(tmp_path) == {}


def test_bad_toml(fedzero, tmp_path):
    recipe = tmp_path / "bad.toml"
    recipe.write_text("name = 'x'\nrounds = = 3\n")
    fedzero("run", recipe, "--out", tmp_path / "out").refused("bad.toml", "TOML", "line 2")
    recipe.write_bytes(b"name = '\xff\xfe'")
    fedzero("run", recipe, "--out", tmp_path / "out").refused("bad.toml", "TOML")
    assert sorted(files(tmp_path)) == ["bad.toml"]


@pytest.mark.parametrize("name", ["nowhere.toml", "[bold]nowhere.toml", "[/x].toml"])
def test_missing_recipe(fedzero, tmp_path, name):
    """The name is printed as it was given, brackets and all."""
    fedzero("run", name, "--out", tmp_path / "out").refused(name, "fedzero list")
    assert files(tmp_path) == {}


def test_recipe_that_is_a_folder(fedzero, tmp_path):
    (tmp_path / "folder").mkdir()
    fedzero("run", tmp_path / "folder", "--out", tmp_path / "out").refused("folder")
    assert not (tmp_path / "out").exists()


def test_missing_data_folder(fedzero, tiny, digits, tmp_path, monkeypatch):
    fedzero("run", tiny, "--out", tmp_path / "out", "--data", tmp_path / "nowhere").refused("--data", "nowhere")
    # A folder that is there but has no MNIST in it.
    fedzero("run", digits, "--out", tmp_path / "out", "--data", tmp_path, "--set", "task.full=true").refused(
        "train-images-idx3-ubyte", "--data"
    )
    monkeypatch.setenv("FEDZERO_DATA", str(tmp_path / "elsewhere"))
    fedzero("run", tiny, "--out", tmp_path / "out").refused("elsewhere")
    assert files(tmp_path) == {}


@pytest.mark.parametrize("where", ["file", "file/below"])
def test_out_that_cannot_be_a_folder(fedzero, tiny, tmp_path, where):
    (tmp_path / "file").write_text("in the way")
    fedzero("run", tiny, "--out", tmp_path / where).refused(str(tmp_path / where))
    assert files(tmp_path) == {"file": b"in the way"}


@pytest.mark.parametrize("command", ["resume", "replay", "verify", "report", "patch export"])
def test_folder_without_a_run(fedzero, tmp_path, command):
    out = [] if command in ("resume", "verify") else ["--out", tmp_path / "out"]
    fedzero(*command.split(), tmp_path / "nowhere", *out).refused("nowhere", "fedzero run")
    assert files(tmp_path) == {}


@pytest.mark.parametrize("command", ["replay", "report", "patch export", "patch apply"])
def test_out_that_is_a_folder(fedzero, seen, tmp_path, command):
    folder, _ = seen
    (tmp_path / "out").mkdir()
    if command == "patch apply":
        patch, base = exported(fedzero, folder, tmp_path)
        outcome = fedzero("patch", "apply", patch, "--base", base, "--out", tmp_path / "out")
    else:
        outcome = fedzero(*command.split(), folder, "--out", tmp_path / "out")
    outcome.refused(str(tmp_path / "out"))
    assert files(tmp_path / "out") == {}


def test_unknown_option_and_unknown_command(fedzero, tiny, tmp_path):
    for arguments in (("run", tiny, "--out", tmp_path / "out", "--colour", "red"), ("fly",), ("run",)):
        outcome = fedzero(*arguments)
        assert outcome.code == 2
        assert "Traceback" not in outcome.err
    assert files(tmp_path) == {}


# ---- resume


def test_resume_of_a_finished_run_changes_nothing(fedzero, tiny, tmp_path):
    folder = tmp_path / "run"
    first = fedzero("run", tiny, "--out", folder, "--json").json
    (folder / "model.safetensors").unlink()  # as if killed between the end of the ledger and the model
    again = fedzero("resume", folder, "--json")
    assert again.code == 0
    assert again.json == first
    assert digest_of(folder / "model.safetensors") == first["model_digest"]
    assert fedzero("verify", folder).code == 0


@pytest.mark.parametrize("command", ["resume", "verify", "replay", "report", "patch export"])
def test_ledger_file_instead_of_its_folder(fedzero, tiny, tmp_path, command):
    folder = tmp_path / "run"
    fedzero("run", tiny, "--out", folder)
    out = [] if command in ("resume", "verify") else ["--out", tmp_path / "out"]
    assert fedzero(*command.split(), folder / "ledger.db", *out).code == 0


@pytest.fixture(scope="module")
def interrupted(tiny, tmp_path_factory) -> tuple[Path, int, str]:
    """(folder, exit status, standard error) of a run that somebody stopped with Ctrl-C."""
    folder = tmp_path_factory.mktemp("interrupted") / "run"
    command = [*ENTRY, "run", str(tiny), "--rounds", "1000000", "--out", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 300
        while not (folder / "ledger.db").exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=300)
    return folder, process.returncode, err


def test_interrupt_from_the_keyboard(interrupted, fedzero):
    folder, status, err = interrupted
    assert status == 130
    assert "Traceback" not in err
    assert "unfinished" in fedzero("verify", folder).out
    assert fedzero("patch", "export", folder, "--out", folder / "patch").code == 2
    assert fedzero("patch", "export", folder, "--out", folder / "patch", "--round", 0).code == 0, "that one is known"


def test_interrupt_tells_how_to_go_on(interrupted):
    assert "fedzero resume" in interrupted[2]


# ---- replay


def test_replay_of_every_round_gives_the_model_that_was_live(fedzero, seen, tmp_path):
    folder, digests = seen
    for round, digest in digests.items():
        outcome = fedzero("replay", folder, "--round", round, "--out", tmp_path / "deep" / f"{round}.safetensors")
        assert outcome.code == 0
        assert digest in outcome.out
        assert digest_of(tmp_path / "deep" / f"{round}.safetensors") == digest
    assert fedzero("replay", folder, "--out", tmp_path / "last").code == 0
    assert digest_of(tmp_path / "last") == digests[12] == digest_of(folder / "model.safetensors")


@pytest.mark.parametrize("round", [-1, 13])
def test_replay_of_a_round_that_is_not(fedzero, seen, tmp_path, round):
    fedzero("replay", seen[0], "--round", round, "--out", tmp_path / "x").refused(f"round {round}", "0 to 12")
    assert files(tmp_path) == {}


def test_replay_of_an_old_round_of_a_dense_run(fedzero, dense_run, tmp_path):
    fedzero("replay", dense_run, "--round", 3, "--out", tmp_path / "x").refused(
        "round 3", "dense", "round 10", "seeded"
    )
    assert files(tmp_path) == {}
    for round in (10, 11, 12):
        assert fedzero("replay", dense_run, "--round", round, "--out", tmp_path / str(round)).code == 0
    assert digest_of(tmp_path / "12") == digest_of(dense_run / "model.safetensors") != digest_of(tmp_path / "11")


# ---- verify and report


def test_verify_of_good_runs(fedzero, seen, dense_run):
    for folder in (seen[0], dense_run):
        outcome = fedzero("verify", folder)
        assert outcome.code == 0
        assert "intact" in outcome.out
        assert "12 rounds" in outcome.out


def test_verify_of_a_spoiled_model_file(fedzero, seen, tmp_path):
    folder = shutil.copytree(seen[0], tmp_path / "run")
    model = bytearray((folder / "model.safetensors").read_bytes())
    model[-1] ^= 1
    (folder / "model.safetensors").write_bytes(model)
    outcome = fedzero("verify", folder)
    assert outcome.code == 1
    assert "round 12" in outcome.err
    assert "model.safetensors" in outcome.err


def test_report_of_one_run_and_of_two(fedzero, seen, dense_run, tmp_path):
    assert fedzero("report", seen[0], "--out", tmp_path / "sub" / "one.html").code == 0
    outcome = fedzero("report", seen[0], dense_run, "--out", tmp_path / "two.html")
    assert outcome.code == 0
    assert "decomfl" in outcome.out
    assert "fedavg" in outcome.out
    one, two = (tmp_path / name for name in ("sub/one.html", "two.html"))
    assert one.read_text().startswith("<!doctype html>") or one.read_text().startswith("<!DOCTYPE html>")
    assert "fedavg" not in one.read_text().split("</style>")[1]
    assert "fedavg" in two.read_text()


@pytest.mark.parametrize("command", ["verify", "resume"])
def test_nothing_stays_open(fedzero, seen, tmp_path, command):
    """SQLite removes its side files with the last connection."""
    folder = shutil.copytree(seen[0], tmp_path / "run")
    gc.collect()
    gc.disable()
    try:
        assert fedzero(command, folder).code == 0
        assert sorted(p.name for p in folder.iterdir()) == ["ledger.db", "model.safetensors"]
    finally:
        gc.enable()


# ---- another base model


def test_ledger_of_another_base_model(fedzero, tiny, tmp_path):
    base, folder = tmp_path / "base.safetensors", tmp_path / "run"
    fedzero("run", tiny, "--out", tmp_path / "other", "--seed", 5)
    fedzero("replay", tmp_path / "other", "--round", 4, "--out", base)
    assert fedzero("run", tiny, "--out", folder, "--set", f"base={base}").code == 0
    assert fedzero("verify", folder).code == 0
    before = files(folder)
    fedzero("replay", tmp_path / "other", "--round", 5, "--out", base)
    for command in ("resume", "verify", "replay"):
        out = ["--out", tmp_path / "out"] if command == "replay" else []
        fedzero(command, folder, *out).refused("base")
    assert files(folder) == before
    assert not (tmp_path / "out").exists()


def test_base_of_another_shape(fedzero, tiny, tmp_path):
    fedzero("run", tiny, "--out", tmp_path / "other", "--set", "task.dimension=17")
    base = tmp_path / "other" / "model.safetensors"
    fedzero("run", tiny, "--out", tmp_path / "out", "--set", f"base={base}").refused("shape", "16", "17")
    assert not (tmp_path / "out").exists()


# ---- patches


def exported(fedzero: Any, folder: Path, where: Path) -> tuple[Path, Path]:
    """(patch, base) of a run."""
    assert fedzero("patch", "export", folder, "--out", where / "sub" / "run.patch").code == 0
    assert fedzero("replay", folder, "--round", 0, "--out", where / "sub" / "base.safetensors").code == 0
    return where / "sub" / "run.patch", where / "sub" / "base.safetensors"


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["algorithm.optimizer.kind=adam"],
        ["algorithm.optimizer.kind=sgd", "algorithm.distribution=rademacher"],
        ['algorithm={kind="fedzo",rate=0.01,directions=2,distribution="sphere"}'],
        ['algorithm={kind="mezo",rate=0.01}', "federation={clients=1,cohort=1}"],
    ],
    ids=["momentum", "adam", "rademacher", "fedzo", "mezo"],
)
def test_base_and_patch_give_the_model(fedzero, tiny, tmp_path, overrides):
    sets = [word for override in overrides for word in ("--set", override)]
    found = fedzero("run", tiny, "--out", tmp_path / "run", "--json", *sets).json
    patch, base = exported(fedzero, tmp_path / "run", tmp_path)
    outcome = fedzero("patch", "apply", patch, "--base", base, "--out", tmp_path / "deep" / "tuned")
    assert outcome.code == 0
    assert found["model_digest"] in outcome.out
    assert digest_of(tmp_path / "deep" / "tuned") == found["model_digest"]


@pytest.mark.parametrize("round", [1, 7, 12])
def test_patch_of_a_round_on_the_way(fedzero, seen, tmp_path, round):
    _, base = exported(fedzero, seen[0], tmp_path)
    assert fedzero("patch", "export", seen[0], "--round", round, "--out", tmp_path / "early.patch").code == 0
    assert fedzero("patch", "apply", tmp_path / "early.patch", "--base", base, "--out", tmp_path / "tuned").code == 0
    assert digest_of(tmp_path / "tuned") == seen[1][round]


def test_patch_of_the_best_round(fedzero, digits, tmp_path):
    """The rate grows until it spoils the model, so that the best is on the way."""
    rate = 'algorithm.rate={kind="piecewise",points=[[0,1e-3],[6,1e-3],[7,0.3]]}'
    sets = ["--set", rate, "--set", "evaluate_every=2", "--set", "rounds=12"]
    assert fedzero("run", digits, "--out", tmp_path / "run", *sets).code == 0
    ledger = Ledger.open(tmp_path / "run" / "ledger.db")
    evaluations = {e.round: (e.metrics.accuracy, -e.metrics.loss, e.model.hex()) for e in read(ledger).evaluations}
    ledger.close()
    best = max(evaluations, key=lambda round: evaluations[round][:2])
    assert 0 < best < 12, "what the test is about"
    _, base = exported(fedzero, tmp_path / "run", tmp_path)
    assert fedzero("patch", "export", tmp_path / "run", "--best", "--out", tmp_path / "best.patch").code == 0
    outcome = fedzero("patch", "apply", tmp_path / "best.patch", "--base", base, "--out", tmp_path / "tuned")
    assert evaluations[best][2] in outcome.out


def test_patch_of_a_round_that_was_not_evaluated(fedzero, tiny, seen, tmp_path):
    out = ("--out", tmp_path / "patch")
    fedzero("run", tiny, "--out", tmp_path / "run", "--set", "evaluate_every=5")
    fedzero("patch", "export", tmp_path / "run", "--round", 3, *out).refused("--round 3", "0, 5, 10, 12")
    fedzero("patch", "export", tmp_path / "run", "--round", -5, *out).refused("--round -5")
    fedzero("patch", "export", tmp_path / "run", "--round", 13, *out).refused("--round 13")
    fedzero("patch", "export", seen[0], "--round", 3, "--best", *out).refused("choose one")
    assert not (tmp_path / "patch").exists()


def test_patch_where_nothing_is_better_than_the_base(fedzero, tiny, tmp_path):
    fedzero("run", tiny, "--out", tmp_path / "run", "--set", "algorithm.rate=1e3")
    outcome = fedzero("patch", "export", tmp_path / "run", "--best", "--out", tmp_path / "patch")
    outcome.refused("no evaluation of this run is better than that of its base")


def test_patch_passes_other_tensors_through(fedzero, seen, tmp_path):
    import torch
    from safetensors.torch import save_file

    patch, base = exported(fedzero, seen[0], tmp_path)
    save_file({**load_model(base), "frozen": torch.arange(3)}, tmp_path / "larger")
    assert fedzero("patch", "apply", patch, "--base", tmp_path / "larger", "--out", tmp_path / "tuned").code == 0
    tuned = load_model(tmp_path / "tuned")
    assert tuned["frozen"].tolist() == [0, 1, 2]
    assert Params({"x": tuned["x"]}).digest().hex() == seen[1][12]


def test_patch_for_another_base(fedzero, seen, tmp_path):
    patch, _ = exported(fedzero, seen[0], tmp_path)
    before = files(tmp_path)
    out = ["--out", tmp_path / "tuned"]
    model = seen[0] / "model.safetensors"
    fedzero("patch", "apply", patch, "--base", model, *out).refused(str(model), "base")
    fedzero("patch", "apply", patch, "--base", tmp_path / "nowhere", *out).refused("nowhere")
    fedzero("patch", "apply", patch, "--base", patch, *out).refused("run.patch", "safetensors")
    fedzero("patch", "apply", tmp_path / "nowhere", "--base", model, *out).refused("nowhere", "patch export")
    assert files(tmp_path) == before


def test_base_that_lacks_a_tensor(fedzero, seen, tmp_path):
    import torch
    from safetensors.torch import save_file

    patch, _ = exported(fedzero, seen[0], tmp_path)
    save_file({"y": torch.zeros(16)}, tmp_path / "other")
    fedzero("patch", "apply", patch, "--base", tmp_path / "other", "--out", tmp_path / "tuned").refused("'x'")
    assert not (tmp_path / "tuned").exists()


def spoil(content: bytes, bit: int) -> bytes:
    spoiled = bytearray(content)
    spoiled[bit // 8] ^= 1 << bit % 8
    return bytes(spoiled)


def refuses_bits(fedzero: Any, folder: Path, where: Path, choose: Any) -> int:
    """Flip the chosen bits of a patch one at a time: refused, or of no consequence to the model; how many refused."""
    patch, base = exported(fedzero, folder, where)
    content, out, right = patch.read_bytes(), where / "tuned", digest_of(folder / "model.safetensors")
    refused = 0
    for bit in choose(content):
        patch.write_bytes(spoil(content, bit))
        outcome = fedzero("patch", "apply", patch, "--base", base, "--out", out)
        if outcome.code == 0:
            assert digest_of(out) == right, f"bit {bit}"
            out.unlink()
        else:
            outcome.refused("run.patch")
            assert not out.exists()
            refused += 1
    return refused


def test_damaged_scalar_of_a_patch(fedzero, seen, tmp_path):
    """A patch that is well formed but leads elsewhere: the exponent of the last scalar is changed."""
    patch, base = exported(fedzero, seen[0], tmp_path)
    content, view = patch.read_bytes(), Ledger.open(seen[0] / "ledger.db")
    (scalars,) = (decode_update(e.record.update).scalars for e in view.entries() if round_number(e.record) == 11)
    view.close()
    last = content.rindex(scalars) + len(scalars) - 1
    patch.write_bytes(spoil(content, 8 * last + 3))
    fedzero("patch", "apply", patch, "--base", base, "--out", tmp_path / "tuned").refused("run.patch")
    assert not (tmp_path / "tuned").exists()


def round_number(record: Any) -> int | None:
    return record.round if isinstance(record, Round) else None


def test_damaged_updates_of_a_patch(fedzero, seen, tmp_path):
    """The scalars are the last part of the file; high bits of a few of them."""
    refused = refuses_bits(
        fedzero, seen[0], tmp_path, lambda content: range(8 * len(content) - 2, 4 * len(content), -131)
    )
    assert refused > 10


def test_damaged_method_of_a_patch(fedzero, seen, tmp_path):
    def choose(content: bytes) -> list[int]:
        begin = content.index(b'{"')
        end = content.index(b"}}", begin) if b"}}" in content else content.index(b"}", begin)
        return random.Random(1).sample(range(8 * begin, 8 * end), 60)

    assert refuses_bits(fedzero, seen[0], tmp_path, choose) > 30


def test_damaged_frame_of_a_patch(fedzero, seen, tmp_path):
    """Names, digests, lengths, roots."""

    def choose(content: bytes) -> list[int]:
        begin, end = 8 * content.index(b'{"'), 8 * content.index(b"root")
        return random.Random(2).sample([*range(begin), *range(end, end + 8 * 100)], 80)

    assert refuses_bits(fedzero, seen[0], tmp_path, choose) > 30


@pytest.mark.parametrize("cut", [0, 1, 100, -1])
def test_cut_patch(fedzero, seen, tmp_path, cut):
    patch, base = exported(fedzero, seen[0], tmp_path)
    patch.write_bytes(patch.read_bytes()[:cut])
    fedzero("patch", "apply", patch, "--base", base, "--out", tmp_path / "tuned").refused("run.patch")
    assert not (tmp_path / "tuned").exists()


def test_patch_that_is_a_folder(fedzero, seen, tmp_path):
    fedzero("patch", "apply", tmp_path, "--base", seen[0] / "model.safetensors", "--out", tmp_path / "tuned").refused(
        str(tmp_path)
    )


def test_no_patch_of_a_dense_run(fedzero, dense_run, tmp_path):
    fedzero("patch", "export", dense_run, "--out", tmp_path / "x").refused("dense", "model.safetensors")
    assert files(tmp_path) == {}


# ---- the clients' secret


PRIVATE = ["--set", "federation.private=true", "--set", "algorithm.server_model=false"]


def test_private_run(fedzero, tiny, tmp_path, monkeypatch):
    folder, secret, wrong = tmp_path / "run", tmp_path / "secret", tmp_path / "wrong"
    secret.write_text("only the clients know\n")
    wrong.write_text("the server guesses")
    fedzero("run", tiny, "--out", folder, *PRIVATE).refused("federation.private", "FEDZERO_SECRET", "--secret")
    fedzero("run", tiny, "--out", folder, *PRIVATE, "--secret", tmp_path / "nowhere").refused("--secret", "nowhere")
    assert not folder.exists()
    found = fedzero("run", tiny, "--out", folder, "--json", *PRIVATE, "--secret", secret).json
    plain = fedzero("run", tiny, "--out", tmp_path / "plain", "--json").json
    assert found["model_digest"] != plain["model_digest"]
    assert b"only the clients" not in files(folder)["ledger.db"]
    for command in ("resume", "verify"):
        before = files(folder)
        fedzero(command, folder).refused("secret")
        fedzero(command, folder, "--secret", wrong).refused("secret")
        assert files(folder) == before
        assert fedzero(command, folder, "--secret", secret).code == 0
    fedzero("replay", folder, "--secret", wrong, "--out", tmp_path / "x").refused("secret")
    assert not (tmp_path / "x").exists()
    monkeypatch.setenv("FEDZERO_SECRET", "only the clients know")
    outcome = fedzero("replay", folder, "--out", tmp_path / "x")
    assert found["model_digest"] in outcome.out


def test_empty_and_long_secrets(fedzero, tiny, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("\n")
    fedzero("run", tiny, "--out", tmp_path / "run", *PRIVATE, "--secret", secret).refused("secret")
    digests = set()
    for number, text in enumerate(("x" * 64, "x" * 65, "x" * 5000)):
        secret.write_text(text)
        outcome = fedzero("run", tiny, "--out", tmp_path / str(number), "--json", *PRIVATE, "--secret", secret)
        digests.add(outcome.json["model_digest"])
    assert len(digests) == 3


# ---- list, directions, help


def test_list_names_everything_that_a_recipe_may_name(fedzero):
    outcome = fedzero("list")
    assert outcome.code == 0
    for name in ("decomfl", "mezo", "fedzo", "fedavg", "mnist", "quadratic", "demo"):
        assert name in outcome.out


@pytest.mark.parametrize("kind", ["gaussian", "rademacher"])
@pytest.mark.parametrize(
    ("key", "tensor", "n"), [("0", 0, 1), ("0xdeadbeefcafebabe", 3, 1000), (str(2**64 - 1), 7, 4097)]
)
def test_directions_agree_with_the_reference(fedzero, kind, key, tensor, n):
    outcome = fedzero("directions", "--key", key, "--tensor", tensor, "--kind", kind, "--n", n)
    z = reference.direction(Domain[kind.upper()], int(key, 0), tensor, n)
    assert z.dtype == np.float32
    assert (outcome.code, outcome.out.strip()) == (0, hashlib.sha256(z.astype("<f4").tobytes()).hexdigest())


@pytest.mark.parametrize(
    ("option", "value"),
    [("--key", "much"), ("--key", "-1"), ("--key", str(2**64)), ("--kind", "sphere"), ("--device", "abacus")],
)
def test_bad_directions(fedzero, option, value):
    arguments = {"--key": "1", "--n": "4", option: value}
    fedzero("directions", *(word for pair in arguments.items() for word in pair)).refused(f"{option} {value}")


@pytest.mark.parametrize(
    "command",
    [
        "",
        "run",
        "resume",
        "replay",
        "verify",
        "report",
        "patch",
        "patch export",
        "patch apply",
        "list",
        "directions",
        "version",
    ],
)
def test_help(fedzero, command):
    outcome = fedzero(*command.split(), "--help")
    assert outcome.code == 0
    assert "Usage" in outcome.out
    assert len(outcome.out.split()) > 10


def test_version(fedzero):
    import fedzero as package

    outcome = fedzero("version")
    assert (outcome.code, outcome.out.strip()) == (0, package.__version__)


def test_the_installed_command(tiny, tmp_path):
    """Once as a user does it: another process, streams apart, exit statuses."""
    command = Path(sys.executable).with_name("fedzero")
    if not command.exists():
        pytest.skip("the console script is not installed beside this interpreter")
    calls = [["run", tiny, "--out", tmp_path / "run", "--json"], ["verify", tmp_path / "nowhere"]]
    started = [
        subprocess.Popen([command, *call], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for call in calls
    ]
    (good_out, _), (bad_out, bad_err) = (process.communicate(timeout=300) for process in started)
    assert [process.returncode for process in started] == [0, 2]
    assert json.loads(good_out.splitlines()[-1])["rounds"] == 12
    assert bad_out == ""
    assert bad_err.startswith("fedzero: ")
    assert "Traceback" not in bad_err
