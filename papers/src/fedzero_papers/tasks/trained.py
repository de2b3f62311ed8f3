"""Models that a task needs before it can begin (victims of an attack, a classifier to tune), trained once and kept.

    trained(what, build, train)    build() makes the module, train(module) trains it in place and returns its accuracy

`what` says everything the outcome depends on; its hash is the name of the file, in the cache folder.
The same `what` gives the same weights on one machine, whoever asks: all of torch's random numbers, from the first
weight to the last shuffle, come from a seed derived from `what`, and training has the same number of threads everywhere
(a sum over a batch is cut into as many pieces as there are threads, so its last bits depend on their number). Other
processors and other versions of torch may give other bits; that is why tasks put the digest among their facts.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from fedzero.errors import FedzeroError
from fedzero.folders import cache_folder
from fedzero.model.device import threads
from fedzero.model.files import draft_of, expect, locked, share
from fedzero.model.params import DTYPES, Params

THREADS = 1
"""Of torch while it trains, whatever the process has otherwise: where all cores are busy, two wait for each other."""


@dataclass(frozen=True)
class Trained:
    """A module in eval mode, without gradients, on the CPU; accuracy as `train` returned it; digest of the weights."""

    module: nn.Module
    accuracy: float
    digest: str


def trained(what: Mapping[str, object], build: Callable[[], nn.Module], train: Callable[[nn.Module], float]) -> Trained:
    """The model of the cache, or a freshly trained one, which is then in the cache.

    A file that is damaged, or does not fit the module, is not trusted: the model is trained again. Processes that want
    the same model at the same time wait for the first of them.
    """
    text = json.dumps(what, sort_keys=True, ensure_ascii=False)
    name = hashlib.blake2b(text.encode(), digest_size=16, person=b"fedzero-trained").digest()
    folder = cache_folder()
    path = folder / f"{name.hex()}.safetensors"
    with _seeded(name), locked(path):
        module = build()
        found = _read(path, module, text)
        if found is None:
            words = ", ".join(f"{key} {value}" for key, value in what.items())
            print(f"training a model: {words} (cached in {folder})", file=sys.stderr, flush=True)
            found = _train(path, module, text, train)
    module.eval().requires_grad_(False)
    return Trained(module, *found)


@dataclass(frozen=True)
class Fit:
    """How to train a classifier: AdamW, the rate rising to `rate` and falling to nothing, `epochs` over the samples."""

    epochs: int
    batch: int
    rate: float
    decay: float = 0.0
    moved: bool = False
    """images of a batch are mirrored half of the time, and moved by up to four pixels"""


def fit(module: nn.Module, x: Tensor, y: Tensor, how: Fit) -> None:
    """Minimise the cross-entropy of samples x with labels y, in place. Bytes are pixels, brought to [0, 1].

    Random numbers are torch's own: call it within `trained`.
    """
    optimizer = torch.optim.AdamW(module.parameters(), lr=how.rate, weight_decay=how.decay)
    batch = min(how.batch, len(x))
    steps = len(x) // batch
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, how.rate, total_steps=how.epochs * steps)
    for _ in range(how.epochs):
        for index in torch.randperm(len(x))[: steps * batch].view(steps, batch):
            inputs = _floats(x[index])
            loss = F.cross_entropy(module(_moved(inputs) if how.moved else inputs), y[index])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()


def accuracy(module: nn.Module, x: Tensor, y: Tensor) -> float:
    """The share of samples x that are classified as y says."""
    module.eval()
    with torch.no_grad():
        right = [
            (module(_floats(some)).argmax(-1) == labels).sum()
            for some, labels in zip(torch.split(x, 1000), torch.split(y, 1000), strict=True)
        ]
    return int(torch.stack(right).sum()) / len(y)


def _floats(x: Tensor) -> Tensor:
    return x.float() / 255 if x.dtype == torch.uint8 else x


def _moved(x: Tensor) -> Tensor:
    if torch.rand(()) < 0.5:
        x = x.flip(-1)
    down, right = torch.randint(0, 9, (2,)).tolist()
    return F.pad(x, (4, 4, 4, 4))[:, :, down : down + x.shape[2], right : right + x.shape[3]]


@contextmanager
def _seeded(name: bytes) -> Iterator[None]:
    """Torch's own generator from a seed of ours, and as it was afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int.from_bytes(name[:8], "little") >> 1)
        yield


def _train(path: Path, module: nn.Module, text: str, train: Callable[[nn.Module], float]) -> tuple[float, str]:
    with threads(THREADS):
        accuracy = float(train(module.train()))
    tensors = _tensors(module)
    digest = _digest(tensors)
    about = {"what": text, "accuracy": repr(accuracy), "digest": digest, "seal": _seal(text, repr(accuracy), digest)}
    try:
        with draft_of(path) as draft:
            save_file(tensors, draft, about)
            share(draft)
    except OSError as error:
        raise FedzeroError(f"{path} cannot be written: {error}; set FEDZERO_CACHE to another folder") from error
    return accuracy, digest


def _read(path: Path, module: nn.Module, text: str) -> tuple[float, str] | None:
    """Load the file into the module: (accuracy, digest), or None where it is missing or not what it should be."""
    try:
        expect(path)
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is not a dict)
        digest, seal = about["digest"], _seal(text, about["accuracy"], about["digest"])
        if about["seal"] != seal or _digest(tensors) != digest or not _fits(tensors, _tensors(module)):
            return None
        module.load_state_dict(tensors)
        return float(about["accuracy"]), digest
    except Exception:  # safetensors raises its own type, OSError and others: any of them means to train again
        return None


def _fits(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> bool:
    return {n: (t.shape, t.dtype) for n, t in found.items()} == {n: (t.shape, t.dtype) for n, t in wanted.items()}


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, as they are stored."""
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in module.state_dict().items()}


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """Of all that enters a forward pass, in a fixed order; counters of batch normalisation do not, and are integers."""
    return Params({name: tensors[name] for name in sorted(tensors) if tensors[name].dtype in DTYPES}).digest().hex()


def _seal(text: str, accuracy: str, digest: str) -> str:
    """Binds what is said about the weights to the weights."""
    return hashlib.sha256("\0".join((text, accuracy, digest)).encode()).hexdigest()
