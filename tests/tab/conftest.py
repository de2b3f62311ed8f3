"""The page's modules by node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tab.tabs import Node


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    found = Node(tmp_path_factory.mktemp("modules"))
    yield found
    found.close()
