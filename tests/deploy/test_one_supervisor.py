"""A project has one supervisor, also where several start at the same moment."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import supervising_child

from fedzero.deploy.server import queue
from fedzero.deploy.server.queue import supervising, supervisor
from fedzero.errors import FedzeroError


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


def test_of_four_that_start_together_one_serves_and_its_death_lets_another_in(tmp_path: Path, warm_server: Any) -> None:
    started = []
    try:
        for _ in range(4):
            pipe, theirs = warm_server.Pipe()
            process = warm_server.Process(target=supervising_child.serve, args=(str(tmp_path), theirs))
            process.start()
            theirs.close()
            started.append((process, pipe))
        assert {pipe.recv() for _, pipe in started} == {"ready"}
        for _, pipe in started:
            pipe.send("go")
        said = {process.pid: pipe.recv() for process, pipe in started}
        assert Counter(said.values()) == {"serves": 1, "refused": 3}
        (pid,) = (pid for pid, word in said.items() if word == "serves")
        found = supervisor(tmp_path)
        assert found is not None and found.pid == pid
        os.kill(pid, signal.SIGKILL)
        for process, _ in started:
            process.join()
        with supervising(tmp_path):
            found = supervisor(tmp_path)
            assert found is not None and found.pid == os.getpid()
    finally:
        for process, pipe in started:
            process.kill()
            process.join()
            pipe.close()
