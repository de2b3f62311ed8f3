"""A project has one supervisor, also where several start at the same moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from fedzero.deploy.server import queue
from fedzero.deploy.server.queue import supervising, supervisor
from fedzero.errors import FedzeroError

SERVING = """
import sys, time
from pathlib import Path
from fedzero.deploy.server.queue import supervising
from fedzero.errors import FedzeroError
print("ready", flush=True)
sys.stdin.readline()
try:
    with supervising(Path(sys.argv[1])):
        print("serves", flush=True)
        time.sleep(60)
except FedzeroError as error:
    print("refused", flush=True)
"""


def test_a_second_one_is_refused_though_it_looked_before_the_first_was_on_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with supervising(tmp_path):
        assert supervisor(tmp_path) is not None
        monkeypatch.setattr(queue, "supervisor", lambda project: None)
        with pytest.raises(FedzeroError, match="another process already serves"), supervising(tmp_path):
            pass
    monkeypatch.undo()
    assert supervisor(tmp_path) is None
    with supervising(tmp_path):
        assert supervisor(tmp_path) is not None


def test_of_four_that_start_together_one_serves_and_its_death_lets_another_in(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SERVING, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    started = [subprocess.Popen(command, **pipes) for _ in range(4)]  # type: ignore[call-overload]
    try:
        assert {process.stdout.readline() for process in started} == {"ready\n"}
        for process in started:
            process.stdin.write("\n")
            process.stdin.flush()
        said = {process.pid: process.stdout.readline().strip() for process in started}
        assert Counter(said.values()) == {"serves": 1, "refused": 3}
        (pid,) = (pid for pid, word in said.items() if word == "serves")
        found = supervisor(tmp_path)
        assert found is not None and found.pid == pid
        os.kill(pid, signal.SIGKILL)
        for process in started:
            process.wait()
        with supervising(tmp_path):
            found = supervisor(tmp_path)
            assert found is not None and found.pid == os.getpid()
    finally:
        for process in started:
            process.kill()
            process.communicate()
