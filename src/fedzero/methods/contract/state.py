"""What a method carries from round to round: parameters, vectors beside them, and what its rule keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import msgspec
import torch
from torch import Tensor

from fedzero.directions import Keys
from fedzero.errors import FedzeroError
from fedzero.links.contract import Contribution as Contribution
from fedzero.methods.contract.federation import Scale
from fedzero.model.decoding import decoded
from fedzero.model.params import Params, Slots, from_bytes, to_bytes

Numbers = int | bytes
"""What a state holds beside its tensors, as it travels: one count, or msgpack of several values."""


@dataclass(frozen=True)
class Vectors:
    """Vectors of d numbers beside the parameters, float32, kept tensor by tensor: `slots[t][i]` is vector i's part."""

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
    """What of a state a client needs when it is sent one: the parameters or not, and which vectors (None: all)."""

    params: bool = True
    vectors: tuple[int, ...] | None = None


EVERYTHING = Part()


@dataclass(frozen=True)
class RuleState:
    """What a method's rule carries from round to round beside the parameters.

    Derive a frozen dataclass whose fields are `Vectors`, tensors, and plain values that msgpack can write. All of it is
    in checkpoints, in snapshots and in what a site keeps on its disk.
    """

    def part(self, client: int) -> Part:
        """What of the state this client needs when it is sent one."""
        return EVERYTHING

    def model(self, params: Params, client: int) -> Params:
        """The model that this client's values are computed on."""
        return params

    def rebuild_params(self, params: Params, keys: Keys) -> None:
        """Overwrite parameters that a state came without (see `part`): they follow from the rest of it."""

    def estimate(self) -> tuple[float, float] | None:
        """Where the method has one: the objective's value at the parameters, and its standard error."""
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
        """The plain values: 0 where there are none, or all are empty; one count as it is; else all of them, packed."""
        plain = [value for value in self._values() if not isinstance(value, Vectors | Tensor)]
        if not any(plain):
            return 0
        return plain[0] if len(plain) == 1 and isinstance(plain[0], int) else msgspec.msgpack.encode(plain)

    def with_numbers(self, numbers: Numbers) -> RuleState:
        """This value with the plain values that `numbers` gave."""
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
        """Whether nothing is carried: there is no value to write."""
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
    """Lists that msgpack made of tuples, as they were."""
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
    """A replica: parameters, how many rounds it has seen, how many clients there are, and what the rule carries."""

    params: Params
    carry: Any = NOTHING
    round: int = 0
    clients: int = 1

    @property
    def scale(self) -> Scale:
        return Scale(self.params.size, self.clients)

    def branch(self) -> State:
        """A copy to walk away with; *revert* is dropping it."""
        return replace(self, params=self.params.clone(), carry=self.carry.clone())

    def digest(self, client: int) -> bytes:
        """Of the model that a client's values are computed on."""
        digest: bytes = self.carry.model(self.params, client).digest()
        return digest

    def tensors(self, part: Part = EVERYTHING) -> list[Tensor]:
        return [*(self.params.tensors.values() if part.params else ()), *self.carry.tensors(part.vectors)]

    @property
    def numbers(self) -> Numbers:
        numbers: Numbers = self.carry.numbers()
        return numbers

    def to_bytes(self, part: Part = EVERYTHING) -> bytes:
        """Tensors as raw bytes; round and numbers travel beside them."""
        return to_bytes(self.tensors(part))

    def restored(self, data: bytes, round: int, numbers: Numbers, part: Part = EVERYTHING) -> State:
        """This state with its tensors overwritten from `to_bytes`."""
        from_bytes(data, self.tensors(part))
        self.params.changed()
        return replace(self, round=round, carry=self.carry.with_numbers(numbers))
