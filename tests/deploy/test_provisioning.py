"""What `fedzero provision` writes: what was asked for, and no private key twice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fedzero.deploy.flare import authority, project
from fedzero.deploy.flare.project import SERVER, SUPERVISOR, kit_of, provision

pytest.importorskip("nvflare", reason="nvflare is not installed")
CERTIFICATE, KEY, ROOT = "startup/client.crt", "startup/client.key", "startup/rootCA.pem"


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def signed(kit: Path, root: Path) -> bool:
    from cryptography import x509

    certificate, authority = (x509.load_pem_x509_certificate(path.read_bytes()) for path in (kit / CERTIFICATE, root))
    certificate.verify_directly_issued_by(authority)
    return True


def private_keys(folder: Path) -> set[bytes]:
    """Keys of sites, wherever they are."""
    kits = [kit_of(folder, name) for name in ("north", "south", "west")]
    return {(kit / KEY).read_bytes() for kit in kits if kit.exists()}


def test_a_kit_that_was_moved_is_not_written_again(tmp_path: Path) -> None:
    folder = tmp_path / "hospital"
    provision(folder, ["north", "south"])
    moved, server = tmp_path / "north", files(kit_of(folder, SERVER))
    kit_of(folder, "north").rename(moved)
    kept = files(kit_of(folder, "south"))
    found = provision(folder, ["west"])
    assert found.sites == ("north", "south", "west"), "it is still one of the sites"
    assert sorted(path.name for path in (folder / "kits").iterdir()) == sorted(["south", "west", SERVER, SUPERVISOR])
    assert (files(kit_of(folder, "south")), files(kit_of(folder, SERVER))) == (kept, server)
    assert all(signed(kit, moved / ROOT) for kit in (moved, kit_of(folder, "south"), kit_of(folder, "west")))
    assert provision(folder, []) == found
    assert not kit_of(folder, "north").exists()


@pytest.mark.parametrize("moved", [SERVER, SUPERVISOR, "north"])
def test_nothing_that_was_not_asked_for_is_written(tmp_path: Path, moved: str) -> None:
    provision(tmp_path, ["north"])
    shutil.rmtree(kit_of(tmp_path, moved))
    provision(tmp_path, ["west"])
    assert not kit_of(tmp_path, moved).exists()
    assert kit_of(tmp_path, "west").exists()


def test_the_authority_keeps_no_key_of_a_site(tmp_path: Path) -> None:
    provision(tmp_path, ["north", "south"])
    keys = private_keys(tmp_path)
    for name in ("north", "south"):
        shutil.rmtree(kit_of(tmp_path, name))
    provision(tmp_path, ["west"])
    everything = files(tmp_path)
    assert len(keys) == 2
    for key in keys:
        lines = key.decode().splitlines()[1:-1]
        assert not any(line.encode() in content for content in everything.values() for line in lines)
    assert {name: authority.issued(tmp_path, name) for name in ("north", "west", "other")} == {
        "north": 1,
        "west": 1,
        "other": 0,
    }
    assert all(path.stat().st_mode & 0o77 == 0 for path in (tmp_path / "authority", *tmp_path.rglob("*.key")))


def test_a_site_that_is_named_again_gets_a_key_of_its_own(tmp_path: Path, fedzero) -> None:
    folder = tmp_path / "hospital"
    provision(folder, ["north"])
    before = files(kit_of(folder, "north"))
    provision(folder, ["north"])
    assert files(kit_of(folder, "north")) == before, "it is there"
    kit_of(folder, "north").rename(tmp_path / "north")
    said = fedzero("provision", folder).out
    assert "north: not here any more" in said
    said = fedzero("provision", folder, "--site", "north").out
    assert "north has 2 certificates now" in said
    again = kit_of(folder, "north")
    assert (again / KEY).read_bytes() != before[KEY]
    assert signed(again, tmp_path / "north" / ROOT)


def test_a_project_of_0_2_which_kept_keys_of_sites(tmp_path: Path) -> None:
    provision(tmp_path, ["north"])
    kit, state = kit_of(tmp_path, "north"), tmp_path / "authority" / "state" / "cert.json"
    key, certificate = ((kit / name).read_text() for name in (KEY, CERTIFICATE))
    shutil.rmtree(tmp_path / "authority" / "issued")
    state.write_text(json.dumps(json.loads(state.read_text()) | {"north": {"cert": certificate, "pri_key": key}}))
    shutil.rmtree(kit)
    provision(tmp_path, ["west"])
    assert not kit.exists()
    assert key.splitlines()[5] not in state.read_text()
    assert authority.issued(tmp_path, "north") == 1
    provision(tmp_path, ["north"])
    assert (kit / KEY).read_text() != key


def test_what_goes_wrong_on_the_way_leaves_no_half_of_a_kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full while the last kit is made; the same command makes the rest."""
    provision(tmp_path, ["north"])

    def full(kit: Path, project: object) -> None:
        if kit.name == "west":
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(project, "_describe", full)
        with pytest.raises(OSError, match="No space left"):
            provision(tmp_path, ["south", "west"])
    assert not kit_of(tmp_path, "west").exists()
    assert not list((tmp_path / "authority").glob("prod_*"))
    assert provision(tmp_path, ["south", "west"]).sites == ("north", "south", "west")
    assert (kit_of(tmp_path, "west") / KEY).exists()
    assert (kit_of(tmp_path, "west") / "local" / "resources.json").exists()
