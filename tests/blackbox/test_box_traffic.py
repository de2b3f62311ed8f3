"""Bytes to and from boxes over HTTP are counted beside those between server and clients, to the byte; points go as
float32 where both sides want it (docs/blackbox.md, "What is sent")."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import fedzero
from fedzero import api
from fedzero.ledger import replay, traffic
from fedzero.ledger.store import Ledger
from fedzero.oracles.blackbox import Conditions, HttpBox, MemoryLog
from fedzero.oracles.blackbox.attempts import Cancellation
from fedzero.oracles.blackbox.queries import OpenBox, Request, query
from fedzero.results.history import history
from fedzero.runs.progress import PlainWatch, follow
from fedzero.runs.summary import summary_of

BOUNDS = [(-5, 5)] * 20


def rounds_of(folder: Path) -> list[tuple[int, int, int]]:
    with closing(Ledger.open(folder / "ledger.db")) as ledger:
        return [(each.bytes_up, each.bytes_down, each.queries) for each in replay.read(ledger).rounds]


def head_of(folder: Path) -> bytes:
    with closing(Ledger.open(folder / "ledger.db")) as ledger:
        return ledger.head


def test_the_traffic_of_a_service_is_counted_to_the_byte(web, tmp_path: Path):
    asked, found = {"here": sum, "there": api.http(f"{web.address}/sum")}, {}
    for name, box in asked.items():
        found[name] = fedzero.minimise([box], bounds=BOUNDS, budget=40, rounds=2, out=tmp_path / name, progress=False)
    assert rounds_of(tmp_path / "here") == rounds_of(tmp_path / "there")  # what is on the ledger is not changed by it
    assert (found["here"].sent, found["here"].received) == (0, 0)
    assert not (tmp_path / "here" / traffic.FILE).exists()
    result, summary = found["there"], summary_of(tmp_path / "there")
    assert [result.sent, result.received] == [summary.sent, summary.received] == web.raw
    assert traffic.read(tmp_path / "there") == {0: traffic.Traffic(len(web.calls), *web.raw)}
    assert history(tmp_path / "there").found.traffic == sum(web.raw)


def test_attempts_that_fail_count_and_a_resumed_run_goes_on_counting(web, tmp_path: Path):
    calls = 0

    def answer(path: str, x: list[float]) -> tuple[int, str]:
        nonlocal calls
        calls += 1
        return (503, "") if calls % 5 == 0 else (200, repr(sum(x)))

    web.answer = answer
    box, options = api.http(web.address), {"bounds": BOUNDS, "out": tmp_path / "run", "progress": False, "backoff": 0.0}
    fedzero.minimise([box], rounds=1, **options)
    before = traffic.total(tmp_path / "run")
    assert before.requests == len(web.calls) and [before.sent, before.received] == web.raw
    fedzero.minimise([box], rounds=2, **options)
    assert traffic.total(tmp_path / "run") == traffic.Traffic(len(web.calls), *web.raw) != before


def test_what_follows_a_run_says_its_traffic(web, tmp_path: Path):
    fedzero.minimise([api.http(web.address)], bounds=BOUNDS, budget=30, rounds=1, out=tmp_path / "run", progress=False)
    console = Console(record=True, width=200)
    follow(tmp_path / "run", PlainWatch(console), once=True)
    assert "to and from services" in console.export_text()


POINTS = np.array([[0.1, 1 / 3], [2.0, -7.5], [1e-30, 4.0]])


def values_of(box: HttpBox) -> tuple[list[float], int]:
    log = MemoryLog()
    opened = OpenBox(box.open({}), box.label, box.batched)
    (found,) = query([Request(0, 0, 0, POINTS, opened)], log, Conditions(retries=1, backoff=0.0))
    return found.tolist(), sum(row.sent for row in log.begun(0, 0))


def test_points_go_as_float32_once_the_service_says_that_it_reads_them(web):
    """The values do not depend on the form in which a point was sent."""
    web.answer = lambda path, x: (200, repr(x[1]))
    box = HttpBox(url=web.address, float32=True)
    expected = POINTS.astype(np.float32).astype(np.float64)[:, 1].tolist()
    assert values_of(box)[0] == expected and all(b"x32" not in body for body in web.bodies)
    web.bodies.clear()
    web.reads = "float32"
    assert values_of(box)[0] == expected
    assert [b"x32" in body for body in web.bodies] == [False, True, True]
    web.bodies.clear()
    assert values_of(HttpBox(url=web.address))[0] == POINTS[:, 1].tolist()  # a box that does not ask for it
    assert all(b"x32" not in body for body in web.bodies)


def test_a_service_that_reads_float32_no_more_is_asked_in_json_again(web):
    web.reads = "float32"

    def answer(path: str, x: list[float]) -> tuple[int, str]:
        if b"x32" in web.bodies[-1]:
            web.reads = ""
            return 400, "no"
        return 200, repr(x[0])

    web.answer = answer
    values, _ = values_of(HttpBox(url=web.address, float32=True))
    assert values == POINTS.astype(np.float32).astype(np.float64)[:, 0].tolist()
    assert [b"x32" in body for body in web.bodies] == [False, True, False, False]


@pytest.mark.parametrize("size", [1, 2410])
def test_a_point_as_float32_takes_a_quarter_of_the_bytes(web, size: int):
    service = api.http(web.address, float32=True).open({})
    web.reads, x = "float32", np.random.default_rng(0).random((1, size))
    for _ in range(2):
        service(x, None, Cancellation())
    first, second = map(len, web.bodies)
    assert second == len('{"x32": ""}') + 4 * -(-4 * size // 3) and (size == 1 or 3.5 * second < first)
