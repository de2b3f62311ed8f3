"""Whole runs with black boxes: what comes out, what is on the ledger, who sits out, when a budget ends them."""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedzero import api as blackbox
from fedzero.errors import FedzeroError
from fedzero.ledger import Asked, Evaluation, Ledger, replay
from fedzero.ledger.folder import LEDGER, MODEL
from fedzero.methods import FedZO
from fedzero.model.checkpoint import load_model
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.setup import prepare
from fedzero.report import sentence
from fedzero.report.page import page
from fedzero.results.history import history
from fedzero.results.outcome import result_of
from fedzero.runs import recorded, session
from stops import StopAt

CENTRES = np.array([[1.0, -2.0, 3.0], [2.0, 0.0, 1.0], [3.0, -1.0, -1.0]])
BOUNDS = [(-5.0, 5.0), (-4.0, 4.0), (-2.0, 8.0)]
SMALL = FedZO(rate=0.02, directions=2)
TURN = 3
"""queries of a turn of SMALL"""


class Boxes:
    """Three quadratics that count their calls; `moods[client]` is called first, with the number of the call."""

    def __init__(self, moods=None):
        self.calls, self.moods, self.points = Counter(), moods or {}, []
        self._lock = threading.Lock()
        self.functions = [self._function(client) for client in range(3)]

    def _function(self, client):
        def f(x):
            with self._lock:
                number = self.calls[client]
                self.calls[client] += 1
                self.points.append((client, x.copy()))
            mood = self.moods.get(client)
            given = mood(number) if mood is not None else None
            return float(((x - CENTRES[client]) ** 2).sum()) if given is None else given

        f.__qualname__ = f"f{client}"
        return f


def story_of(folder: Path) -> replay.LedgerView:
    with closing(Ledger.open(folder / LEDGER)) as ledger:
        return replay.read(ledger)


def minimise(boxes: Boxes, out, **options):
    """Evaluations cost nothing unless a test is about those that do."""
    given = {"algorithm": SMALL, "rounds": 4, "out": out, "evaluate": "log"} | options
    return blackbox.minimise(boxes.functions, BOUNDS, **given)


def intact(folder) -> replay.LedgerView:
    """Needs no box: nothing is given here."""
    return recorded.verified(folder, Environment())


def test_it_minimises(tmp_path):
    """The default method, to a known minimum, with every call accounted for."""
    boxes = Boxes()
    result = blackbox.minimise(boxes.functions, BOUNDS, rounds=25, out=tmp_path)
    best = CENTRES.mean(axis=0)
    at_best, at_middle = (np.mean([((x - c) ** 2).sum() for c in CENTRES]) for x in (best, np.mean(BOUNDS, axis=1)))
    found = np.mean([((result.x - c) ** 2).sum() for c in CENTRES])
    assert found - at_best < 0.1 * (at_middle - at_best)
    assert (result.value, result.estimated) == (pytest.approx(found, rel=1e-12), False)
    assert result.start_value == pytest.approx(at_middle, rel=1e-12)
    assert result.queries == sum(boxes.calls.values())
    assert (result.rounds, result.complete, result.reason, result.folder) == (25, True, "", tmp_path)
    low, high = np.array(BOUNDS).T
    assert all(((low <= x) & (x <= high)).all() for _, x in boxes.points)


def test_nothing_is_asked_outside_the_bounds_even_where_the_method_goes_there(tmp_path):
    """Along a slope that leads out: the method's own box is off, and its steps are long."""
    seen = []
    result = blackbox.minimise(
        [lambda x: seen.append(x.copy()) or float(x.sum())],
        bounds=(2.0, 3.0),
        dimension=4,
        rounds=6,
        algorithm=FedZO(rate=0.5, directions=3, radius=0.2),
        out=tmp_path,
    )
    assert min(x.min() for x in seen) == 2.0
    assert max(x.max() for x in seen) <= 3.0
    (u,) = load_model(tmp_path / MODEL).values()
    assert u.min() < 0  # it did want to
    assert result.x.min() == 2.0
    assert np.isfinite(result.value)


@pytest.mark.parametrize("together", [True, False])
def test_a_run_can_be_read_without_its_boxes(tmp_path, together):
    boxes = Boxes()
    result = minimise(boxes, tmp_path / "run", together=together)
    view = intact(tmp_path / "run")
    assert [[client for client, _ in record.queried] for record in view.rounds] == [[0, 1, 2]] * 4
    assert [record.queries for record in view.rounds] == [3 * TURN] * 4
    assert result.queries == 4 * 3 * TURN == sum(boxes.calls.values())
    replica = recorded.replayed(tmp_path / "run", Environment(), None)
    assert replica.digest() == view.end.model


def test_together_or_one_by_one_is_the_same_run(tmp_path):
    """But for the recipe, which says which it was."""
    runs = []
    for together in (True, False):
        minimise(Boxes(), tmp_path / str(together), together=together, workers=2 if together else 1)
        runs.append(story_of(tmp_path / str(together)))
    assert runs[0].rounds == runs[1].rounds
    assert runs[0].end == runs[1].end
    assert runs[0].evaluations == runs[1].evaluations


def test_boxes_of_different_clients_work_at_the_same_time(tmp_path):
    barrier = threading.Barrier(3)
    boxes = Boxes(dict.fromkeys(range(3), lambda number: barrier.wait(20) and None))
    assert minimise(boxes, tmp_path, rounds=2).complete  # nobody gets past the barrier alone


# ---- clients that fail


def raises(number):
    raise RuntimeError(f"call {number} went wrong")


def hangs(number):
    threading.Event().wait(30)


BAD = {
    "raise": (raises, {}, "it raised RuntimeError: call"),
    "hang": (hangs, {"timeout": 0.1, "retries": 0}, "it did not answer within 0.1 s"),
    "nan": (lambda number: float("nan"), {}, "it gave nan"),
    "text": (lambda number: "good", {}, "it gave 'good'"),
}


@pytest.mark.parametrize("which", BAD)
@pytest.mark.parametrize("together", [True, False])
def test_a_client_whose_box_fails_sits_out_and_the_run_goes_on(tmp_path, which, together):
    mood, options, words = BAD[which]
    boxes = Boxes({1: mood})
    options = {"retries": 1, "backoff": 0.0} | options
    result = minimise(boxes, tmp_path, rounds=3, together=together, **options)
    attempts = 1 if which == "nan" else options["retries"] + 1  # NaN is an answer: no value there
    for record in intact(tmp_path).rounds:
        ((client, reason),) = record.refused
        assert client == 1
        assert reason.startswith(f"failed: box python 'f1' of client 1 gave no value in {attempts} attempt")
        assert words in reason
        assert record.update is not None
        assert record.queries == 2 * TURN
        # What it cost is on record, too; where it has no value it is not asked again.
        assert [client for client, _ in record.queried] in ([0, 1, 2], *([[0, 2]] if which == "nan" else []))
    assert not result.complete
    assert "box python 'f1' of client 1 gave no value" in result.reason
    assert words in result.reason or which == "nan"
    assert [(each.box, each.failed + each.nowhere > 0) for each in result.failures] == [
        ("python 'f0'", False), ("python 'f1'", True), ("python 'f2'", False)
    ]  # fmt: skip
    asked = len({tuple(x) for c, x in boxes.points if c == 1}) if which == "nan" else 3 * attempts
    assert boxes.calls == {0: 3 * TURN, 2: 3 * TURN, 1: asked}
    assert result.queries == sum(boxes.calls.values())
    (others,) = {json.dumps(e.metrics.others) for e in story_of(tmp_path).evaluations}
    assert json.loads(others) == {"clients unheard": 1.0}


def test_others_are_not_affected_by_a_client_that_fails(tmp_path):
    """They are asked at the same points, round by round, as if it had never been there: it is out from the start."""
    boxes = Boxes({1: raises})
    minimise(boxes, tmp_path / "three", rounds=1, retries=0)
    alone = Boxes()
    minimise(alone, tmp_path / "all", rounds=1)
    for client in (0, 2):
        points = [[x.tolist() for c, x in run.points if c == client] for run in (boxes, alone)]
        assert points[0] == points[1]


def test_a_box_that_recovers_takes_part_again(tmp_path):
    boxes = Boxes({1: lambda number: raises(number) if number < 2 else None})
    minimise(boxes, tmp_path, retries=1, backoff=0.0)
    refused = [record.refused for record in intact(tmp_path).rounds]
    assert [len(each) for each in refused] == [1, 0, 0, 0]


def test_a_retry_that_works_leaves_no_trace_but_in_the_log(tmp_path):
    boxes = Boxes({1: lambda number: raises(number) if number == 4 else None})
    result = minimise(boxes, tmp_path / "shaky", backoff=0.0)
    calm = minimise(Boxes(), tmp_path / "calm", backoff=0.0)
    assert result.queries == calm.queries + 1
    assert (result.x == calm.x).all()
    differ = [a.queried != b.queried for a, b in zip(*(story_of(r.folder).rounds for r in (result, calm)), strict=True)]
    assert differ == [False, True, False, False]


def test_when_no_box_answers_the_run_still_ends(tmp_path):
    result = minimise(Boxes(dict.fromkeys(range(3), raises)), tmp_path, retries=0)
    assert not result.complete
    assert all(f"box python 'f{client}' of client {client} gave no value" in result.reason for client in range(3))
    assert [each.cause for each in result.failures] == ["it raised RuntimeError: call 3 went wrong"] * 3
    assert result.value is None
    assert (result.x == np.mean(BOUNDS, axis=1)).all()
    view = intact(tmp_path)
    assert view.evaluations == []
    assert all(record.update is None and len(record.refused) == 3 for record in view.rounds)


def test_a_batched_box_of_the_wrong_shape_sits_out(tmp_path):
    calls = []
    wrong = blackbox.Batched(lambda X: calls.append(len(X)) or np.zeros(len(X) + 1), "wrong")
    right = blackbox.Batched(lambda X: X.sum(axis=1), "right")
    blackbox.minimise([wrong, right], BOUNDS, rounds=2, algorithm=SMALL, retries=1, backoff=0.0, out=tmp_path)
    for record in intact(tmp_path).rounds:
        assert "batched 'wrong' of client 0" in record.refused[0][1]
        assert "shape (4,)" in record.refused[0][1]
    assert calls == [1, 1, *[TURN] * 4, 1, 1]  # and the evaluations at both ends


# ---- budget


def test_a_budget_ends_a_run_cleanly(tmp_path, fedzero):
    boxes = Boxes()
    result = minimise(boxes, tmp_path, rounds=9, budget=3 * TURN + 2)
    assert boxes.calls == dict.fromkeys(range(3), 3 * TURN)
    assert (result.rounds, result.complete) == (3, True)
    assert "no client can pay for round 3" in result.reason
    assert "2 of its budget of 11 queries are left and a turn takes 3" in result.reason
    view = intact(tmp_path)
    assert view.end.reason == result.reason
    assert (view.end.round, view.evaluations[-1].round) == (3, 3)
    assert recorded.replayed(tmp_path, Environment(), None).digest() == view.end.model
    assert "ended early" in fedzero("verify", tmp_path).out
    outcome = fedzero("resume", tmp_path, "--json")  # which needs no functions: there is nothing to do
    assert outcome.json["estimated"] is True
    assert outcome.json["reason"] == result.reason
    assert "ended early: no client can pay" in outcome.err
    assert story_of(tmp_path).entries == view.entries


def test_who_is_broke_sits_out_by_name_without_a_call(tmp_path):
    """Client 1 needs two attempts for every point, so its budget is gone earlier."""
    boxes = Boxes({1: lambda number: raises(number) if number % 2 == 0 else None})
    result = minimise(boxes, tmp_path, rounds=9, budget=5 * TURN, backoff=0.0)
    view = intact(tmp_path)
    reasons = [dict(record.refused).get(1, "") for record in view.rounds]
    assert reasons[:2] == ["", ""]
    assert "budget of 15 queries is spent" in reasons[2]  # could pay a turn, but not its retries
    assert all(reason.startswith("sat out: ") for reason in reasons[3:])
    assert boxes.calls[1] <= 5 * TURN
    assert boxes.calls[0] == boxes.calls[2] == 5 * TURN
    assert (result.rounds, bool(result.reason)) == (5, True)


def test_first_queries_have_to_be_paid_as_well(tmp_path, monkeypatch):
    cost = FedZO.cost
    monkeypatch.setattr(FedZO, "cost", lambda *at: replace(cost(*at), first_queries=2))
    boxes = Boxes()
    result = minimise(boxes, tmp_path, budget=TURN + 1)
    assert boxes.calls == {}
    assert "a turn takes 5" in result.reason
    assert (result.rounds, result.queries) == (0, 0)


def test_a_budget_that_is_just_enough_is_no_reason(tmp_path):
    result = minimise(Boxes(), tmp_path, rounds=3, budget=3 * TURN)
    assert (result.rounds, result.reason, result.queries) == (3, "", 9 * TURN)


# ---- evaluation, noise


def test_evaluations_are_the_values_nearest_to_the_model_and_cost_nothing(tmp_path):
    boxes = Boxes()
    minimise(boxes, tmp_path, rounds=2)
    view = intact(tmp_path)
    low, high = np.array(BOUNDS).T
    u = recorded.replayed(tmp_path, Environment(), None).state.params.vector().double().numpy()
    nearest = []
    for client in range(3):
        last = [x for c, x in boxes.points if c == client][-TURN:]
        distances = [np.linalg.norm((x - low) / (high - low) - u) for x in last]
        nearest.append(((last[int(np.argmin(distances))] - CENTRES[client]) ** 2).sum())
    assert view.evaluations[-1].metrics.loss == pytest.approx(np.mean(nearest), rel=1e-12)
    assert [e.round for e in view.evaluations] == [1, 2]  # before the first round nothing is known
    assert sum(boxes.calls.values()) == 2 * 3 * TURN


def test_evaluations_that_query_are_logged_and_paid_for(tmp_path):
    boxes = Boxes({1: lambda number: raises(number) if number == 0 else None})
    result = minimise(boxes, tmp_path, rounds=2, evaluate="query", retries=0, budget=2 * TURN + 2)
    view = intact(tmp_path)
    assert [type(e.record) for e in view.entries if isinstance(e.record, Asked | Evaluation)] == [Asked, Evaluation] * 2
    assert [(e.round, e.metrics.others) for e in view.evaluations] == [(0, {"clients unheard": 1.0}), (2, {})]
    assert boxes.calls == dict.fromkeys(range(3), 2 * TURN + 2)
    value = np.mean([((result.x - c) ** 2).sum() for c in CENTRES])
    assert result.value == pytest.approx(value, rel=1e-12)
    again = Boxes()
    short = minimise(again, tmp_path / "short", rounds=2, evaluate="query", budget=2 * TURN + 1)
    assert again.calls == dict.fromkeys(range(3), 2 * TURN + 1)  # the last evaluation could not be paid
    assert short.complete
    assert [e.round for e in intact(tmp_path / "short").evaluations] == [0]


def mean_at(x):
    return np.mean([((x - c) ** 2).sum() for c in CENTRES])


def test_a_result_has_values_of_the_functions_and_says_what_is_an_estimate(tmp_path):
    """Steps are long: F rises, and what is nearest to the last model is far from F there."""
    boxes = Boxes()
    best = minimise(boxes, tmp_path, evaluate="ends")
    result = result_of(tmp_path)  # that of the last model, and not the best point that is known
    assert (best.value, best.x.tolist()) == (result.start_value, np.mean(BOUNDS, axis=1).tolist())
    assert best.values == pytest.approx([((best.x - c) ** 2).sum() for c in CENTRES], rel=1e-12)
    assert boxes.calls == dict.fromkeys(range(3), 4 * TURN + 2)
    assert (result.value, result.estimated) == (pytest.approx(mean_at(result.x), rel=1e-12), False)
    assert result.values == pytest.approx([((result.x - c) ** 2).sum() for c in CENTRES], rel=1e-12)
    middle = np.mean(BOUNDS, axis=1)
    assert result.start_value == pytest.approx(mean_at(middle), rel=1e-12)
    assert result.best_value <= result.start_value < result.value
    assert [(step.rounds, step.estimated) for step in result.history] == [
        (0, False), (1, True), (2, True), (3, True), (4, False)
    ]  # fmt: skip
    assert [step.queries for step in result.history] == [3, 12, 21, 30, 42]
    view = intact(tmp_path)
    assert [e.metrics.others for e in view.evaluations] == [{}, *[{"clients estimated": 3.0}] * 3, {}]
    free = minimise(Boxes(), tmp_path / "log")
    assert (free.x == result.x).all()  # evaluations do not change the rounds
    assert [r.update for r in story_of(tmp_path / "log").rounds] == [r.update for r in view.rounds]
    assert (free.estimated, free.values, free.start_value) == (True, (None, None, None), None)


@pytest.mark.parametrize("evaluate", ["ends", "log", "query"])
@pytest.mark.parametrize("parties", [3, 1])
def test_the_best_is_a_value_of_the_mean_and_not_of_one_party(tmp_path, parties, evaluate):
    """Of all points at which every party was really asked; also of one found in an early round, and after a crash."""
    boxes = Boxes()
    options = {"algorithm": FedZO(rate=0.008, directions=2), "rounds": 7, "out": tmp_path, "evaluate": evaluate}
    with pytest.raises(KeyboardInterrupt):
        blackbox.minimise(boxes.functions[:parties], BOUNDS, progress=StopAt(4), **options)
    result = blackbox.minimise(boxes.functions[:parties], BOUNDS, **options)
    askers = {}
    for client, x in boxes.points:
        askers.setdefault(tuple(x), set()).add(client)
    common = [np.array(x) for x, clients in askers.items() if len(clients) == parties]
    values = [np.mean([((x - c) ** 2).sum() for c in CENTRES[:parties]]) for x in common]
    assert len(common) >= (7 if parties == 3 else 7 * TURN)
    assert result.best_value == pytest.approx(min(values), rel=1e-12)
    assert (result.best_x == common[int(np.argmin(values))]).all()
    assert result.best_value < result_of(tmp_path).value
    if evaluate != "log":  # which is for estimates of the last model
        assert (result.value, result.x.tolist()) == (result.best_value, result.best_x.tolist())
    kept = session.Ledger.open(tmp_path / LEDGER)
    with closing(kept):
        found = kept.rows("SELECT DISTINCT round FROM queries WHERE ordinal >= 0 AND point IS NOT NULL", -1)
    assert len(found) == 2  # that of the best, and the last


@pytest.mark.parametrize(("budget", "rounds"), [(2, 0), (TURN + 1, 0), (TURN + 2, 1), (2 * TURN + 1, 1), (99, 4)])
def test_a_budget_keeps_one_query_for_the_end(tmp_path, budget, rounds):
    boxes = Boxes()
    result = minimise(boxes, tmp_path, evaluate="ends", budget=budget)
    assert result.rounds == rounds
    assert boxes.calls == dict.fromkeys(range(3), rounds * TURN + 1 + (rounds > 0))
    assert (result.value, result.estimated) == (pytest.approx(mean_at(result.x), rel=1e-12), False)


def test_retries_do_not_spend_what_is_kept_for_the_end(tmp_path):
    boxes = Boxes({1: lambda number: raises(number) if number in (2, 3) else None})
    result = minimise(boxes, tmp_path, evaluate="ends", budget=TURN + 2, retries=9, backoff=0.0)
    assert boxes.calls == dict.fromkeys(range(3), TURN + 2)
    assert "is spent (beside 1 kept for the evaluation at the end)" in intact(tmp_path).rounds[0].refused[0][1]
    assert (result.value, result.estimated) == (pytest.approx(mean_at(result.x), rel=1e-12), False)


def test_where_a_box_fails_at_the_end_the_value_is_an_estimate(tmp_path):
    boxes = Boxes({1: lambda number: raises(number) if number > 4 * TURN else None})
    best = minimise(boxes, tmp_path, evaluate="ends", retries=0)
    assert (best.value, best.estimated) == (best.start_value, False)  # what is known is safer
    result = result_of(tmp_path)
    assert result.estimated
    assert [value is None for value in result.values] == [False, True, False]
    assert result.best_value <= result.start_value  # two of three are no value of F
    assert intact(tmp_path).evaluations[-1].metrics.others == {"clients estimated": 1.0}
    nearest = result.value * 3 - result.values[0] - result.values[2]
    assert nearest == pytest.approx(min(((x - CENTRES[1]) ** 2).sum() for c, x in boxes.points[-3 * TURN :] if c == 1))


def test_the_page_of_a_black_box_shows_the_point_its_value_and_the_queries(tmp_path):
    true, free = (history(minimise(Boxes(), tmp_path / how, evaluate=how).folder) for how in ("ends", "log"))
    rose = "black-box is at a value of 71.00, no better than the 13.00 it started from, with 42 queries."
    assert sentence([true]) == rose
    assert "about 71.00, an estimate from points near x, with 36 queries." in sentence([free])
    for h, shown in ((true, "71.00"), (free, "≈ 71.00")):
        text = page([h], "a")
        assert "one copy" not in text.partition("<script>")[0]
        assert "The point found" in text
        assert "[5, -4, 8]" in text
        assert f"<dt>value</dt><dd>{shown}" in text
    assert (page([true], "a").count("an estimate"), true.queries, free.queries) == (0, 42, 36)


def test_noise_is_added_to_what_the_method_sees_and_is_the_same_every_time(tmp_path):
    runs = {noise: minimise(Boxes(), tmp_path / str(noise), noise=noise) for noise in (0.0, 0.5)}
    again = minimise(Boxes(), tmp_path / "again", noise=0.5)
    assert (runs[0.5].x == again.x).all()
    assert (runs[0.5].x != runs[0.0].x).any()
    assert story_of(tmp_path / "again").entries[-1].chain == story_of(tmp_path / "0.5").entries[-1].chain


# ---- going on


def test_the_same_call_goes_on_with_an_unfinished_run(tmp_path):
    whole = minimise(Boxes(), tmp_path / "whole")
    boxes = Boxes()
    with pytest.raises(KeyboardInterrupt):
        minimise(boxes, tmp_path / "run", progress=StopAt(1))
    result = minimise(boxes, tmp_path / "run")
    assert boxes.calls == dict.fromkeys(range(3), 4 * TURN)
    assert story_of(tmp_path / "run").entries[-1].chain == story_of(tmp_path / "whole").entries[-1].chain
    assert (result.x == whole.x).all()
    assert minimise(boxes, tmp_path / "run").value == result.value  # finished: the same answer, nothing asked
    assert boxes.calls == dict.fromkeys(range(3), 4 * TURN)


def test_another_recipe_is_refused_and_says_what_differs(tmp_path):
    minimise(Boxes(), tmp_path)
    before = (tmp_path / LEDGER).read_bytes()
    with pytest.raises(FedzeroError, match=r"seed = \d+ there and 99 here.*choose another folder"):
        minimise(Boxes(), tmp_path, seed=99)
    with pytest.raises(FedzeroError, match="resume = False"):
        minimise(Boxes(), tmp_path, resume=False)
    assert (tmp_path / LEDGER).read_bytes() == before


def test_resume_from_the_command_line_says_what_to_call(tmp_path, fedzero):
    with pytest.raises(KeyboardInterrupt):
        minimise(Boxes(), tmp_path, progress=StopAt(1))
    before = story_of(tmp_path).entries
    fedzero("resume", tmp_path).refused("'f0'", "call fedzero.minimise again", "same `out`")
    assert story_of(tmp_path).entries == before


def test_functions_with_one_name_are_told_apart(tmp_path):
    result = blackbox.minimise([lambda x: x.sum(), lambda x: -x.sum()], BOUNDS, rounds=1, algorithm=SMALL, out=tmp_path)
    table = json.loads(story_of(result.folder).entries[0].record.recipe)
    names = [box["name"] for box in table["task"]["boxes"]]
    assert len(set(names)) == 2
    one = blackbox.minimise([max] * 2, BOUNDS, rounds=1, algorithm=SMALL, out=tmp_path / "same")
    table = json.loads(story_of(one.folder).entries[0].record.recipe)
    assert [box["name"] for box in table["task"]["boxes"]] == ["max", "max"]


def test_without_a_folder_a_temporary_one(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = minimise(Boxes(), None, rounds=1)
    assert result.folder.parent == tmp_path
    assert intact(result.folder).end is not None


# ---- what cannot be


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bounds": (0, 1)}, "one pair and dimension"),
        ({"bounds": [(0, 1), (0, 1, 2)]}, "pair"),
        ({"bounds": [(0, 1)] * 3, "dimension": 4}, "dimension = 4"),
        ({"bounds": [(1, 0)] * 3}, "low must be less than high"),
        ({"bounds": [(0, 1)] * 3, "start": [0, 0, 2]}, "task.start = 2.0 for coordinate 2"),
        ({"boxes": []}, "one box for every party"),
        ({"boxes": [3]}, "3, which is not a function"),
        ({"boxes": max}, "one box for every party"),
        ({"retries": -1}, "^retries = -1"),
        ({"timeout": 0}, "^timeout = 0"),
        ({"budget": 0}, "^budget = 0"),
        ({"rounds": 0}, "rounds = 0"),
        ({"algorithm": {"kind": "fedavg", "rate": 0.1}}, "'fedavg' needs gradients"),
        ({"algorithm": {"kind": "fedzo"}}, "algorithm.rate is missing"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(tmp_path, options, words):
    boxes = options.pop("boxes", Boxes().functions)
    arguments = {"bounds": BOUNDS, "algorithm": SMALL, "rounds": 1} | options
    with pytest.raises(FedzeroError, match=words):
        blackbox.minimise(boxes, arguments.pop("bounds"), out=tmp_path / "run", **arguments)
    assert not (tmp_path / "run").exists()


def test_as_many_boxes_as_clients(tmp_path):
    table = json.loads(recipes.canonical(_recipe(tmp_path)))
    table["federation"] = {"clients": 4, "cohort": 2}
    with pytest.raises(FedzeroError, match=r"has 3 boxes but federation.clients = 4"):
        prepare(recipes.decode(table), Environment())


def _recipe(folder):
    minimise(Boxes(), folder / "recipe", rounds=1)
    return recipes.from_canonical(story_of(folder / "recipe").entries[0].record.recipe)


def test_facts_say_nothing_of_this_machine(tmp_path):
    minimise(Boxes(), tmp_path)
    assert story_of(tmp_path).entries[0].record.facts == {}


# ---- from a recipe

RECIPE = """
name = "mine"
rounds = 3

[algorithm]
kind = "fedzo"
rate = 0.05
directions = 2

[task]
kind = "black-box"
dimension = 2
low = -1
high = [1, 2.5]
retries = 1
backoff = 0
evaluate = "query"
boxes = [
  { kind = "python", name = "parties_of_a_test:berlin" },
  { kind = "batched", name = "parties_of_a_test:lyon" },
  { kind = "command", argv = ["awk", "{ gsub(/[][,]/, \\" \\"); print $1 + $2 }"] },
  { kind = "http", url = "URL" },
]

[federation]
clients = 4
cohort = 3
"""


def test_a_recipe_with_every_kind_of_box(tmp_path, web, fedzero, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "parties_of_a_test.py").write_text(
        "def berlin(x): return float(x @ x)\ndef lyon(X): return (X ** 2).sum(axis=1)\n"
    )
    (tmp_path / "mine.toml").write_text(RECIPE.replace("URL", web.address))
    outcome = fedzero("run", "mine.toml", "--out", "run", "--json")
    assert outcome.code == 0
    assert outcome.json["refused"] == 0
    assert outcome.json["estimated"] is False
    assert outcome.json["queries"] == 3 * 3 * TURN
    assert outcome.json["attempts"] == 3 * 3 * TURN + 2 * 4  # two evaluations ask all four
    assert "intact: 3 rounds, complete" in fedzero("verify", "run").out
    assert fedzero("replay", "run", "--out", "x.safetensors").code == 0
    assert fedzero("report", "run", "--out", "page.html").code == 0
    assert "4 black boxes in 2 dimensions" in (tmp_path / "page.html").read_text()


def test_the_list_shows_the_task(fedzero):
    assert "black-box" in fedzero("list").out


def test_every_field_survives_the_ledger(tmp_path):
    recipe = _recipe(tmp_path)
    assert recipes.from_canonical(recipes.canonical(recipe)) == recipe
