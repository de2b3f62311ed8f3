"""Tabs of a browser, and the page's modules by node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tab.tabs import Node, Tab


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    found = Node(tmp_path_factory.mktemp("modules"))
    yield found
    found.close()


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
