"""The supervisor's link to the sites: epochs are FLARE jobs, submitted one after the other to a server of our own."""

from __future__ import annotations

import contextlib
import io
import json
import math
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty
from typing import Any

import msgspec

from fedzero.callbacks import always_false
from fedzero.deploy.flare import address, processes
from fedzero.deploy.flare.backoff import LEFT_OUT_AFTER, BackOff
from fedzero.deploy.flare.bridge import (
    BRIDGE_FILE,
    CLOSED,
    GONE,
    LEFT,
    LISTEN,
    NUMBER,
    PING,
    PINGS,
    READY_MOST,
    Answered,
    JobListener,
    readable,
    receive,
    send,
)
from fedzero.deploy.flare.project import (
    COMMUNICATION,
    CONNECTED_SITES,
    HEARTBEAT,
    JOB_HEARTBEAT,
    SERVER,
    SUPERVISOR,
    Project,
    kit_of,
)
from fedzero.engines.remote.transport import Answers, Gone, NoAnswer, Pending, Waiting
from fedzero.errors import FedzeroError, Refused
from fedzero.model import files
from fedzero.model.numbers import NonNegative, Positive, PositiveInt
from fedzero.model.value import checked
from fedzero.protocol.engine import Interrupted, Undelivered
from fedzero.rounds.refusals import listed

SCRATCH = "fedzero-"
"""How the name of the folder for socket and job begins, in the system's temporary folder."""
FRESH = 3 * HEARTBEAT
"""Seconds since its last sign of life after which a site counts as away: a job that names it would wait for it."""
LOOK_EVERY, PING_EVERY, NOTICE_EVERY = 2.0, 1.0, 0.5
"""Seconds between two looks at who is there, two pings of a silent site, two looks whether the server lives."""
SUBMITTED, CONNECTED, RECONNECTED, STARTED, ENDING = 90.0 + READY_MOST, 60.0, 5.0, 180.0, 0.1
"""Seconds at most until a job has come up, a session is connected, and again, the server listens, its end shows."""


@dataclass(frozen=True)
class WaitPolicy:
    """minimum: sites without which no epoch begins; patience: seconds to wait for those that were there before;
    deadline: seconds a site may take for one exchange; report: is told of whatever a run waits for."""

    minimum: int = 1
    patience: float = 30.0
    deadline: float = 60.0
    report: Callable[[str], None] = lambda text: None

    def __post_init__(self) -> None:
        kinds = {"minimum": PositiveInt, "patience": NonNegative, "deadline": Positive}
        for name, kind in kinds.items():
            object.__setattr__(self, name, checked(getattr(self, name), kind, name))


@dataclass
class Epoch:
    """The one that is going on."""

    bridge: Connection
    sites: frozenset[str]
    pid: int
    silent: dict[str, float] = field(default_factory=dict)
    """sites that did not answer, and since when (wall-clock time)"""
    pinged: float = 0.0
    pending: dict[str, int] = field(default_factory=dict)
    """sites that are not waited for, and the number of the order that they have not answered yet"""
    late: list[tuple[str, bool, bytes]] = field(default_factory=list)
    """what they answered in the end"""


class Epochs:
    """A link. Owns the server's process, and plays one job at a time."""

    def __init__(self, folder: Path, policy: WaitPolicy = WaitPolicy()):  # noqa: B008 - frozen
        self.folder, self.project, self.policy = folder, Project.of(folder), policy
        self.expected = set(self.project.sites)
        """sites to wait for at the beginning of an epoch"""
        self.epoch: Epoch | None = None
        self.server: subprocess.Popen[bytes] | None = None
        self.epochs = 0
        self._session: Any = None
        self._asks, self._looked = 0, 0.0
        self._backoff = BackOff()
        self._connected: frozenset[str] | None = None
        """sites that were connected when last looked"""
        _remove_scratch(kit_of(folder, SERVER) / "local")
        self._scratch = Path(tempfile.mkdtemp(prefix=SCRATCH))
        self._jobs = JobListener(self._scratch / "bridge", kit_of(folder, SERVER) / "local")

    # ---- the contract of a link

    def begin(self) -> Collection[str]:
        self._over()
        while True:
            self._ensure_server()
            try:
                return self._submit(self._gather())
            except Exception as error:  # FLARE's own kinds: the server died, the session was lost, the job was refused
                self.policy.report(f"an epoch could not begin ({type(error).__name__}: {error}); trying again")
                self._disconnect()
                time.sleep(1.0)

    def ask(
        self, orders: Mapping[str, bytes], seconds: float, limit: int, enough: Callable[[], bool] = always_false
    ) -> Answers:
        epoch = self.epoch
        if epoch is None:
            raise Interrupted("no epoch is going on")
        self._asks += 1
        number = self._asks.to_bytes(NUMBER, "big")
        for site in sorted(orders.keys() & epoch.silent.keys()):
            yield site, Undelivered("does not answer")
        awake = {site: number + order for site, order in orders.items() if site not in epoch.silent}
        missing = set(awake)
        try:
            self._ping(epoch)
            send(epoch.bridge, (self._asks, awake, seconds, limit))
            while missing and not enough():
                if not readable(epoch.bridge, NOTICE_EVERY):
                    self._expect_server()
                    yield "", Waiting()
                    continue
                asked, site, ok, answer = receive(epoch.bridge, Answered)
                if asked == self._asks and site in missing:
                    missing.discard(site)
                    yield site, self._taken(epoch, site, ok, answer, seconds)
                else:
                    _note_late(epoch, asked, site, ok, answer)
        except (EOFError, OSError, msgspec.DecodeError) as error:
            raise Interrupted("the server's job ended") from error
        epoch.pending |= dict.fromkeys(missing, self._asks)
        for site in sorted(missing):
            yield site, Pending("has not answered yet")

    def late(self) -> Answers:
        epoch = self.epoch
        if epoch is None:
            return
        try:
            while epoch.pending and readable(epoch.bridge, 0.0):
                _note_late(epoch, *receive(epoch.bridge, Answered))
        except (EOFError, OSError, msgspec.DecodeError) as error:
            raise Interrupted("the server's job ended") from error
        found, epoch.late = epoch.late, []
        for site, ok, answer in found:
            yield site, self._taken(epoch, site, ok, answer, math.inf)

    def admit(self) -> Collection[str]:
        if waiting := self.waiting():
            raise Interrupted(f"a new epoch begins with {', '.join(sorted(waiting))}")
        return ()

    def waiting(self) -> Collection[str]:
        """Sites that are there but have no part in this epoch, or none any more."""
        now = time.monotonic()
        if self.epoch is None or now - self._looked < LOOK_EVERY:
            return ()
        self._looked = now
        self._expect_server()
        try:
            if self._session is None:
                self._session = self._connect(RECONNECTED)
            signs = self._signs()
        except Exception:  # the session is lost; whether the epoch is, the bridge will tell
            self._disconnect()
            return ()
        silent, there = self.epoch.silent, self._note(signs)
        back = {site for site in there & silent.keys() if signs[site] > silent[site]}
        return [site for site in (there - self.epoch.sites) | back if self._backoff.may_return(site)]

    def idle(self) -> None:
        """Between two runs: no epoch goes on, the server runs, and sites may connect."""
        self._over()
        if time.monotonic() - self._looked < LOOK_EVERY:
            return
        self._ensure_server()
        try:
            if self._session is None:
                self._session = self._connect(CONNECTED)
            self._note(self._signs(), say=True)
        except Exception:  # as in `begin`; it is tried again
            self._disconnect()
        self._looked = time.monotonic()

    def close(self) -> None:
        (self.folder / CONNECTED_SITES).unlink(missing_ok=True)
        self._over()
        self._disconnect()
        self._jobs.close()
        if self.server is not None:
            processes.end(self.server)
        shutil.rmtree(self._scratch, ignore_errors=True)

    # ---- an epoch's beginning and end

    def _ensure_server(self) -> None:
        host = address.reachable(self.project.host)
        if self._server_ended():
            self._disconnect()
            ended = self.server is not None
            self.policy.report("the server's process ended; starting it again" if ended else "starting the server")
            processes.until(10.0, lambda: not processes.listening(host, self.project.port))
            if processes.listening(host, self.project.port):
                raise FedzeroError(f"port {self.project.port} is in use: stop what listens there, or `fedzero stop`")
            self.server = processes.start(kit_of(self.folder, SERVER))
            up = processes.until(
                STARTED, lambda: self._server_ended() or processes.listening(host, self.project.port), 0.05
            )
            if not up or self._server_ended():
                raise FedzeroError(f"the server did not start: see {kit_of(self.folder, SERVER)}/console.txt")

    def _server_ended(self) -> bool:
        return self.server is None or self.server.poll() is not None

    def _expect_server(self) -> None:
        if self._server_ended():
            raise Interrupted("the server's process ended")

    def _connect(self, seconds: float) -> Any:
        from nvflare.fuel.flare_api.flare_api import Session
        from nvflare.fuel.utils.config_service import ConfigService

        kit = str(kit_of(self.folder, SUPERVISOR).resolve())
        ConfigService.initialize({}, [kit], var_dict=dict(COMMUNICATION))  # a session reads no file for these
        with contextlib.redirect_stdout(io.StringIO()):
            session = Session(username=SUPERVISOR, startup_path=kit, secure_mode=True)
            try:
                session.try_connect(seconds)
            except BaseException:
                session.close()  # its threads would live on
                raise
        return session

    def _disconnect(self) -> None:
        if self._session is not None:
            with contextlib.suppress(Exception):
                self._session.close()
            self._session = None

    def _signs(self) -> dict[str, float]:
        """Sites and their last signs of life, by the clock on the wall."""
        return {c.name: float(c.last_connect_time) for c in self._session.get_system_info().client_info}

    def _note(self, signs: Mapping[str, float], say: bool = False) -> frozenset[str]:
        """Sites that gave a sign of life lately; a change is put on file for `fedzero status`, and said."""
        there = frozenset(site for site, at in signs.items() if time.time() - at < FRESH)
        if there != self._connected:
            self._connected = there
            files.write(self.folder / CONNECTED_SITES, json.dumps(sorted(there)))
            if say:
                everybody = Project.of(self.folder).sites
                names = f": {listed(there)}" if there else ""
                self.policy.report(f"sites connected: {len(there)} of {len(everybody)}{names}")
        return there

    def _gather(self) -> Collection[str]:
        """Sites for the next epoch: all that were there before, if they come in time; at least the minimum."""
        began = reported = time.monotonic()
        if self._session is None:
            self._session = self._connect(CONNECTED)
        while True:
            there, waited = self._note(self._signs(), say=True), time.monotonic() - began
            out = self._backoff.left_out(there)
            come = len(there) >= self.policy.minimum and (self.expected <= there or waited > self.policy.patience)
            if come and there - out:
                return there - out
            if time.monotonic() - reported > 10.0:
                reported = time.monotonic()
                missing = listed(self.expected - there) or f"{self.policy.minimum} sites"
                self.policy.report(f"waiting for {missing}; there are {listed(there) or 'none'}")
            time.sleep(0.2)

    def _submit(self, sites: Collection[str]) -> Collection[str]:
        self.policy.report(f"starting the run's processes at {listed(sites)}")
        with tempfile.TemporaryDirectory(dir=self._scratch) as folder:
            job = self._session.submit_job(str(_job(Path(folder) / "epoch", sorted(sites))))
        try:
            self.epoch = self._arrived(job, time.monotonic() + SUBMITTED)
        except Exception:
            with contextlib.suppress(Exception):
                self._session.abort_job(job)
            raise
        self.epochs += 1
        for site in sorted(frozenset(sites) - self.epoch.sites):
            self._back_off(site, "its process for the run did not come up")
        _tidy(kit_of(self.folder, SERVER), job)
        self.policy.report("the sites load model and data")
        return self.epoch.sites

    def _arrived(self, job: str, end: float) -> Epoch:
        """The job's process has connected and says which sites' processes answer it."""
        while time.monotonic() < end:
            try:
                bridge, (found, sites, pid) = self._jobs.arrived.get(timeout=NOTICE_EVERY)
            except Empty:
                self._expect_server()
                status = str(self._session.get_job_meta(job).get("status", ""))
                if status.startswith(("FINISHED", "FAILED", "ABANDONED")):
                    raise FedzeroError(f"its job ended at once ({status})") from None
                continue
            if found == job and sites:
                return Epoch(bridge, frozenset(sites), pid)
            bridge.close()
            if found == job:
                break
        raise FedzeroError("no site's process for the job came up")

    def _over(self) -> None:
        if self.epoch is not None:
            self.expected = set(self.epoch.sites - self.epoch.silent.keys())
            self.epoch.bridge.close()
            self.epoch = None

    # ---- sites that do not answer

    def _taken(self, epoch: Epoch, site: str, ok: bool, answer: bytes, seconds: float) -> bytes | Exception:
        """An answer, or what it means that there is none."""
        if ok:
            self._backoff.answered(site)
            return answer
        explained = _explained(answer, seconds)
        if not isinstance(explained, Refused):
            self._note_failure(epoch, site, str(explained))
        return explained

    def _note_failure(self, epoch: Epoch, site: str, why: str) -> None:
        """A site that does not answer is not asked again before it answers a ping."""
        processes.until(ENDING, self._server_ended, 0.01)  # one that is about to end closes its connections first
        self._expect_server()
        epoch.silent[site] = time.time()
        self._back_off(site, why)
        if epoch.sites <= epoch.silent.keys() | epoch.pending.keys():
            raise Interrupted("no site answers")

    @staticmethod
    def _ping(epoch: Epoch) -> None:
        now = time.monotonic()
        if epoch.silent and now - epoch.pinged >= PING_EVERY:
            epoch.pinged = now
            send(epoch.bridge, (PINGS, dict.fromkeys(epoch.silent, PING), 0.5, 64))

    def _back_off(self, site: str, why: str) -> None:
        failing = self._backoff.failed(site)
        if failing.count >= LEFT_OUT_AFTER:
            self.policy.report(
                f"site {site} failed {failing.count} times in a row ({why}): it is left out for {failing.pause:g} s"
            )


def _note_late(epoch: Epoch, asked: int, site: str, ok: bool, answer: bytes) -> None:
    """What is no answer to the order at hand: to a ping, to one that is not waited for, or too late."""
    if asked == PINGS:
        epoch.silent.pop(site, None)
    elif epoch.pending.get(site) == asked:
        del epoch.pending[site]
        epoch.late.append((site, ok, answer))


def _remove_scratch(local: Path) -> None:
    """What a supervisor left that was killed; its address is in the file by which jobs find it."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        address, _ = msgspec.json.decode(files.read(local / BRIDGE_FILE, files.SMALL), type=tuple[str, bytes])
        folder = Path(address).parent
        if folder.name.startswith(SCRATCH) and folder.parent == Path(tempfile.gettempdir()):
            shutil.rmtree(folder, ignore_errors=True)


def _explained(code: bytes, seconds: float) -> FedzeroError:
    """FLARE's return code as the ledger will have it."""
    if code.startswith(b"sent"):
        return Refused(code.decode(errors="replace"))
    if code in (b"comm_error", b"target_unreachable"):
        return Undelivered("cannot be reached")
    if code == LEFT:
        return Gone("left the federation")
    known = {
        GONE: "ended its process for the run",
        CLOSED: "closed its connection",
        b"timeout": f"did not answer in {seconds:g} s",
        b"stale": "was busy with an earlier round",
    }
    return NoAnswer(known.get(code, code.decode(errors="replace")))


def _job(folder: Path, sites: list[str]) -> Path:
    """The whole job: two configurations that name two classes, and not a line of code."""
    common: dict[str, Any] = {"format_version": 2, "task_data_filters": [], "task_result_filters": [], "components": []}
    relay = {"id": "relay", "path": "fedzero.deploy.flare.relay.Relay", "args": {}}
    executor = {"tasks": [LISTEN], "executor": {"path": "fedzero.deploy.flare.executor.SiteExecutor", "args": {}}}
    start = {"min_clients": 1, "mandatory_clients": [], "deploy_map": {"app": [SERVER, *sites]}}
    contents = {
        "meta.json": {"name": "epoch", "resource_spec": {}, **start},
        "app/config/config_fed_server.json": {**common, "workflows": [relay]},
        "app/config/config_fed_client.json": {
            **common,
            "executors": [executor],
            "job_heartbeat_interval": JOB_HEARTBEAT,
        },
    }
    for name, content in contents.items():
        files.write(folder / name, json.dumps(content))
    return folder


def _tidy(kit: Path, current: str) -> None:
    """Folders that earlier jobs left in the server's kit."""
    for path in kit.iterdir():
        if path.is_dir() and path.name not in ("startup", "local", "jobs", "snapshots", "transfer", current):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > 3600:
                    shutil.rmtree(path)
