"""Modules that are trained in place. Whoever repeats a call in a notebook, or resumes its run, has only one module: it
begins with the parameters that it had before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from fedzero.ledger.folder import MODEL
from fedzero.model.checkpoint import load_model
from fedzero.model.params import Params
from fedzero.tasks.contract import BASE

_trained: WeakKeyDictionary[nn.Module, tuple[Path, bytes, bytes]] = WeakKeyDictionary()
"""Of modules that this process has trained: folder, digest of what they began with, digest of what they are now."""


@contextmanager
def training(module: nn.Module | None, folder: Path) -> Iterator[None]:
    """The block trains a module in a folder. None: the task loads one."""
    if module is None:
        yield
        return
    _from_its_base(module, folder)
    base = Params.of_module(module).digest()
    try:
        yield
    finally:
        _trained[module] = folder.resolve(), base, Params.of_module(module).digest()


def load(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give a module other values of its trained parameters. A call that trained it can still be repeated."""
    params = Params.of_module(module)
    place, base, now = _trained.get(module, (None, b"", b""))
    before = params.digest()
    params.load(tensors)
    if place is not None and now == before:
        _trained[module] = place, base, params.digest()


def load_result(module: nn.Module | None, folder: Path) -> None:
    """Give a module the parameters of the finished run: it may be another one than the task loaded."""
    if module is not None and (folder / MODEL).exists():
        Params.of_module(module).load(load_model(folder / MODEL))


def _from_its_base(module: nn.Module, folder: Path) -> None:
    """Give a module that this process trained in this folder the parameters back that it began with."""
    place, base, now = _trained.get(module, (None, b"", b""))
    params = Params.of_module(module)
    if place == folder.resolve() and params.digest() == now != base and (folder / BASE).exists():
        tensors = load_model(folder / BASE)
        if tensors.keys() == set(params.names):
            params.load(tensors)
