"""Compiled kernels are kept once for each user and machine, and compiled in the background of a run's beginning."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedzero.directions.ahead import compiling
from fedzero.directions.cpu import ahead, compiled
from fedzero.directions.spec import Domain

USE = """
import torch
from fedzero.directions import kernels
from fedzero.directions.cpu import kernels as functions
print(kernels(torch.device("cpu")).checksum(torch.ones(5)), *functions._checksum.stats.cache_hits.values())
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FEDZERO_CACHE", str(tmp_path / "cache"))
    compiled.folder.cache_clear()
    yield tmp_path / "cache" / "kernels"
    compiled.folder.cache_clear()


def used() -> list[str]:
    return subprocess.run([sys.executable, "-c", USE], check=True, capture_output=True, text=True).stdout.split()


def test_another_process_finds_what_one_has_compiled(place: Path):
    first, second = used(), used()
    assert len(first) == 1 and second == [first[0], "1"]
    (folder,) = place.iterdir()
    assert any(folder.glob("kernels._checksum-*.nbc"))
    assert compiled.folder() == folder


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702])
def test_a_folder_that_others_can_write_is_not_used(place: Path, mode: int):
    folder = compiled.folder()
    assert folder is not None and folder.stat().st_mode & 0o777 == 0o700
    for each in (folder, place):
        each.chmod(mode)
        compiled.folder.cache_clear()
        assert compiled.folder() is None
        each.chmod(0o700)
    compiled.folder.cache_clear()
    assert compiled.folder() == folder


@pytest.mark.parametrize("mask", [0o002, 0o000])
def test_where_new_folders_can_be_written_by_others_ours_cannot(place: Path, mask: int):
    """Many systems have such a mask, and a folder that a group can write would never be used."""
    before = os.umask(mask)
    try:
        folder = compiled.folder()
    finally:
        os.umask(before)
    assert folder is not None
    assert [each.stat().st_mode & 0o777 for each in (folder, place)] == [0o700, 0o700]


def test_a_folder_that_is_a_link_is_not_used(place: Path, tmp_path: Path):
    folder = compiled.folder()
    assert folder is not None
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    compiled.folder.cache_clear()
    assert compiled.folder() is None


def test_without_a_place_kernels_work_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("FEDZERO_CACHE", str(tmp_path / "file" / "cache"))
    compiled.folder.cache_clear()
    assert compiled.folder() is None and ahead.begin(Domain.RANK1) == []
    compiled.folder.cache_clear()
    assert used()[0].isdigit()


def test_what_is_missing_is_compiled_by_processes_and_waited_for(place: Path, tmp_path: Path, monkeypatch):
    """Whatever modules the current folder has."""
    said: list[str] = []
    (tmp_path / "sent").mkdir()
    for name in ("torch", "numpy", "numba", "fedzero"):
        (tmp_path / "sent" / f"{name}.py").write_text("import pathlib; pathlib.Path('mark').touch()")
    monkeypatch.chdir(tmp_path / "sent")
    with compiling(torch.device("cpu"), Domain.GAUSSIAN, said.append) as wait:
        wait()
    assert said == ["compiling kernels for this processor, once for each release of fedzero"]
    folder = compiled.folder()
    assert not (tmp_path / "sent" / "mark").exists()
    assert folder is not None and (folder / "flat.done").exists() and any(folder.glob("kernels._advance32-*.nbc"))
    assert ahead.begin(Domain.GAUSSIAN) == [], "nothing is missing now"


def test_what_is_not_waited_for_ends_with_the_block(place: Path):
    with compiling(torch.device("cpu"), Domain.RANK1, lambda _: None):
        began = ahead.begin(Domain.RANK1)
        assert len(began) == 2
        for process in began:
            process.kill()
            process.wait()
    folder = compiled.folder()
    assert folder is not None and not any(folder.glob("*.done"))
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    if children.exists():
        names = [Path(f"/proc/{child}/cmdline").read_bytes() for child in children.read_text().split()]
        assert not any(b"directions.cpu.ahead" in name for name in names)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_run_without_directions_waits_for_nothing(device: str):
    said: list[str] = []
    with compiling(torch.device(device), None if device == "cpu" else Domain.GAUSSIAN, said.append) as wait:
        wait()
    assert not said
