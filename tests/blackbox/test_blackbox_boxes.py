"""Every kind of box: what it is called with, what counts as an answer, and what counts as a failure."""

from __future__ import annotations

import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from fedzero.errors import FedzeroError
from fedzero.oracles.blackbox import BatchedBox, CommandBox, Conditions, HttpBox, MemoryLog, PythonBox, QueryFailed
from fedzero.oracles.blackbox.queries import OpenBox, Request, query
from fedzero.recipe import recipe

POINTS = np.array([[0.1, 1 / 3], [2.0, -7.5], [1e-300, 4.0]])
ONCE = Conditions(retries=0, backoff=0.0)


def asked(box, functions=None, points=POINTS, conditions=ONCE, log=None):
    """The values of a box at points, or the failure."""
    opened = OpenBox(box.open(functions or {}), box.label, box.batched)
    (given,) = query([Request(3, 0, 0, points, opened)], log or MemoryLog(), conditions)
    return given


def script(text: str) -> CommandBox:
    return CommandBox(argv=(sys.executable, "-S", "-c", text))


def test_python_gets_one_point_at_a_time_and_may_spoil_it():
    seen = []

    def f(x):
        seen.append((x.copy(), x.dtype))
        x[:] = 0
        return np.float32(len(seen))

    assert asked(PythonBox(name="f"), {"f": f}).tolist() == [1.0, 2.0, 3.0]
    assert [x.tolist() for x, _ in seen] == POINTS.tolist()
    assert {dtype for _, dtype in seen} == {np.dtype(np.float64)}


def test_batched_gets_all_points_in_one_call():
    seen = []
    values = asked(BatchedBox(name="f"), {"f": lambda X: seen.append(X.tolist()) or X.sum(axis=1)})
    assert seen == [POINTS.tolist()]
    assert values.tolist() == POINTS.sum(axis=1).tolist()


def test_command_reads_a_json_list_and_prints_a_number():
    """What it prints is the point it read, to the last bit; and only the last line that is not empty counts."""
    echo = script("import json, sys; x = json.load(sys.stdin); print('working …'); print(repr(x[1])); print()")
    assert asked(echo).tolist() == POINTS[:, 1].tolist()


@pytest.mark.parametrize("body", ["{x}", '{{"value": {x}, "unit": "€"}}', " {x}\n", '{{"value":{x}}}'])
def test_http_posts_json_and_reads_a_number(web, body):
    web.answer = lambda path, x: (200, body.format(x=repr(x[1])))
    assert asked(HttpBox(url=web.address + "/score")).tolist() == POINTS[:, 1].tolist()
    assert web.calls == [("/score", x) for x in POINTS.tolist()]


def test_http_text_that_is_a_number_but_not_json(web):
    web.answer = lambda path, x: (200, "+.5")
    assert asked(HttpBox(url=web.address)).tolist() == [0.5] * 3


def test_minus_zero_comes_back_as_zero():
    """As a database would read it: a resumed run must see the same bits."""
    values = asked(PythonBox(name="f"), {"f": lambda x: -0.0})
    assert not np.signbit(values).any()


BAD_VALUES = {
    "nan": (float("nan"), "nan"),
    "infinite": (float("-inf"), "-inf"),
    "text": ("1.5", "'1.5'"),
    "none": (None, "None"),
    "bool": (True, "True"),
    "array": (np.zeros(2), "shape (2,)"),
    "too large": (10**400, "no number"),
}


@pytest.mark.parametrize("which", BAD_VALUES)
def test_values_that_are_no_finite_number(which):
    value, words = BAD_VALUES[which]
    failure = asked(PythonBox(name="f"), {"f": lambda x: value})
    assert isinstance(failure, QueryFailed)
    assert words in str(failure)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.zeros(2), "shape (2,)"),
        (np.zeros((3, 1)), "shape (3, 1)"),
        (1.0, "shape ()"),
        ([1.0, float("nan"), 2.0], "nan"),
        (["a", "b", "c"], "no number"),
        ([[1.0], [1.0, 2.0], [3.0]], "no array"),
    ],
)
def test_batched_values_of_another_shape(value, words):
    failure = asked(BatchedBox(name="f"), {"f": lambda X: value})
    assert isinstance(failure, QueryFailed)
    assert words in str(failure)


@pytest.mark.parametrize("error", [ValueError("no\nluck"), SystemExit(3), KeyboardInterrupt()])
def test_whatever_a_function_raises_is_its_failure(error):
    def f(x):
        raise error

    failure = asked(PythonBox(name="f"), {"f": f})
    assert isinstance(failure, QueryFailed)
    assert f"python 'f' of client 3 gave no value in 1 attempt: it raised {type(error).__name__}" in str(failure)
    assert "\n" not in str(failure)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import sys; print(1.0); print('no licence', file=sys.stderr); sys.exit(3)", "exit status 3: no licence"),
        ("print('done')", "'done'"),
        ("print(1.0); print('nan')", "nan"),
        ("print('1_000')", "1_000"),
        ("pass", "printed nothing"),
        ("import os, signal; print(1, flush=True); os.kill(os.getpid(), signal.SIGSEGV)", "exit status -11"),
    ],
)
def test_commands_that_fail(text, words):
    failure = asked(script(text), points=POINTS[:1])
    assert isinstance(failure, QueryFailed)
    assert words in str(failure)


def test_a_command_that_does_not_exist():
    assert "FileNotFoundError" in str(asked(CommandBox(argv=("/nowhere/at-all",))))


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (500, "1.0", "HTTP status 500"),
        (200, '{"cost": 1}', 'without "value"'),
        (200, '{"value": "1"}', "instead of a number"),
        (200, "NaN", "nan"),
        (200, "true", "instead of a number"),
        (200, "sorry", "'sorry'"),
        (200, "", "''"),
        (200, "1" * 2**21, "more than"),
    ],
)
def test_services_that_fail(web, status, body, words):
    web.answer = lambda path, x: (status, body)
    failure = asked(HttpBox(url=web.address))
    assert isinstance(failure, QueryFailed)
    assert words in str(failure)
    assert len(web.calls) == 1


def test_a_service_that_is_not_there(web):
    nobody = "http://127.0.0.1:1/"
    assert "could not be reached" in str(asked(HttpBox(url=nobody)))


HURRY = Conditions(timeout=0.2, retries=0)


def test_a_function_that_hangs_is_abandoned():
    release, ended = threading.Event(), threading.Event()

    def hang(x):
        release.wait(60)
        ended.set()

    try:
        failure = asked(PythonBox(name="f"), {"f": hang}, conditions=HURRY)
        assert not ended.is_set()
        assert "did not answer within 0.2 s" in str(failure)
    finally:
        release.set()


def test_a_late_answer_is_not_listened_to():
    """The first attempt answers while the second is under way; only the second's answer counts."""
    threads, second = [], threading.Event()

    def f(x):
        threads.append(threading.current_thread())
        if len(threads) == 1:
            second.wait(60)
            return 1.0
        second.set()
        threads[0].join(60)
        return 2.0

    values = asked(PythonBox(name="f"), {"f": f}, POINTS[:1], Conditions(timeout=1.0, retries=1, backoff=0.0))
    assert values.tolist() == [2.0]


def test_a_service_that_hangs(web):
    release = threading.Event()
    web.answer = lambda path, x: (200, str(release.wait(30)))
    try:
        failure = asked(HttpBox(url=web.address), points=POINTS[:1], conditions=HURRY)
        assert "timed out" in str(failure) or "did not answer within" in str(failure)
    finally:
        release.set()


def test_a_service_that_drips_is_cut_off_by_the_deadline_of_the_whole_attempt():
    """Every wait on the socket is short enough; all of them together are not."""
    enough = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip():
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6000\r\n\r\n")
                while not enough.wait(0.05):
                    connection.sendall(b"1")

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        failure = asked(HttpBox(url=url), points=POINTS[:1], conditions=HURRY)
        assert "did not answer within 0.2 s" in str(failure)
        assert thread.is_alive()
        enough.set()
        thread.join(60)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_command_that_hangs_is_killed_with_its_whole_group(tmp_path):
    """The shell, the child it waits for, and the one in the background that holds on to its output."""
    note = tmp_path / "pids"
    box = CommandBox(argv=("/bin/sh", "-c", f"sleep 600 & echo $$ $! > {note}; sleep 600; echo 1"))
    pids, seconds = list[int](), 0.35
    while len(pids) < 2:  # on a busy machine a shell takes its time to begin
        seconds *= 2
        failure = asked(box, points=POINTS[:1], conditions=Conditions(timeout=seconds, retries=0))
        assert f"did not answer within {seconds:g} s" in str(failure) and seconds < 100
        pids = [int(pid) for pid in note.read_text().split()] if note.exists() else []
    deadline = time.monotonic() + 300
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [pid for pid in pids if alive(pid)] == []
    assert [p.name for p in Path("/proc").glob("[0-9]*") if _group(p.name) == pids[0] and alive(int(p.name))] == []


def _group(pid: str) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[2])
    except OSError:
        return -1


# ---- finding functions


def test_a_function_named_in_a_recipe_is_imported_from_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "my_black_boxes.py").write_text("class Costs:\n    @staticmethod\n    def total(x): return x.sum()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert asked(PythonBox(name="my_black_boxes:Costs.total")).tolist() == POINTS.sum(axis=1).tolist()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("f_berlin", "'f_berlin', which was not given: call fedzero.minimise again"),
        ("no_such_module_here:f", "cannot be imported"),
        ("math:no_such", "no function 'no_such'"),
        ("math:pi", "no function 'pi'"),
        (":f", "not given"),
    ],
)
def test_a_function_that_cannot_be_found(name, words):
    with pytest.raises(FedzeroError, match=words):
        PythonBox(name=name).open({})


@pytest.mark.parametrize(
    ("box", "words"),
    [
        ({"kind": "http", "url": "file:///etc/passwd"}, "url"),
        ({"kind": "command", "argv": []}, "argv"),
        ({"kind": "python"}, "name is missing"),
        ({"kind": "oracle", "name": "f"}, "no such kind"),
        ({"kind": "python", "name": "f", "argv": ["x"]}, "unknown key"),
    ],
)
def test_boxes_that_a_recipe_cannot_have(box, words):
    table = {
        "name": "mine",
        "rounds": 1,
        "algorithm": {"kind": "fedzo", "rate": 0.1},
        "task": {"kind": "black-box", "boxes": [box], "dimension": 2},
        "federation": {"clients": 1, "cohort": 1},
    }
    with pytest.raises(FedzeroError, match=words):
        recipe.decode(table)
