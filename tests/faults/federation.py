"""A federation of real processes on this machine, there to be hurt: `fedzero serve`, `fedzero join`, and what FLARE
starts below them.

Everything lives in one folder. Each of the processes has that folder in its command line, so all are found (also those
that lost their parents), told apart by what they run, and ended one by one, by their ids.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil

from fedzero.deploy.flare import project as kits
from fedzero.deploy.flare.launch import free_port
from fedzero.engines.remote.assignment import SiteAssignment
from fedzero.ledger import replay
from fedzero.ledger.folder import LEDGER
from fedzero.ledger.records import Round
from fedzero.ledger.store import Ledger
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import recorded, session, summary
from fedzero.runs.progress import Silent

T = TypeVar("T")
SITES = ("north", "south", "west")
RECIPE = """
name = "faults"
rounds = {rounds}
seed = 7
evaluate_every = {evaluate_every}

[algorithm]
kind = "decomfl"
rate = 0.01
directions = 4
optimizer = {{ kind = "momentum", beta = 0.9 }}

[task]
kind = "quadratic"
dimension = 64
noise = 0.1

[federation]
clients = 6
cohort = 6
server_model = {server_model}

[engine]
merge = false
device = "cpu"
"""
FIGURES: list[str] = []
"""What was measured on the way; conftest.py prints it at the end."""
MISBEHAVING = Path(__file__).parent / "misbehaving"
APP = "nvflare.private.fed.app"
SERVER, SERVER_JOB = "fedzero.deploy.flare.server", f"{APP}.server.runner_process"
SITE, SITE_JOB = "fedzero.deploy.flare.client", f"{APP}.client.worker_process"
"""The four kinds of processes, by the modules that they run."""


class Process(psutil.Process):
    """A process by id and time of birth, so that an id that is used again is not taken for it."""

    @property
    def alive(self) -> bool:
        """Not gone, nor a zombie."""
        try:
            return self.is_running() and self.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def send(self, number: signal.Signals) -> None:
        with suppress(psutil.NoSuchProcess):
            self.send_signal(number)


def processes_of(folder: Path, kind: str = "") -> list[Process]:
    """Living processes that have something below a folder in their command lines, of a kind."""
    found = []
    for pid in psutil.pids():
        with suppress(psutil.NoSuchProcess):
            process = Process(pid)
            words = process.cmdline() if pid != os.getpid() else []
            if any(str(folder) in word for word in words) and (not kind or kind in words) and process.alive:
                found.append(process)
    return found


def until(seconds: float, condition: Callable[[], T | None], what: str, pause: float = 0.05) -> T:
    """What the condition gives as soon as it is true of anything; a failure that says what was awaited otherwise."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"{seconds:g} s went by without: {what}")
        time.sleep(pause)
    return found


class Federation:
    """One project and one run. Sites read two things from their surroundings: how slow to be, and how to misbehave."""

    def __init__(
        self,
        folder: Path,
        sites: Sequence[str] = SITES,
        rounds: int = 1000,
        server_model: bool = True,
        evaluate_every: int = 100,
        deadline: float = 3.0,
    ):
        self.folder, self.out, self.sites = folder, folder / "run", list(sites)
        folder.mkdir(parents=True, exist_ok=True)
        self.project = kits.provision(folder / "project", sites, port=free_port())
        self.recipe = folder / "faults.toml"
        options = {"rounds": rounds, "server_model": str(server_model).lower(), "evaluate_every": evaluate_every}
        self.recipe.write_text(RECIPE.format(**options))
        self.deadline = ["--deadline", f"{deadline:g}"]
        self.supervisor: subprocess.Popen[bytes] | None = None
        self.started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing of it is left running, whatever happened."""
        with ExitStack() as rest:
            for process in self.started:
                rest.callback(process.wait, 10)
            end = time.monotonic() + 15
            while (left := self.processes()) and time.monotonic() < end:
                for process in left:
                    process.send(signal.SIGKILL)
                time.sleep(0.05)
        for path in sorted(self.folder.glob("*.txt")):  # shown by pytest if the test failed
            print(f"---- {path.name}", "\n".join(path.read_text(errors="replace").splitlines()[-25:]), sep="\n")
        assert not left

    def begin(self, *options: str) -> None:
        """Everything is started; returns when the first round is on the ledger."""
        self.serve(*options)
        for site in self.sites:
            self.join(site)
        self.reaches(1, 240)

    # ---- processes

    def serve(self, *options: str) -> None:
        """The supervisor; the same command goes on with a run that is there."""
        command = ["fedzero", "serve", self.folder / "project", self.recipe, "--out", self.out]
        self.supervisor = self.start("serve", *command, *self.deadline, "--json", *options)

    def federate(self, *arguments: object) -> None:
        """All in one; without a recipe it goes on with the run that is there."""
        command = ["fedzero", "federate", *arguments, "--out", self.out, *self.deadline, "--json"]
        self.supervisor = self.start("serve", *command)

    def join(self, site: str, *options: object) -> None:
        self.start(f"join-{site}", "fedzero", "join", self.kit(site), "--threads", "1", *options)

    def start(self, log: str, *module: object) -> subprocess.Popen[bytes]:
        """A Python module and its arguments, of which one is in this federation's folder."""
        path = os.pathsep.join(filter(None, [str(MISBEHAVING), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path, "FEDZERO_FAULTS": str(self.folder)}
        command = [sys.executable, "-m", *map(str, module)]
        with (self.folder / f"{log}.txt").open("ab") as said, (self.folder / f"{log}.json").open("ab") as told:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=told, stderr=said, env=environment)
        self.started.append(process)
        return process

    def kit(self, site: str) -> Path:
        return kits.kit_of(self.folder / "project", site)

    def processes(self, kind: str = "", site: str = "") -> list[Process]:
        """Living processes of this federation, of a kind, of a site."""
        return processes_of(self.kit(site) if site else self.folder, kind)

    def only(self, kind: str, site: str = "") -> Process:
        """The youngest of a kind: old job processes may be on their way out."""
        found = until(60, lambda: self.processes(kind, site), f"a process {kind} {site}")
        return max(found, key=lambda process: process.create_time())

    # ---- what sites are told behind the server's back

    def pace(self, seconds: float) -> None:
        """Every turn at every site takes so much longer, from now on."""
        _write(self.folder / "pace", str(seconds))

    def spoil(self, site: str, how: str) -> None:
        """A site misbehaves from now on; `honest` is an end of it."""
        _write(self.folder / f"spoil-{site}", how)

    def said(self) -> str:
        """What the supervisor has said so far."""
        return (self.folder / "serve.txt").read_text(errors="replace")

    def spoiling(self, site: str) -> str:
        return (self.folder / f"spoil-{site}").read_text()

    # ---- what the ledger says

    def view(self) -> replay.LedgerView | None:
        """None while there is no ledger."""
        if not (self.out / LEDGER).exists():
            return None
        ledger = Ledger.open(self.out / LEDGER)
        try:
            return replay.read(ledger)
        finally:
            ledger.close()

    def rounds(self) -> list[Round]:
        view = self.view()
        return [] if view is None else view.rounds

    def clients(self, site: str) -> set[int]:
        assignment = SiteAssignment.of(self.out)
        return set() if assignment is None else set(assignment.clients.get(site, ()))

    def reaches(self, count: int, seconds: float = 180) -> list[Round]:
        """Wait until so many rounds are on the ledger."""
        return self._seen(lambda rounds: rounds if len(rounds) >= count else None, f"round {count}", seconds)

    def round_where(self, condition: Callable[[Round], bool], what: str, since: int = 0, seconds: float = 180) -> Round:
        """Wait for the first round, from `since` on, of which this is true."""
        return self._seen(lambda rounds: next((r for r in rounds[since:] if condition(r)), None), what, seconds)

    def _seen(self, condition: Callable[[list[Round]], T | None], what: str, seconds: float) -> T:
        def look() -> T | None:
            over = self.supervisor is None or self.supervisor.poll() is not None
            found = condition(self.rounds())
            assert found is not None or not over, f"the supervisor ended before {what}"
            return found

        return until(seconds, look, what, 0.1)

    def everybody_counts(self, since: int | None = None, seconds: float = 180) -> Round:
        """Wait for a round that nobody is missing from."""
        start = len(self.rounds()) if since is None else since
        return self.round_where(lambda r: not r.refused, "a round with everybody in it", start, seconds)

    def expect_well(self, seconds: float = 180) -> None:
        """Everybody counts again: all their models are that of the ledger, which is intact."""
        self.everybody_counts(seconds=seconds)
        recorded.verified(self.out, Environment())

    def finish(self, seconds: float = 240) -> dict[str, Any]:
        """Let it run to its end; the summary. The ledger is intact, and its replay is the model that came out."""
        self.pace(0)
        assert self.supervisor is not None
        assert self.supervisor.wait(seconds) == 0
        summary: dict[str, Any] = json.loads((self.folder / "serve.json").read_text().splitlines()[-1])
        assert summary["complete"]
        command = [sys.executable, "-m", "fedzero", "verify", str(self.out)]
        verified = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (verified.returncode, verified.stdout.split(":")[0]) == (0, "intact"), verified.stderr
        assert recorded.replayed(self.out, Environment(), None).digest().hex() == summary["model_digest"]
        return summary

    def undisturbed(self) -> summary.Summary:
        """The same run in one process, where nothing can happen to it."""
        return session.start(recipes.load(self.recipe), self.folder / "undisturbed", Environment(), Silent())


def refused_in(rounds: Sequence[Round]) -> set[int]:
    """Clients that did not count in some of these rounds."""
    return {client for record in rounds for client, _ in record.refused}


def seconds_until(what: str, happened: Callable[[], Any], since: float | None = None) -> float:
    """How long it took until something happened, for the list of figures."""
    began = time.monotonic() if since is None else since
    happened()
    took = time.monotonic() - began
    FIGURES.append(f"{what}: {took:.1f} s")
    return took


def _write(path: Path, text: str) -> None:
    draft = path.with_suffix(".new")
    draft.write_text(text)
    draft.replace(path)
