"""Weights as files: safetensors, written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from fedzero.errors import FedzeroError
from fedzero.model.decoding import MALFORMED, cause_of
from fedzero.model.files import draft_of, expect, memory, share
from fedzero.model.params import Params

_HEADER, _ENTRY = 1 << 20, 1 << 10
"""Bytes of a header at most, and of a tensor in it beside its name."""


def save_model(params: Params, path: Path) -> None:
    save_tensors(params.tensors, path)


def save_base(params: Params, path: Path) -> None:
    """Parameters with their order, which names their direction streams and which safetensors does not keep."""
    save_tensors(params.tensors, path, {"order": json.dumps(params.names)})


def load_base(path: Path, device: torch.device) -> Params:
    tensors = load_model(path)
    try:
        with safe_open(path, "pt") as file:
            order = msgspec.json.decode(file.metadata()["order"], type=tuple[str, ...])
        return Params({name: tensors[name].to(device) for name in order})
    except (KeyError, TypeError, *MALFORMED) as error:
        raise FedzeroError(f"{path} is not the base of a run: {cause_of(error)}") from error


def save_tensors(tensors: Mapping[str, torch.Tensor], path: Path, about: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file, all or nothing; the same tensors give the same bytes."""
    if path.is_dir():
        raise FedzeroError(f"{path} is a folder: name a file to write")
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    with draft_of(path) as draft:
        try:
            save_file(plain, draft, {"format": "pt", **(about or {})})
        except SafetensorError as error:  # of a full disk, say
            raise FedzeroError(f"{path} cannot be written: {error}") from error
        share(draft)


def room(params: Params) -> int:
    """Bytes that a file with these tensors and no others can have: numbers, names and shapes."""
    numbers = sum(tensor.nbytes for tensor in params.tensors.values())
    return numbers + _HEADER + sum(_ENTRY + len(name.encode()) for name in params.names)


def load_model(path: Path, most: int | None = None) -> dict[str, torch.Tensor]:
    """The tensors of a file of at most `most` bytes; default: of this machine's memory."""
    try:
        expect(path, memory() if most is None else most)
    except FileNotFoundError:
        raise FedzeroError(f"{path} does not exist: give a safetensors file") from None
    except OSError as error:
        raise FedzeroError(f"{path} cannot be read: {error.strerror}") from error
    try:
        return load_file(path)
    except Exception as error:  # safetensors raises its own type, and OSError, and ValueError
        raise FedzeroError(f"{path} is not a safetensors file: {error}") from error
