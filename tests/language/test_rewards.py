"""Rewards: what they say of texts, what an objective makes of them, and whole runs that raise one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from fedzero.directions import Domain, Keys, Terms
from fedzero.errors import FedzeroError
from fedzero.model.params import Params
from fedzero.oracles import Basis
from fedzero.oracles.generation import PaddedPrompts, common_length, generate
from fedzero.oracles.reward import Prompts
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.setup import prepare
from fedzero.runs import recorded, session
from fedzero.runs.progress import Silent
from fedzero.tasks import BuildContext, Language
from fedzero.tasks.language import TEXTS, Full, Layers, Lora, Text, rows
from fedzero.tasks.language.generating import Generate
from fedzero.tasks.language.pretrained import adapt, load
from fedzero.tasks.language.rewards import Exact, Function, Length, Program, Regex
from fedzero.tasks.partition import Iid
from stops import StopAt

CPU = torch.device("cpu")
WORDS = Text(prompt="{x} It was", answers={"0": "terrible", "1": "great"}, train="made:pairs:train", test="b")
SUM = TEXTS["addition"]
ROW = {"a": 3, "b": 4, "sum": "7", "label": 1}


def scored(reward: Any, *said: str, text: Text = SUM, functions: dict[str, Any] | None = None) -> list[float]:
    return list(reward.open(text, functions or {})([(ROW, each) for each in said]))


# ---- what they say


def test_exact():
    assert scored(Exact(), " 7", "7\t", "07", "", "7 8") == [1, 1, 0, 0, 0]
    assert scored(Exact(), " great", "Great", "terrible", text=WORDS) == [1, 0, 0]
    assert scored(Exact(ignore_case=True), "GREAT", text=WORDS) == [1]


def test_regex():
    said = "12 apples", " 3 apples ", "12 apples and more", "apples"
    assert scored(Regex(pattern=r"\d+ apples"), *said) == [1, 1, 0, 0]
    with pytest.raises(FedzeroError, match=r"task\.reward\.pattern"):
        scored(Regex(pattern="("), "x")


def test_length():
    assert scored(Length(target=4), "abcd", "ab", " abcd ", "", "abcdefgh", "x" * 100) == [1, 0.5, 1, 0, 0, 0]
    assert scored(Length(target=2, unit="words"), "two words", "one", "now there are four") == [1, 0.5, 0]


def program(code: str, **options: Any) -> Program:
    return Program(argv=(sys.executable, "-c", code), **options)


def test_program():
    assert scored(program("import sys; sys.exit(sys.stdin.read() != ' 7')"), " 7", "8") == [1, 0]
    code = "import sys, json; x = json.load(sys.stdin); sys.exit(x['text'] != x['row']['sum'])"
    assert scored(program(code, input="json"), "7", "8") == [1, 0]
    assert scored(program("1 / 0"), "7") == [0]
    with pytest.raises(FedzeroError, match="cannot be found"):
        scored(Program(argv=("no-such-program",)), "7")


def test_a_program_that_hangs_is_killed(tmp_path: Path):
    note = tmp_path / "pids"
    hangs = Program(argv=("/bin/sh", "-c", f"echo $$ >> {note}; exec sleep 600"), timeout=2)
    assert scored(hangs, "7", "8") == [0, 0]
    assert len(pids := note.read_text().split()) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_function():
    assert scored(Function(name="f"), "7", functions={"f": lambda row, text: row["a"] + len(text)}) == [4]
    assert scored(Function(name="operator:contains"), "a", "c") == [1, 0]
    for name, words in (("f", "was not given"), ("operator:nothing", "no function"), ("no_such_module:f", "import")):
        with pytest.raises(FedzeroError, match=words):
            scored(Function(name=name), "7")
    with pytest.raises(FedzeroError, match="raised ZeroDivisionError"):
        scored(Function(name="f"), "7", functions={"f": lambda row, text: 1 / 0})
    for bad in ("good", float("nan"), float("-inf"), None):
        with pytest.raises(FedzeroError, match="instead of a finite number"):
            scored(Function(name="f"), "7", functions={"f": lambda row, text, bad=bad: bad})


def test_what_counts_as_named():
    def named(reward: Any) -> list[str]:
        return Language(measure="reward", reward=reward).runs({"f": len})

    assert named(Exact()) == named(Regex(pattern="x")) == named(Function(name="f")) == named(Function(name="g")) == []
    assert named(Function(name="os:system")) == ["function 'os:system'"]
    assert named(Program(argv=("rm", "-r"))) == ["program 'rm -r'"]
    assert Language().runs({}) == []
    assert Language(measure="reward", reward=Program(argv=("/home/me/check",))).portable().reward is None
    assert Language(measure="reward", reward=Length(target=3)).portable().reward == Length(target=3)


# ---- rows that are made


def test_pairs_of_the_test_set_are_in_no_order_among_the_others():
    train, test = (rows.load(f"made:pairs:{part}", None) for part in ("train", "test"))
    assert (len(train), len(test)) == (7900, 2000)
    known = {frozenset((row["a"], row["b"])) for row in train}
    assert all(len(pair) == 2 for pair in known)
    assert not known & {frozenset((row["a"], row["b"])) for row in test}
    assert all(row["larger"] == str(max(row["a"], row["b"])) and row["sum"] == str(row["a"] + row["b"]) for row in test)
    assert test == rows.load("made:pairs:test", None)
    with pytest.raises(FedzeroError, match="made:pairs:train"):
        rows.load("made:pears", None)


# ---- the objective


def objective_and_shards(folder: Path, **options: Any):
    task = Language(
        **{
            "model": str(folder),
            "text": Text(prompt="{a} and {b} It was", label="sum", train="made:pairs:train", test="made:pairs:test"),
            "measure": "reward",
            "reward": Length(target=12),
            "generate": Generate(max_tokens=6),
            "batch": 5,
            "training": 60,
            "testing": 12,
            "partition": Iid(),
            **options,
        }
    )
    problem = task.build(3, BuildContext(Keys.of_seed(4), CPU, None))
    return problem, problem.objective, problem.shards


POINTS = [Terms.of([], [], Domain.GAUSSIAN), *(Terms.of([key], [0.3], Domain.RADEMACHER) for key in (7, 8, 9))]


@pytest.mark.parametrize("train", [None, Layers(first=-1)], ids=["all", "last layer"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_losses_are_those_of_each_point_s_own_weights(small_model, train, temperature):
    """Against another copy of the model, with the point's weights written into it, and each prompt alone."""
    options = {"generate": Generate(max_tokens=6, temperature=temperature), **({"train": train} if train else {})}
    problem, objective, shards = objective_and_shards(small_model("smollm"), **options)
    assert (objective.prefix is not None) == (train is not None)
    keys = Keys.of_seed(4)
    batches = [shards.batch(keys, 3, 0, client) for client in (0, 2)]
    losses = objective.losses(problem.params, POINTS, batches)
    assert losses.shape == (2, 4)
    assert len(set(losses[0])) > 1
    for p, point in enumerate(POINTS):
        other = load(str(small_model("smollm")), torch.float32, CPU)
        other = adapt(other, train, keys) if train else other
        weights = Params.of_module(other.module)
        weights.load(problem.params.view(point).tensors())
        for batch, row in zip(batches, losses, strict=True):
            found = []
            for i, prompt in enumerate(batch.prompts):
                noise = None if batch.noise is None else torch.from_numpy(batch.noise[i : i + 1])
                said = generate(other.module, PaddedPrompts.of([prompt]), objective.decoding, noise)
                text = objective.judge.text([t for t in said[0].tolist() if t >= 0])
                found += objective.judge.scores([(batch.rows[i], text)])
            assert row[p] == pytest.approx(1 - np.mean(found), abs=1e-12)


@pytest.mark.parametrize("train", [Full(), Layers(first=-1), Lora(rank=2)], ids=["all", "last layer", "lora"])
@pytest.mark.parametrize("begin", ["", "One and two and three and four and "], ids=["apart", "begun alike"])
def test_points_side_by_side_say_what_views_say(small_model, begin, train):
    text = Text(prompt=begin + "{a} and {b} It was", label="sum", train="made:pairs:train", test="made:pairs:test")
    points = [Terms.of([key], [0.05 * (-1) ** key], Domain.RANK1) for key in range(1, 8)]
    found = []
    for exact in (False, True):
        options = {"text": text, "train": train, "exact": exact, "generate": Generate(max_tokens=6, temperature=0.8)}
        problem, objective, shards = objective_and_shards(small_model("smollm"), **options)
        prompts = Prompts.joined([shards.batch(Keys.of_seed(4), 3, 0, client) for client in (0, 2)])
        assert (common_length(prompts.prompts) > 0) == bool(begin)
        found.append(objective.generated(problem.params, points, prompts))
        assert (objective.sides is None) == exact
    assert np.array_equal(*found)
    assert len({each.tobytes() for each in found[0]}) > 1


def test_how_rows_are_batched_changes_nothing(small_model):
    problem, objective, shards = objective_and_shards(small_model("llama"))
    batches = [shards.batch(Keys.of_seed(4), 0, 0, client) for client in range(3)]
    wanted = objective.losses(problem.params, POINTS, batches)
    objective.tokens = 40
    assert np.array_equal(objective.losses(problem.params, POINTS, batches), wanted)
    single = [objective.losses(problem.params, [point], [batch])[0, 0] for batch in batches for point in POINTS]
    assert np.array_equal(np.reshape(single, wanted.shape), wanted)


def test_columns_beside_directions(small_model):
    problem, objective, shards = objective_and_shards(small_model("llama"))
    batch = shards.batch(Keys.of_seed(4), 0, 0, 0)
    columns = torch.zeros(2, problem.params.size)
    columns[1] = 0.3 * torch.randn(problem.params.size, generator=torch.Generator().manual_seed(1))
    values = objective.losses(problem.params, [POINTS[0]] * 2, [batch], Basis(columns))
    assert values[0, 0] == objective.losses(problem.params, POINTS[:1], [batch])[0, 0]
    assert values[0, 0] != values[0, 1]


def test_noise_is_a_function_of_the_keys(small_model):
    _, _, shards = objective_and_shards(small_model("llama"), generate=Generate(max_tokens=6, temperature=1.0))
    keys = Keys.of_seed(4)
    batch = shards.batch(keys, 3, 0, 1)
    assert batch.noise.shape == (5, 6)
    assert np.array_equal(shards.batch(keys, 3, 0, 1).noise, batch.noise)
    others = [shards.batch(keys, 4, 0, 1), shards.batch(keys, 3, 1, 1), shards.batch(keys, 3, 0, 2)]
    assert all(not np.array_equal(other.noise, batch.noise) for other in others)


def test_weights_of_a_batch_count(small_model):
    problem, objective, _ = objective_and_shards(small_model("llama"))
    rows_ = tuple({"a": i, "b": 0} for i in range(3))
    prompts = ([5, 17, 9], [8], [99, 1, 250])
    each = objective.rewards(problem.params, POINTS[:1], Prompts(prompts, rows_))[0]
    weights = np.array([0.5, 0.3, 0.2])
    found = objective.losses(problem.params, POINTS[:1], [Prompts(prompts, rows_, weights)])[0, 0]
    assert found == pytest.approx(1 - each @ weights)


def test_evaluations_and_what_there_is_not(small_model):
    problem, objective, shards = objective_and_shards(small_model("llama"))
    found = objective.evaluate(problem.params)
    assert found.accuracy is None
    assert found.others["reward"] == pytest.approx(1 - found.loss)
    with pytest.raises(FedzeroError, match="no gradient"):
        objective.gradient(problem.params, shards.batch(Keys.of_seed(4), 0, 0, 0))
    _, exact, _ = objective_and_shards(small_model("llama"), reward=Exact())
    assert exact.evaluate(problem.params).accuracy == exact.evaluate(problem.params).others["reward"]
    function = Function(name="operator:truediv")
    with pytest.raises(FedzeroError, match="raised TypeError"):
        objective_and_shards(small_model("llama"), reward=function)[1].evaluate(problem.params)


def test_a_reward_that_is_no_number(small_model):
    problem, objective, _ = objective_and_shards(small_model("llama"))
    object.__setattr__(objective.judge, "scores", lambda pairs: [float("nan")] * len(pairs))
    with pytest.raises(FedzeroError, match="not a finite number"):
        objective.evaluate(problem.params)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"reward": None}, "there is no task.reward"),
        ({"measure": "loss"}, "there is a task.reward"),
        ({"compile": True}, "task.compile"),
        ({"balanced": True}, "task.balanced"),
        ({"generate": Generate(max_tokens=64)}, "leaves no room"),
        ({"text": TEXTS["addition"], "measure": "loss", "reward": None}, "at least two"),
    ],
)
def test_mistakes_are_said_in_a_sentence(small_model, options, words):
    with pytest.raises(FedzeroError, match=words):
        objective_and_shards(small_model("llama"), **options)


# ---- whole runs

RECIPE = {
    "name": "short",
    "rounds": 15,
    "seed": 2,
    "evaluate_every": 15,
    "algorithm": {
        "kind": "decomfl",
        "rate": 3e-2,
        "directions": 8,
        "radius": 5e-2,
        "difference": "central",
        "distribution": "rademacher",
    },
    "task": {
        "kind": "language",
        "text": {"prompt": "{a} and {b} It was", "train": "made:pairs:train", "test": "made:pairs:test"},
        "measure": "reward",
        "reward": {"kind": "length", "target": 30},
        "generate": {"max_tokens": 6},
        "batch": 8,
        "training": 80,
        "testing": 20,
        "partition": {"kind": "iid"},
    },
    "federation": {"clients": 4, "cohort": 2},
    "engine": {"device": "cpu"},
}


def recipe_of(model: Path, **task: Any) -> recipes.Recipe:
    return recipes.decode(RECIPE | {"task": {**RECIPE["task"], "model": str(model), **task}})


def test_a_run_raises_its_reward_and_replays(small_model, tmp_path: Path):
    recipe = recipe_of(small_model("smollm"))
    found = session.start(recipe, tmp_path / "run", Environment(), Silent())
    problem = prepare(recipe, Environment()).problem
    start = problem.measure(problem.params, 0).loss
    assert found.complete
    assert found.final_loss < start - 0.15
    recorded.verified(tmp_path / "run", Environment())


def test_a_sampled_run_resumes_to_the_same_bits(small_model, tmp_path: Path):
    recipe = recipe_of(small_model("smollm"), generate={"max_tokens": 6, "temperature": 0.9})
    recipe = msgspec.structs.replace(recipe, rounds=4, evaluate_every=2)
    whole = session.start(recipe, tmp_path / "whole", Environment(), Silent())
    with pytest.raises(KeyboardInterrupt):
        session.start(recipe, tmp_path / "cut", Environment(), StopAt(1))
    again = session.resume(tmp_path / "cut", Environment(), Silent())
    assert (again.model_digest, again.ledger_head) == (whole.model_digest, whole.ledger_head)


def test_a_recipe_comes_back_from_the_ledger(small_model):
    for reward in (Exact(), Regex(pattern="a+"), Length(target=3), Program(argv=("true",)), Function(name="m:f")):
        recipe = recipe_of(small_model("smollm"), reward=msgspec.to_builtins(reward))
        assert recipe.task.reward == reward
        assert recipes.from_canonical(recipes.canonical(recipe)) == recipe


def test_a_ledger_of_others_runs_no_program(small_model, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("FEDZERO_STATE", str(tmp_path / "mine"))
    code = f"import pathlib; pathlib.Path({str(tmp_path / 'trace')!r}).touch()"
    table = {"kind": "program", "argv": [sys.executable, "-c", code]}
    recipe = recipe_of(small_model("smollm"), reward=table, testing=2, batch=1)
    recipe = msgspec.structs.replace(recipe, rounds=3, evaluate_every=3)
    with pytest.raises(KeyboardInterrupt):
        session.start(recipe, tmp_path / "run", Environment(), StopAt(1))
    (tmp_path / "trace").unlink()
    monkeypatch.setenv("FEDZERO_STATE", str(tmp_path / "of another user"))
    with pytest.raises(FedzeroError, match="--trust"):
        session.resume(tmp_path / "run", Environment(), Silent())
    assert not (tmp_path / "trace").exists()
