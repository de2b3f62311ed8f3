"""Private data show in nothing but the noisy sums: two runs with other data and equal bounded vectors say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import slopes_program
from slopes import Private

from fedzero.testing.non_interference import compared

RECIPE = """
name = "hidden"
rounds = 4
evaluate_every = 2
algorithm = {{ kind = "decomfl", rate = 0.001, directions = 3 }}
task = {{ kind = "test-slopes", dimension = 8, rows = {rows} }}
federation = {{ clients = 5, cohort = 2 }}
privacy = {{ {privacy} }}
"""
SAME = {"coins": b"1", "rounding": b"2", "noise": b"3"}
OTHER = SAME | {"coins": b"other"}
UNITS = {
    "clients": (1, "sigma = 1.0", [1.0]),
    "examples": (
        3,
        'sigma = 1.0, unit = "example", clip = 0.0625, population = 15, probability = 0.4',
        [1.0, 1.0, 1.0],
    ),
}


@pytest.fixture
def run(warm_server: Any, tmp_path: Path) -> Any:
    """A run in a process of its own; what it left, as `compared` wants it."""

    def run(unit: str, private: Private, entropy: dict[str, bytes] = SAME, plant: str = "") -> Path:
        rows, privacy, _ = UNITS[unit]
        place = tmp_path / str(len(list(tmp_path.iterdir())))
        place.mkdir()
        recipe = tmp_path / "recipe.toml"
        recipe.write_text(RECIPE.format(rows=rows, privacy=privacy))
        given = (str(recipe), str(place), msgspec.json.encode(private).decode(), entropy, plant)
        process = warm_server.Process(target=slopes_program.go, args=given, daemon=True)
        process.start()
        process.join(300)
        assert process.exitcode == 0, (place / "stderr").read_text()
        return place

    return run


def longer(unit: str) -> Private:
    """Other losses, by a constant, and slopes up to 64 times as large: longer vectors of the same direction."""
    scales = UNITS[unit][2]
    return Private({client: [scale * 2.0 ** (4 + client % 3) for scale in scales] for client in range(5)}, shift=1024.0)


def usual(unit: str) -> Private:
    """Longer than the bound, all of them."""
    return Private({client: [16.0 * scale for scale in UNITS[unit][2]] for client in range(5)})


def zero(unit: str, shift: float = 0.0) -> Private:
    return Private({client: [0.0 for _ in UNITS[unit][2]] for client in range(5)}, shift)


@pytest.mark.parametrize("unit", UNITS)
def test_equal_bounded_vectors_and_equal_noise_say_the_same(run: Any, unit: str) -> None:
    one, other = run(unit, usual(unit)), run(unit, longer(unit))
    assert compared(one, other) == []
    assert {path.name for path in (one / "run").iterdir()} == {"ledger.db", "model.safetensors", "privacy.json"}


@pytest.mark.parametrize("unit", UNITS)
def test_who_took_part_shows_in_the_sums_alone(run: Any, unit: str) -> None:
    """Other coins. Where nobody has anything to say the sums are equal, and so is everything but whom messages go to;
    otherwise rounds differ in their updates, and what follows from these."""
    assert beyond_messages(*(run(unit, zero(unit, 64.0 * n), coins) for n, coins in enumerate((SAME, OTHER)))) == []
    found = beyond_messages(*(run(unit, usual(unit), coins) for coins in (SAME, OTHER)))
    assert {each.field for each in found if "Round" in each.where} == {"update"}
    assert {each.field for each in found if "Round" not in each.where} <= {
        "digest of the model",
        "measured",
        "log",
        "file",
        "model",
        "sha256",
    }, found


def beyond_messages(one: Path, other: Path) -> list[Any]:
    """Without the messages, which go to those who were drawn: all that anybody else sees."""
    for place in (one, other):
        (place / "messages").write_bytes(b"")
    return compared(one, other)


def test_a_loss_that_is_sent_is_found(run: Any) -> None:
    one, other = (run("clients", private, plant="loss sent") for private in (usual("clients"), longer("clients")))
    found = compared(one, other)
    assert ("loss", "reply of round 0") in {(each.field, each.where.split(",")[0]) for each in found}, found


@pytest.mark.parametrize(
    ("plant", "fields"), [("size recorded", {"size", "queries"}), ("divided by the cohort", {"update"})]
)
def test_the_size_of_a_cohort_that_shows_is_found(run: Any, plant: str, fields: set[str]) -> None:
    one, other = (run("clients", zero("clients"), coins, plant) for coins in (SAME, OTHER))
    assert fields <= {each.field for each in beyond_messages(one, other)}
