"""`fedzero.finetune`: language models of `transformers`, made here, on rows of the program's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

import fedzero
from fedzero.errors import FedzeroError
from fedzero.recipe import recipe as recipes
from fedzero.tasks.language.rewards import Length
from fedzero.tasks.partition import Shards

transformers = pytest.importorskip("transformers")

GOOD, BAD = ("great fun", "a great story", "so great"), ("terrible mess", "a terrible story", "so terrible")
ROWS = [{"sentence": text, "label": label} for label, texts in enumerate((BAD, GOOD)) for text in texts] * 4


def opened(folder: Path) -> tuple[Any, Any]:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model, transformers.AutoTokenizer.from_pretrained(folder)


def go(out: Path, model: Any, tokenizer: Any = None, **changes: Any) -> fedzero.Run:
    given: dict[str, Any] = {
        "clients": [ROWS[:12], ROWS[12:]],
        "test": ROWS[:6],
        "prompt": "{sentence} It was",
        "answers": {0: "terrible", 1: "great"},
        "method": {"kind": "decomfl", "rate": 1e-3, "directions": 4, "radius": 1e-2},
        "rounds": 4,
        "batch": 4,
        "progress": False,
    }
    return fedzero.finetune(model, tokenizer, out=out, **(given | changes))


@pytest.mark.parametrize("train", ["all", "lora", {"kind": "layers", "first": -1}])
def test_a_model_is_trained_saved_and_replayed(tmp_path: Path, small_model, train) -> None:
    model, tokenizer = opened(small_model("smollm"))
    run = go(tmp_path / "run", model, tokenizer, train=train)
    assert run.summary.complete and run.history["accuracy"].shape == run.history["round"].shape
    run.verify()
    names = dict(run.model.named_parameters())
    for name, tensor in run.replay().items():
        assert torch.equal(tensor, names[name])
    run.model.save_pretrained(tmp_path / "saved")
    if train == "all":
        loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.float32)
        tokens = torch.arange(8)[None]
        assert torch.equal(loaded(tokens).logits, model(tokens).logits)
    if train == "lora":
        assert (tmp_path / "saved" / "adapter_model.safetensors").exists()
        assert run.summary.parameters < sum(p.numel() for p in model.parameters()) / 2


def test_an_object_and_a_name_are_the_same(tmp_path: Path, small_model) -> None:
    by_name = go(tmp_path / "name", str(small_model("smollm")))
    by_object = go(tmp_path / "object", *opened(small_model("smollm")))
    assert by_name.summary.model_digest == by_object.summary.model_digest
    opened_again = fedzero.Run.open(tmp_path / "object")
    opened_again.verify()
    with pytest.raises(FedzeroError, match="repeat the call"):
        opened_again.resume(progress=False)


def test_it_resumes_and_refuses_other_rows(tmp_path: Path, small_model) -> None:
    name = str(small_model("smollm"))
    run = go(tmp_path / "run", name)
    assert go(tmp_path / "run", name).summary == run.summary
    with pytest.raises(FedzeroError, match="rows"):
        go(tmp_path / "run", name, test=[{"sentence": "so so", "label": 1}, *ROWS[1:6]])


@pytest.mark.parametrize(
    ("named", "train"), [(False, "all"), (True, "lora"), pytest.param(True, "all", marks=pytest.mark.slow)]
)
def test_a_run_goes_on_and_its_model_with_it(tmp_path: Path, small_model, named: bool, train: str) -> None:
    folder = small_model("smollm")

    def model() -> tuple[Any, ...]:
        return (str(folder),) if named else opened(folder)

    long = go(tmp_path / "long", *model(), train=train, rounds=4)
    grown = go(tmp_path / "grown", *model(), train=train, rounds=2).resume(progress=False, rounds=4)
    assert grown.summary.model_sha256 == long.summary.model_sha256
    right = long.model.state_dict()
    assert all(torch.equal(tensor, right[name]) for name, tensor in grown.model.state_dict().items())
    grown.verify()


def test_a_run_whose_model_has_adapters_goes_on_by_the_same_call(tmp_path: Path, small_model) -> None:
    run = go(tmp_path / "run", *opened(small_model("smollm")), train="lora", rounds=2)
    with pytest.raises(FedzeroError, match="has adapters already: load it again"):
        run.resume(progress=False, rounds=4)
    assert go(tmp_path / "run", *opened(small_model("smollm")), train="lora", rounds=4).summary.rounds == 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"clients": ROWS}, "count = …"),
        ({"train": "some"}, "train = 'some' is not valid"),
        ({"answers": {0: "terrible"}}, "at least two"),
        ({"prompt": "It was"}, "has no field"),
        ({"options": {"balance": True}}, "unknown key task.balance"),
    ],
)
def test_mistakes_are_said_in_a_sentence(tmp_path: Path, small_model, change, words) -> None:
    with pytest.raises(FedzeroError, match=words):
        go(tmp_path / "run", str(small_model("smollm")), **change)


def test_one_list_of_rows_is_dealt_out(tmp_path: Path, small_model) -> None:
    assert go(tmp_path / "run", str(small_model("smollm")), clients=ROWS, count=3).summary.clients == 3


def test_what_is_no_language_model(tmp_path: Path) -> None:
    with pytest.raises(FedzeroError, match="causal language model of `transformers`"):
        go(tmp_path / "run", torch.nn.Linear(2, 2))


# ---- rewards


def short(row: dict[str, Any], text: str) -> float:
    return max(0.0, 1 - abs(len(text.strip()) - 3) / 10)


REWARDED: dict[str, Any] = {"answers": None, "options": {"generate": {"max_tokens": 6}}}


def test_a_function_of_row_and_text(tmp_path: Path, small_model) -> None:
    name = str(small_model("smollm"))
    run = go(tmp_path / "run", name, reward=short, **REWARDED)
    assert run.summary.complete
    assert go(tmp_path / "run", name, reward=short, **REWARDED).summary == run.summary
    run.verify()
    fedzero.Run.open(tmp_path / "run").verify()
    by_object = go(tmp_path / "object", *opened(small_model("smollm")), reward=short, **REWARDED)
    assert by_object.summary.model_digest == run.summary.model_digest
    calls = []
    go(tmp_path / "rows", name, reward=lambda row, text: calls.append(row) or 0.5, **REWARDED)
    assert all(row in ROWS for row in calls)


def test_a_reward_by_its_name(tmp_path: Path, small_model) -> None:
    table = {"kind": "length", "target": 5}
    run = go(tmp_path / "run", str(small_model("smollm")), reward=table, **REWARDED)
    same = go(tmp_path / "same", str(small_model("smollm")), reward=Length(target=5), **REWARDED)
    assert run.summary.model_digest == same.summary.model_digest
    exact = go(tmp_path / "exact", str(small_model("smollm")), reward={"kind": "exact"})
    assert exact.history["accuracy"].shape == exact.history["round"].shape


def test_what_is_no_reward(tmp_path: Path, small_model) -> None:
    with pytest.raises(FedzeroError, match="reward: give a function"):
        go(tmp_path / "run", str(small_model("smollm")), reward=3)
    with pytest.raises(FedzeroError, match="at least two"):
        go(tmp_path / "run", str(small_model("smollm")), answers=None)


# ---- the whole model


@pytest.mark.parametrize("train", ["all", "lora", {"kind": "layers", "first": -1}])
@pytest.mark.parametrize("named", [True, False])
def test_the_state_dict_is_whole(tmp_path: Path, small_model, train, named) -> None:
    """Names exactly as of the module that was trained, adapters beside the weights; also in another process."""
    folder = small_model("smollm")
    run = go(tmp_path / "run", *((str(folder),) if named else opened(folder)), train=train)
    wanted, found = run.model.state_dict(), run.state_dict()
    assert list(found) == list(wanted) and all(torch.equal(found[name], wanted[name]) for name in wanted)
    again = fedzero.Run.open(tmp_path / "run", model=None if named else lambda: opened(folder)[0])
    assert type(again.model) is type(run.model)
    again.model.load_state_dict(found, strict=True)
    tokens = torch.arange(8)[None]
    assert torch.equal(again.model(tokens).logits, run.model(tokens).logits)
    assert list(again.state_dict()) == list(wanted)


def test_another_frozen_model_is_refused(tmp_path: Path, small_model) -> None:
    """The adapters are the same whatever they are put into; the weights below them are told by their digest."""
    folder = small_model("smollm")
    go(tmp_path / "run", *opened(folder), train="lora")
    other = opened(folder)[0]
    with torch.no_grad():
        next(other.parameters())[0, 0] += 1
    with pytest.raises(FedzeroError, match="other frozen weights"):
        _ = fedzero.Run.open(tmp_path / "run", model=lambda: other).model


def test_rows_are_dealt_out_by_their_labels_and_a_share_is_kept(tmp_path: Path, small_model) -> None:
    folder = str(small_model("smollm"))
    kept = {"partition": Shards(per_client=1), "count": 6, "test": None, "validation": 0.25}
    run = go(tmp_path / "run", folder, clients=ROWS, rounds=1, **kept)
    given = run.environment.functions["given:"]
    assert [len(rows) for rows in given.clients] == [3] * 6 and len(given.test) == 6
    assert all(len({row["label"] for row in rows}) == 1 for rows in given.clients)

    class Halves:
        dataset, num_partitions = None, 2

        def load_partition(self, number: int) -> Any:
            return self.dataset[number::2]

    dealt = go(tmp_path / "dealt", folder, clients=ROWS, partition=Halves(), rounds=1)
    assert dealt.environment.functions["given:"].clients == [ROWS[::2], ROWS[1::2]]
    for changes, message in (
        ({"partition": "shards"}, "partition is given and no count"),
        ({"partition": "shard", "count": 2}, "did you mean shards"),
        ({"partition": "shards", "count": 2, "label": "kind"}, "without 'kind'"),
    ):
        with pytest.raises(FedzeroError, match=message):
            go(tmp_path / "odd", folder, **({"clients": ROWS} | changes))


KINDS: dict[str, dict[str, Any]] = {
    "a word": {},
    "a reward": REWARDED | {"reward": short},
    "several tokens": {"answers": {0: "terrible", 1: "really quite great"}},
    "a completion": {
        "answers": None,
        "completion": "{sentence}",
        "options": {"generated": 2, "generate": {"max_tokens": 4}},
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_for_validation_and_metrics_of_other_rows(tmp_path: Path, small_model, kind: str) -> None:
    changes: dict[str, Any] = {"train": "lora", "validation": 0.25} | KINDS[kind]
    run = go(tmp_path / "run", *opened(small_model("smollm")), rounds=2, **changes)
    assert run.history["test loss"][-1] == run.evaluate(ROWS[:6])["loss"]
    assert run.evaluate(ROWS[:6], round=0)["loss"] == run.history["test loss"][0]
    table = run.evaluate_clients()
    assert table["rows"].tolist() == [9, 9] and set(table) >= {"client", "loss"}
    assert run.load_best("loss").value == run.history["loss"].min()


@pytest.mark.parametrize("kind", [*KINDS, "balanced", "gradients"])
def test_some_rows_at_a_time_give_the_same_up_to_rounding(tmp_path: Path, small_model, kind: str) -> None:
    """Batches of five in pieces of two, with weights and without."""
    more = {"balanced": {"options": {"balanced": True}}, "gradients": {"method": {"kind": "fedavg", "rate": 0.01}}}
    changes = {"rounds": 2, "batch": 5} | (KINDS | more)[kind]
    whole, cut = (
        go(tmp_path / f"{chunk}", *opened(small_model("smollm")), chunk=chunk, **changes) for chunk in (None, 2)
    )
    np.testing.assert_allclose(cut.history["loss"], whole.history["loss"], rtol=1e-5)
    for before, after in zip(whole.replay().values(), cut.replay().values(), strict=True):
        torch.testing.assert_close(after, before, rtol=1e-3, atol=1e-5)
    assert (whole.recipe.task.chunk, cut.recipe.task.chunk) == (msgspec.UNSET, 2)
    assert b"chunk" not in recipes.canonical(whole.recipe)
