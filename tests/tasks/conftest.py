"""Where the full datasets are, if they are; and a cache of trained models for every module."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def full_data() -> Callable[[str], Path]:
    """full_data(name): the data folder if it has `name`, else the test is skipped."""
    named = os.environ.get("FEDZERO_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parents[3] / "shared" / "data"

    def find(name: str) -> Path:
        if not (folder / name).exists():
            pytest.skip(f"{folder / name} is not there: set FEDZERO_DATA to test with the full files")
        return folder

    return find


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Empty at first: what a module's tests train, they train with the code as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDZERO_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
