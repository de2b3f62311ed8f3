"""The fork server: real processes, real signals."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

import psutil
import pytest

from fedzero.deploy.flare.forking import VARIABLE, Forked, fork_server

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fork server is for Linux")
SLEEP = ("timeit", ["-n1", "-r1", "import time; time.sleep(60)"])
SOON = 10.0


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    with fork_server() as variables:
        os.environ.update(variables)
        yield variables
        del os.environ[VARIABLE]


def until(condition) -> None:
    end = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def ended(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_output_environment_folder_and_status_are_those_that_were_asked_for(server, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    with (tmp_path / "out.txt").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        shown = Forked("timeit", ["-n1", "-r1", "import os; print(os.getcwd(), os.environ['MARK'])"], {"MARK": "here"})
        shown.wait()
        failed = Forked("timeit", ["-n1", "-r1", "1 / 0"], dict(os.environ))
        failed.wait()
    assert (shown.poll(), failed.poll()) == (0, 1)
    assert f"{tmp_path} here" in (tmp_path / "out.txt").read_text()


def test_a_process_is_forked_and_not_started_anew(server):
    found = Forked(*SLEEP, dict(os.environ))
    try:
        assert found.poll() is None
        parent = psutil.Process(found.pid).parent()
        assert parent is not None and "fedzero.deploy.flare.forking" in parent.cmdline()
        assert "fedzero.deploy.flare.forking" in psutil.Process(found.pid).cmdline()
        assert psutil.Process(parent.pid).num_threads() == 1, "a fork of a process with threads is not safe"
    finally:
        found.terminate()
    found.wait()
    assert found.poll() == -signal.SIGKILL and ended(found.pid)


def test_processes_can_be_looked_at_by_one_with_many_files_open(server):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 2048), hard), hard))
    with ExitStack() as files:
        for _ in range(1100):
            files.enter_context(open(os.devnull))  # noqa: PTH123
        found = Forked(*SLEEP, dict(os.environ))
        assert found.poll() is None
        found.terminate()
        found.wait()
        assert found.poll() == -signal.SIGKILL
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_site_that_is_killed_takes_its_process_along_and_no_other(server):
    script = "import sys; from fedzero.deploy.flare.forking import Forked\n"
    script += f"sleeping = Forked(*{SLEEP!r}, {{}}); print(sleeping.pid, flush=True); sys.stdin.read()"
    other = Forked(*SLEEP, dict(os.environ))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", script], **pipes) as site:
        pid = int(site.stdout.readline())
        assert not ended(pid)
        site.kill()
        until(lambda: ended(pid))
    assert not ended(other.pid) and other.poll() is None
    other.terminate()
    other.wait()


def test_everything_ends_with_whoever_started_the_server():
    script = "import os, sys; from fedzero.deploy.flare.forking import Forked, fork_server\n"
    script += "with fork_server() as found:\n os.environ |= found\n"
    script += f" sleeping = Forked(*{SLEEP!r}, {{}}); print(sleeping.pid, flush=True); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", script], **pipes) as starter:
        pid = int(starter.stdout.readline())
        server = psutil.Process(pid).ppid()
        starter.send_signal(signal.SIGKILL)
        until(lambda: ended(pid) and ended(server))
