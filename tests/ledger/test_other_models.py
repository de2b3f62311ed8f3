"""A model that somebody made to have the same 64-bit sum is another model, wherever a file or a stranger brings it."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
import same_sum
import torch
from recompute import stream

from fedzero.engines.remote.agreement import common, differs
from fedzero.engines.remote.messages import Measured, Prepared, decode_answer, encode
from fedzero.errors import Refused
from fedzero.ledger.folder import LEDGER, MODEL
from fedzero.ledger.store import Tampered
from fedzero.model.checkpoint import load_model, save_model
from fedzero.model.params import Params
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.runs import recorded, session

HERE = Environment()


def other_model(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights of one tensor rotated, and eight of them nudged."""
    name, tensor = next((name, t) for name, t in tensors.items() if t.numel() >= 16)
    before = tensor.reshape(-1).numpy()
    after = torch.from_numpy(same_sum.with_sum_of(np.roll(before, 1), before)).reshape(tensor.shape)
    assert not torch.allclose(after, tensor, rtol=0.05)
    return {**tensors, name: after}


def replace_model(path: Path) -> None:
    save_model(Params(other_model(load_model(path))), path)


@pytest.fixture
def run(tmp_path: Path, tiny: Path, quiet) -> Path:
    """A finished run that began with base.safetensors beside it."""
    save_model(Params({"x": torch.linspace(-1, 1, 16)}), tmp_path / "base.safetensors")
    recipe = recipes.load(str(tiny), [f"base={tmp_path / 'base.safetensors'}"])
    session.start(recipe, tmp_path / "run", HERE, quiet)
    return tmp_path / "run"


def test_two_models_with_one_sum_have_two_identities():
    tensors = {"x": torch.linspace(-1, 1, 40)}
    one, other = Params(tensors), Params(other_model(tensors))
    assert one.digest() == other.digest() and one.sha256() != other.sha256()
    assert not one.matches(other.identity) and one.identity != other.identity


@pytest.mark.parametrize("shape", [(3, 4), (), (0, 5), (7,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sha256_is_that_of_the_documents(shape: tuple[int, ...], dtype: torch.dtype):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    kind = str(dtype).removeprefix("torch.")
    whole = values.numpy() if dtype == torch.float32 else values.view(torch.uint16).numpy()
    assert Params({"x": values}).sha256() == stream.sha256({"x": whole}, kind)


def test_sha256_does_not_depend_on_the_pieces(monkeypatch: pytest.MonkeyPatch):
    tensors = {"a": torch.randn(1000), "b": torch.randn(3, 7)}
    whole = Params(tensors).sha256()
    monkeypatch.setattr("fedzero.model.params._HASHED", 13)
    assert Params(tensors).sha256() == whole


@pytest.mark.parametrize("how", ["advance", "add", "load", "outside"])
def test_sha256_follows_every_change(how: str, run: Path):
    params = Params({"x": torch.linspace(-1, 1, 16)})
    before = params.sha256()
    if how == "add":
        params.add(torch.ones(16))
    elif how == "load":
        params.load({"x": torch.ones(16)})
    elif how == "outside":
        params.tensors["x"].fill_(2.0)
        params.changed()
    else:
        params = recorded.replayed(run, HERE, 5).state.params
        before, params = params.sha256(), recorded.replayed(run, HERE, 6).state.params
    assert params.sha256() != before
    assert params.sha256() == Params({"x": params.tensors["x"].clone()}).sha256()


def test_verify_finds_another_model_file(run: Path):
    recorded.verified(run, HERE)
    replace_model(run / MODEL)
    with pytest.raises(Tampered, match="is not the model of this run"):
        recorded.verified(run, HERE)


@pytest.mark.parametrize("what", ["a tensor more", "another type", "another shape"])
def test_verify_finds_a_model_file_that_loads_to_the_same_values(run: Path, what: str):
    x = load_model(run / MODEL)["x"]
    others = {
        "a tensor more": {"x": x, "y": x},
        "another type": {"x": x.half()},
        "another shape": {"x": x.reshape(4, 4)},
    }
    save_model(Params(others[what]), run / MODEL)
    with pytest.raises(Tampered, match="is not the model of this run"):
        recorded.verified(run, HERE)


def test_a_run_is_not_verified_from_another_base(run: Path, fedzero):
    replace_model(run.parent / "base.safetensors")
    fedzero("verify", run).refused("starts from model", "but the base here is")
    fedzero("replay", run, "--out", run / "again.safetensors").refused("starts from model")


def test_a_patch_is_not_applied_to_another_base(run: Path, fedzero):
    base, patch, out = run.parent / "base.safetensors", run.parent / "a.patch", run.parent / "out.safetensors"
    assert fedzero("patch", "export", run, "--out", patch).code == 0
    assert fedzero("patch", "apply", patch, "--base", base, "--out", out).code == 0
    replace_model(base)
    out.unlink()
    fedzero("patch", "apply", patch, "--base", base, "--out", out).refused("is a patch for")
    assert not out.exists()


def test_sites_vote_on_whole_models():
    right = Prepared(b"8" * 8, 16, {}, None, 0, b"r" * 32)
    other, older = msgspec.structs.replace(right, sha256=b"o" * 32), msgspec.structs.replace(right, sha256=b"")
    found = {"north": right, "south": other, "west": right}
    assert common(found, lambda _: True) == right
    assert differs(right, right) == ""
    assert "starts from model" in differs(other, right)
    assert "install the release of fedzero" in differs(older, right)


@pytest.mark.parametrize("length", [1, 31, 33, 1000])
def test_an_answer_has_a_whole_sha256_or_none(length: int):
    for answer in (Prepared(b"8" * 8, 16, {}, None, 0, b"s" * length), Measured(b"8" * 8, None, False, b"s" * length)):
        with pytest.raises(Refused, match=f"a SHA-256 of {length} bytes"):
            decode_answer(encode(answer))


def test_verify_says_where_only_sums_are_on_record(fedzero, tmp_path: Path, run: Path):
    assert "64-bit sum" not in fedzero("verify", run).out
    old = tmp_path / "old"
    old.mkdir()
    shutil.copy(Path(__file__).parent / "v0_1" / "decomfl-sync.db", old / LEDGER)
    outcome = fedzero("verify", old)
    assert outcome.code == 0 and "64-bit sum only" in outcome.out.replace("\n", " ")
