"""Models trained once: the same weights for the same description, kept whole, and never trusted when damaged."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from fedzero.errors import FedzeroError
from fedzero_papers.tasks.trained import THREADS, Fit, Trained, accuracy, fit, trained

WHAT: dict[str, object] = {"model": "toy", "epochs": 3}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("FEDZERO_CACHE", str(tmp_path / "cache"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # these models are too small for two
    yield tmp_path / "cache"
    torch.set_num_threads(threads)


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


class Train:
    """Trains on random samples, and counts how often it was asked to."""

    def __init__(self) -> None:
        self.calls, self.threads = 0, 0

    def __call__(self, module: nn.Module) -> float:
        self.calls, self.threads = self.calls + 1, torch.get_num_threads()
        x = torch.randn(64, 4)
        y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
        fit(module, x, y, Fit(epochs=3, batch=16, rate=1e-2))
        return accuracy(module, x, y)


def weights(found: Trained) -> list[bytes]:
    return [tensor.numpy().tobytes() for tensor in found.module.state_dict().values()]


def the_file(cache: Path) -> Path:
    (path,) = cache.glob("*.safetensors")
    return path


def test_it_is_trained_once(cache, capsys):
    train = Train()
    first, second = (trained(WHAT, build, train) for _ in range(2))
    assert train.calls == 1
    assert weights(first) == weights(second)
    assert (first.accuracy, first.digest) == (second.accuracy, second.digest)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "model toy, epochs 3" in said
    assert str(cache) in said


def test_it_is_ready_to_use():
    for found in (trained(WHAT, build, Train()), trained(WHAT, build, Train())):
        assert not found.module.training
        assert not any(p.requires_grad for p in found.module.parameters())
        assert 0 < found.accuracy <= 1


def test_the_description_alone_decides(tmp_path, monkeypatch):
    """Not the state of torch's generator, not the number of threads, not the order of the keys."""
    first = trained(WHAT, build, Train())
    monkeypatch.setenv("FEDZERO_CACHE", str(tmp_path / "elsewhere"))
    torch.manual_seed(123)
    before, threads = torch.random.get_rng_state(), torch.get_num_threads()
    torch.set_num_threads(THREADS + 1)
    try:
        train = Train()
        second = trained(dict(reversed(WHAT.items())), build, train)
        assert train.threads == THREADS
        assert torch.get_num_threads() == THREADS + 1
    finally:
        torch.set_num_threads(threads)
    assert weights(first) == weights(second)
    assert torch.equal(torch.random.get_rng_state(), before), "nobody else's random numbers were used"
    other = trained(WHAT | {"epochs": 4}, build, Train())
    assert other.digest != first.digest


def flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def half(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def better_accuracy(path: Path) -> None:
    """A file that is whole, but does not say what was written."""
    with safe_open(path, framework="pt") as file:
        about, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, path, about | {"accuracy": "0.9999"})


def another_model(path: Path) -> None:
    save_file({"weight": torch.zeros(2)}, path)


@pytest.mark.parametrize("spoil", [flip_last_byte, half, better_accuracy, another_model, lambda p: p.write_bytes(b"")])
def test_a_damaged_file_is_not_trusted(cache, spoil):
    train = Train()
    first = trained(WHAT, build, train)
    spoil(the_file(cache))
    second = trained(WHAT, build, train)
    assert train.calls == 2
    third = trained(WHAT, build, train)
    assert train.calls == 2, "the file was mended"
    for found in (second, third):
        assert (weights(found), found.accuracy, found.digest) == (weights(first), first.accuracy, first.digest)


def test_a_module_of_another_shape_is_trained_anew():
    train = Train()
    trained(WHAT, build, train)
    wider = trained(WHAT, lambda: nn.Sequential(nn.Linear(4, 9), nn.Linear(9, 3)), train)
    assert train.calls == 2
    first: Any = wider.module.get_submodule("0")
    assert first.out_features == 9


def test_training_that_fails_leaves_nothing(cache):
    def fails(module: nn.Module) -> float:
        raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        trained(WHAT, build, fails)
    assert not list(cache.glob("*.safetensors"))
    train = Train()
    trained(WHAT, build, train)
    assert train.calls == 1


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("FEDZERO_CACHE", str(tmp_path / "file"))
    with pytest.raises(FedzeroError, match=r"cannot be written.*FEDZERO_CACHE"):
        trained(WHAT, build, Train())


PROCESS = """
import sys, time
from pathlib import Path
from torch import nn
from fedzero_papers.tasks.trained import trained

def train(module):
    with Path(sys.argv[1]).open("a") as file:
        file.write("trained ")
    time.sleep(1)
    return 0.5

print(trained({"for": "two processes"}, lambda: nn.Linear(2, 2), train).digest)
"""


@pytest.mark.slow
def test_two_processes_train_it_once(tmp_path):
    marks = tmp_path / "marks"
    command = [sys.executable, "-c", PROCESS, str(marks)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ, text=True) for _ in range(2)]
    said = [process.communicate(timeout=300)[0].strip() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert said[0] == said[1] != ""
    assert marks.read_text() == "trained "


def test_fit_learns_and_bytes_are_pixels():
    x = torch.randint(0, 256, (256, 1, 6, 6), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    y = (x[:, 0, :3].float().mean((1, 2)) > x[:, 0, 3:].float().mean((1, 2))).long()
    seen: list[torch.Tensor] = []

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(36, 2)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            seen.append(images)
            result: torch.Tensor = self.linear(images.flatten(1))
            return result

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        net = Net()
        before = accuracy(net, x, y)
        fit(net.train(), x, y, Fit(epochs=30, batch=32, rate=3e-2))
    assert accuracy(net, x, y) > max(0.9, before)
    assert accuracy(net, x, y) == float((net(x.float() / 255).argmax(1) == y).float().mean())
    assert all(float(images.min()) >= 0 and float(images.max()) <= 1 for images in seen)


def test_moved_images_are_mirrored_and_shifted():
    """One bright pixel: in training it is seen at other places, and nowhere twice as bright."""
    x = torch.zeros(32, 1, 16, 16, dtype=torch.uint8)
    x[:, 0, 8, 7] = 255
    places: set[tuple[int, int]] = set()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            assert set(images.unique().tolist()) <= {0.0, 1.0}
            places.update((row, column) for _, _, row, column in images.nonzero().tolist())
            return images.sum((1, 2, 3))[:, None] * self.scale

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        fit(Net(), x, torch.zeros(32, dtype=torch.long), Fit(epochs=60, batch=32, rate=1e-3, moved=True))
    rows, columns = ({place[axis] for place in places} for axis in (0, 1))
    assert rows == set(range(4, 13)), "up to four pixels up or down"
    assert columns == set(range(3, 13)), "column 7, or 8 in the mirror, and four to either side"
