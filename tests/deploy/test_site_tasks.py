"""Models and data of a site's own: named at the site, never on the wire."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
import torch.nn.functional as F
from harness import recipe_of

import fedzero
from fedzero import plugins
from fedzero.deploy.flare import project as kits
from fedzero.deploy.flare.launch import free_port
from fedzero.deploy.server.conduct import run_at_sites
from fedzero.deploy.site import tasks as site_tasks
from fedzero.deploy.site.site import Settings, Site
from fedzero.engines.remote.engine import Service
from fedzero.errors import FedzeroError
from fedzero.ledger import replay
from fedzero.ledger.store import Ledger
from fedzero.methods import DeComFL
from fedzero.oracles.blackbox import CommandBox, HttpBox, PythonBox
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import session
from fedzero.runs.progress import Silent
from fedzero.tasks.blackbox import BlackBox
from fedzero.testing.engines import LocalSites

OWN = Path(__file__).parent / "own"
NAMES = ["north", "south"]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(OWN))
    monkeypatch.syspath_prepend(str(OWN / "at_sites"))
    from stand_in import StandIn

    monkeypatch.setitem(plugins._registered["tasks"], "stand-in", plugins.Plugin(StandIn, "", ""))
    return StandIn


class Wards(LocalSites):
    """Sites with tasks of their own."""

    def __init__(self, folder: Path, **tasks: str):
        super().__init__(folder, NAMES)
        self.tasks = tasks

    def begin(self):
        super().begin()
        for name, task in self.tasks.items():
            settings = Settings(device="cpu", tasks={site_tasks.ANY: f"hospital:{task}"})
            self.sites[name] = Site(settings, self.folder / "kept" / name)
        return list(self.sites)


def recipe_for(stand_in, rounds=60, **options):
    recipe = recipe_of(
        algorithm=DeComFL(rate=0.05, directions=8),
        task=stand_in(name="radiology"),
        clients=4,
        cohort=4,
        server_model=False,
        **options,
    )
    return msgspec.structs.replace(recipe, rounds=rounds, evaluate_every=rounds)


def run(recipe, folder: Path, link: LocalSites, said=None):
    report = (lambda text: None) if said is None else said.append
    return run_at_sites(recipe, folder, Environment(), Silent(), Service(link, lambda: NAMES, report=report))


def test_sites_train_on_data_that_only_they_have(tmp_path: Path, stand_in) -> None:
    """The minimum is between the sites', evaluations are the mean over sites, and facts about data stay there."""
    found = run(recipe_for(stand_in), tmp_path / "run", Wards(tmp_path / "sites", north="north", south="south"))
    assert found.refused == 0
    ledger = Ledger.open(tmp_path / "run" / "ledger.db")
    try:
        view, start = replay.read(ledger), ledger.start()
    finally:
        ledger.close()
    assert start.facts == {"model": "a point"}
    # at 0: ½·8·0² at north, ½·8·2² at south, with two clients each; at the minimum x = 1 both have ½·8·1²
    first, last = (e.metrics.loss for e in (view.evaluations[0], view.evaluations[-1]))
    assert first == pytest.approx((0 + 16) / 2)
    assert 4 < last < 4.5
    stored = list((tmp_path / "sites" / "kept").glob("*/*/facts.json"))
    assert sorted(path.read_text() for path in stored) == ['{"data":"0.000"}', '{"data":"2.000"}']


class Clinics(Wards):
    def begin(self):
        LocalSites.begin(self)
        for name in NAMES:
            settings = Settings(device="cpu", threads=1, tasks={"radiology": f"clinic:{name}"})
            self.sites[name] = Site(settings, self.folder / "kept" / name)
        return list(self.sites)


def test_modules_and_data_of_sites_are_trained_as_those_of_one_process(tmp_path: Path, stand_in) -> None:
    """`fedzero.site_task` at two sites, a client at each: the model that `fedzero.train` makes of the same data."""
    import clinic

    method = {"kind": "decomfl", "rate": 0.05, "directions": 4}
    table = {
        "name": "clinics",
        "rounds": 6,
        "evaluate_every": 3,
        "seed": 3,
        "algorithm": method,
        "task": {"kind": "own", "name": "radiology", "batch": 8},
        "federation": {"clients": 2, "cohort": 2, "server_model": False},
    }
    there = run(recipes.decode(table), tmp_path / "there", Clinics(tmp_path / "sites"))
    model = copy.deepcopy(clinic.MODEL)
    data = [clinic.rows(1), clinic.rows(2)]
    here = fedzero.train(model, data, loss=F.cross_entropy, method=method, rounds=6, batch=8, seed=3, merge=False,
                         out=tmp_path / "here", progress=False)  # fmt: skip
    assert there.model_digest == here.summary.model_digest
    with closing(Ledger.open(tmp_path / "there" / "ledger.db")) as ledger:
        facts = ledger.start().facts
    assert "Linear, 15 parameters" in facts["model"] and "data" not in facts, "what a site has is not told"


def test_a_site_that_comes_back_with_other_data_is_left_out(tmp_path: Path, stand_in) -> None:
    said: list[str] = []
    recipe, link = recipe_for(stand_in, rounds=6), Wards(tmp_path / "sites", north="north", south="south")

    def stop(site, answer):
        if link.asked > 10:
            raise KeyboardInterrupt
        return answer

    link.spoil = stop
    with pytest.raises(KeyboardInterrupt):
        run(recipe, tmp_path / "run", link)
    run(None, tmp_path / "run", Wards(tmp_path / "sites", north="north", south="moved"), said)
    assert said == ["south cannot take part: its data or its model are not those it began this run with"]


def test_what_a_site_s_own_code_raises_is_not_told(tmp_path: Path, stand_in, capsys) -> None:
    said: list[str] = []
    link = Wards(tmp_path / "sites", north="north", south="broken")
    run(recipe_for(stand_in, rounds=2), tmp_path / "run", link, said)
    assert said == ["south cannot take part: its task could not be built: the site's log has the reason"]
    assert "patient 4711" in capsys.readouterr().err
    assert link.sites["south"].state.problem


def test_a_server_with_a_model_has_a_task_of_its_own(tmp_path: Path, stand_in) -> None:
    recipe = recipe_for(stand_in, rounds=4)
    recipe = msgspec.structs.replace(recipe, federation=msgspec.structs.replace(recipe.federation, server_model=True))
    link = Wards(tmp_path / "sites", north="north", south="south")
    with pytest.raises(FedzeroError, match="nothing is known here of 'radiology'"):
        run(recipe, tmp_path / "run", link)
    environment = Environment(functions=site_tasks.loaded({"radiology": "hospital:named"}))
    found = run_at_sites(recipe, tmp_path / "run", environment, Silent(), Service(link, lambda: NAMES))
    assert found.complete
    assert found.refused == 0


# ---- black boxes


class Boxes(LocalSites):
    """Sites with a function of their own each, under one name."""

    def __init__(self, folder: Path, breaks=lambda asked: False, **functions: str):
        super().__init__(folder, NAMES, breaks)
        self.functions = functions

    def begin(self):
        super().begin()
        for name, function in self.functions.items():
            settings = Settings(device="cpu", tasks={"cost": f"hospital:{function}"})
            self.sites[name] = Site(settings, self.folder / "kept" / name)
        return list(self.sites)


def recipe_of_boxes(rounds=6, boxes=None, **task):
    boxes = boxes or (PythonBox(name="cost"),) * 4
    recipe = recipe_of(
        algorithm=DeComFL(rate=0.05, directions=2),
        task=BlackBox(boxes=boxes, dimension=3, **task),
        clients=4,
        cohort=4,
        server_model=False,
    )
    return msgspec.structs.replace(recipe, rounds=rounds, evaluate_every=2)


@pytest.fixture
def calls(tmp_path: Path, stand_in, monkeypatch) -> Path:
    path = tmp_path / "calls"
    path.touch()
    monkeypatch.setenv("COST_CALLS", str(path))
    return path


def test_black_boxes_at_sites_are_those_of_one_process_and_no_query_is_paid_twice(tmp_path: Path, calls) -> None:
    recipe = recipe_of_boxes(evaluate="log")
    environment = Environment(functions=site_tasks.loaded({"cost": "hospital:cost"}))
    here = session.start(recipe, tmp_path / "here", environment, Silent())
    alone = len(calls.read_text())
    link = Boxes(tmp_path / "sites", {8, 16}.__contains__, north="cost", south="cost")  # after north's turns
    there = run(recipe, tmp_path / "run", link)
    assert link.epochs == 3
    assert (there.model_digest, there.refused) == (here.model_digest, 0)
    assert len(calls.read_text()) == 2 * alone, "what the log has is not asked again"
    assert there.final_loss is not None


def test_a_budget_is_kept_at_the_site(tmp_path: Path, calls) -> None:
    recipe = recipe_of_boxes(rounds=4, budget=8)  # a turn of two directions takes three queries
    run(recipe, tmp_path / "run", Boxes(tmp_path / "sites", {9}.__contains__, north="cost", south="cost"))
    ledger = Ledger.open(tmp_path / "run" / "ledger.db")
    try:
        refused = [dict(record.refused) for record in replay.read(ledger).rounds]
    finally:
        ledger.close()
    assert refused[:2] == [{}, {}]
    sat_out = "failed: sat out: 2 of its budget of 8 queries are left and a turn takes 3"
    assert refused[2:] == [dict.fromkeys(range(4), sat_out)] * 2
    assert len(calls.read_text()) == 4 * 6


def test_what_a_function_of_a_site_says_stays_there(tmp_path: Path, calls) -> None:
    link = Boxes(tmp_path / "sites", north="cost", south="secretive")
    run(recipe_of_boxes(rounds=1, retries=0), tmp_path / "run", link)
    assert b"4711" not in (tmp_path / "run" / "ledger.db").read_bytes()
    with closing(Ledger.open(tmp_path / "run" / "ledger.db")) as ledger:
        (record,) = replay.read(ledger).rounds
    assert dict(record.refused) == dict.fromkeys(
        (1, 3), "failed: its box gave no value: the site has the reason in queries.db"
    )


@pytest.mark.parametrize(
    "box",
    [
        CommandBox(argv=("touch", "/tmp/never")),
        HttpBox(url="http://localhost:9/"),
        PythonBox(name="hospital:cost"),
        PythonBox(name="os:system"),
    ],
)
def test_a_recipe_names_no_code_of_a_site(tmp_path: Path, calls, box) -> None:
    link = Boxes(tmp_path / "sites", north="cost", south="cost")
    with pytest.raises(FedzeroError, match=r"north cannot take part: box .* is not one of this site's"):
        run(recipe_of_boxes(boxes=(box,) * 4), tmp_path / "run", link)
    assert not calls.read_text()


# ---- names


def test_names_of_tasks(tmp_path: Path, stand_in) -> None:
    given = site_tasks.places_of(["hospital:named", "hospital:north", "other=hospital:south"])
    assert given == {"radiology": "hospital:named", "*": "hospital:north", "other": "hospital:south"}
    path = tmp_path / "fedzero.toml"
    path.write_bytes(msgspec.toml.encode(Settings(tasks=given)))
    assert Settings.read(path).environment().functions.keys() == given.keys()


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("hospital", "not of the form module:attribute"),
        ("nowhere.to_be_found:task", "cannot be imported"),
        ("hospital:east", "no such object"),
    ],
)
def test_a_task_that_cannot_be_found_shows_before_the_site_connects(tmp_path, stand_in, fedzero, option, words) -> None:
    pytest.importorskip("nvflare", reason="nvflare is not installed")
    kits.provision(tmp_path / "project", ["north"])
    kit = kits.kit_of(tmp_path / "project", "north")
    fedzero("join", kit, "--task", option).refused("--task names", option, words)
    assert not (kit / "local" / kits.SETTINGS).exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["own", "black-box"])
def test_own_tasks_in_processes_of_their_own(tmp_path: Path, kind: str) -> None:
    """The server cannot import what its sites have; they find it in the folder where they join."""
    pytest.importorskip("nvflare", reason="nvflare is not installed")
    project, recipe = tmp_path / "project", tmp_path / "recipe.toml"
    recipe.write_text(RECIPE + TASKS[kind])
    kits.provision(project, NAMES, port=free_port())
    path = os.pathsep.join([str(OWN), os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, "PYTHONPATH": path, "COST_CALLS": str(tmp_path / "calls")}
    command = [sys.executable, "-m", "fedzero"]
    tasks = {name: ["--task", f"hospital:{name}", "--task", "cost=hospital:cost"] for name in NAMES}
    joined = [
        subprocess.Popen(
            [*command, "join", kits.kit_of(project, name), *tasks[name], "--threads", "1"],
            env=variables, cwd=OWN / "at_sites", stderr=subprocess.PIPE, text=True,
        )
        for name in NAMES
    ]  # fmt: skip
    try:
        served = [*command, "serve", project, recipe, "--minimum", "2", "--json"]
        done = subprocess.run(served, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        found = msgspec.json.decode(done.stdout.splitlines()[-1])
    finally:
        for process in joined:
            process.send_signal(signal.SIGINT)
        said = [process.communicate(timeout=300)[1] for process in joined]
    assert (found["rounds"], found["refused"]) == (60, 0), said
    least = {"own": 4.0, "black-box": 0.0}[kind]
    assert least < found["final_loss"] < least + 0.5
    assert (kind == "black-box") == (tmp_path / "calls").exists()


RECIPE = """
name = "own"
rounds = 60
seed = 1
evaluate_every = 60

[algorithm]
kind = "decomfl"
rate = 0.05
directions = 8

[federation]
clients = 4
cohort = 4
server_model = false

[engine]
device = "cpu"

[task]
"""
TASKS = {
    "own": 'kind = "stand-in"\nname = "radiology"\n',
    "black-box": 'kind = "black-box"\ndimension = 8\nboxes = [' + '{kind = "python", name = "cost"},' * 4 + "]\n",
}
