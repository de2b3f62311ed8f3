"""What the processes of test_crash.py do: run or resume with a fuse, and look at what came out.

Imported by children of a fork server that has fedzero loaded already, so it imports nothing heavy of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import torch
from masks import Masks
from noise import Noise

import fedzero
from fedzero import plugins
from fedzero.engines.gathering import HostedClients
from fedzero.errors import FedzeroError
from fedzero.ledger import checkpoints
from fedzero.ledger.folder import LEDGER, MODEL
from fedzero.model.checkpoint import load_model
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.sampling import PrivateBatches, PrivateCohorts
from fedzero.rounds.admission import Admission
from fedzero.runs import recorded, session
from fedzero.runs.growing import Growth
from fedzero.runs.progress import Silent

LOST = 2
"""A client whose host is lost between two phases."""


class Quiet(Silent):
    """A watch that does not look."""


class Fuse:
    """Counts the steps by which a run changes its disk, and kills the process just before or just after step `at`."""

    def __init__(self, at: int = -1, when: str = "before"):
        self.at, self.when = at, when
        self.kinds: list[str] = []
        """Of every step: the function; of an SQL statement what it does, and where it writes."""

    def __call__(self, action: Callable[..., Any], *args: Any, **options: Any) -> Any:
        step, words = len(self.kinds), str(args[0]).split() if action.__name__ == "execute" else [action.__name__]
        self.kinds.append(" ".join(words[: 3 if words[0] == "INSERT" else 1]))
        if (step, "before") == (self.at, self.when):
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return action(*args, **options)
        finally:
            if (step, "after") == (self.at, self.when):
                os.kill(os.getpid(), signal.SIGKILL)

    def light(self, folder: Path) -> None:
        """Every SQL statement, every closing of the database, every file opened, made, renamed or removed there."""
        fuse, connect = self, sqlite3.connect

        class Connection(sqlite3.Connection):
            def execute(self, *args: Any) -> Any:
                return fuse(super().execute, *args)

            def executescript(self, *args: Any) -> Any:
                return fuse(super().executescript, *args)

            def close(self) -> None:
                fuse(super().close)

        sqlite3.connect = lambda *args, **options: connect(*args, factory=Connection, **options)
        for name in ("replace", "unlink", "mkdir", "open"):
            setattr(os, name, self._only_in(folder, getattr(os, name)))

    def _only_in(self, folder: Path, action: Callable[..., Any]) -> Callable[..., Any]:
        def maybe(path: Any, *args: Any, **options: Any) -> Any:
            if str(path).startswith(str(folder)):
                return self(action, path, *args, **options)
            return action(path, *args, **options)

        return maybe


READS = ("SELECT", "PRAGMA")
"""Steps before which nothing has changed on the disk since the step before them."""


def changing(kinds: list[str]) -> list[int]:
    """The steps of a run that change its disk."""
    return [step for step, kind in enumerate(kinds) if kind not in READS]


def go(
    recipe: str,
    folder: str,
    fuse: tuple[int, str] = (-1, "before"),
    report: str | None = None,
    every: int = checkpoints.EVERY,
) -> None:
    """Run the recipe into the folder, or resume the run that is there; `report` gets what came out, as JSON. every:
    rounds between checkpoints."""
    torch.set_num_threads(1)
    checkpoints.EVERY = every
    where, lit = Path(folder), Fuse(*fuse)
    lit.light(where)
    if (where / LEDGER).exists():
        summary = session.resume(where, Environment(), Quiet())
    else:
        summary = session.start(recipes.load(recipe), where, Environment(), Quiet())
    if report is not None:
        kinds = list(lit.kinds)
        Path(report).write_text(
            json.dumps(
                {"steps": len(kinds), "kinds": kinds, "summary": msgspec.to_builtins(summary), **looked_at(where)}
            )
        )


def go_noisy(recipe: str, folder: str, heard: str, fuse: tuple[int, str] = (-1, "before")) -> None:
    """As `go`, with a link that draws from the operating system. heard: gets a line for every reply that reaches the
    server: round, exchange, client and SHA-256."""
    plugins.register(Noise)
    admit = Admission.admit

    def listen(self: Admission, round: int, exchange: int, client: int, data: bytes) -> Any:
        with Path(heard).open("a") as file:
            file.write(f"{round} {exchange} {client} {hashlib.sha256(data).hexdigest()}\n")
        return admit(self, round, exchange, client, data)

    Admission.admit = listen  # of this process, which ends with the run
    go(recipe, folder, fuse, folder + ".json")


def go_summed(recipe: str, folder: str, fuse: tuple[int, str] = (-1, "before")) -> None:
    """As `go`, with a gathering of several phases that loses a host between two of them in every round."""
    plugins.register(Masks)
    phase = HostedClients.phase

    def losing(self: HostedClients, asked: int, exchange: int, number: int, bodies: Any) -> Any:
        gone = {f"client {LOST}"} & bodies.keys() if number == 1 else set()
        here = {host: body for host, body in bodies.items() if host not in gone}
        dead = {host: FedzeroError("the line is dead") for host in gone}
        return {**phase(self, asked, exchange, number, here), **dead}

    HostedClients.phase = losing  # of this process, which ends with the run
    go(recipe, folder, fuse, folder + ".json")


def go_secure(recipe: str, folder: str, fuse: tuple[int, str] = (-1, "before")) -> None:
    """As `go`; in every round a member of the committee is lost after the server fixed the set of inputs."""
    phase = HostedClients.phase

    def losing(self: HostedClients, asked: int, exchange: int, number: int, bodies: Any) -> Any:
        gone = {f"client {LOST}"} & bodies.keys() if number == (1 if asked else 3) else set()
        here = {host: body for host, body in bodies.items() if host not in gone}
        dead = {host: FedzeroError("the line is dead") for host in gone}
        return {**phase(self, asked, exchange, number, here), **dead}

    HostedClients.phase = losing  # of this process, which ends with the run
    go(recipe, folder, fuse, folder + ".json")


def go_drawn(recipe: str, folder: str, numbers: str, fuse: tuple[int, str] = (-1, "before")) -> None:
    """As `go`; the operating system's random bytes are those of a counter that outlasts the process, so that drawing
    again gives others. numbers: its file, which also has how many were drawn."""
    counter = Path(numbers)

    def entropy(count: int) -> bytes:
        drawn = len(counter.read_bytes()) if counter.exists() else 0
        with counter.open("ab") as file:
            file.write(b".")
        return hashlib.shake_256(drawn.to_bytes(8, "little")).digest(count)

    for kind in (PrivateCohorts, PrivateBatches):
        kind.__init__.__defaults__ = (*kind.__init__.__defaults__[:-1], entropy)
    go(recipe, folder, fuse, folder + ".json")


def begin(recipe: str, folder: str) -> None:
    """`fedzero run` and nothing else: exit code 0, 2 if refused, 1 on a traceback."""
    torch.set_num_threads(1)
    try:
        session.start(recipes.load(recipe), Path(folder), Environment(), Quiet())
    except FedzeroError:
        raise SystemExit(2) from None


def looked_at(folder: Path) -> dict[str, Any]:
    """What must be the same in every history of a run: model, head, bodies, working state; and `verify` is content."""
    view = recorded.verified(folder, Environment())
    with closing(sqlite3.connect(folder / LEDGER)) as db:
        entries = db.execute("SELECT body, chain FROM entries ORDER BY seq").fetchall()
        working = [db.execute(f"SELECT * FROM {table} ORDER BY rowid").fetchall() for table in ("dense", "checkpoint")]
    model = load_model(folder / MODEL)
    return {
        "rounds": len(view.rounds),
        "head": entries[-1][1].hex(),
        "bodies": [hashlib.sha256(body).hexdigest() for body, _ in entries],
        "model": hashlib.sha256(b"".join(model[name].numpy().tobytes() for name in sorted(model))).hexdigest(),
        "working": hashlib.sha256(repr(working).encode()).hexdigest(),
    }


def grow(folder: str, rounds: int, fuse: tuple[int, str], report: str) -> None:
    """Extend the run in the folder; `report` gets the steps by which it changed its disk."""
    torch.set_num_threads(1)
    lit = Fuse(*fuse)
    lit.light(Path(folder))
    session.resume(Path(folder), Environment(), Quiet(), growth=Growth(rounds))
    Path(report).write_text(json.dumps(lit.kinds))


ENOUGH = "enough of it"


class Enough:
    """A callback that ends a run after its third round."""

    def round(self, result: Any) -> Any:
        return fedzero.Stop(ENOUGH) if result.rounds == 3 else None


def go_stopped(recipe: str, folder: str, fuse: tuple[int, str] = (-1, "before")) -> None:
    """As `go`, with a callback that stops the run; a resume has none."""
    torch.set_num_threads(1)
    where, lit = Path(folder), Fuse(*fuse)
    callbacks = [] if (where / LEDGER).exists() else [Enough()]
    lit.light(where)
    run = fedzero.run(Path(recipe), out=where, progress=False, callbacks=callbacks)
    found = {"kinds": list(lit.kinds), "reason": run.summary.reason, **looked_at(where)}
    Path(folder + ".json").write_text(json.dumps(found))
