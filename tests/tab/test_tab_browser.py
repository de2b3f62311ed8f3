"""Tabs of a real browser as devices: whole runs, tabs that are closed, reloaded, hidden, frozen and offline, and the page
itself as people, screen readers and other origins have it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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


@pytest.fixture
def tab(chromium: Any) -> Iterator[Callable[..., Tab]]:
    tabs: list[Tab] = []

    def show(**how: Any) -> Tab:
        tabs.append(Tab(chromium, **how))
        return tabs[-1]

    yield show
    for each in tabs:
        each.context.close()
    for each in tabs:
        each.quiet()


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
    shown = first.page.locator("#answers td.numbers").all_inner_texts()[::-1]
    for answer, text in zip(left["answers"], shown, strict=True):
        assert len(answer["numbers"]) == 4
        assert np.allclose([float(each) for each in text.split()], answer["numbers"], rtol=1e-5)
        assert np.array(answer["numbers"], "<f4").tobytes().hex() in answer["body"] and answer["digest"] in answer["body"]


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


def test_a_tab_that_is_closed_in_a_round_and_comes_back(tab: Callable[..., Tab], node: Node, tmp_path: Path) -> None:
    """Its answer was stored and did not leave. A new tab of the browser has the same place, sends that answer, and the run
    has the ledger of one in which nothing happened."""
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
        first.page.locator("#answers tr").wait_for(timeout=PATIENCE)  # it is stored, and on its way
        stored = saved(first, tmp_path)["answers"]
        first.page.close()
        network.cut()
        network.closed = network.mute = network.deaf = False
        again = Tab(first.context.browser, first.context).open(f"http://127.0.0.1:{network.port}/join")
        again.until("kept", "1 answer").until("count", "40 rows")
        again.page.locator("#start").click()  # another tab of the browser asks before it takes part
        run.joined()
        again.until("state", "The run has ended")
        assert saved(again, tmp_path)["answers"][0] == stored[0] and run.places == 3
        again.quiet()
        network.close()
    first.allowed = (BROKEN,)
    the_same_as_without_a_gateway(run, recipe, node, tmp_path, (0, 1, 2))


def test_a_reload_goes_on_and_hidden_or_frozen_tabs_do_not(tab: Callable[..., Tab], tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, {"least": 1})
    recipe = type(recipe)(**{f: getattr(recipe, f) for f in recipe.__struct_fields__} | {"rounds": 100_000})
    first = tab()
    with running(recipe, tmp_path / "run") as run:
        take_part(first, run.ticket(), tmp_path, run)
        first.page.locator("#answers tr").first.wait_for(timeout=PATIENCE)
        first.page.reload()
        wait_for(lambda: first.page.wait_for_timeout(20) or "Taking part" in first.text("state"))  # by itself
        assert run.places == 1 and first.place() == 0

        control = first.context.new_cdp_session(first.page)
        control.send("Page.setWebLifecycleState", {"state": "frozen"})
        rounds = wait_for_rest(run)
        control.send("Page.setWebLifecycleState", {"state": "active"})
        wait_for(lambda: first.page.wait_for_timeout(20) or len(rounds_of(run.folder)) > rounds + 2)

        hide(first, True)
        first.until("state", "this tab is not visible")
        rounds = wait_for_rest(run)
        hide(first, False)
        wait_for(lambda: first.page.wait_for_timeout(20) or len(rounds_of(run.folder)) > rounds + 2)

        second = Tab(first.context.browser, first.context).open(f"http://127.0.0.1:{run.port}/join")
        second.page.locator("#start").click()
        second.until("state", "Another tab of this browser takes part")
        first.page.close()
        second.until("state", "Taking part")
        assert run.places == 1
        second.page.get_by_role("button", name="Pause").click()
        wait_for_rest(run)
        second.quiet()


def hide(tab: Tab, hidden: bool) -> None:
    """As when another tab is shown; headless browsers show all of them."""
    state = "hidden" if hidden else "visible"
    tab.page.evaluate(
        f"Object.defineProperty(document, 'visibilityState', {{ value: '{state}', configurable: true }});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )


def wait_for_rest(run: Run) -> int:
    """Rounds of the run once no more come: there is no device."""
    before = -1
    while (now := len(rounds_of(run.folder))) != before:
        before = now
        time.sleep(0.4)
    return now
