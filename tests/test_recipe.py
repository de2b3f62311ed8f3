"""Recipes written for 0.1: keys that are the federation's now stood in the table of the method."""

from __future__ import annotations

import msgspec
import pytest

from fedzero.errors import FedzeroError
from fedzero.recipe import recipe as recipes

RECIPE = """
name = "old"
rounds = 3

[algorithm]
kind = "decomfl"
rate = 0.01
{method}

[task]
kind = "quadratic"

[federation]
clients = 5
cohort = 2
{federation}
"""


def loaded(folder, method: str = "", federation: str = "", *overrides: str) -> recipes.Recipe:
    path = folder / "old.toml"
    path.write_text(RECIPE.format(method=method, federation=federation))
    return recipes.load(path, list(overrides))


@pytest.mark.parametrize(
    ("method", "federation"),
    [
        ('after = "sync"', "sync = true"),
        ('after = "revert"', ""),
        ("pull_after = 3", "pull_after = 3"),
        ("server_model = false", "server_model = false"),
        ('after = "sync"\npull_after = 3\nserver_model = true', "sync = true\npull_after = 3"),
    ],
)
def test_they_decode_to_the_same_values(tmp_path, method, federation) -> None:
    old, new = loaded(tmp_path, method), loaded(tmp_path, "", federation)
    assert old == new
    assert recipes.canonical(old) == recipes.canonical(new)
    overrides = [f"algorithm.{line.replace(' ', '')}" for line in method.splitlines()]
    assert loaded(tmp_path, "", "", *overrides) == new


def test_the_federations_own_table_counts_where_both_say_something(tmp_path) -> None:
    assert loaded(tmp_path, "pull_after = 3", "pull_after = 7").federation.pull_after == 7


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["algorithm.after=later"], r"algorithm\.after"),
        (["algorithm.pull_after=0"], r"federation\.pull_after: .*>= 1"),
        (["algorithm.server_model=false", "algorithm.pull_after=3"], r"pull_after needs a server that holds the model"),
        (["algorithm.kind=fedzo", "algorithm.pull_after=3"], r"algorithm\.pull_after"),
    ],
)
def test_what_did_not_work_then_does_not_now(tmp_path, overrides, words) -> None:
    with pytest.raises(FedzeroError, match=words):
        loaded(tmp_path, "", "", *overrides)


def test_a_kind_that_is_no_word(tmp_path) -> None:
    with pytest.raises(FedzeroError, match=r"algorithm\.kind = \[1\]"):
        loaded(tmp_path, "", "", "algorithm.kind=[1]")


def test_a_method_is_given_no_keys_of_the_federation() -> None:
    """By itself, a method has no place for them."""
    with pytest.raises(msgspec.ValidationError, match="pull_after"):
        recipes.method({"kind": "decomfl", "rate": 0.1, "pull_after": 3})


def test_a_folder_with_the_name_of_a_recipe_hides_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    assert recipes.read(recipes.find("demo"))["name"] == "demo"


def test_an_error_says_whether_the_file_or_an_option_is_wrong(tmp_path):
    with pytest.raises(FedzeroError, match=r"demo\.toml with the options given: rounds = -3 is not valid"):
        recipes.load("demo", rounds=-3)
    with pytest.raises(FedzeroError, match="with the options given: algorithm"):
        recipes.load("demo", ["algorithm.directions=-3"])
    own = tmp_path / "own.toml"
    own.write_text(recipes.find("demo").read_text().replace("rounds = ", "rounds = -", 1))
    with pytest.raises(FedzeroError, match=r"own\.toml: rounds = -"):
        recipes.load(own, seed=2)
    assert recipes.load(own, rounds=5).rounds == 5


HASHES = {
    "demo": "0f282535b8b78b7dba6edaef",
    "demo-cnn": "584143d6ea2a9e9f018be178",
    "demo-fedavg": "a460d54852878ef11824eb24",
    "reward-addition": "fd11c20ecb12715cd1a042ce",
    "reward-larger": "7921220f27c4e37c8eefd584",
    "reward-length": "5d60de2b46f417cac6c4e2c4",
    "reward-sst2": "b45d46fc26e1471cfe825b2b",
}


@pytest.mark.parametrize("name", HASHES)
def test_packaged_recipes_keep_their_bytes(name) -> None:
    """Approvals, salts and folders of sites derive from them; new fields are absent until a recipe uses them."""
    assert recipes.hash_of(recipes.load(name)).startswith(HASHES[name])
