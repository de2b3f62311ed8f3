"""`run.state_dict()` and `run.model`: the whole module of a run, in the process that trained it and in any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedzero
from fedzero.errors import FedzeroError, Invalid
from fedzero.ledger.folder import MODEL
from fedzero.model import fixed
from fedzero.model.fixed import Fixed
from fedzero.model.params import Params
from fedzero.runs import recorded
from fedzero.tasks.contract import FIXED

METHOD = {"kind": "decomfl", "rate": 0.05, "directions": 4}


def data(seed: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(seed))
    return x, x[:, :3].argmax(1)


class Net(nn.Module):
    """Frozen weights, tied trained ones, tied frozen ones, and buffers that are in its state dict or not."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.frozen = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.first, self.second, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.second.weight = self.first.weight
        self.again = nn.Linear(4, 8, bias=False)
        self.again.weight = self.frozen.weight
        self.register_buffer("scale", torch.rand(8))
        self.register_buffer("hidden", torch.ones(8), persistent=False)
        self.frozen.requires_grad_(False)
        for buffer in (self.norm.running_mean, self.norm.running_var):
            buffer.uniform_(0.5, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.frozen(x) + self.again(x)) * self.scale * self.hidden
        return self.last(torch.tanh(self.second(torch.tanh(self.first(h)))))


def go(out: Path, model: nn.Module, **changes: Any) -> fedzero.Run:
    given: dict[str, Any] = {"loss": F.cross_entropy, "method": METHOD, "rounds": 3, "progress": False}
    return fedzero.train(model, [data(seed) for seed in range(3)], out=out, **(given | changes))


def same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return list(left) == list(right) and all(torch.equal(left[name], right[name]) for name in left)


def test_it_is_what_the_module_says_and_loads_strictly(tmp_path: Path) -> None:
    model = Net()
    run = go(tmp_path / "run", model)
    assert same(run.state_dict(), model.state_dict()), "names in order, and values"
    fresh = Net(1)
    fresh.load_state_dict(run.state_dict(), strict=True)
    fresh.eval()
    x = data(7)[0]
    assert torch.equal(fresh(x), model(x))
    state = run.state_dict()
    assert state["second.weight"] is state["first.weight"], "what is tied stays one tensor"


def test_another_process_has_all_of_it_without_the_code(tmp_path: Path) -> None:
    model = Net()
    go(tmp_path / "run", model)
    run = fedzero.Run.open(tmp_path / "run")
    assert same(run.state_dict(), model.state_dict())
    with pytest.raises(FedzeroError, match=r"Run\.open\(folder, model="):
        _ = run.model
    run.verify()


def test_the_code_gives_the_module_back(tmp_path: Path) -> None:
    model, x = Net(), data(7)[0]
    go(tmp_path / "run", model)
    for given in (Net, lambda: Net(0), Net()):
        found = fedzero.Run.open(tmp_path / "run", model=given).model
        assert not found.training and torch.equal(found(x), model(x))


def test_what_was_changed_after_training_is_not_in_it(tmp_path: Path) -> None:
    """Buffers have the values with which the run evaluated, whatever the program did to the module afterwards."""
    model = Net()
    run = go(tmp_path / "run", model)
    then = {name: value.clone() for name, value in model.state_dict().items()}
    model.train()
    model(data(3)[0])  # batch statistics
    with torch.no_grad():
        model.first.weight.zero_()
    assert same(run.state_dict(), then)


def other_frozen() -> nn.Module:
    model = Net()
    with torch.no_grad():
        model.frozen.weight[0, 0] += 1
    return model


def other_buffer() -> nn.Module:
    model = Net()
    model.norm.running_mean[0] += 1
    return model


def thawed() -> nn.Module:
    return Net().requires_grad_(True)


def untied() -> nn.Module:
    model = Net()
    model.second.weight = nn.Parameter(model.second.weight.detach().clone())
    return model


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (other_frozen, "other frozen weights or buffers"),
        (other_buffer, "other frozen weights or buffers"),
        (thawed, r"'frozen\.weight' is \(8, 4\), and in the run none"),
        (untied, r"'second\.weight' is \(8, 8\), and in the run none"),
        (lambda: nn.Linear(4, 3), "trained parameter"),
        (lambda: "model", "a function that makes it"),
        (lambda: None, r"Run\.open\(folder, model="),
    ],
)
def test_another_module_is_refused(tmp_path: Path, given, words) -> None:
    go(tmp_path / "run", Net())
    with pytest.raises(FedzeroError, match=words):
        _ = fedzero.Run.open(tmp_path / "run", model=given).model


def test_what_is_no_module(tmp_path: Path) -> None:
    go(tmp_path / "run", Net())
    with pytest.raises(Invalid, match="model = 'net'"):
        fedzero.Run.open(tmp_path / "run", model="net")  # type: ignore[arg-type]


def test_a_changed_file_of_what_is_fixed_is_noticed(tmp_path: Path) -> None:
    go(tmp_path / "run", Net())
    path = tmp_path / "run" / FIXED
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(FedzeroError, match="other frozen weights or buffers"):
        fedzero.Run.open(tmp_path / "run").state_dict()
    path.write_bytes(b"nothing")
    with pytest.raises(FedzeroError, match="not a safetensors file"):
        fedzero.Run.open(tmp_path / "run").state_dict()


def test_a_changed_model_file_is_noticed(tmp_path: Path) -> None:
    run = go(tmp_path / "run", Net())
    path = tmp_path / "run" / MODEL
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    for read in (run.state_dict, fedzero.Run.open(tmp_path / "run").state_dict):
        with pytest.raises(fedzero.Tampered, match="not the model of this run"):
            read()
    with pytest.raises(fedzero.Tampered, match="not the model of this run"):
        _ = fedzero.Run.open(tmp_path / "run", model=Net).model


def test_what_is_large_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed, "LARGEST", 100)
    model = Net()
    run = go(tmp_path / "run", model)
    assert not (tmp_path / "run" / FIXED).exists()
    assert same(run.state_dict(), model.state_dict())
    with pytest.raises(FedzeroError, match=r"Run\.open\(folder, model="):
        fedzero.Run.open(tmp_path / "run").state_dict()
    assert same(fedzero.Run.open(tmp_path / "run", model=Net).state_dict(), model.state_dict())
    model.scale += 1
    with pytest.raises(FedzeroError, match="which was changed since"):
        run.state_dict()


class Extra(nn.Linear):
    def get_extra_state(self) -> dict[str, int]:
        return {"version": 3}

    def set_extra_state(self, state: dict[str, int]) -> None:
        assert state == {"version": 3}


def test_a_file_of_which_the_ledger_says_nothing_is_not_believed(tmp_path: Path) -> None:
    """Somebody else put it there: its names and tensors could be any."""
    run = go(tmp_path / "run", Extra(4, 3))
    assert not (tmp_path / "run" / FIXED).exists() and list(run.state_dict()) == ["weight", "bias", "_extra_state"]
    Fixed({"weight": "weight", "bias": "bias", "scale": "scale"}, ("weight", "bias"), {"scale": torch.ones(3)}).save(
        tmp_path / "run" / FIXED
    )
    with pytest.raises(FedzeroError, match=r"Run\.open\(folder, model="):
        fedzero.Run.open(tmp_path / "run").state_dict()
    assert list(fedzero.Run.open(tmp_path / "run", model=Extra(4, 3)).state_dict()) == list(run.state_dict())


def test_state_that_is_no_tensor_comes_from_the_module(tmp_path: Path) -> None:
    model = Extra(4, 3)
    run = go(tmp_path / "run", model)
    Extra(4, 3).load_state_dict(run.state_dict(), strict=True)
    opened = fedzero.Run.open(tmp_path / "run", model=lambda: Extra(4, 3))
    assert opened.state_dict()["_extra_state"] == {"version": 3}
    assert torch.equal(opened.model.weight, model.weight)


def test_statistics_of_batches_are_refused_before_a_run_begins(tmp_path: Path) -> None:
    """A forward pass that changes buffers is no function of the parameters alone."""

    def in_train_mode(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model.train()(batch[0]), batch[1])

    with pytest.raises(FedzeroError, match=r"changes its buffer 'norm\.running_mean'"):
        go(tmp_path / "run", Net(), loss=None, objective=in_train_mode)


def test_a_run_that_is_not_finished(tmp_path: Path) -> None:
    run = go(tmp_path / "run", Net())
    (tmp_path / "run" / MODEL).unlink()
    with pytest.raises(FedzeroError, match="not finished: resume it"):
        run.state_dict()


def test_packaged_tasks_make_their_module_themselves(tmp_path: Path) -> None:
    fedzero.run("demo", rounds=1, out=tmp_path / "run", progress=False)
    run = fedzero.Run.open(tmp_path / "run")
    assert same(run.state_dict(), run.model.state_dict())
    table = {"name": "q", "rounds": 2, "algorithm": METHOD, "task": {"kind": "quadratic", "dimension": 8}}
    run = fedzero.run(table | {"federation": {"clients": 3, "cohort": 2}}, out=tmp_path / "q", progress=False)
    assert run.model is None and list(run.state_dict()) == ["x"]


def test_ledgers_of_before_are_gone_on_with() -> None:
    """They do not say what is fixed; the fact about the model covers it there."""
    recorded._check_facts({"model": "m"}, {"model": "m", fixed.FACT: "some"})
    with pytest.raises(FedzeroError, match="started with fixed: some; here it is others"):
        recorded._check_facts({fixed.FACT: "some"}, {fixed.FACT: "others"})


def test_a_ledger_of_before_knows_its_module_by_the_fact_about_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(Fixed, "of_module", staticmethod(lambda module, params: None))
        model = Net()
        go(tmp_path / "run", model)
    assert same(fedzero.Run.open(tmp_path / "run", model=Net).state_dict(), model.state_dict())
    with pytest.raises(FedzeroError, match="is not that of this run"):
        fedzero.Run.open(tmp_path / "run", model=other_buffer).state_dict()


def test_the_digest_covers_names_types_shapes_and_bits() -> None:
    def digest(model: nn.Module) -> str:
        found = Fixed.of_module(model, Params.of_module(model))
        assert found is not None
        return found.sha256()

    models = [Net(), other_frozen(), other_buffer(), untied(), nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))]
    half = Net()
    half.scale = half.scale.half()
    flat = Net()
    flat.scale = flat.scale[None]
    assert digest(Net(0)) == digest(Net(0))
    assert len({digest(model) for model in [*models, half, flat]}) == 8
