"""The page in a real browser: screen readers, keys, other origins, gateways and names that are hostile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute

from fedzero.engines.devices import messages as m
from fedzero.engines.devices.join_page import ROUTES
from fedzero.engines.devices.serving import listening
from fedzero.engines.devices.ticket import address
from fedzero.recipe import recipe as recipes
from tab.tabs import PATIENCE, Run, Tab, running, wait_for

MARKUP = "<img src=x onerror=alert(1)><b>"


class Rogue:
    """A server with the page, whose socket says one thing."""

    def __init__(self) -> None:
        self.says: bytes | str = b""
        at = listening("127.0.0.1", 0)
        self.port = at.getsockname()[1]
        routes = [*ROUTES, WebSocketRoute("/fedzero/1/socket", self._socket)]
        self._server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_config=None, ws="websockets-sansio"))
        threading.Thread(target=lambda: asyncio.run(self._server.serve(sockets=[at])), daemon=True).start()
        wait_for(lambda: self._server.started)

    async def _socket(self, socket: Any) -> None:
        await socket.accept()
        await socket.receive()
        await (socket.send_text(self.says) if isinstance(self.says, str) else socket.send_bytes(self.says))
        await socket.receive()

    def close(self) -> None:
        self._server.should_exit = True


@pytest.fixture(scope="module")
def rogue() -> Iterator[Rogue]:
    found = Rogue()
    yield found
    found.close()


@pytest.fixture(scope="module")
def digits(rogue: Rogue, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run of rows with 784 columns, whose names are hostile; it waits for more devices than come."""
    folder = tmp_path_factory.mktemp("digits")
    np.savez(folder / "test.npz", x=np.zeros((4, 784), np.float32), y=np.arange(4))
    labels = [f"{MARKUP}{label}" for label in range(3)] + ["long " * 12, "\u202ex", *"56789"]
    table = {
        "name": "digits",
        "rounds": 3,
        "algorithm": {"kind": "decomfl", "rate": 0.1, "directions": 10, "distribution": "rademacher"},
        "task": {
            "kind": "devices",
            "widths": [784, 10],
            "test": str(folder / "test.npz"),
            "labels": labels,
            "least_rows": 2,
        },
        "federation": {"clients": 30, "cohort": 3},
        "engine": {
            "kind": "devices",
            "listen": "127.0.0.1:0",
            "least": 3,
            "origins": [f"http://127.0.0.1:{rogue.port}"],
        },
    }
    with running(recipes.decode(table), folder / "run") as run:
        yield run


def draw(tab: Tab, *points: tuple[float, float]) -> None:
    canvas = tab.page.locator("#canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    at = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in points]
    tab.page.mouse.move(*at[0])
    tab.page.mouse.down()
    for point in at[1:]:
        tab.page.mouse.move(*point, steps=4)
    tab.page.mouse.up()


def serious(tab: Tab) -> list[Any]:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")
    found = axe.Axe().run(tab.page).response["violations"]
    return [(v["id"], [n["html"] for n in v["nodes"]]) for v in found if v["impact"] in ("serious", "critical")]


@pytest.mark.parametrize(
    ("width", "scheme"),
    [(390, "light"), *(pytest.param(*how, marks=pytest.mark.slow) for how in ((1180, "dark"), (1180, "light")))],
)
def test_no_serious_finding_of_axe(tab: Callable[..., Tab], digits: Run, width: int, scheme: str) -> None:
    here = tab(width=width, scheme=scheme).open(digits.ticket())
    wait_for(lambda: here.page.locator("#join").is_enabled())
    assert serious(here) == []
    here.take_part()
    for _ in range(3):
        draw(here, (0.3, 0.3), (0.7, 0.3), (0.5, 0.8))
        here.page.get_by_role("button", name="Add", exact=True).click()
    here.until("count", "3 rows")
    here.page.locator("#add").click()
    here.until("complaint", "The field is empty")
    here.start().until("state", "waiting for the next round")
    assert serious(here) == []
    here.page.locator("#way-file").click()
    assert serious(here) == []
    assert here.page.evaluate("document.documentElement.scrollWidth") <= width  # nothing to scroll sideways
    assert here.page.locator("img, main b b, script:not([type])").count() == 0  # names are text
    assert f"{MARKUP}2" in here.text("labels") and "\u202e" not in here.text("labels")


def test_all_by_keyboard(tab: Callable[..., Tab], digits: Run) -> None:
    here = tab().open(digits.ticket())
    wait_for(lambda: here.page.locator("#join").is_enabled())
    keys = here.page.keyboard
    keys.press("Tab")
    keys.press("Enter")
    here.page.locator("#data").wait_for(timeout=PATIENCE)
    for label in range(2):
        here.page.locator("#canvas").focus()
        for key in ("Space", *["ArrowDown"] * 5, *["ArrowRight"] * 3, "Space", "Enter"):
            keys.press(key)
        here.until("count", f"{label + 1} row")
    keys.press("Tab")
    keys.press("ArrowRight")
    assert here.page.locator("#labels input:checked").get_attribute("value") == "3"  # after 0 and 1 comes 2
    here.page.locator("#start").focus()
    keys.press("Enter")
    here.until("state", "waiting for the next round")


def test_a_drawing_is_a_row_as_in_mnist(tab: Callable[..., Tab], digits: Run) -> None:
    """Wherever it is drawn and however small, its ink is in the middle, from 0 to 1 where the plan is not wider."""
    here = tab().open(digits.ticket()).take_part()
    draw(here, (0.05, 0.05), (0.25, 0.05), (0.25, 0.3))
    here.page.get_by_role("button", name="Add", exact=True).click()
    here.until("count", "1 row")
    x, y = wait_for(lambda: stored(here))
    assert y == [0] and len(x) == 784
    cells = np.array(x).reshape(28, 28)
    assert 0.9 < cells.max() <= 1 and cells.min() == 0
    ink = np.argwhere(cells > 0.5)
    assert 17 <= max(np.ptp(ink, axis=0)) + 1 <= 21
    grid = np.indices((28, 28)) + 0.5
    assert np.abs((grid * cells).sum((1, 2)) / cells.sum() - 14).max() <= 0.75


def stored(tab: Tab) -> Any:
    return tab.page.evaluate(
        "async () => { const done = (r) => new Promise((ok) => (r.onsuccess = () => ok(r.result)));"
        "const db = await done(indexedDB.open('fedzero'));"
        "const [rows] = await done(db.transaction('rows').objectStore('rows').getAll());"
        "return rows && [Array.from(rows.x), Array.from(rows.y)]; }"
    )


def test_keys_cannot_be_read_by_scripts(tab: Callable[..., Tab], digits: Run) -> None:
    here = tab().open(digits.ticket()).take_part()
    found = here.page.evaluate(
        "async () => { const done = (r) => new Promise((ok) => (r.onsuccess = () => ok(r.result)));"
        "const db = await done(indexedDB.open('fedzero'));"
        "const [device] = await done(db.transaction('devices').objectStore('devices').getAll());"
        "const key = device.key.privateKey;"
        "return [key.extractable, await crypto.subtle.exportKey('pkcs8', key).then(() => 'read', (e) => e.name)]; }"
    )
    assert found == [False, "InvalidAccessError"]


def test_other_origins_do_not_connect(tab: Callable[..., Tab], digits: Run, rogue: Rogue) -> None:
    """The gateway of this run lists one other origin; all else is refused before anything is said."""
    here = tab()
    here.allowed = ("WebSocket connection to", "Failed to load resource")
    script = (
        f"() => new Promise((ok) => {{ const s = new WebSocket('ws://127.0.0.1:{digits.port}/fedzero/1/socket');"
        "s.onopen = () => ok('open'); s.onerror = () => ok('refused'); })"
    )
    for host, right in (("127.0.0.1", "open"), ("localhost", "refused")):
        here.page.goto(f"http://{host}:{rogue.port}/nothing")  # a page without a policy
        assert here.page.evaluate(script) == right


def test_an_address_that_is_no_ticket(tab: Callable[..., Tab], digits: Run) -> None:
    url = digits.ticket().partition("#")[0]
    tab().open(url).until("problem", "needs a ticket")
    here = tab().open(f"{url}#nonsense").until("problem", "is no ticket")
    assert here.page.url == url


@pytest.mark.slow
def test_forgetting_leaves_nothing(tab: Callable[..., Tab], digits: Run) -> None:
    here = tab().open(digits.ticket()).take_part()
    draw(here, (0.3, 0.3), (0.7, 0.7))
    here.page.get_by_role("button", name="Add", exact=True).click()
    wait_for(lambda: stored(here))
    here.page.on("dialog", lambda dialog: dialog.accept())
    here.page.get_by_role("button", name="Forget this run").click()
    here.until("problem", "needs a ticket")
    assert stored(here) is None and here.page.evaluate("[localStorage.length, sessionStorage.length]") == [0, 0]


# ---- gateways that are not what they should be

ENROLLED = m.Enrolled(bytes(16), 0, bytes(32), b"\x04" + bytes(64), bytes(64))
SAYS: list[tuple[bytes | str, str]] = [
    ("text", "text where frames are binary"),
    (b"", "a message ends too early"),
    (b"\xff" * 40, "a byte 255 that begins no value"),
    (b"\xdd\xff\xff\xff\xff", "an array that is too large"),
    (b"\x91" * 60 + b"\x00", "an array that is too large"),
    (msgspec.msgpack.encode([99]), "a frame with the tag 99"),
    (msgspec.msgpack.encode({"a": 1}), "a byte 129"),
    (msgspec.msgpack.encode([16, 1]), "Enrolled lacks a field"),
    (msgspec.msgpack.encode([24, 1, 2]), "Error has a field 1 that is not text"),
    (msgspec.msgpack.encode([23, 2**60, "x"]), "2⁵³"),
    (m.encode(m.Welcome(b"", 1, 0, bytes(64))), "a frame with the tag 18 where none is expected"),
    (m.encode(m.Order(0, 0, 0, b"", bytes(64))), "a frame with the tag 19 where none is expected"),
    (m.encode(m.Finish(0, "", bytes(64))), "a frame with the tag 25 where none is expected"),
    (m.encode(ENROLLED), "not the gateway that the ticket names"),
    (m.encode(m.Challenge(7, bytes(32))), "a frame with the tag 17 where none is expected"),
    (m.encode(m.Error(3, MARKUP)), f"The gateway says: {MARKUP}"),
    (m.encode(m.Error(4, "a\u202e\nb")), "The gateway says: a  b"),
    (m.encode(m.Wait(3, "later")), "later: again in"),
]


@pytest.mark.parametrize("cases", [SAYS[::6], pytest.param(SAYS, marks=pytest.mark.slow)], ids=["some", "all"])
def test_what_no_gateway_says_is_refused_in_a_sentence(tab: Callable[..., Tab], rogue: Rogue, cases: Any) -> None:
    here = tab()
    ticket = address(f"http://127.0.0.1:{rogue.port}", bytes(16), bytes(16), bytes(16))
    for says, why in cases:
        rogue.says = says
        here.page.goto("about:blank")
        here.open(ticket)
        wait_for(lambda: here.page.wait_for_timeout(10) or here.page.locator("#join").is_enabled())
        here.page.locator("#join").click()
        here.until("problem", why)
        assert here.page.locator("#data").is_hidden() and here.page.locator("img").count() == 0
