"""Weights as files: safetensors, written whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from fedzero.errors import FedzeroError
from fedzero.params import Params


def save_model(params: Params, path: Path) -> None:
    save_tensors(params.tensors, path)


def save_tensors(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write a safetensors file, all or nothing; the same tensors give the same bytes."""
    if path.is_dir():
        raise FedzeroError(f"{path} is a folder: name a file to write")
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".new")
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    save_file(plain, draft, {"format": "pt"})
    share(draft)
    draft.replace(path)


def share(*files: Path) -> None:
    """Give files the permissions any new one has: safetensors makes them for the owner's eyes alone."""
    for path in files:
        ordinary = path.with_name(path.name + ".mode")
        ordinary.touch()
        path.chmod(ordinary.stat().st_mode)
        ordinary.unlink()


def load_model(path: Path) -> dict[str, torch.Tensor]:
    if not path.exists():
        raise FedzeroError(f"{path} does not exist: give a safetensors file")
    try:
        return load_file(path)
    except Exception as error:  # safetensors raises its own type, and OSError, and ValueError
        raise FedzeroError(f"{path} is not a safetensors file: {error}") from error
