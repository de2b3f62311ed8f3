"""NVIDIA FLARE for real: a server and three sites as processes of their own, certificates, mutual TLS."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import psutil
import pytest

from fedzero.deploy.flare import presence, processes
from fedzero.deploy.flare import project as kits
from fedzero.deploy.flare.status import Status, status_of
from fedzero.deploy.server import queue as submissions
from fedzero.deploy.site.site import SiteState
from fedzero.errors import FedzeroError
from fedzero.ledger import replay
from fedzero.ledger.store import Ledger
from fedzero.recipe.environment import Environment
from fedzero.runs import recorded, statement
from fedzero.runs.spending import budget
from fedzero.runs.spending.charges import Policy

pytest.importorskip("nvflare", reason="nvflare is not installed")

OPTIONS = ["--rounds", "20", "--set", "engine.merge=false", "--set", "evaluate_every=10"]


def fedzero(*arguments: object, seconds: float = 170.0) -> dict:
    command = [sys.executable, "-m", "fedzero", *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_digits_in_a_federation_are_digits_in_one_process(tmp_path: Path) -> None:
    """DeComFL on the MNIST subset, 20 rounds: the same ledger, and nothing left running."""
    here = fedzero("run", "demo", *OPTIONS, "--out", tmp_path / "here")
    there = fedzero("federate", "demo", "--sites", 3, *OPTIONS, "--out", tmp_path / "there")
    assert (there["refused"], there["rounds"]) == (0, 20)
    assert (there["ledger_head"], there["model_digest"]) == (here["ledger_head"], here["model_digest"])
    assert recorded.verified(tmp_path / "there", Environment()).end is not None
    assert processes.until(300, lambda: not running_below(tmp_path)), "job processes end when their parents are gone"


@pytest.mark.slow
def test_private_digits_in_a_federation(tmp_path: Path) -> None:
    """`demo-private` with three sites: they draw the examples, check the noise, and count the rounds."""
    options = ["--rounds", "3", "--set", "evaluate_every=3", "--out", tmp_path]
    found = fedzero("federate", "demo-private", "--sites", 3, *options, seconds=300.0)
    assert (found["rounds"], found["refused"], found["complete"]) == (3, None, True)
    assert 1.9 < found["epsilon"] <= 2.0 and found["epsilon_server"] is None
    said = statement.statement_in(tmp_path)
    assert statement.checked(tmp_path, said) == said and not said.simulated
    assert recorded.recipe_in(tmp_path).privacy.hosts == 3
    assert recorded.verified(tmp_path, Environment()).end is not None
    kept = [path.parent for path in (tmp_path / "federation").rglob(budget.FILE)]
    assert ["3 rounds of 1 runs" in budget.lines(each, Policy())[0] for each in kept] == [True] * 3


@pytest.mark.slow
def test_a_project_from_nothing_to_a_model(tmp_path: Path, tiny: Path, recipe_folder: Path) -> None:
    """Every command by itself: provision, serve, join, submit, watch, stop."""
    project, local = tmp_path / "project", tmp_path / "local"
    said = fedzero_plain("provision", project, "--site", "north", "--site", "south", "--port", _free_port())
    assert str(project / "kits" / "north") in said.stdout.replace("\n", "")
    # A script starts servers behind an &, which leaves them deaf to Ctrl-C.
    deaf = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "fedzero", *map(str, arguments)], stderr=subprocess.PIPE, text=True, **options
        )
        for options, arguments in (
            (deaf, ("serve", project, "--minimum", 2)),
            ({}, ("join", project / "kits" / "north", "--threads", 1)),
            ({}, ("join", project / "kits" / "south", "--threads", 1)),
        )
    ]
    try:
        assert processes.until(300, lambda: (found := submissions.supervisor(project)) and found.pid == started[0].pid)
        assert processes.until(300, lambda: all(status_of(project).sites.values())), "sites connect before any run"
        stands = Status(started[0].pid, {"north": True, "south": True}, (), None)
        found = fedzero_plain("status", project, "--json").stdout
        assert msgspec.json.decode(found, type=Status) == stands
        said = fedzero_plain("submit", project, tiny)
        assert f"tiny is number 1 in the queue; process {started[0].pid} runs it" in said.stdout.replace("\n", " ")
        ledger = project / "runs" / "tiny" / "ledger.db"
        assert processes.until(300, lambda: ledger.exists() and not submissions.entries(project)), "was not played"
        assert "12 rounds, complete" in fedzero_plain("verify", ledger.parent).stdout
        assert "tiny: decomfl, 16 parameters" in fedzero_plain("watch", ledger.parent).stderr
        again = fedzero_plain("submit", project, tiny, code=2)
        assert "already has a run 'tiny'" in again.stderr.replace("\n", " ")
        assert processes.until(300, lambda: status_of(project) == stands)
        time.sleep(3)  # a site looks twice a second
        assert "resumes from the ledger" in fedzero_plain("stop", project).stdout
        assert started[0].wait(300) == 130
        assert "no server is running for" in fedzero_plain("stop", project, code=2).stderr
    finally:
        started[0].terminate()
        for process in started[1:]:
            process.send_signal(signal.SIGINT)
        said_by = [process.communicate(timeout=300)[1] for process in started]
    for site, told in zip(("north", "south"), said_by[1:], strict=True):
        assert_in_order(
            told, f"{site} is looking for", f"{site} is connected to", f"{site} has finished tiny, 12 rounds"
        )
    assert_in_order(said_by[0], "the queue is empty", "starting the server", "sites connected: 2 of 2: north, south")
    here = fedzero("run", tiny, "--set", "engine.merge=false", "--out", local)
    found = replay_digest(ledger)
    assert found == here["model_digest"]


def assert_in_order(text: str, *words: str) -> None:
    places = [text.find(word) for word in words]
    assert -1 not in places, (words, text)
    assert places == sorted(places), (words, text)


def fedzero_plain(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedzero", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done


def replay_digest(path: Path) -> str:
    ledger = Ledger.open(path)
    try:
        end = replay.read(ledger).end
        assert end is not None
        return end.model.hex()
    finally:
        ledger.close()


def running_below(folder: Path) -> list[str]:
    """Command lines of processes that belong to a folder."""
    commands = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    return [command for command in commands if str(folder) in command and "nvflare" in command]


# ---- projects


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    kits.provision(folder, ["north", "south"], port=_free_port())
    return folder


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_kits(project: Path) -> None:
    for name in ("server", "north", "south"):
        local = kits.kit_of(project, name) / "local"
        resources = json.loads((local / "resources.json").read_text())
        assert resources["class_allow_list"] == ["fedzero.deploy.flare."]
        assert resources["class_list_enforcement_mode"] == "enforce"
        rights = json.loads((local / "authorization.json").read_text())["permissions"]["project_admin"]
        assert (rights["byoc"], rights["shell_commands"]) == ("none", "none")
    assert "/tmp/nvflare" not in (kits.kit_of(project, "server") / "local" / "resources.json").read_text()
    assert (project / "authority").stat().st_mode & 0o77 == 0


def test_kits_say_what_to_do_with_them(project: Path) -> None:
    said = (kits.kit_of(project, "north") / "README.md").read_text()
    assert "    fedzero join north" in said
    assert f"localhost:{kits.Project.of(project).port}" in said
    assert "fedzero serve" in (kits.kit_of(project, "server") / "README.md").read_text()
    assert not list(project.glob("kits/**/readme.txt"))


def test_what_a_site_is_doing(project: Path) -> None:
    """A connection and a site's state, as `fedzero join` puts them in words; this process is the site's."""
    kit = kits.kit_of(project, "south")
    run = SiteState("tiny", 12)
    published = SimpleNamespace(state=None)
    over = threading.Event()

    def doing(**changes) -> str:
        published.state = msgspec.structs.replace(run, **changes)
        presence.publish(published, kit, over)
        return presence.presence(kit, os.getpid(), "fl.example", port)[0]

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        over.set()
        assert doing() == "searching"
        presence.clear(kit)
        with socket.create_connection(("127.0.0.1", port)):
            kind, text = presence.presence(kit, os.getpid(), "fl.example", port)
            assert (kind, "south is connected to fl.example" in text) == ("connected", True)
            assert doing() == "preparing"
            assert doing(round=3) == "working"
            assert "works on round 3 of 12 of tiny" in presence.presence(kit, os.getpid(), "fl.example", port)[1]
            assert doing(round=3, busy=False) == "working"
            os.utime(kit / presence.STATE, (time.time() - 30,) * 2)
            assert presence.presence(kit, os.getpid(), "fl.example", port)[0] == "idle"
            assert doing(round=12, busy=False) == "working"
            assert doing(round=12, busy=False, finished=True) == "finished"
            assert doing(problem="has no data") == "unable"
    presence.clear(kit)


def test_status_of_a_project_that_is_not_served(project: Path, tiny: Path) -> None:
    fedzero_plain("submit", project, tiny, "--rounds", 3, "--seed", 5)
    (entry,) = submissions.entries(project)
    assert [json.loads(entry.read_bytes())[key] for key in ("rounds", "seed")] == [3, 5]
    said = fedzero_plain("status", project).stdout.replace("\n", " ")
    assert_in_order(said, "server: not running", "not connected: north, south", "queue: tiny")
    entry.unlink()


def test_a_site_that_is_added_has_the_same_authority_and_changes_no_other(project: Path, tmp_path: Path) -> None:
    def files(name):
        return {p: p.read_bytes() for p in sorted((kits.kit_of(project, name) / "startup").glob("*.*"))}

    before = files("north"), files("server")
    found = kits.provision(project, ["later"])
    assert found.sites == ("north", "south", "later")
    assert (files("north"), files("server")) == before
    roots = {(kits.kit_of(project, n) / "startup" / "rootCA.pem").read_bytes() for n in ("server", "north", "later")}
    assert len(roots) == 1


@pytest.mark.parametrize(
    ("sites", "options", "reason"),
    [
        ([], {}, "at least one site"),
        (["Nord"], {}, "'Nord' cannot be the name of a site"),
        (["server"], {}, "'server' cannot be the name"),
        (["a b"], {}, "'a b' cannot be the name"),
    ],
)
def test_bad_projects(tmp_path: Path, sites, options, reason) -> None:
    with pytest.raises(FedzeroError, match=reason):
        kits.provision(tmp_path / "project", sites, **options)
    assert not (tmp_path / "project").exists()


def test_a_project_stays_where_it_is(project: Path) -> None:
    with pytest.raises(FedzeroError, match="another server needs a new project"):
        kits.provision(project, ["more"], host="elsewhere.example")


def test_no_project(tmp_path: Path) -> None:
    with pytest.raises(FedzeroError, match="is not a project: `fedzero provision"):
        kits.Project.of(tmp_path)


# ---- who gets in


def test_the_port_speaks_with_our_certificates_only(project: Path, tmp_path: Path) -> None:
    """None, or one of another authority, and the handshake ends; ours, and it is done."""
    other = tmp_path / "other"
    kits.provision(other, ["north"], port=_free_port())
    port = kits.Project.of(project).port
    server = processes.start(kits.kit_of(project, "server"))
    try:
        assert processes.until(300, lambda: processes.listening("127.0.0.1", port))
        ours, foreign = (kits.kit_of(p, "north") / "startup" for p in (project, other))
        assert shakes_hands(port, ours, ours)
        assert not shakes_hands(port, ours, foreign)
        assert not shakes_hands(port, ours, None)
    finally:
        processes.end(server)


def shakes_hands(port: int, authority: Path, certificate: Path | None) -> bool:
    context = ssl.create_default_context(cafile=str(authority / "rootCA.pem"))
    if certificate is not None:
        context.load_cert_chain(certificate / "client.crt", certificate / "client.key")
    try:
        with (
            socket.create_connection(("127.0.0.1", port), 5) as raw,
            context.wrap_socket(raw, server_hostname="localhost") as wrapped,
        ):
            wrapped.settimeout(2)  # with TLS 1.3 a refusal comes after the client's side is done
            wrapped.recv(1)
            return True
    except TimeoutError:
        return True  # it waits for us to speak
    except (ssl.SSLError, ConnectionError):
        return False


def test_a_process_ends_with_whoever_started_it(project: Path) -> None:
    """However that ends: nothing is left behind to hold the port."""
    kit = kits.kit_of(project, "south")
    script = "import os, signal; from pathlib import Path; from fedzero.deploy.flare import processes; "
    script += f"print(processes.start(Path({str(kit)!r})).pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    pid = int(done.stdout)
    assert processes.until(300, lambda: not psutil.pid_exists(pid))


def test_a_job_process_that_lost_its_parent_is_cleared_away_and_no_other(tmp_path: Path) -> None:
    """Stand-ins with FLARE's command lines: one an orphan, one with its parent."""
    kit = tmp_path / "kits" / "north"
    kit.mkdir(parents=True)
    sleep = "import time; time.sleep(60)"
    job = [sys.executable, "-c", sleep, "nvflare.private.fed.app.client.worker_process", "-m", str(kit), "-w"]
    apart = "start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL"
    orphaning = f"import subprocess; print(subprocess.Popen({job!r}, {apart}).pid, flush=True)"
    orphan = int(subprocess.run([sys.executable, "-c", orphaning], capture_output=True, text=True, check=True).stdout)
    script = tmp_path / "parent.py"
    script.write_text(f"{orphaning}; {sleep}")
    parent = subprocess.Popen([sys.executable, script, "-m", str(kit), "-s"], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    kept = int(parent.stdout.readline())
    try:
        assert processes.leftovers(kit) == [orphan]
        assert processes.leftovers(tmp_path / "kits" / "nor") == []
        processes.clear(kit)
        assert processes.until(300, lambda: not running(orphan))
        assert running(kept)
        parent.kill()
        parent.wait()
        assert processes.until(300, lambda: processes.leftovers(kit) == [kept])
    finally:
        parent.kill()
        parent.wait()
        processes.clear(kit)
    assert processes.until(300, lambda: not running(kept))


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
