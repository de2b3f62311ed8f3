"""A cache of trained models for every module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Empty at first: what a module's tests train, they train with the code as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDZERO_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
