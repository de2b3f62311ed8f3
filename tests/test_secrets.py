"""The clients' secret: what a ledger and a patch tell of it, and who can read them."""

from __future__ import annotations

import hashlib
import shutil
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness import recipe_of

from fedzero.deploy.flare import project as kits
from fedzero.deploy.server.conduct import run_at_sites
from fedzero.deploy.site.settings import Settings
from fedzero.deploy.site.site import Site
from fedzero.directions.keys import fingerprint, fits, root_of, salt_of, shift
from fedzero.engines.remote.engine import Service
from fedzero.engines.remote.messages import Failed, Prepare, Prepared, decode_answer, encode
from fedzero.errors import FedzeroError
from fedzero.ledger import patch
from fedzero.ledger.folder import LEDGER
from fedzero.ledger.store import Ledger
from fedzero.methods import DeComFL
from fedzero.model.checkpoint import save_model
from fedzero.recipe import recipe as recipes
from fedzero.recipe import secret
from fedzero.recipe.environment import Environment
from fedzero.runs import patches, recorded, session
from fedzero.runs.progress import Silent
from fedzero.testing.engines import LocalSites
from stops import StopAt

SECRET, WEAK = b"known to the clients alone", b"hospital2024"
HERE = Environment(secret=SECRET)


def recipe_for(**options):
    options = {
        "algorithm": DeComFL(rate=1e-3, directions=2),
        "clients": 4,
        "cohort": 4,
        "server_model": False,
        **options,
    }
    return msgspec.structs.replace(recipe_of(**options), rounds=4, evaluate_every=2)


@pytest.fixture
def private_run(tmp_path: Path) -> Path:
    session.start(recipe_for(private=True), tmp_path / "run", HERE, Silent())
    return tmp_path / "run"


def start_of(folder: Path):
    with closing(Ledger.open(folder / LEDGER)) as ledger:
        return ledger.start()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_fingerprint_is_salted_and_stretched(private_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = start_of(private_run)
    assert start.secret == fingerprint(SECRET, salt_of(start.recipe))
    assert start.secret.startswith("scrypt-")
    assert fits(SECRET, start.secret)
    assert not fits(WEAK, start.secret)
    other = salt_of(recipes.canonical(recipe_for(private=True, clients=5)))
    assert fingerprint(SECRET, other) != start.secret, "guesses for one run are worth nothing for another"
    costs, stretch = list[int](), hashlib.scrypt

    def counted(*given: Any, **how: Any) -> bytes:
        costs.append(128 * how["n"] * how["r"])
        return stretch(*given, **how)

    monkeypatch.setattr(hashlib, "scrypt", counted)
    fits(WEAK, start.secret)
    assert costs == [1 << 25], "32 MiB are written and read for a guess; 0.1: a microsecond a guess"


@pytest.mark.parametrize("known", ["scrypt-", "scrypt-zz-00", "scrypt--", "", "scrypt-00", "é"])
def test_what_is_no_fingerprint_fits_nothing(known: str) -> None:
    assert not fits(SECRET, known)


def test_a_short_secret_begins_no_run(tmp_path: Path) -> None:
    with pytest.raises(FedzeroError, match=r"has 12 bytes.*fedzero secret FILE.*at least 16 bytes"):
        session.start(recipe_for(private=True), tmp_path / "run", Environment(secret=WEAK), Silent())
    assert not (tmp_path / "run").exists()


def old_run(folder: Path, monkeypatch) -> Path:
    """As 0.1 wrote it, with a short secret and stopped in the middle."""
    monkeypatch.setattr(secret, "SHORTEST_SECRET", 1)
    monkeypatch.setattr(secret, "fingerprint", lambda key, salt: fingerprint(key))

    with pytest.raises(KeyboardInterrupt):
        session.start(recipe_for(private=True), folder, Environment(secret=WEAK), StopAt(1))
    monkeypatch.undo()
    (folder / LEDGER).chmod(0o644)
    assert start_of(folder).secret == fingerprint(WEAK)
    return folder


def test_a_run_of_0_1_is_resumed_with_its_secret(tmp_path: Path, monkeypatch) -> None:
    folder = old_run(tmp_path / "run", monkeypatch)
    with pytest.raises(FedzeroError, match="not the one this run was started with"):
        session.resume(folder, HERE, Silent())
    assert session.resume(folder, Environment(secret=WEAK), Silent()).complete
    assert recorded.verified(folder, Environment(secret=WEAK)).end is not None
    assert mode(folder / LEDGER) == 0o600


def test_a_site_goes_on_with_a_run_of_0_1_and_tells_no_other_fingerprint(tmp_path: Path) -> None:
    """The server shows what its ledger has; a site whose secret it is not says so, and nothing more."""
    (tmp_path / "secret").write_bytes(WEAK)
    site, recipe = (
        Site(Settings(device="cpu", secret=str(tmp_path / "secret")), tmp_path / "keep"),
        recipe_for(private=True),
    )

    def asked(known: str | None):
        return decode_answer(site.answer(encode(Prepare("run", recipes.canonical(recipe), (0,), {}, known))))

    answer = asked(fingerprint(WEAK))
    assert isinstance(answer, Prepared)
    assert answer.secret == fingerprint(WEAK)
    assert asked(fingerprint(SECRET)) == Failed("the secret is not the one this run was started with")
    refused = asked(None)
    assert isinstance(refused, Failed)
    assert "12" not in refused.reason, "not even how long it is"


def test_a_run_of_0_1_at_sites_is_hidden_when_it_goes_on(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("FEDZERO_SECRET", SECRET.decode())
    recipe, link, folder = recipe_for(private=True), LocalSites(tmp_path / "sites", ["north"]), tmp_path / "run"
    for _ in range(2):
        run_at_sites(recipe, folder, Environment(), Silent(), Service(link, lambda: ["north"]))
        assert mode(folder / LEDGER) == 0o600
        (folder / LEDGER).chmod(0o644)


# ---- files


def test_files_that_hold_keys_are_their_owners(private_run: Path, tmp_path: Path, fedzero, monkeypatch) -> None:
    assert mode(private_run / LEDGER) == 0o600
    outcome = fedzero("secret", tmp_path / "secret")
    assert (outcome.code, mode(tmp_path / "secret")) == (0, 0o600)
    assert len((tmp_path / "secret").read_text().strip()) == 64
    fedzero("secret", tmp_path / "secret").refused("exists")
    monkeypatch.setenv("FEDZERO_SECRET", SECRET.decode())
    out = tmp_path / "private.patch"
    assert "it is applied with the secret" in fedzero("patch", "export", private_run, "--out", out).out
    assert mode(out) == 0o600


def test_kits_are_their_owners(tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason="nvflare is not installed")
    kits.provision(tmp_path / "project", ["north"])
    for name in ("north", "server", "supervisor@fedzero.local"):
        kit = kits.kit_of(tmp_path / "project", name)
        assert mode(kit) == 0o700
        assert all(mode(key) == 0o600 for key in kit.glob("startup/*.key"))
    assert mode(tmp_path / "project" / "authority") == 0o700


def test_what_a_site_keeps_is_its_own(tmp_path: Path) -> None:
    site = Site(Settings(device="cpu"), tmp_path / "keep")
    site.answer(encode(Prepare("run", recipes.canonical(recipe_for()), (0,))))
    kept = [tmp_path / "keep", *(tmp_path / "keep").rglob("*")]
    assert {path.name for path in kept} >= {"answers.db"}
    for path in kept:
        assert path.name == ".running" or mode(path) == (0o700 if path.is_dir() else 0o600), path


# ---- patches


def base_of(folder: Path, environment: Environment, path: Path) -> str:
    ledger, setup = recorded.reopen(folder, environment)
    ledger.close()
    save_model(setup.problem.params, path)
    return str(path)


def test_a_patch_of_a_private_run_needs_the_secret(private_run: Path, tmp_path: Path) -> None:
    base, out = base_of(private_run, HERE, tmp_path / "base.safetensors"), tmp_path / "out.safetensors"
    sealed, opened = tmp_path / "sealed.patch", tmp_path / "open.patch"
    sealed.write_bytes(patches.export_patch(private_run, HERE))
    opened.write_bytes(patches.export_patch(private_run, HERE, open_=True))
    directions = shift(root_of(recipe_for().seed), SECRET)
    assert directions in opened.read_bytes()
    assert directions not in sealed.read_bytes()
    digest = start_of(private_run) and recorded.verified(private_run, HERE).end.model
    with pytest.raises(FedzeroError, match="of a private run: give the clients' secret"):
        patches.apply_patch(sealed, base, out)
    with pytest.raises(FedzeroError, match="not the one that the run of this patch was started with"):
        patches.apply_patch(sealed, base, out, secret=WEAK)
    assert not out.exists()
    assert patches.apply_patch(sealed, base, out, secret=SECRET).digest() == digest
    assert patches.apply_patch(opened, base, out).digest() == digest


def test_a_patch_that_0_1_wrote_of_a_private_run_applies(private_run: Path, tmp_path: Path) -> None:
    base = base_of(private_run, HERE, tmp_path / "base.safetensors")
    found = msgspec.msgpack.decode(patches.export_patch(private_run, HERE, open_=True)[32:])
    del found["secret"]
    body = msgspec.msgpack.encode(found)
    (tmp_path / "old.patch").write_bytes(hashlib.sha256(body).digest() + body)
    assert not patch.load(tmp_path / "old.patch").secret
    out = tmp_path / "out.safetensors"
    assert (
        patches.apply_patch(tmp_path / "old.patch", base, out).digest()
        == recorded.verified(private_run, HERE).end.model
    )


def test_copied_ledgers_stay_readable_by_their_owner(private_run: Path, tmp_path: Path) -> None:
    shutil.copytree(private_run, tmp_path / "copy")
    assert session.resume(tmp_path / "copy", HERE, Silent()).complete
