"""Terms of a site, as a person gives and reads them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fedzero.deploy.flare import project as kits
from fedzero.deploy.settings import Settings
from fedzero.deploy.terms import Terms
from fedzero.runs import recipe as recipes


def test_the_hash_of_a_recipe(fedzero, tiny) -> None:
    found, other = (fedzero("recipe-hash", tiny, *more).out.strip() for more in ((), ("--rounds", "7")))
    assert found == recipes.hash_of(recipes.load(tiny))
    assert other == recipes.hash_of(recipes.load(tiny, rounds=7)) != found
    assert fedzero("recipe-hash", tiny, "--set", "about=words").out.strip() == found


def test_all_settings_are_explained(fedzero) -> None:
    shown = fedzero("list", "site").out
    for name in (*Settings.__struct_fields__, *Terms.__struct_fields__):
        assert name in shown
    assert "[terms]" in shown


def test_settings_are_read_as_they_were_written(tmp_path: Path) -> None:
    terms = Terms(methods=("decomfl",), private=False, approved=("ab" * 32,), queries_per_day=5)
    settings = Settings(files={"rows": "/srv/rows.csv"}, terms=terms)
    (tmp_path / "fedzero.toml").write_bytes(msgspec.toml.encode(settings))
    assert Settings.read(tmp_path / "fedzero.toml") == settings
    changed = settings.with_values(terms=msgspec.to_builtins(terms) | {"tasks": ["own"]})
    assert changed.terms == msgspec.structs.replace(terms, tasks=("own",)), "what was not given again stays"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--approve", "abc"], ["approved", "[0-9a-f]{64}"]),
        (["--file", "/srv/rows.csv"], ["--file /srv/rows.csv", "NAME=PATH"]),
    ],
)
def test_what_makes_no_sense_shows_before_the_site_connects(tmp_path: Path, fedzero, options, words) -> None:
    pytest.importorskip("nvflare", reason="nvflare is not installed")
    kits.provision(tmp_path / "project", ["north"])
    kit = kits.kit_of(tmp_path / "project", "north")
    fedzero("join", kit, *options).refused(*words)
    assert not (kit / "local" / kits.SETTINGS).exists()
