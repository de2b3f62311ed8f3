"""The state of a method between rounds: parameters, additional vectors, and the states of its rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import msgspec
import torch
from torch import Tensor

from fedzero.directions import Keys
from fedzero.errors import FedzeroError
from fedzero.methods.contract.federation import Scale
from fedzero.model.decoding import decoded
from fedzero.model.params import Params, Slots, from_bytes, to_bytes

Numbers = int | bytes
"""The plain values of a state, as they are sent: one count, or msgpack of several values."""


@dataclass(frozen=True)
class Vectors:
    """Vectors of d numbers in addition to the parameters, float32, stored tensor by tensor: `slots[t][i]` is the part
    of vector i."""

    slots: Slots

    @staticmethod
    def zeros(params: Params, count: int) -> Vectors:
        return Vectors(params.slots(count))

    def __getitem__(self, index: int) -> Tensor:
        """Vector `index`, (d,), a copy."""
        return torch.cat([group[index] for group in self.slots])

    def __len__(self) -> int:
        return len(self.slots[0])

    def set(self, index: int, vector: Tensor) -> None:
        """Overwrite vector `index` from d numbers."""
        pieces = torch.split(vector, [group[index].numel() for group in self.slots])
        for group, piece in zip(self.slots, pieces, strict=True):
            group[index].copy_(piece)

    def clone(self) -> Vectors:
        return Vectors(tuple(tuple(s.clone() for s in group) for group in self.slots))

    def tensors(self, chosen: Sequence[int] | None = None) -> list[Tensor]:
        return [s for group in self.slots for i, s in enumerate(group) if chosen is None or i in chosen]


@dataclass(frozen=True)
class Part:
    """The part of a state that a client needs: whether the parameters, and which vectors (None: all)."""

    params: bool = True
    vectors: tuple[int, ...] | None = None


EVERYTHING = Part()


@dataclass(frozen=True)
class RuleState:
    """The state of a method or rule between rounds, in addition to the parameters.

    Derive a frozen dataclass whose fields are `Vectors`, tensors, and plain values that msgpack can write. All of them
    go into checkpoints, into snapshots and onto the disk of a site.
    """

    def part(self, client: int) -> Part:
        """The part of the state that this client needs when a state is sent to it."""
        return EVERYTHING

    def model(self, params: Params, client: int) -> Params:
        """The model on which this client's values are computed."""
        return params

    def rebuild_params(self, params: Params, keys: Keys) -> None:
        """Overwrite the parameters of a state that was sent without them (see `part`); they follow from its rest."""

    def estimate(self) -> tuple[float, float] | None:
        """The method's estimate of the objective at the parameters, and its standard error; None: it has none."""
        return None

    def tensors(self, chosen: Sequence[int] | None = None) -> list[Tensor]:
        found: list[Tensor] = []
        for value in self._values():
            found += (
                value.tensors(chosen) if isinstance(value, Vectors) else [value] if isinstance(value, Tensor) else []
            )
        return found

    def _values(self) -> Iterable[Any]:
        return (getattr(self, each.name) for each in fields(self))

    def numbers(self) -> Numbers:
        """The plain values: 0 if there are none or all are empty; a single count as it is; otherwise all, packed."""
        plain = [value for value in self._values() if not isinstance(value, Vectors | Tensor)]
        if not any(plain):
            return 0
        return plain[0] if len(plain) == 1 and isinstance(plain[0], int) else msgspec.msgpack.encode(plain)

    def with_numbers(self, numbers: Numbers) -> RuleState:
        """This state with the plain values that `numbers()` returned."""
        plain = [each.name for each in fields(self) if not isinstance(getattr(self, each.name), Vectors | Tensor)]
        if isinstance(numbers, bytes):
            found = decoded(_values.decode, numbers, "the values of a state")
            if len(found) != len(plain):
                raise FedzeroError(f"a state with {len(found)} values where {type(self).__name__} has {len(plain)}")
            return replace(
                self, **{name: _like(getattr(self, name), value) for name, value in zip(plain, found, strict=True)}
            )
        if len(plain) == 1 and isinstance(getattr(self, plain[0]), int):
            return replace(self, **{plain[0]: numbers})
        return self

    @property
    def empty(self) -> bool:
        """Whether the state has no values to write."""
        return type(self) is RuleState

    def clone(self) -> RuleState:
        copied = {
            each.name: value.clone()
            for each in fields(self)
            if isinstance(value := getattr(self, each.name), Vectors | Tensor)
        }
        return replace(self, **copied)


_values = msgspec.msgpack.Decoder(list[Any], strict=False)


def _like(before: Any, value: Any) -> Any:
    """The value with tuples restored, of which msgpack makes lists."""
    if isinstance(before, Mapping) and isinstance(value, Mapping):
        return {key: tuple(item) if isinstance(item, list) else item for key, item in value.items()}
    found = tuple(value) if isinstance(before, tuple) and isinstance(value, list) else value
    fits = before is None or isinstance(found, type(before)) or (isinstance(before, float) and isinstance(found, int))
    if not fits:
        raise FedzeroError(f"a state with a value of type {type(found).__name__} for a {type(before).__name__}")
    return found


NOTHING = RuleState()


@dataclass(frozen=True)
class State:
    """The state of a replica: parameters, number of rounds so far, number of clients, and the state of the rules."""

    params: Params
    carry: Any = NOTHING
    round: int = 0
    clients: int = 1

    @property
    def scale(self) -> Scale:
        return Scale(self.params.size, self.clients)

    def branch(self) -> State:
        """A copy for local steps; to revert them, drop it."""
        return replace(self, params=self.params.clone(), carry=self.carry.clone())

    def digest(self, client: int) -> bytes:
        """The digest of the model on which a client's values are computed."""
        digest: bytes = self.carry.model(self.params, client).digest()
        return digest

    def tensors(self, part: Part = EVERYTHING) -> list[Tensor]:
        return [*(self.params.tensors.values() if part.params else ()), *self.carry.tensors(part.vectors)]

    @property
    def numbers(self) -> Numbers:
        numbers: Numbers = self.carry.numbers()
        return numbers

    def to_bytes(self, part: Part = EVERYTHING) -> bytes:
        """Tensors as raw bytes; round and numbers are sent separately."""
        return to_bytes(self.tensors(part))

    def restored(self, data: bytes, round: int, numbers: Numbers, part: Part = EVERYTHING) -> State:
        """This state with its tensors overwritten from `to_bytes`."""
        from_bytes(data, self.tensors(part))
        self.params.changed()
        return replace(self, round=round, carry=self.carry.with_numbers(numbers))
