"""Every method, one contract: the checks of `fedzero.testing`, on every choice that methods offer.

No test here may know a method by name.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from cases import BASES, EVERY_CHOICE_ONCE, KINDS, SHAPES, UNLIKE, VARIANTS, WIRES, changes, label, traits_of

from fedzero.errors import FedzeroError
from fedzero.tasks import Quadratic
from fedzero.testing import CheckFailed, check_method
from fedzero.testing import methods as checks
from fedzero.testing.trial import federation_for, recipe_of, trial
from sampling import mostly_slow

pytestmark = pytest.mark.covered

EPS = 2.0**-24
"""Half a unit in the last place of float32."""
shapes = pytest.mark.parametrize("algorithm", SHAPES, ids=label)
wires = pytest.mark.parametrize("algorithm", WIRES, ids=label)
unlike = pytest.mark.parametrize("algorithm", mostly_slow(WIRES, lambda algorithm: algorithm in UNLIKE), ids=label)
"""For checks of what servers, sites and links do, which is the same for all other methods."""


def choices(of: Any) -> dict[str, set[Any]]:
    """The fields of a struct that offer a choice, and what can be chosen."""
    found: dict[str, set[Any]] = {}
    for field in msgspec.inspect.type_info(of).fields:
        for kind in getattr(field.type, "types", [field.type]):
            if isinstance(kind, msgspec.inspect.LiteralType):
                found.setdefault(field.name, set()).update(kind.values)
            elif isinstance(kind, msgspec.inspect.BoolType):
                found.setdefault(field.name, set()).update({True, False})
            elif isinstance(kind, msgspec.inspect.StructType) and field.name != "rate" and kind.tag:
                found.setdefault(field.name, set()).add(kind.tag)
    return found


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_choice_a_method_offers_is_among_the_variants(kind) -> None:
    """Schedules of the rates aside, and `auto`, which have tests of their own."""
    of_kind = [msgspec.to_builtins(variant) for variant in VARIANTS if type(variant) is kind]
    for name, values in choices(kind).items():
        if name.endswith("rate"):
            continue
        tried = {table[name]["kind"] if isinstance(table[name], dict) else table[name] for table in of_kind}
        assert tried >= values - {"auto"}, (name, values - tried)


@pytest.mark.parametrize("algorithm", EVERY_CHOICE_ONCE, ids=label)
def test_replays_and_counts(tmp_path: Path, algorithm) -> None:
    checks.survives_the_ledger(algorithm, tmp_path)
    checks.replays_and_counts(algorithm, tmp_path)


@unlike
def test_counts_where_asks_are_answered_together(tmp_path: Path, algorithm) -> None:
    checks.replays_and_counts(algorithm, tmp_path, merge=True)


@shapes
def test_resumes(tmp_path: Path, algorithm) -> None:
    checks.resumes(algorithm, tmp_path)


WHAT_IS_REMEMBERED = {"preset", "surrogate", "active", "box"}
REMEMBERING = [
    v for v in VARIANTS if traits_of(v).remembers and v not in SHAPES and changes(v).keys() & WHAT_IS_REMEMBERED
]
"""Variants that remember other things than the base of their kind does; nothing else of them could get lost."""
remembering = pytest.mark.parametrize(
    "algorithm", mostly_slow(REMEMBERING, lambda v: changes(v).keys() & {"preset", "box"}), ids=label
)


@remembering
def test_resumes_with_what_clients_remember(tmp_path: Path, algorithm) -> None:
    checks.resumes(algorithm, tmp_path)


@unlike
def test_runs_at_sites(tmp_path: Path, algorithm) -> None:
    checks.runs_at_sites(algorithm, tmp_path)


@unlike
def test_federations(tmp_path: Path, algorithm) -> None:
    checks.serves_the_federations_it_accepts(algorithm, tmp_path)


@pytest.mark.parametrize("algorithm", BASES, ids=label)
def test_who_cannot_keep_a_secret_says_so(tmp_path: Path, algorithm) -> None:
    federation = msgspec.structs.replace(federation_for(algorithm), private=True)
    with pytest.raises(FedzeroError, match=r"private|server_model"):
        algorithm.check(federation)


@wires
def test_bad_clients(tmp_path: Path, algorithm) -> None:
    checks.refuses_bad_clients(algorithm, tmp_path)


@remembering
def test_bad_clients_remember_nothing(tmp_path: Path, algorithm) -> None:
    checks.refuses_bad_clients(algorithm, tmp_path, ways=(checks.not_a_number,))


@shapes
def test_bfloat16(tmp_path: Path, algorithm) -> None:
    checks.replays_short_floats(algorithm, tmp_path)


@pytest.mark.parametrize("algorithm", mostly_slow(BASES, lambda a: type(a) in map(type, UNLIKE)), ids=label)
def test_float16(tmp_path: Path, algorithm) -> None:
    checks.replays_short_floats(algorithm, tmp_path, (torch.float16,))


@pytest.mark.parametrize("algorithm", mostly_slow(SHAPES, lambda algorithm: algorithm in WIRES), ids=label)
def test_sampling_with_replacement(tmp_path: Path, algorithm) -> None:
    checks.weighs_who_is_drawn_twice(algorithm, tmp_path)


@wires
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_extreme_numbers(tmp_path: Path, algorithm) -> None:
    checks.survives_extreme_numbers(algorithm, tmp_path)


@unlike
def test_a_rate_that_falls_to_zero(tmp_path: Path, algorithm) -> None:
    checks.runs_with_a_rate_of_zero(algorithm, tmp_path)


SOLVERS = [v for v in EVERY_CHOICE_ONCE if "rate" not in changes(v) and (v in SHAPES or not traits_of(v).remembers)]
"""Surrogates of a client's own are slow: how they are made has tests by hand."""


@pytest.mark.parametrize("algorithm", SOLVERS, ids=label)
def test_solves_a_quadratic(tmp_path: Path, algorithm) -> None:
    checks.solves_a_quadratic(algorithm, tmp_path)


WITH_BOTH_FORMS = [variant for variant in VARIANTS if getattr(variant, "form", None) == "seeded"]


@pytest.mark.parametrize("algorithm", WITH_BOTH_FORMS, ids=label)
def test_scalars_and_numbers_say_the_same(tmp_path: Path, algorithm) -> None:
    """Seeded or dense, four rounds lead to the same model up to the rounding of float32.

    A point x + μz is rounded by EPS·|x| a coordinate, hence a slope by about EPS·|x|/μ of itself and with it a step.
    The bound is one of these, of the longest way a coordinate has come; a wrong factor or direction is off by a whole.
    """
    ends = []
    for form in ("dense", "seeded"):
        run = trial(tmp_path / form, recipe_of(msgspec.structs.replace(algorithm, form=form)))
        run.play(4)
        ends.append(run.replica.state.params.vector().double().numpy())
    assert np.abs(ends[0] - ends[1]).max() <= EPS / algorithm.radius * np.abs(ends[0]).max()


WITH_AUTO = [base for base in BASES if "auto" in choices(type(base)).get("form", ())]


@pytest.mark.parametrize("dimension", [3, 1000])
@pytest.mark.parametrize("algorithm", WITH_AUTO, ids=label)
def test_auto_is_the_form_with_fewer_bytes(tmp_path: Path, algorithm, dimension) -> None:
    """Dense for a tiny model, seeded for a large one, and then exactly that; in between it is a rule of thumb."""
    runs = {}
    for form in ("auto", "dense", "seeded"):
        tuned, task = msgspec.structs.replace(algorithm, form=form), Quadratic(dimension=dimension)
        runs[form] = trial(tmp_path / form, recipe_of(tuned, task=task))
        runs[form].play(12)
    cost = {form: sum(r.bytes_up + r.bytes_down for r in run.records) for form, run in runs.items()}
    chosen = "dense" if dimension == 3 else "seeded"
    assert runs["auto"].records == runs[chosen].records
    assert runs["auto"].replica.digest() == runs[chosen].replica.digest()
    assert cost["auto"] == cost[chosen] == min(cost.values())


def test_all_checks_are_made_here() -> None:
    """What `check_method` checks, these tests do, on more than one value of every method."""
    text = Path(__file__).read_text()
    assert [check.__name__ for check in checks.CHECKS if f"checks.{check.__name__}(" not in text] == []


def test_failures_are_said_in_words() -> None:
    class Careless(type(WIRES[0]), tag="careless"):
        """Says that it asks less often than it does."""

        def cost(self, round, scale):
            cost = super().cost(round, scale)
            return replace(cost, queries=cost.queries - 1)

    with pytest.raises(CheckFailed, match="asked its function 20 times where the method asks 19 times"):
        check_method(Careless(**{name: getattr(WIRES[0], name) for name in WIRES[0].__struct_fields__}))
