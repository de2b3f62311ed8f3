"""Parameters: named tensors as one index space, read through views and changed by folds.

    params.view(terms)    the model at x + Σ c z; x itself untouched
    params.fold(terms)    x ← x + Σ c z, all terms in one pass over memory

There is no perturb-and-restore, hence no rounding drift. Each tensor has an ordinal, its position in the list, and its
own direction stream, so tensors can be made one at a time and on different devices.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedzero.directions import Domain, Piece, Program, Rule, Terms, kernels
from fedzero.directions.spec import SQUARES_SCALE
from fedzero.errors import FedzeroError
from fedzero.model.identity import Identity

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
Slots = tuple[tuple[Tensor, ...], ...]
"""Memory of a rule: for each tensor of the parameters as many float32 tensors as the rule needs."""
_HASHED = 1 << 24
"""Coordinates that are brought from a GPU at once to be hashed."""


class Params:
    """An ordered set of named tensors that share storage with whatever owns them (a module, a vector).

    Changed in place, and only by `advance`, `add` and `load`. `nearest` rounds 16-bit parameters to nearest instead of
    stochastically: steps smaller than half a unit are then lost. It exists for comparison.
    """

    def __init__(self, tensors: Mapping[str, Tensor], nearest: bool = False):
        if not tensors:
            raise FedzeroError("the model has no trainable parameters: unfreeze at least one tensor")
        for name, tensor in tensors.items():
            if tensor.dtype not in DTYPES:
                raise FedzeroError(f"parameter {name!r} is {tensor.dtype}; use float32, bfloat16 or float16")
            if not tensor.is_contiguous():
                raise FedzeroError(f"parameter {name!r} is not contiguous; call .contiguous() on it first")
        self.tensors: dict[str, Tensor] = {name: tensor.detach() for name, tensor in tensors.items()}
        self.nearest = nearest
        self._flat = tuple(tensor.view(-1) for tensor in self.tensors.values())
        self._columns = tuple(map(columns_of, self.tensors.values()))
        self._ordinals = {name: ordinal for ordinal, name in enumerate(self.tensors)}
        self._listing: tuple[Slots | None, Any] | None = None
        self._kernels = kernels(self.device)
        self._digest: bytes | None = None
        self._sha256: bytes | None = None

    @staticmethod
    def of_vector(vector: Tensor) -> Params:
        return Params({"x": vector})

    @staticmethod
    def of_module(module: torch.nn.Module, nearest: bool = False) -> Params:
        """The trainable parameters of a module: tied ones once, frozen ones and buffers not at all."""
        trainable = {n: p for n, p in module.named_parameters(remove_duplicate=True) if p.requires_grad}
        for parameter in trainable.values():
            if not parameter.is_contiguous():
                parameter.data = parameter.data.contiguous()
        return Params({name: parameter.data for name, parameter in trainable.items()}, nearest)

    @property
    def device(self) -> torch.device:
        return next(iter(self.tensors.values())).device

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.tensors)

    def ordinal(self, name: str) -> int:
        """The position of a tensor, which names its direction stream."""
        return self._ordinals[name]

    @property
    def size(self) -> int:
        """d, the number of coordinates."""
        return sum(flat.numel() for flat in self._flat)

    def flat(self) -> Iterator[tuple[int, Tensor]]:
        """(ordinal, flat tensor) pairs."""
        return enumerate(self._flat)

    def clone(self) -> Params:
        return Params({name: tensor.clone() for name, tensor in self.tensors.items()}, self.nearest)

    def view(self, terms: Terms) -> View:
        return View(self, terms)

    def fold(self, terms: Terms, rounding: int = 0) -> None:
        """x ← x + Σ c z. 16-bit parameters are rounded once, stochastically, with the key `rounding`."""
        self.advance(Program.of([terms], [rounding]))

    def advance(self, program: Program, slots: Slots | None = None) -> None:
        """Run the steps of a program (see `Rule`) in one pass over memory."""
        self.changed()
        if self._listing is None or self._listing[0] is not slots:
            self._listing = self._listed(slots)
        if not self.nearest:
            self._kernels.advance_all(self._listing[1], program)
        elif program.rule is Rule.SGD:
            for terms in program.steps():
                self._kernels.perturb_all(self._listing[1], terms)
        else:
            raise FedzeroError(f"rounding to nearest is for plain steps, not for {program.rule.name.lower()}")

    def _listed(self, slots: Slots | None) -> tuple[Slots | None, Any]:
        """All tensors, to be changed in place by one launch; kept with the slots they were listed with."""
        pieces = [Piece(flat, flat, slots[i] if slots else (), i, self._columns[i]) for i, flat in self.flat()]
        return slots, self._kernels.listing(pieces)

    def listing(self, names: Sequence[str], outs: Sequence[Tensor]) -> Any:
        """Some tensors, and flat ones of the same sizes and types that views of them are written to by one launch."""
        pairs = zip(map(self.ordinal, names), outs, strict=True)
        return self._kernels.listing([Piece(self._flat[i], out, (), i, self._columns[i]) for i, out in pairs])

    def changed(self) -> None:
        """To be called after writing to the tensors from outside: the digests are out of date."""
        self._digest = self._sha256 = None

    def zeros(self) -> Tensor:
        """A float32 vector of d zeros, where the parameters are."""
        return torch.zeros(self.size, dtype=torch.float32, device=self.device)

    def total(self, terms: Terms) -> Tensor:
        """Σ c z as one float32 vector of d numbers."""
        program = Program.of([terms], [0])
        return self._filled(lambda piece, i: self._kernels.advance(piece.zero_(), (), program, i, self._columns[i]))

    def direction(self, stream: Domain, key: int) -> Tensor:
        """z(key) as one float32 vector; for tests and small problems."""
        columns = self._columns
        return self._filled(lambda piece, i: self._kernels.generate(piece, stream, key, i, columns=columns[i]))

    def _filled(self, fill: Callable[[Tensor, int], None], *rows: int) -> Tensor:
        """(*rows, d) float32; `fill(piece, ordinal)` writes the piece (*rows, n) of each tensor."""
        pieces = [torch.empty(*rows, flat.numel(), dtype=torch.float32, device=self.device) for flat in self._flat]
        for ordinal, piece in enumerate(pieces):
            fill(piece, ordinal)
        return torch.cat(pieces, dim=-1)

    def slots(self, count: int) -> Slots:
        """Zeroed memory for a rule."""
        return tuple(
            tuple(torch.zeros(f.numel(), dtype=torch.float32, device=f.device) for _ in range(count))
            for f in self._flat
        )

    def digest(self) -> bytes:
        """8 bytes that tell two models apart: names, types and shapes, and an order-free checksum of the bits.

        Runs at memory speed and is equal on CPU and GPU; it finds accidents, not adversaries (see `Identity`). Kept
        until the next change.
        """
        if self._digest is None:
            hasher = hashlib.blake2b(digest_size=8, person=b"fedzero-model")
            self._listing = self._listing or self._listed(None)
            sums = self._kernels.checksums(self._listing[1])
            for ordinal, header in enumerate(self._headers()):
                total = sums.get(ordinal, 0)  # lists may leave out tensors without coordinates
                hasher.update(header + total.to_bytes(8, "little"))
            self._digest = hasher.digest()
        return self._digest

    def _headers(self) -> Iterator[bytes]:
        """Name, type and shape of each tensor, as both digests take them."""
        for name, tensor in self.tensors.items():
            yield f"{name}\0{str(tensor.dtype).removeprefix('torch.')}\0{tuple(tensor.shape)}\0".encode()

    def sha256(self) -> bytes:
        """32 bytes that nobody can find another model for: SHA-256 over names, types, shapes and all bits.

        At about 1 GB/s on a CPU, so once per evaluation and not once per reply. Kept until the next change.
        """
        if self._sha256 is None:
            hasher = hashlib.sha256(b"fedzero model 1")
            for header, flat in zip(self._headers(), self._flat, strict=True):
                hasher.update(struct.pack("<QQ", len(header), flat.numel() * flat.element_size()) + header)
                for piece in torch.split(flat, _HASHED):
                    hasher.update(piece.cpu().view(torch.uint8).numpy().data)
            self._sha256 = hasher.digest()
        return self._sha256

    @property
    def identity(self) -> Identity:
        return Identity(self.digest(), self.sha256())

    def matches(self, model: Identity) -> bool:
        """Whether these are the values of a model; by SHA-256, where that is known."""
        return self.digest() == model.digest and model.sha256 in (b"", self.sha256())

    def vector(self) -> Tensor:
        """All coordinates as one float32 vector, a copy."""
        return torch.cat([flat.float() for flat in self._flat])

    def split(self, vector: Tensor) -> Iterator[Tensor]:
        """Cut a vector of d numbers into the pieces of the tensors."""
        if vector.numel() != self.size:
            raise FedzeroError(f"a vector of {vector.numel()} numbers does not fit a model of {self.size}")
        return iter(torch.split(vector, [flat.numel() for flat in self._flat]))

    def add(self, vector: Tensor, rounding: int = 0) -> None:
        """x ← x + vector; 16-bit parameters are rounded stochastically."""
        self.changed()
        for (ordinal, flat), piece in zip(self.flat(), self.split(vector.to(self.device)), strict=True):
            if flat.dtype == torch.float32:
                flat.add_(piece)
            elif self.nearest:
                flat.copy_(flat.float() + piece)
            else:
                self._kernels.round_into(flat, flat.float() + piece, rounding, ordinal)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite the values from tensors of the same names and shapes."""
        missing = [name for name in self.tensors if name not in tensors]
        if missing:
            raise FedzeroError(f"the model to load lacks {missing[0]!r} (and {len(missing) - 1} more)")
        self.changed()
        for name, tensor in self.tensors.items():
            if tensors[name].shape != tensor.shape:
                raise FedzeroError(
                    f"{name!r} has shape {tuple(tensors[name].shape)} there and {tuple(tensor.shape)} here"
                )
            tensor.copy_(tensors[name])

    def norm(self, key: int) -> float:
        """‖z(key)‖ of a gaussian direction over all tensors, the same on every device."""
        return _norm(tuple(flat.numel() for flat in self._flat), self.device, key)

    def at(self, points: Sequence[Terms]) -> Tensor:
        """x + Σ c z of every point as a row of a (points, d) float32 matrix: what the views give, to the last bit."""
        if any(flat.dtype != torch.float32 for flat in self._flat):
            return torch.stack([self.view(terms).vector() for terms in points])
        program = replace(Program.of(points, [0] * len(points)), stream=max(points, key=len).stream)
        columns, flat = self._columns, self._flat
        return self._filled(lambda x, i: self._kernels.points(flat[i], x, program, i, columns[i]), len(points))

    def offsets(self, points: Sequence[Terms]) -> Tensor:
        """c z of every point as a row of a (points, d) float32 matrix, all made at once; a point has at most one term.

        x + row is what the view gives, to the last bit. With more terms it would not be: (x + c₁z₁) + c₂z₂ rounds
        differently from x + (c₁z₁ + c₂z₂).
        """
        if any(len(terms) > 1 for terms in points):
            raise ValueError("offsets are of points with one term at most: use views")
        rows = [row for row, terms in enumerate(points) if len(terms)]
        if not rows:
            return torch.zeros(len(points), self.size, dtype=torch.float32, device=self.device)
        p, columns = Program.of([points[row] for row in rows], [0] * len(rows)), self._columns
        terms = Terms(p.keys, p.coefficients, p.stream)
        moved = self._filled(lambda piece, i: self._kernels.spread(piece, terms, i, columns[i]), len(rows))
        if len(rows) == len(points):
            return moved
        out = torch.zeros(len(points), self.size, dtype=torch.float32, device=self.device)
        out[rows] = moved
        return out


def columns_of(tensor: Tensor) -> int:
    """Of a tensor as a matrix (first axis × rest), which directions of rank one take it for; 0 for a vector."""
    return 0 if tensor.dim() < 2 or not tensor.numel() else tensor.numel() // len(tensor)


@lru_cache(maxsize=4096)
def _norm(sizes: tuple[int, ...], device: torch.device, key: int) -> float:
    """Kept, because a cohort that shares directions needs the same norms."""
    total = sum(kernels(device).squares(key, ordinal, n, device) for ordinal, n in enumerate(sizes))
    return math.sqrt(total / SQUARES_SCALE)


@dataclass(frozen=True)
class View:
    """The model at x + Σ c z, made tensor by tensor when it is read."""

    params: Params
    terms: Terms

    def write(self, out: Mapping[str, Tensor]) -> None:
        """Materialise into tensors of the same names, shapes and types."""
        names = self.params.names
        self.write_listed(self.params.listing(names, [out[name].view(-1) for name in names]))

    def write_listed(self, listing: Any) -> None:
        """Materialise into the tensors of a `Params.listing`."""
        self.params._kernels.perturb_all(listing, self.terms)

    def rows(self, name: str, ids: Tensor) -> Tensor:
        """Some rows of a matrix (V, H), and no others: (*ids.shape, H). A vector is a column."""
        p = self.params
        matrix = p.tensors[name].view(len(p.tensors[name]), -1)
        out = torch.empty(*ids.shape, matrix.shape[1], dtype=matrix.dtype, device=matrix.device)
        p._kernels.rows(matrix, ids.reshape(-1), out.view(-1, matrix.shape[1]), self.terms, p.ordinal(name))
        return out

    def tensors(self) -> dict[str, Tensor]:
        out = {name: torch.empty_like(tensor) for name, tensor in self.params.tensors.items()}
        self.write(out)
        return out

    def vector(self) -> Tensor:
        return torch.cat([t.reshape(-1).float() for t in self.tensors().values()])


def to_bytes(tensors: Sequence[Tensor]) -> bytes:
    """The raw little-endian bytes of tensors, one after the other."""
    return b"".join(t.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes() for t in tensors)


def from_bytes(data: bytes, into: Sequence[Tensor]) -> None:
    """Fill tensors from `to_bytes`; the sizes must match exactly."""
    expected = sum(t.numel() * t.element_size() for t in into)
    if len(data) != expected:
        raise FedzeroError(f"{len(data)} bytes do not fit tensors of {expected} bytes")
    offset = 0
    for tensor in into:
        count = tensor.numel() * tensor.element_size()
        raw = torch.from_numpy(np.frombuffer(data, np.uint8, count, offset).copy())
        tensor.view(-1).copy_(raw.view(tensor.dtype))
        offset += count
