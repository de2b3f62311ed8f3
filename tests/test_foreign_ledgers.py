"""Ledgers that somebody else sent, opened by every command in a folder that the sender filled: nothing that they name
is imported, run or fetched, and nothing in the current folder stands in for what the commands import."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import fedzero
from fedzero import FedzeroError
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import session
from fedzero.runs.progress import Silent
from fedzero.tasks.language import rows
from forked import Warm
from stops import StopAt

SOURCES = Path(fedzero.__file__).parents[1]
BATCH = """
import json, sys
from fedzero.cli import main

for command in json.loads(sys.argv[1]):
    sys.argv = ["fedzero", *command]
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code or 0
    print("exit status", code, file=sys.stderr, flush=True)
"""
EVIL = """
import pathlib
pathlib.Path({mark!r}).open("a").write(__name__ + "\\n")
def score(row, text): return 1.0
def f(x): return 1.0
"""
MODULES = ("evil", "torch", "msgspec", "numpy", "pathlib", "typing", "sqlite3", "yaml", "datasets", "sitecustomize")


def recipe_of(task: Mapping[str, Any]) -> recipes.Recipe:
    """As another release may have written it: what a recipe of one's own may not have is not refused."""
    table = {
        "name": "theirs",
        "rounds": 2,
        "evaluate_every": 1,
        "algorithm": {"kind": "decomfl", "rate": 1e-3, "directions": 1},
        "task": task,
        "federation": {"clients": 1, "cohort": 1, "bound": 0},
        "engine": {"kind": "local", "device": "cpu"},
    }
    return recipes.from_canonical(msgspec.json.encode(table))


def rewarding(model: str, reward: Mapping[str, Any]) -> dict[str, Any]:
    text = {"prompt": "{a} and {b}", "label": "sum", "train": "made:pairs:train", "test": "made:pairs:test"}
    few = {"training": 4, "testing": 2, "batch": 2, "generate": {"max_tokens": 2}}
    return {"kind": "language", "model": model, "text": text, "measure": "reward", "reward": dict(reward), **few}


def variables_for(hub: str, kept: Path) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
        "PYTHONPATH": str(SOURCES),
        "HF_ENDPOINT": hub,
        "HF_HOME": str(kept),
        "COLUMNS": "500",
    }


class Sent:
    """What somebody sent: ledgers, and a folder full of modules and records of distributions that leave a mark."""

    def __init__(self, root: Path, hub: str, kept: Path):
        self.folder, self.mark, self.asked = root / "sent", root / "mark", [""]
        self.variables = variables_for(hub, kept) | {"FEDZERO_STATE": str(root / "state")}
        self.folder.mkdir()
        for name in MODULES:
            (self.folder / f"{name}.py").write_text(EVIL.format(mark=str(self.mark)))
        records = self.folder / "evil-1.0.dist-info"
        records.mkdir()
        (records / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
        groups = "".join(f"[fedzero.{group}]\nevil = evil:score\n" for group in ("methods", "tasks", "commands"))
        (records / "entry_points.txt").write_text(groups)
        (root / "bin").mkdir()
        self.script = root / "bin" / "batch"
        self.script.write_text(BATCH)

    def run(self, *commands: tuple[object, ...]) -> list[tuple[int, str]]:
        """Exit status and what was said of every command, all in one process that starts in the sender's folder;
        standard input answers yes to every question."""
        words = json.dumps([list(map(str, command)) for command in commands])
        done = subprocess.run(
            [sys.executable, str(self.script), words],
            cwd=self.folder, env=self.variables, input="y\n" * 9, capture_output=True, text=True, timeout=280,
        )  # fmt: skip
        *said, rest = done.stderr.split("exit status ")
        assert len(said) == len(commands), done.stderr
        codes = [int(part.split(maxsplit=1)[0]) for part in [*said[1:], rest]]
        return list(zip(codes, said, strict=True))

    def forked(self, warm: Warm, *commands: tuple[object, ...]) -> list[tuple[int, str]]:
        """The same in a process that has imported everything elsewhere before it comes to the sender's folder."""
        words = [("fedzero", *command) for command in commands]
        codes, said, _ = warm.run(*words, folder=self.folder, FEDZERO_STATE=self.variables["FEDZERO_STATE"])
        return list(zip(codes, said, strict=True))


@pytest.fixture(scope="module")
def hub_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hub")


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory, hub: tuple[str, list[str]], hub_folder: Path) -> Iterator[Warm]:
    pytest.importorskip("transformers")
    variables, streams = variables_for(hub[0], hub_folder), tmp_path_factory.mktemp("streams")
    modules = ["fedzero.api", "fedzero.cli", "fedzero.tasks.language.pretrained", "transformers", "peft"]
    with Warm(sys.executable, streams, modules, env=variables, cwd=streams) as found:
        yield found


@pytest.fixture(scope="module")
def hub() -> Iterator[tuple[str, list[str]]]:
    """A hub on this machine that has nothing, and what it was asked."""
    asked: list[str] = []

    class Nothing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        do_HEAD = do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Nothing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


@pytest.fixture
def sent(tmp_path: Path, hub: tuple[str, list[str]], hub_folder: Path) -> Sent:
    hub[1].clear()
    shutil.rmtree(hub_folder, ignore_errors=True)
    found = Sent(tmp_path, hub[0], hub_folder)
    found.asked = hub[1]
    return found


@pytest.fixture
def ledger(sent: Sent, monkeypatch) -> Callable[..., Path]:
    """ledger(name, task, whole=True): a run as its author made it, elsewhere, moved into the folder that is sent."""
    elsewhere = sent.folder.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setenv("FEDZERO_STATE", str(elsewhere / "state"))

    def made(name: str, task: Mapping[str, Any], whole: bool = True) -> Path:
        monkeypatch.chdir(elsewhere)
        functions = {"evil:score": lambda row, text: 1.0, "evil:f": lambda x: 1.0}
        folder = sent.folder / name
        try:
            session.start(recipe_of(task), folder, Environment(functions=functions), Silent() if whole else StopAt(1))
        except KeyboardInterrupt:
            assert not whole
        return folder

    return made


def out_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-out")


def commands(folder: Path) -> list[tuple[object, ...]]:
    """Every command that reads a run."""
    out = out_of(folder)
    out.mkdir(exist_ok=True)
    return [
        ("verify", folder),
        ("replay", folder, "--out", out / "model.safetensors"),
        ("patch", "export", folder, "--round", 1, "--out", out / "patch"),
        ("report", folder, "--out", out / "report.html"),
        ("export", folder, "--out", out / "curves.csv"),
        ("watch", folder, "--once"),
        ("list",),
    ]


def nothing_happened(sent: Sent) -> None:
    assert not sent.mark.exists(), f"imported: {sent.mark.read_text()}"
    assert not sent.asked, f"the hub was asked: {sent.asked}"


REWARDS = {
    "function": {"kind": "function", "name": "evil:score"},
    "program": {"kind": "program", "argv": ["python3", "-c", "import evil"]},
    "look-around": {"kind": "regex", "pattern": r"(?=(a+)+$)a*"},
}


def test_what_a_reward_names_is_neither_imported_nor_run(sent, ledger, small_model) -> None:
    """0.2 imported the module of a reward at `verify`, `replay` and `patch export`, from the current folder."""
    model, wanted = str(small_model("opt")), {"model.safetensors", "patch", "report.html", "curves.csv"}
    folders = [ledger(name, rewarding(model, reward), whole=False) for name, reward in REWARDS.items()]
    reading = [*commands(folders[0]), *(("verify", folder) for folder in folders[1:])]
    found = sent.run(*reading, *(("resume", folder) for folder in folders))
    for code, said in found[: len(reading)]:
        assert code == 0, said
    for code, said in found[len(reading) :]:
        assert code == 2 and "--trust" in said, said
    assert {path.name for path in out_of(folders[0]).iterdir()} == wanted
    nothing_happened(sent)


def test_with_trust_the_module_is_imported_from_the_current_folder(sent, ledger, small_model) -> None:
    """So the mark can be left. No other module there stands in for an installed one."""
    folder = ledger("run", rewarding(str(small_model("opt")), REWARDS["function"]), whole=False)
    ((code, said),) = sent.run(("resume", folder, "--trust"))
    assert code == 0, said
    assert sent.mark.read_text().split() == ["evil"]


def test_what_black_boxes_name(sent, ledger, warm) -> None:
    boxes = [{"kind": "python", "name": "evil:f"}]
    task = {"kind": "black-box", "boxes": boxes, "dimension": 2, "constraints": ["evil:f"], "penalty": 1.0}
    folder = ledger("run", task, whole=False)
    *reading, resumed = sent.forked(warm, *commands(folder), ("resume", folder))
    assert [code for code, _ in reading] == [0] * len(reading), reading
    assert resumed[0] == 2 and "evil:f" in resumed[1] and "--trust" in resumed[1], resumed
    nothing_happened(sent)


def test_a_model_of_the_hub_is_not_fetched(sent, ledger, small_model, warm) -> None:
    """0.2 asked the hub for a repository that a ledger named. The sentence says how to get it."""
    elsewhere = sent.folder.parent / "elsewhere" / "owner"
    elsewhere.mkdir()
    (elsewhere / "model").symlink_to(small_model("opt"))
    folder = ledger("run", rewarding("owner/model", {"kind": "length", "target": 3}), whole=False)
    found = sent.forked(warm, *commands(folder), ("resume", folder))
    for code, said in (*found[:3], found[-1]):
        assert code == 2 and "hf download owner/model" in said and "--trust" in said, said
    assert [code for code, _ in found[3:-1]] == [0, 0, 0, 0], "what needs no model"
    nothing_happened(sent)
    ((code, said),) = sent.forked(warm, ("verify", folder, "--trust"))
    assert code == 2 and "cannot be loaded" in said, said
    assert sent.asked and not sent.mark.exists(), "with trust the hub is asked"


def test_a_model_of_the_hub_that_is_here_is_used(sent, ledger, small_model, warm) -> None:
    elsewhere = sent.folder.parent / "elsewhere" / "owner"
    elsewhere.mkdir()
    (elsewhere / "model").symlink_to(small_model("opt"))
    folder = ledger("run", rewarding("owner/model", {"kind": "length", "target": 3}))
    kept = Path(sent.variables["HF_HOME"]) / "hub" / "models--owner--model"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("abc")
    (kept / "snapshots").mkdir()
    (kept / "snapshots" / "abc").symlink_to(small_model("opt"))
    ((code, said),) = sent.forked(warm, ("verify", folder))
    assert code == 0, said
    nothing_happened(sent)


WAYS = ("configuration", "tokenizer", "remote", "pickle", "adapters")
"""How the folder of a model can name code."""


def spoil(model: Path, what: str, mark: Path) -> None:
    (model / "evil.py").write_text(EVIL.format(mark=str(mark)))

    def change(name: str, **fields: Any) -> None:
        path = model / name
        path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | fields))

    classes = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    if what == "configuration":
        change("config.json", model_type="evil", auto_map=classes)
    elif what == "remote":
        change("config.json", auto_map={name: f"owner/code--{path}" for name, path in classes.items()})
    elif what == "tokenizer":
        change("tokenizer_config.json", tokenizer_class="Evil", auto_map={"AutoTokenizer": ["evil.Tokenizer", None]})
    elif what == "pickle":
        (model / "model.safetensors").unlink()
        torch.save({"x": Evil(str(mark))}, model / "pytorch_model.bin")
    else:
        change("adapter_config.json", peft_type="LORA", base_model_name_or_path="owner/model", megatron_core="evil")


def test_the_code_of_a_model_is_not_run_nor_asked_about(sent, ledger, small_model, warm) -> None:
    """Folders of models that came with ledgers; everything in them but the weights is the sender's to write."""
    folders = {}
    for what in WAYS:
        model = sent.folder / f"model-{what}"
        shutil.copytree(small_model("opt"), model)
        folders[what] = ledger(what, rewarding(str(model), {"kind": "length", "target": 3}))
        spoil(model, what, sent.mark)
    found = sent.forked(warm, *(("verify", folder) for folder in folders.values()))
    for what, (code, said) in zip(WAYS, found, strict=True):
        assert "[y/N]" not in said and "Traceback" not in said
        known = what in ("tokenizer", "remote")  # the library has these classes without the model's code
        assert code == (0 if known else 2), said
        assert known or "cannot be loaded" in said or "holds adapters" in said, said
    nothing_happened(sent)


class Evil:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: str):
        self.mark = mark

    def __reduce__(self) -> Any:
        return open, (self.mark, "w")


def test_compiled_code_of_the_current_folder_is_not_loaded(sent, ledger) -> None:
    """0.2 took settings of numba from it, and so a folder of compiled code, whose index is a pickle."""
    from numba.core.caching import UserProvidedCacheLocator

    from fedzero.directions.cpu import kernels

    folder = ledger("run", {"kind": "quadratic", "dimension": 4})
    (sent.folder / ".numba_config.yaml").write_text(
        "CACHE_DIR: ./cache\nCACHE_LOCATOR_CLASSES: UserProvidedCacheLocator\n"
    )
    place = sent.folder / "cache" / UserProvidedCacheLocator.get_suitable_cache_subpath(kernels.__file__)
    place.mkdir(parents=True)
    caches = [getattr(found, "_cache", None) for found in vars(kernels).values()]
    names = [cache._impl.filename_base for cache in caches if hasattr(cache, "_impl")]
    for name in names:
        (place / f"{name}.nbi").write_bytes(pickle.dumps(Evil(str(sent.mark))))
    assert len(names) > 10
    (found,) = sent.run(("verify", folder))
    assert found[0] == 0, found
    assert sorted(path.name for path in place.iterdir()) == sorted(f"{name}.nbi" for name in names)
    nothing_happened(sent)


def test_settings_of_libraries_in_the_current_folder(sent, ledger) -> None:
    """What cannot be read there ends in a sentence at most."""
    folder = ledger("run", {"kind": "quadratic", "dimension": 4})
    (sent.folder / ".numba_config.yaml").write_text("a: [b\n")
    (sent.folder / "matplotlibrc").write_bytes(b"backend: module://evil\n\xff\xfe\n")
    verified, reported = sent.run(("verify", folder), ("report", folder, "--out", sent.folder / "report.html"))
    assert verified[0] == 0, verified
    assert reported[0] == 2 and "matplotlibrc" in reported[1] and "Traceback" not in reported[1], reported
    (sent.folder / "matplotlibrc").write_text("backend: module://evil\ntext.usetex: true\nfont.family: none\n")
    ((code, said),) = sent.run(("report", folder, "--out", sent.folder / "report.html"))
    assert code == 0, said
    nothing_happened(sent)


@pytest.mark.parametrize("options", [(), ("-P",)])
def test_as_a_module_the_current_folder_is_off_the_path(sent, ledger, options) -> None:
    folder = ledger("run", {"kind": "quadratic", "dimension": 4})
    (sent.folder / "runpy.py").unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, *options, "-m", "fedzero", "verify", str(folder)],
        cwd=sent.folder, env=sent.variables, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    nothing_happened(sent)


def test_rows_of_a_hub_are_not_fetched() -> None:
    with pytest.raises(FedzeroError, match="--trust"):
        rows.load("datasets:owner/rows:train", None, fetch=False)


def test_the_same_recipe_in_another_folder(tmp_path: Path, small_model, monkeypatch) -> None:
    """A module in another folder is another module, whatever its name."""
    monkeypatch.setenv("FEDZERO_STATE", str(tmp_path / "state"))
    recipe = recipe_of(rewarding(str(small_model("opt")), REWARDS["program"]))
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    with pytest.raises(KeyboardInterrupt):
        session.start(recipe, tmp_path / "run", Environment(), StopAt(1))
    monkeypatch.chdir(tmp_path / "theirs")
    with pytest.raises(FedzeroError, match="--trust"):
        session.resume(tmp_path / "run", Environment(), Silent())
    monkeypatch.chdir(tmp_path / "mine")
    assert session.resume(tmp_path / "run", Environment(), Silent()).complete
