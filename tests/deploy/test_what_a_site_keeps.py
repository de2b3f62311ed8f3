"""Folders of runs: a server may begin as many as it likes, a site keeps some."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import recipe_of
from hypothesis import given
from hypothesis import strategies as st
from test_hostile_server import asked, prepare, recipe_for, site_with, turn
from test_orders_out_of_place import order, reply, update, work

from fedzero.deploy.site.kept import Held, sizes, surplus, tidy
from fedzero.deploy.site.terms import Terms
from fedzero.engines.remote.messages import Exchange, Prepared, encode
from fedzero.methods import FedAvg, ScaffoldZO
from fedzero.protocol.messages import Snapshot, encode_work
from fedzero.protocol.messages import encode as encode_instruction


def begin(site, name: str) -> Path:
    assert isinstance(asked(site, prepare(recipe_for(), run=name)), Prepared)
    reply(site, order(1, work(1, [update(0)])))
    return site.run.folder


def test_forty_runs_leave_no_forty_models(tmp_path: Path) -> None:
    site = site_with(tmp_path, terms=Terms(runs_kept=3))
    folders = [begin(site, f"run {number}") for number in range(40)]
    assert [path for path in folders if path.exists()] == folders[-4:], "three, and the one that goes on"
    assert (folders[-2] / "replica").exists()


def test_bytes_are_limited_too(tmp_path: Path) -> None:
    site = site_with(tmp_path, terms=Terms(bytes_kept=1000))
    folders = [begin(site, f"run {number}") for number in range(8)]
    left = [path for path in folders if path.exists()]
    assert left == folders[-len(left) :]
    assert sum(size for path, size in sizes(tmp_path / "keep").items() if path != folders[-1]) <= 1000


def test_bytes_in_subfolders_count_and_links_are_not_followed(tmp_path: Path) -> None:
    folder, large = tmp_path / "keep" / ("a" * 24), tmp_path / "elsewhere"
    (folder / "memories" / "deep").mkdir(parents=True)
    large.mkdir()
    (large / "model").write_bytes(bytes(1 << 20))
    before = sizes(tmp_path / "keep")[folder]
    (folder / "memories" / "deep" / "client").write_bytes(bytes(5000))
    (folder / "link").symlink_to(large)
    assert 5000 <= sizes(tmp_path / "keep")[folder] - before < 6000
    assert tidy(tmp_path / "keep", 10, 4000) == [folder.name]


def test_what_goes_on_elsewhere_is_not_touched(tmp_path: Path) -> None:
    """Another process of this site, of an epoch that has not ended yet."""
    first = site_with(tmp_path)
    running = begin(first, "first")
    other = site_with(tmp_path, terms=Terms(runs_kept=1))
    for number in range(5):
        begin(other, f"run {number}")
    assert running.exists()
    assert reply(first, turn(2, 0))
    first.leave()
    begin(other, "last")
    begin(other, "very last")
    assert not running.exists()


def test_a_run_that_comes_back_is_the_last_to_go(tmp_path: Path) -> None:
    site = site_with(tmp_path, terms=Terms(runs_kept=2))
    first = begin(site, "first")
    begin(site, "second")
    asked(site, prepare(recipe_for(), run="first"))
    begin(site, "third")
    begin(site, "fourth")
    assert first.exists()


def test_of_a_run_that_is_gone_no_answer_is_kept(tmp_path: Path) -> None:
    site = site_with(tmp_path, terms=Terms(runs_kept=1))
    for number in range(6):
        begin(site, f"run {number}")
    runs = {run for (run,) in site.run._journal._db.execute("SELECT DISTINCT run FROM answers")}
    assert len(runs) == 2


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("method", [FedAvg(rate=0.1), ScaffoldZO(rate=1e-3, directions=2, local_steps=2)], ids=str)
def test_answers_and_memories_of_many_clients_do_not_fill_the_disk(tmp_path: Path, method, at_once, capsys) -> None:
    """A server assigns as many clients as it likes; each of a dense method's answers is as large as the model."""
    site = site_with(tmp_path, terms=Terms(bytes_kept=2000))
    recipe = recipe_of(method, clients=100, cohort=100)
    assert isinstance(asked(site, prepare(recipe, clients=tuple(range(100)))), Prepared)
    state = site.run.replica.state
    instruction = encode_work(0, 0, [])
    if site.run.agreement.delivery == "snapshot":
        instruction = encode_instruction(Snapshot(0, 0, state.numbers, state.to_bytes()))
    batches = [range(100)] if at_once else [(number,) for number in range(100)]
    found = [asked(site, encode(Exchange(0, 0, dict.fromkeys(batch, instruction)))) for batch in batches]
    answered = sum(len(answer.replies) for answer in found)
    assert 2 <= answered <= 2000 // 200 + 1
    (said, *others) = {text.split(" = ")[0] for answer in found for text in answer.failed.values()}
    assert (said, others) == ("its terms have bytes_kept", [])


def test_answers_count_among_the_bytes_of_a_run(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 24)
    Held(folder).release()
    assert tidy(tmp_path, 8, 1000, {folder.name: 900}) == []
    assert tidy(tmp_path, 8, 1000, {folder.name: 1001}) == [folder.name]


@given(st.lists(st.integers(0, 10), max_size=12), st.integers(1, 12), st.integers(0, 60))
def test_no_more_goes_than_has_to(found, most, most_bytes) -> None:
    folders = {str(place): size for place, size in enumerate(found)}
    gone = surplus(folders, most, most_bytes)
    assert gone == list(folders)[: len(gone)], "the oldest first"
    left = found[len(gone) :]
    assert len(left) <= most
    assert sum(left) <= most_bytes
    if gone:
        more = found[len(gone) - 1 :]
        assert len(more) > most or sum(more) > most_bytes


def test_only_folders_of_runs_are_removed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "data").write_text("mine")
    keep = tmp_path / "keep"
    (keep / "notes").mkdir(parents=True)
    (keep / ("a" * 24)).symlink_to(elsewhere)
    (keep / ("b" * 24)).mkdir()
    assert tidy(keep, 0, 0) == ["b" * 24]
    assert (elsewhere / "data").exists()
    assert (keep / "notes").exists()


def test_a_folder_is_held_until_it_is_given_up(tmp_path: Path) -> None:
    folder = tmp_path / ("c" * 24)
    one, other = Held(folder), Held(folder)
    assert tidy(tmp_path, 0, 0) == []
    one.release()
    assert tidy(tmp_path, 0, 0) == []
    other.release()
    assert tidy(tmp_path, 0, 0) == [folder.name]


def test_orders_that_cannot_be_obeyed_leave_no_files_open(tmp_path: Path, monkeypatch, capsys) -> None:
    site = site_with(tmp_path)
    monkeypatch.setattr(type(site), "log", lambda *_: None)
    begin(site, "run")
    monkeypatch.setattr("fedzero.deploy.site.run._keep_private", lambda *_: 1 / 0)
    asked(site, prepare(recipe_for(), run="before"))
    files = Path("/proc/self/fd")
    before = len(list(files.iterdir())) if files.exists() else pytest.skip("no /proc")
    for number in range(30):
        asked(site, prepare(recipe_for(), run=f"run {number}"))
    assert len(list(files.iterdir())) <= before + 2
