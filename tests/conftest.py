"""Small recipes, and the command line called in process."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from outcome import Outcome
from sampling import mark_rest_slow

# A loaded machine is no fault of the code: nothing here is timed. By default the examples of a property follow from the
# test, so that one tree has one verdict; `make test-all` draws others every time.
hypothesis.settings.register_profile("untimed", deadline=None, derandomize=True)
hypothesis.settings.register_profile("random", deadline=None)
hypothesis.settings.load_profile("untimed")

# Tests press Ctrl-C. What a script starts in the background does not hear it, nor do its children.
signal.signal(signal.SIGINT, signal.default_int_handler)

# As many workers as cores run at the same time: with threads of their own they would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Where this is set, every process that tests start compiles every module again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Models that tests train are kept beside the test run's own files, never among the user's.
os.environ.setdefault("FEDZERO_CACHE", str(Path(tempfile.gettempdir()) / "fedzero-tests-cache"))
os.environ.setdefault("FEDZERO_STATE", str(Path(tempfile.gettempdir()) / "fedzero-tests-state"))

TINY = """
name = "tiny"
rounds = 12
seed = 3
evaluate_every = 2

[algorithm]
kind = "decomfl"
rate = 0.01
directions = 3
local_steps = 2

[algorithm.optimizer]
kind = "momentum"

[task]
kind = "quadratic"
dimension = 16
noise = 0.1

[federation]
clients = 5
cohort = 2
"""

DENSE = """
name = "dense"
rounds = 12
seed = 3
evaluate_every = 4

[algorithm]
kind = "fedavg"
rate = 0.01
local_steps = 2

[task]
kind = "quadratic"
dimension = 8
noise = 0.1

[federation]
clients = 4
cohort = 2
"""

DIGITS = """
name = "digits"
rounds = 2
seed = 1
evaluate_every = 2

[algorithm]
kind = "decomfl"
rate = 5e-3
directions = 2

[task]
kind = "mnist"
batch = 4

[federation]
clients = 10
cohort = 2
"""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_rest_slow(items)


@pytest.fixture(scope="session")
def recipe_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tiny.toml (seeded, momentum, partial participation), dense.toml (FedAvg past a checkpoint), digits.toml."""
    folder = tmp_path_factory.mktemp("recipes")
    for name, text in (("tiny", TINY), ("dense", DENSE), ("digits", DIGITS)):
        (folder / f"{name}.toml").write_text(text)
    return folder


@pytest.fixture(scope="session")
def tiny(recipe_folder: Path) -> Path:
    return recipe_folder / "tiny.toml"


@pytest.fixture(scope="session")
def dense(recipe_folder: Path) -> Path:
    return recipe_folder / "dense.toml"


@pytest.fixture(scope="session")
def digits(recipe_folder: Path) -> Path:
    return recipe_folder / "digits.toml"


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """small_model(kind, context=64): a folder with a small random language model; skips without `transformers`."""
    import small_language

    folder = tmp_path_factory.mktemp("models")

    def made(kind: str, context: int = 64) -> Path:
        place = folder / f"{kind}-{context}"
        return place if place.exists() else small_language.make(kind, place, context)

    return made


class Quiet:
    """A watch that only notes what it saw."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def phase(self, what: str) -> None: ...

    def begin(self, *_: object) -> None: ...

    def decide(self, record: Any) -> None: ...

    def checkpoint(self, done: int) -> None: ...

    def ended(self, record: Any) -> None: ...

    def round(self, record: Any) -> None:
        self.seen.append(record)

    def evaluation(self, record: Any) -> None:
        self.seen.append(record)

    def warn(self, text: str) -> None: ...

    def end(self) -> None: ...


@pytest.fixture
def quiet() -> Quiet:
    return Quiet()


@pytest.fixture(scope="session")
def run_recipe() -> Callable[..., dict[str, Any]]:
    """run_recipe(path, folder, *overrides): a whole run in this process; its summary."""
    from fedzero.recipe import recipe
    from fedzero.recipe.environment import Environment
    from fedzero.runs import session

    def run(path: Path, folder: Path, *overrides: str) -> dict[str, Any]:
        return session.start(recipe.load(path, list(overrides)), folder, Environment(), Quiet())

    return run


class Unsynced(sqlite3.Connection):
    """A ledger's database that does not wait for the disk."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.execute("PRAGMA synchronous = OFF")

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        return super().execute(sql.replace("synchronous = FULL", "synchronous = OFF"), *parameters)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Numbers of torch's own generator do not depend on the tests before; where a test loads torch, it has its seed."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(autouse=True)
def unsynced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ledgers do not wait for the disk, which on a busy machine takes longer than all the rest; those of tests/ledger
    and of processes that tests start do."""
    if "ledger" not in request.path.parts:
        monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Unsynced))


@pytest.fixture
def fedzero(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """fedzero("run", path, "--json", …): the entry point with these arguments, in this process.

    An exception that is not an exit passes through and fails the test, as the user's traceback would.
    """
    from fedzero import cli

    for console in (cli.out, cli.err):  # no line breaks in the middle of a path
        monkeypatch.setattr(console, "width", 500)
    monkeypatch.delenv("FEDZERO_DATA", raising=False)
    monkeypatch.delenv("FEDZERO_SECRET", raising=False)

    def call(*arguments: object) -> Outcome:
        capsys.readouterr()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["fedzero", *map(str, arguments)])
            try:
                cli.main()
                code: Any = 0
            except SystemExit as done:
                code = done.code or 0
        streams = capsys.readouterr()
        return Outcome(code, streams.out, streams.err)

    return call


@pytest.fixture(scope="session")
def warm_server() -> Any:
    """A context whose processes are forked from a server that has loaded fedzero, see warm.py."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["warm"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        forkserver.ensure_running()
    return context


@pytest.fixture(scope="session")
def full_data() -> Callable[[str], Path]:
    """full_data(name): the data folder if it has `name`, else the test is skipped."""
    named = os.environ.get("FEDZERO_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "data"

    def find(name: str) -> Path:
        if not (folder / name).exists():
            pytest.skip(f"{folder / name} is not there: set FEDZERO_DATA to test with the full files")
        return folder

    return find


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A headless Chromium, where there is one. Its driver has an event loop in this thread: it ends with the module."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()
