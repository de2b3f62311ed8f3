"""The files of the page as the gateway serves them."""

from __future__ import annotations

import gzip
import re
import tomllib
from html.parser import HTMLParser

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from fedzero.engines.devices.join_page import FOLDER, INDEX, KINDS, ROUTES, page

MOST = 100_000
"""Bytes of the page with both modules, as they are sent."""


@pytest.fixture(scope="module")
def client() -> TestClient:
    return TestClient(Starlette(routes=list(ROUTES)))


def paths() -> list[str]:
    return ["/join", *(f"/join/{page().digest}/{name}" for name in page().files if name != INDEX)]


def test_every_file_has_a_strict_policy(client: TestClient) -> None:
    for path in (*paths(), "/join/0/main.js"):
        headers = client.get(path).headers
        policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'" and policy["frame-ancestors"] == "'none'"
        assert {source for sources in policy.values() for source in sources.split()} == {
            "'none'", "'self'", "'wasm-unsafe-eval'"
        }  # fmt: skip
        assert headers["referrer-policy"] == "no-referrer" and headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-opener-policy"] == "same-origin"


def test_files_are_kept_by_their_digest_and_the_page_is_not(client: TestClient) -> None:
    first, *others = (client.get(path) for path in paths())
    assert first.headers["cache-control"] == "no-cache" and page().digest in first.text
    assert client.get("/join", headers={"if-none-match": first.headers["etag"]}).status_code == 304
    for answer in others:
        assert answer.status_code == 200 and "immutable" in answer.headers["cache-control"]


@pytest.mark.parametrize(
    "path",
    [f"/join/{'0' * 16}/main.js", "/join/D/nothing.js", "/join/D/index.html", "/join/D/..%2fpage.py", "/join/D/"],
)
def test_nothing_else_is_served(client: TestClient, path: str) -> None:
    found = client.get(path.replace("D/", f"{page().digest}/"))
    assert found.status_code == 404 and "immutable" not in found.headers.get("cache-control", "")


def test_what_is_sent_is_what_is_there(client: TestClient) -> None:
    for name, file in page().files.items():
        path = "/join" if name == INDEX else f"/join/{page().digest}/{name}"
        for encoding in ("gzip", "identity"):
            answer = client.get(path, headers={"accept-encoding": encoding})
            assert answer.content == file.content and answer.headers["content-type"] == file.kind
        assert gzip.decompress(file.packed) == file.content


def test_the_page_is_small() -> None:
    assert sum(len(file.packed) for file in page().files.values()) <= MOST


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        assert "style" not in named and not any(name.startswith("on") for name in named), (tag, attrs)
        self.found += [value for name, value in attrs if name in ("src", "href") and value]


def test_nothing_comes_from_elsewhere() -> None:
    links = Links()
    links.feed((FOLDER / INDEX).read_text("utf-8"))
    assert links.found and all(re.fullmatch(r"join/DIGEST/[\w.]+", link) for link in links.found)
    for path in FOLDER.iterdir():
        assert path.suffix in KINDS, f"{path.name} would not be served"
        if path.suffix in (".js", ".css", ".html"):
            text = path.read_text("utf-8")
            assert not re.search(
                r"https?://(?!www\.w3\.org)|innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text
            )


def test_the_wheel_has_the_page() -> None:
    found = tomllib.loads((FOLDER.parents[4] / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    assert "engines/devices/page/*" in found["fedzero"]
