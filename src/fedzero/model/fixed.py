"""What a module has beside the parameters that a run trains: frozen weights, buffers, and further names of tied ones.

A run does not change it: models are evaluated in eval mode, and one whose buffers change even so is refused. So it is
kept once, or made again, and its digest on the ledger says whether it is the same.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from safetensors import safe_open
from torch import Tensor, nn

from fedzero.errors import FedzeroError
from fedzero.model.checkpoint import load_model, save_tensors
from fedzero.model.params import Params, to_bytes

FACT = "fixed"
"""The fact of a task that says what is fixed, and its digest."""
LARGEST = 256 << 20
"""Bytes that a run's folder keeps of it; what is larger is made again by whoever opens the run."""


@dataclass(frozen=True, eq=False)
class Fixed:
    """The state dict of a module without its trained values.

    names: of the whole state dict, in order, each with the tensor that it stands for: a trained parameter, by its name,
    or one of `tensors`. trained: names of the trained parameters, in order.
    """

    names: Mapping[str, str]
    trained: tuple[str, ...]
    tensors: Mapping[str, Tensor]

    @staticmethod
    def of_module(module: nn.Module, params: Params) -> Fixed | None:
        """None of a module whose state dict is not made of its parameters and buffers alone."""
        known = {id(p): name for name, p in module.named_parameters() if name in params.tensors}
        names, tensors = dict[str, str](), dict[str, Tensor]()
        for name, value in module.state_dict(keep_vars=True).items():
            if not isinstance(value, Tensor):
                return None
            if id(value) not in known:
                known[id(value)], tensors[name] = name, value.detach()
            names[name] = known[id(value)]
        if not set(params.names) <= set(names.values()) or tensors.keys() & set(params.names):
            return None
        return Fixed(names, params.names, tensors)

    @property
    def size(self) -> int:
        """Bytes of the tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())

    def __str__(self) -> str:
        numbers = sum(tensor.numel() for tensor in self.tensors.values())
        return f"{numbers:,} numbers in {len(self.tensors)} tensors, SHA-256 {self.sha256()}"

    def sha256(self) -> str:
        """Of names, types, shapes and all bits."""
        headers = {name: (str(t.dtype), tuple(t.shape)) for name, t in self.tensors.items()}
        text = msgspec.json.encode((list(self.names.items()), self.trained, list(headers.items())))
        hashed = hashlib.sha256(b"fedzero fixed 1" + struct.pack("<Q", len(text)) + text)
        for tensor in self.tensors.values():
            hashed.update(to_bytes([tensor]))
        return hashed.hexdigest()

    def state_dict(self, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The whole state dict, with these values of the trained parameters; what is tied stays one tensor."""
        return {name: trained[of] if of in trained else self.tensors[of] for name, of in self.names.items()}

    def save(self, path: Path) -> None:
        about = {"names": json.dumps(list(self.names.items())), "trained": json.dumps(self.trained)}
        save_tensors(self.tensors, path, about)

    @staticmethod
    def load(path: Path) -> Fixed:
        tensors = load_model(path)
        try:
            with safe_open(path, "pt") as file:
                about = file.metadata()
            names = msgspec.json.decode(about["names"], type=list[tuple[str, str]])
            trained = msgspec.json.decode(about["trained"], type=tuple[str, ...])
            order = {of: tensors[of] for of in dict.fromkeys(of for _, of in names) if of not in trained}
        except (KeyError, TypeError, msgspec.DecodeError) as error:
            raise FedzeroError(f"{path} is not what a module has beside its trained parameters: {error}") from error
        return Fixed(dict(names), trained, order)
