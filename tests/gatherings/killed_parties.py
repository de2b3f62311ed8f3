"""A secure sum among real processes, of which one is killed at a step by which it changes its disk: a site, or the
server. Whoever was killed is started again from its disk, and the run goes on.

    play(folder, victim, at, when)      a run; what it left is looked at by `wrong`
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

sys.path += [str(Path(__file__).parents[1] / name) for name in ("ledger", "methods", "")]
from crash_child import Fuse

from fedzero.deploy.server.conduct import run_at_sites
from fedzero.deploy.site.site import Settings, Site
from fedzero.engines.remote.correspondence import Correspondence
from fedzero.engines.remote.engine import Service
from fedzero.engines.remote.messages import Phase, Phased, decode_answer, decode_order
from fedzero.engines.remote.pipe import Pipes
from fedzero.gatherings import field
from fedzero.ledger.store import Ledger
from fedzero.model.updates import decode_update, unpack
from fedzero.protocol.messages import decode_reply
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import recorded
from fedzero.runs.progress import Silent

SITES = ["north", "south", "west", "east", "centre"]
SERVER = "server"
ROUNDS, SCALE = 3, 2.0**20
RECIPE = f"""
name = "killed"
rounds = {ROUNDS}
seed = 3
evaluate_every = 3
algorithm = {{ kind = "decomfl", rate = 0.01, directions = 2 }}
task = {{ kind = "quadratic", dimension = 6, noise = 0.1 }}
gathering = {{ kind = "secure-sum", scale = {SCALE} }}
federation = {{ clients = 5, cohort = 5 }}
engine = {{ kind = "local", merge = false }}
"""


CONNECT, ACTIONS = sqlite3.connect, {name: getattr(os, name) for name in ("replace", "unlink", "mkdir", "open")}


class Mortal:
    """A site in a process of its own. The file `fuse` of the folder says who is killed, once, and at which step; every
    process counts its steps in a file."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __call__(self, name: str) -> Any:
        fuse = lit(self.folder, name)
        site = Site(Settings(device="cpu", threads=1), self.folder / name)
        return Counted(site, fuse, self.folder / f"{name}.steps")


class Counted:
    def __init__(self, site: Site, fuse: Fuse, path: Path):
        self.site, self.fuse, self.path = site, fuse, path

    def answer(self, data: bytes) -> bytes:
        found = self.site.answer(data)
        self.path.write_text(str(len(self.fuse.kinds)))
        return found

    def leave(self) -> None:
        self.site.leave()


def lit(folder: Path, name: str) -> Fuse:
    path = folder / "fuse"
    at, when = -1, "before"
    if path.exists():
        victim, *point = json.loads(path.read_text())
        if victim == name:
            path.rename(folder / "burnt")
            at, when = point
    sqlite3.connect = CONNECT  # a site is forked from the server, whose fuse is another one
    for action, function in ACTIONS.items():
        setattr(os, action, function)
    fuse = Fuse(at, when)
    fuse.light(folder / (name if name != SERVER else "run"))
    return fuse


class Spied:
    """A link that notes every answer to a phase. Two different ones of one site to one phase are one too many."""

    several = True

    def __init__(self, link: Any, path: Path):
        self.link, self.path = link, path

    def __getattr__(self, name: str) -> Any:
        return getattr(self.link, name)

    def ask(self, orders: Mapping[str, bytes], *rest: Any) -> Iterator[Any]:
        for site, answer in self.link.ask(orders, *rest):
            order = decode_order(orders[site]) if site in orders else None
            if isinstance(order, Phase) and isinstance(answer, bytes):
                found = decode_answer(answer)
                if isinstance(found, Phased):
                    with self.path.open("a") as file:
                        file.write(f"{site} {order.round} {order.exchange} {order.phase} {found.body.hex()}\n")
            yield site, answer


def serve_run(folder: Path) -> None:
    """The server's process: begin the run, or go on with it."""
    fuse = lit(folder, SERVER)
    pipes = Pipes(SITES, Mortal(folder))
    try:
        service = Service(Spied(Correspondence(pipes), folder / "answers"), lambda: SITES)  # type: ignore[arg-type]
        run_at_sites(
            recipes.decode(msgspec.toml.decode(RECIPE.encode())), folder / "run", Environment(), Silent(), service
        )
    finally:
        pipes.close()
    (folder / f"{SERVER}.steps").write_text(str(len(fuse.kinds)))


def play(folder: Path, victim: str = "", at: int = -1, when: str = "before") -> str:
    """A run with its kill; the reason if it did not end by itself afterwards."""
    folder.mkdir(parents=True)
    if victim:
        (folder / "fuse").write_text(json.dumps([victim, at, when]))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["killed_parties"])
    for _ in range(2):
        process = context.Process(target=serve_run, args=(folder,))
        process.start()
        process.join(240)
        if process.exitcode is None:
            process.kill()
            return f"{victim} killed {when} step {at}: the run does not end"
        if process.exitcode == 0:
            return ""
        if process.exitcode != -signal.SIGKILL or victim != SERVER:
            return f"{victim} killed {when} step {at}: the server's exit code is {process.exitcode}"
    return f"{victim} killed {when} step {at}: killed twice"


def steps(folder: Path) -> dict[str, int]:
    """By party of an undisturbed run, how many steps it took."""
    return {name: int((folder / f"{name}.steps").read_text()) for name in [*SITES, SERVER]}


def wrong(folder: Path) -> list[str]:
    """What is wrong with a run: another sum than that of the replies on the sites' disks, two answers to a phase, a
    round that is missing, a ledger that does not verify."""
    found = []
    said: dict[str, set[str]] = {}
    for line in (folder / "answers").read_text().splitlines():
        place, _, body = line.rpartition(" ")
        said.setdefault(place, set()).add(body)
    found += [f"two answers to {place}" for place, bodies in said.items() if len(bodies) > 1]
    with closing(Ledger.open(folder / "run" / "ledger.db")) as ledger:
        rounds = list(ledger.rounds())
    if len(rounds) != ROUNDS:
        found.append(f"{len(rounds)} rounds")
    replies = _replies(folder)
    for record in rounds:
        counted = sorted(set(record.cohort) - {client for client, _ in record.refused})
        if record.update is None:
            continue
        integers = [field.fixed(replies[record.round, client], SCALE, False) for client in counted]
        mean = (np.sum(integers, axis=0) / SCALE / len(counted)).astype(np.float32)
        if not np.array_equal(mean, unpack(decode_update(record.update).scalars)):
            found.append(f"round {record.round} has another sum")
    recorded.verified(folder / "run", Environment())
    return found


def summed(folder: Path) -> list[int]:
    """By round, how many clients are in the sum."""
    with closing(Ledger.open(folder / "run" / "ledger.db")) as ledger:
        return [
            0 if record.update is None else len(set(record.cohort) - {client for client, _ in record.refused})
            for record in ledger.rounds()
        ]


def _replies(folder: Path) -> dict[tuple[int, int], np.ndarray]:
    """By round and client: the numbers that its site has kept."""
    found = {}
    for site in SITES:
        with closing(sqlite3.connect(folder / site / "answers.db")) as db:
            query = "SELECT round, client, answer FROM answers WHERE client >= 0"
            for round, client, answer in db.execute(query):
                found[round, client] = unpack(decode_reply(answer, len(answer)).values)
    return found
