"""Tabs of a real browser as devices: whole runs, and tabs that are closed, reloaded, hidden, frozen and offline."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from devices.fleet import device, head_of, recipe_of, without_gateway
from ledgers import first_bad_round, rounds_of
from tab.tabs import PATIENCE, Network, Node, Run, Tab, csv_of, running, wait_for, with_tabs

BROKEN = "WebSocket connection to"
"""What a browser says on the console about a connection that breaks."""
NO_ED25519 = """
const make = crypto.subtle.generateKey.bind(crypto.subtle);
crypto.subtle.generateKey = (kind, ...rest) => {
  if (kind.name === 'Ed25519') throw new DOMException('no such algorithm', 'NotSupportedError');
  return make(kind, ...rest);
};
"""


def without_ed25519(tab: Tab) -> Tab:
    """A browser that has P-256 alone: keys are made in the worker, so the script is changed on its way."""

    def changed(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, body=NO_ED25519 + answer.text())

    tab.page.route("**/keys.js", changed)
    return tab


def take_part(tab: Tab, where: str, folder: Path, run: Run) -> int:
    """Enrol and start; the place."""
    tab.open(where).take_part()
    place = tab.place()
    tab.give(csv_of(folder, place)).until("count", "40 rows").start()
    return place


def saved(tab: Tab, folder: Path) -> Any:
    with tab.page.expect_download() as waiting:
        tab.page.get_by_role("button", name="Save all of it as JSON").click()
    waiting.value.save_as(folder / "left.json")
    return json.loads((folder / "left.json").read_text())


def the_same_as_without_a_gateway(run: Run, recipe: Any, node: Node, folder: Path, tabs: tuple[int, ...]) -> None:
    assert first_bad_round(run.folder) is None
    rounds = rounds_of(run.folder)
    assert [record.cohort for record in rounds] == [(0, 1, 2)] * recipe.rounds
    assert not any(record.refused for record in rounds)  # every reply had the digest of the server's model
    without_gateway(recipe, folder / "right", with_tabs(node, folder, tabs))
    assert head_of(run.folder) == head_of(folder / "right")


# ---- whole runs


def test_two_tabs_and_a_python_client(tab: Callable[..., Tab], node: Node, tmp_path: Path) -> None:
    """One tab has Ed25519 and the other P-256. The ledger is that of the same run without a gateway."""
    recipe = recipe_of(tmp_path)
    first, second = tab(), without_ed25519(tab())
    with running(recipe, tmp_path / "run") as run:
        assert [take_part(each, run.ticket(), tmp_path, run) for each in (first, second)] == [0, 1]
        python = device(run.ticket(), tmp_path, 2)
        assert python.wait(60) == 0, python.stderr
        python.stderr.close()
        run.joined()
        for each in (first, second):
            each.until("state", "The run has ended after 8 rounds")
            assert each.page.url == f"http://127.0.0.1:{run.port}/join"  # the ticket is not in the address any more
        assert "Ed25519" in first.text("who") and "P-256" in second.text("who")
        assert [place.algorithm for place in run.registry.places()] == [1, 2, 1]
        left = saved(first, tmp_path)
    the_same_as_without_a_gateway(run, recipe, node, tmp_path, (0, 1))
    assert (left["place"], [each["round"] for each in left["answers"]]) == (0, list(range(8)))
    shown = first.page.locator("#answers .numbers").all_inner_texts()[::-1]
    for answer, text in zip(left["answers"], shown, strict=True):
        assert len(answer["numbers"]) == 4
        assert np.allclose([float(each) for each in text.split()], answer["numbers"], rtol=1e-5)
        assert (
            np.array(answer["numbers"], "<f4").tobytes().hex() in answer["body"] and answer["digest"] in answer["body"]
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"distribution": "rank1", "difference": "central", "local_steps": 3},
        {"optimizer": {"kind": "momentum"}, "local_steps": 2, "rate": {"kind": "inverse-sqrt", "start": 0.2}},
    ],
)
def test_the_whole_profile(tab: Callable[..., Tab], node: Node, tmp_path: Path, changes: dict[str, Any]) -> None:
    recipe = recipe_of(tmp_path, **changes)
    tabs = [tab() for _ in range(3)]
    with running(recipe, tmp_path / "run") as run:
        assert [take_part(each, run.ticket(), tmp_path, run) for each in tabs] == [0, 1, 2]
        run.joined()
    the_same_as_without_a_gateway(run, recipe, node, tmp_path, (0, 1, 2))


# ---- tabs that go and come


@pytest.mark.slow
def test_a_tab_that_is_closed_in_a_round_and_comes_back(tab: Callable[..., Tab], node: Node, tmp_path: Path) -> None:
    """Its answer was stored and did not leave. A new tab of the browser has the same place, sends that answer, and the
    run has the ledger of one in which nothing happened."""
    recipe = recipe_of(tmp_path, {"grace": 60.0})
    first, others = tab(), [tab(), tab()]
    with running(recipe, tmp_path / "run") as run:
        network = Network(run.port)
        for each, port in ((first, network.port), *((each, run.port) for each in others)):
            each.open(run.ticket(port)).take_part()
            each.give(csv_of(tmp_path, each.place())).until("count", "40 rows")
        first.start().until("state", "waiting for the next round")  # it is ready
        network.deaf = True  # the next bytes are the order
        for each in others:
            each.start()
        first.page.locator("#answers li").wait_for(timeout=PATIENCE)  # it is stored, and on its way
        stored = saved(first, tmp_path)["answers"]
        first.page.close()
        network.cut()
        network.closed = network.mute = network.deaf = False
        again = Tab(first.context.browser, first.context).open(f"http://127.0.0.1:{network.port}/join")
        again.until("given", "1").until("count", "40 rows")
        again.page.locator("#start").click()  # another tab of the browser asks before it takes part
        run.joined()
        again.until("state", "The run has ended")
        assert saved(again, tmp_path)["answers"][0] == stored[0] and run.places == 3
        again.quiet()
        network.close()
    first.allowed = (BROKEN,)
    the_same_as_without_a_gateway(run, recipe, node, tmp_path, (0, 1, 2))


def test_a_reload_goes_on_and_a_hidden_tab_does_not(tab: Callable[..., Tab], tmp_path: Path) -> None:
    first = tab()
    with running(endless(tmp_path), tmp_path / "run") as run:
        take_part(first, run.ticket(), tmp_path, run)
        first.page.locator("#answers li").first.wait_for(timeout=PATIENCE)
        first.page.reload()
        first.until("state", "Taking part")  # by itself
        assert run.places == 1 and first.place() == 0
        for away, back in (("freeze", "resume"), ("hidden", "visible")):
            happens(first, away)
            first.until("state", "this tab is not visible")
            rounds = wait_for_rest(run)
            happens(first, back)
            wait_for(lambda rounds=rounds: first.page.wait_for_timeout(20) or len(rounds_of(run.folder)) > rounds + 2)

        second = Tab(first.context.browser, first.context).open(f"http://127.0.0.1:{run.port}/join")
        second.page.locator("#start").click()
        second.until("state", "Another tab of this browser takes part")
        first.page.close()
        second.until("state", "Taking part")
        second.page.get_by_role("button", name="Pause").click()
        wait_for_rest(run)
        assert run.places == 1
        second.quiet()


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["frozen", "offline"])
def test_a_tab_that_misses_rounds_takes_part_again(
    tab: Callable[..., Tab], chromium: Any, tmp_path: Path, trouble: str
) -> None:
    """Its browser is stopped without warning, as phones do it, or its network is cut; the other tab goes on for more
    rounds than a gateway sends with an order."""
    recipe = endless(tmp_path, beat=1, deadline=3.0, grace=1.0)
    apart = chromium.browser_type.launch(
        executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
    )
    first, other = Tab(apart), tab()
    first.allowed = (BROKEN,)
    with running(recipe, tmp_path / "run") as run:
        network = Network(run.port)
        assert take_part(first, run.ticket(network.port), tmp_path, run) == 0
        take_part(other, run.ticket(), tmp_path, run)
        wait_for(lambda: first.page.wait_for_timeout(20) or "Taking part" in first.text("state"))
        own = processes(apart)
        stop(network, own, trouble)
        try:
            missed = wait_for(lambda: other.page.wait_for_timeout(100) or alone(run, 25))
        finally:
            network.closed = False
            for process in own if trouble == "frozen" else ():
                os.kill(process, signal.SIGCONT)
        wait_for(
            lambda: (
                other.page.wait_for_timeout(100)
                or 0 in set().union(*(r.cohort for r in rounds_of(run.folder)[missed:]))
            )
        )
        first.until("state", "Taking part")
        assert not any("digest" in why for record in rounds_of(run.folder) for _, why in record.refused)
        for each in (first, other):
            each.page.get_by_role("button", name="Pause").click()
        first.quiet()
        network.close()
        apart.close()


def endless(folder: Path, **engine: Any) -> Any:
    recipe = recipe_of(folder, {"least": 1} | engine)
    return msgspec.structs.replace(recipe, rounds=1_000_000, evaluate_every=1_000_000)


def processes(browser: Any) -> set[int]:
    found = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    return {each["id"] for each in found}


def stop(network: Network, processes: set[int], trouble: str) -> None:
    if trouble == "offline":
        network.cut()
        return
    for process in processes:
        os.kill(process, signal.SIGSTOP)


def alone(run: Run, rounds: int) -> int:
    """The rounds so far, if the last ones were without place 0."""
    cohorts = [record.cohort for record in rounds_of(run.folder)]
    return len(cohorts) if len(cohorts) > rounds and not any(0 in cohort for cohort in cohorts[-rounds:]) else 0


def happens(tab: Tab, what: str) -> None:
    """Tells the page that it is frozen, resumed, hidden or visible; a headless browser shows all tabs."""
    if what in ("hidden", "visible"):
        tab.page.evaluate(
            f"Object.defineProperty(document, 'visibilityState', {{ value: '{what}', configurable: true }})"
        )
        what = "visibilitychange"
    tab.page.evaluate(f"document.dispatchEvent(new Event('{what}'))")


def wait_for_rest(run: Run) -> int:
    """Rounds of the run once no more come: there is no device."""
    before, end = -1, time.monotonic() + 20
    while (now := len(rounds_of(run.folder))) != before:
        assert time.monotonic() < end, "rounds go on"
        before = now
        time.sleep(0.4)
    return now
