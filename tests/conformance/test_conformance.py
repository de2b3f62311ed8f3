"""Every method, one contract. No test here may know a method by name."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from cases import BASES, DIMENSION, KINDS, SHAPES, VARIANTS, changes, federation_for, label, methods, shapes
from harness import small
from resuming import recipe_of, resumes
from trouble import Meter, Tampering, altered, troubled

from fedzero.algorithms import AnyAlgorithm
from fedzero.algorithms.contract import Scale
from fedzero.errors import FedzeroError
from fedzero.model.params import Params
from fedzero.protocol.local import LocalEngine
from fedzero.protocol.messages import decode_reply
from fedzero.run import server as federation
from fedzero.run.recipe import Recipe, canonical, from_canonical
from fedzero.run.server import Federation
from fedzero.tasks import Quadratic

EPS = 2.0**-24
"""Half a unit in the last place of float32."""


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


def state_of(state: Any) -> list[bytes]:
    """All that a state holds, to compare bits."""
    return [state.to_bytes(), bytes([state.steps])]


@methods
def test_replay_equals_the_live_run_bit_for_bit(tmp_path: Path, algorithm) -> None:
    """Thirteen rounds, past the checkpoint of round 10; the memory of the rule as well as the model."""
    run = small(tmp_path, algorithm, **federation_for(algorithm))
    digests = {}
    for round in range(13):
        digests[round] = run.replica.digest()
        run.play(1)
    replica = run.replayed()
    assert replica.digest() == run.replica.digest()
    assert state_of(replica.state) == state_of(run.replica.state)
    assert replica.round == run.replica.round == 13
    earliest = 0 if algorithm.seeded(run.replica.state.scale) else 10
    for round in (earliest, 11):
        assert run.replayed(round).digest() == digests[round]
    assert len(set(digests.values())) == 13


SHORT = [(v, torch.bfloat16) for v in SHAPES] + [(v, torch.float16) for v in BASES]


@pytest.mark.parametrize(("algorithm", "kind"), SHORT, ids=label)
def test_replay_of_several_tensors_of_short_floats(tmp_path: Path, algorithm, kind) -> None:
    """Stochastic rounding is a function of the keys: live, replayed and on real replicas the same bits."""

    def recast(params: Params) -> Params:
        return Params({"a": params.vector()[:33].to(kind), "b": params.vector()[33:].to(kind)})

    runs = [
        small(tmp_path / str(replicas), algorithm, recast=recast, replicas=replicas, **federation_for(algorithm))
        for replicas in (False, True)
    ]
    for run in runs:
        run.play(5)
    assert not any(record.refused for record in runs[1].records)
    assert runs[0].records == runs[1].records
    assert state_of(runs[0].replayed().state) == state_of(runs[0].replica.state) == state_of(runs[1].replica.state)


@methods
def test_a_resumed_run_ends_in_the_same_ledger(tmp_path: Path, algorithm) -> None:
    """Stopped behind the checkpoint of round 10; everything that the process had in memory is lost."""
    resumes(tmp_path, recipe_of(tmp_path / "x", algorithm, 12), 10)


@shapes
def test_a_troubled_run_can_be_resumed(tmp_path: Path, algorithm, monkeypatch) -> None:
    """Clients are refused every other round, and twice nobody answers, once just before the checkpoint of round 10."""
    monkeypatch.setattr(LocalEngine, "exchange", troubled(LocalEngine.exchange))
    resumes(tmp_path, recipe_of(tmp_path / "x", algorithm, 13, replicas=True), 4, 10)


@shapes
def test_rounds_in_which_nobody_answers(tmp_path: Path, algorithm, monkeypatch) -> None:
    """The model stays where it is; replay and real replicas agree on everything that comes after."""
    monkeypatch.setattr(LocalEngine, "exchange", troubled(LocalEngine.exchange))
    shared, real = (
        small(tmp_path / str(replicas), algorithm, replicas=replicas, **federation_for(algorithm))
        for replicas in (False, True)
    )
    digests = []
    for _ in range(12):
        shared.play(1)
        real.play(1)
        digests.append(shared.replica.digest())
    for silent in (3, 9):
        record = shared.records[silent]
        assert record.update is None
        assert [client for client, _ in record.refused] == sorted(set(record.cohort))
        assert digests[silent] == digests[silent - 1]
    assert shared.records == real.records
    assert shared.replica.digest() == real.replica.digest() == shared.replayed().digest()


@methods
def test_real_replicas_agree_whatever_the_delivery(tmp_path: Path, algorithm) -> None:
    """Snapshots or missed updates down, into models of their own, or one model for all: the same."""
    shared = small(tmp_path / "shared", algorithm, **federation_for(algorithm))
    real = small(tmp_path / "real", algorithm, replicas=True, **federation_for(algorithm))
    shared.play(8)
    real.play(8)
    assert not any(r.refused for r in real.records)
    assert shared.records == real.records
    assert shared.replica.digest() == real.replica.digest()


@shapes
def test_order_of_replies_does_not_matter(tmp_path: Path, algorithm) -> None:
    straight, other = (small(tmp_path / name, algorithm, **federation_for(algorithm)) for name in ("straight", "other"))
    other.engine = Tampering(other.engine, lambda replies, round, _: replies[round % 3 :][::-1] + replies[: round % 3])
    straight.play(4)
    other.play(4)
    assert straight.replica.digest() == other.replica.digest()
    assert straight.records == other.records


class Counting:
    """An objective that counts evaluations itself: one for every point and batch, one for every gradient."""

    def __init__(self, objective: Any):
        self.objective, self.evaluations = objective, 0

    def losses(self, base: Any, points: Any, batches: Any, basis: Any = None) -> Any:
        self.evaluations += len(points) * len(batches)
        return self.objective.losses(base, points, batches, basis)

    def gradient(self, base: Any, batch: Any) -> Any:
        self.evaluations += 1
        return self.objective.gradient(base, batch)


COUNTED = [(variant, True) for variant in VARIANTS] + [(variant, False) for variant in SHAPES]


@pytest.mark.parametrize(("algorithm", "merge"), COUNTED, ids=label)
def test_queries_are_those_of_the_papers_formula(tmp_path: Path, algorithm, merge) -> None:
    run = small(tmp_path, algorithm, merge=merge, **federation_for(algorithm))
    run.engine.objective = counting = Counting(run.engine.objective)
    for oracle in run.engine.oracles:
        oracle.objective = counting
    turns: Counter[int] = Counter()
    for round in range(4):
        before = counting.evaluations
        run.play(1)
        clients = set(run.records[-1].cohort)
        new = algorithm.first_queries * len(clients - turns.keys())
        assert run.records[-1].queries == len(clients) * algorithm.queries(round) + new
        assert counting.evaluations - before == run.records[-1].queries
        first = dict.fromkeys(clients - turns.keys(), algorithm.first_queries)
        turns.update({client: algorithm.queries(round) + first.get(client, 0) for client in clients})
    assert {c: o.queries for c, o in enumerate(run.engine.oracles) if o.queries} == dict(turns)


@methods
def test_bytes_are_the_encoded_sizes(tmp_path: Path, algorithm) -> None:
    """Both ways; and a reply has as many numbers as `expects` says, exchange by exchange, and little else."""
    places = federation_for(algorithm)
    run, scale = small(tmp_path, algorithm, **places), Scale(DIMENSION, places["clients"])
    seen = set()

    def look(replies: list[tuple[int, bytes]], round: int, exchange: int) -> list[tuple[int, bytes]]:
        for _, data in replies:
            expected = 4 * algorithm.expects(round, scale, exchange)
            assert len(decode_reply(data, 1 << 20).values) == expected
            assert expected < len(data) < expected + 64
            seen.add(exchange)
        return replies

    run.engine = meter = Meter(Tampering(run.engine, look))
    run.play(4)
    assert seen == set(range(algorithm.exchanges))
    assert meter.up == sum(r.bytes_up for r in run.records) > 0
    assert meter.down == sum(r.bytes_down for r in run.records) > 0


PLACES = [(shape, federation_for(shape)) for shape in SHAPES]
SAMPLED = [shape for shape, places in PLACES if 1 < places["cohort"] < places["clients"]]


@pytest.mark.parametrize("algorithm", SAMPLED, ids=label)
def test_sampling_with_replacement(tmp_path: Path, algorithm) -> None:
    """Who is drawn twice works once and weighs twice: with replicas of their own, from the ledger, in any order."""
    places = federation_for(algorithm) | {"replacement": True}
    shared = small(tmp_path / "shared", algorithm, **places)
    real = small(tmp_path / "real", algorithm, replicas=True, **places)
    real.engine = Tampering(real.engine, lambda replies, *_: replies[::-1])
    shared.play(5)
    real.play(5)
    assert any(len(set(r.cohort)) < len(r.cohort) for r in shared.records)
    seen: set[int] = set()
    for r in shared.records:
        new = algorithm.first_queries * len(set(r.cohort) - seen)
        assert r.queries == len(set(r.cohort)) * algorithm.queries(r.round) + new
        seen |= set(r.cohort)
    assert shared.records == real.records
    assert shared.replica.digest() == real.replica.digest() == shared.replayed().digest()


@pytest.mark.parametrize("algorithm", SAMPLED, ids=label)
def test_who_is_drawn_twice_weighs_twice(tmp_path: Path, algorithm, monkeypatch) -> None:
    """The same round with the same clients, each drawn once, leads to another model."""
    places = federation_for(algorithm) | {"replacement": True}
    weighted, even = small(tmp_path / "weighted", algorithm, **places), small(tmp_path / "even", algorithm, **places)
    weighted.play(1)
    while not 1 < len(set(weighted.records[-1].cohort)) < len(weighted.records[-1].cohort):
        weighted.play(1)
    last, cohort_of = len(weighted.records) - 1, federation.cohort_of

    def once(keys: Any, round: int, of: Any) -> tuple[int, ...]:
        cohort = cohort_of(keys, round, of)
        return tuple(sorted(set(cohort))) if round == last else cohort

    monkeypatch.setattr(federation, "cohort_of", once)
    even.play(last + 1)
    assert even.records[:last] == weighted.records[:last]
    assert even.records[last].queries == weighted.records[last].queries
    assert even.replica.digest() != weighted.replica.digest()


WITH_BOTH_FORMS = [variant for variant in VARIANTS if getattr(variant, "form", None) == "seeded"]


@pytest.mark.parametrize("algorithm", WITH_BOTH_FORMS, ids=label)
def test_scalars_and_numbers_say_the_same(tmp_path: Path, algorithm) -> None:
    """Seeded or dense, four rounds lead to the same model up to the rounding of float32.

    A point x + μz is rounded by EPS·|x| a coordinate, hence a slope by about EPS·|x|/μ of itself and with it a step.
    The bound is one of these, of the longest way a coordinate has come; a wrong factor or direction is off by a whole.
    """
    ends = []
    for form in ("dense", "seeded"):
        tuned = msgspec.structs.replace(algorithm, form=form)
        run = small(tmp_path / form, tuned, **federation_for(algorithm))
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
        runs[form] = small(tmp_path / form, tuned, task=task, **federation_for(algorithm))
        runs[form].play(12)
    cost = {form: sum(r.bytes_up + r.bytes_down for r in run.records) for form, run in runs.items()}
    chosen = "dense" if dimension == 3 else "seeded"
    assert runs["auto"].records == runs[chosen].records
    assert runs["auto"].replica.digest() == runs[chosen].replica.digest()
    assert cost["auto"] == cost[chosen] == min(cost.values())


def huge(replies: list[tuple[int, bytes]], *_: int) -> list[tuple[int, bytes]]:
    """Everybody's numbers are finite, but only just."""
    out = []
    for client, data in replies:
        reply = decode_reply(data, 1 << 20)
        values = np.full(len(reply.values) // 4, 3.4e38, "<f4")
        values[::2] *= -1
        out.append((client, altered(reply, values=values.tobytes(), loss=struct.pack("<f", 1.0))))
    return out


@shapes
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_numbers_at_the_edge_of_float32_stop_nobody(tmp_path: Path, algorithm) -> None:
    """The model is lost, the run is not: rounds go on, and the ledger replays to the same bits."""
    run = small(tmp_path, algorithm, **federation_for(algorithm))
    run.play(2)
    run.engine = Tampering(run.engine, huge)
    run.play(10)
    assert all(record.update is not None for record in run.records)
    assert run.replayed().digest() == run.replica.digest()


@shapes
def test_a_rate_that_falls_to_zero(tmp_path: Path, algorithm) -> None:
    """Runs to its end and replays, or is refused before it begins."""
    schedule = {"kind": "piecewise", "points": [[0, 2e-3], [3, 0.0]]}
    tuned = msgspec.convert(msgspec.to_builtins(algorithm) | {"rate": schedule}, AnyAlgorithm)
    try:
        run = small(tmp_path, tuned, **federation_for(algorithm))
    except FedzeroError as refusal:
        assert "algorithm.rate" in str(refusal)
        return
    run.play(6)
    assert not any(record.refused for record in run.records)
    assert run.replayed().digest() == run.replica.digest()


@pytest.mark.parametrize("algorithm", [v for v in VARIANTS if "rate" not in changes(v)], ids=label)
def test_it_solves_a_strongly_convex_quadratic(tmp_path: Path, algorithm) -> None:
    """Within 2 % of the starting gap in at most 1,500 rounds, at one of three rates; one that gets nowhere is left."""
    gaps = []
    for rate in (2e-2, 5e-3, 1e-3):
        task = Quadratic(dimension=20, condition=3.0, spread=0.2)
        tuned = msgspec.structs.replace(algorithm, rate=rate)
        run = small(tmp_path / str(rate), tuned, task=task, merge=True, **federation_for(algorithm))
        start = run.engine.evaluate()[1].loss
        gap, best = 1.0, (1.0, 0)
        while 0.02 < gap < 10 and len(run.records) < min(1500, best[1] + 150):
            run.play(5)
            gap = run.engine.evaluate()[1].loss / start
            best = min(best, (gap, len(run.records)))
        gaps.append(gap)
        if gap <= 0.02:
            return
    pytest.fail(f"left of the gap at the three rates: {gaps}")


@methods
def test_recipes_survive_the_ledger(algorithm) -> None:
    federation = Federation(**federation_for(algorithm))
    recipe = Recipe(name="r", rounds=3, algorithm=algorithm, task=Quadratic(), federation=federation)
    assert from_canonical(canonical(recipe)) == recipe
    assert from_canonical(canonical(recipe)).algorithm == algorithm


def private(algorithm: Any) -> bool:
    places = federation_for(algorithm)
    try:
        algorithm.check(places["clients"], places["cohort"], True)
    except FedzeroError:
        return False
    return True


@pytest.mark.parametrize("algorithm", [v for v in VARIANTS if private(v)], ids=label)
def test_directions_the_server_cannot_make(tmp_path: Path, algorithm) -> None:
    """With a secret of the clients: another model, the same bits again for who knows it."""
    runs = [
        small(tmp_path / str(number), algorithm, secret=secret, **federation_for(algorithm))
        for number, secret in enumerate((None, b"one", b"two"))
    ]
    for run in runs:
        run.play(4)
    assert len({run.replica.digest() for run in runs}) == 3
    assert runs[1].replayed().digest() == runs[1].replica.digest()


@pytest.mark.parametrize("algorithm", [v for v in BASES if not private(v)], ids=label)
def test_who_cannot_keep_a_secret_says_so(tmp_path: Path, algorithm) -> None:
    with pytest.raises(FedzeroError, match=r"private|one place"):
        small(tmp_path, algorithm, secret=b"x", **federation_for(algorithm))
