"""The core as a native library, called by ctypes: what tests, benches and the script of the vectors use.

The library is compiled by the system's compiler into a folder that is named by a hash of sources and flags, so that it
is made once.
"""

from __future__ import annotations

import ctypes as C
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from structures import (
    ENTROPY,
    ORACLE,
    Batch,
    Group,
    Instruction,
    Layer,
    Network,
    Oracle,
    Plan,
    Points,
    Reply,
    Span,
    Step,
    Tensor,
    Term,
    Update,
)

ROOT = Path(__file__).parent
SOURCES = sorted((ROOT / "src").glob("*.c"))
FLAGS = ("-std=c99", "-O3", "-ffp-contract=off", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror")

RADEMACHER, RANK_ONE = 2, 4
SGD, MOMENTUM = 0, 1
FORWARD, CENTRAL = 0, 1
STATUS = ("ok", "argument", "memory", "number", "message", "entropy", "oracle")

F32 = NDArray[np.float32]


def compiler() -> str | None:
    """The system's C compiler, if there is one."""
    return shutil.which(os.environ.get("CC", "cc"))


def build(flags: Sequence[str] = (), cc: str | None = None) -> Path:
    """The shared library, compiled if it is not there yet."""
    cc = cc or compiler()
    assert cc is not None
    command = [cc, *FLAGS, *flags, f"-I{ROOT / 'include'}", *map(str, SOURCES)]
    hasher = hashlib.sha256(" ".join(command).encode())
    for path in (*SOURCES, *sorted((ROOT / "src").glob("*.h")), *sorted((ROOT / "include").glob("*.h"))):
        hasher.update(path.read_bytes())
    folder = Path(tempfile.gettempdir()) / f"fedzero-core-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    out = folder / f"{hasher.hexdigest()[:16]}.so"
    if not out.exists():
        made = out.with_suffix(f".{os.getpid()}")
        subprocess.run([*command, "-o", str(made)], check=True)
        made.replace(out)  # another process may have made it at the same time
    return out


class Failed(Exception):
    """A status other than FZ_OK."""


def pointer(array: NDArray[np.generic], kind: type) -> object:
    return array.ctypes.data_as(C.POINTER(kind))


class Model:
    """Named float32 arrays as an array of fz_tensor; they are changed in place."""

    def __init__(self, tensors: dict[str, F32], momentum: bool = False):
        self.values = list(tensors.values())
        assert all(v.dtype == np.float32 and v.flags.c_contiguous for v in self.values)
        self.momentum = [np.zeros(v.size, np.float32) for v in self.values] if momentum else []
        self._shapes = [(C.c_uint32 * max(v.ndim, 1))(*v.shape) for v in self.values]
        self.tensors = (Tensor * len(self.values))()
        for i, (name, value) in enumerate(tensors.items()):
            memory = self.momentum[i].ctypes.data if momentum else None
            self.tensors[i] = Tensor(name.encode(), self._shapes[i], value.ndim, value.ctypes.data, memory)

    def __len__(self) -> int:
        return len(self.values)


def terms_of(keys: Sequence[int], coefficients: Sequence[float]) -> C.Array[Term]:
    return (Term * max(len(keys), 1))(*(Term(k, c) for k, c in zip(keys, coefficients, strict=True)))


def memory(size: int) -> NDArray[np.uint8]:
    """Bytes at an address that is a multiple of 16."""
    whole = np.zeros(size + 16, np.uint8)
    begin = -whole.ctypes.data % 16
    return whole[begin : begin + size]


class Core:
    """The library, with Python types."""

    def __init__(self, path: Path):
        self.lib = lib = C.CDLL(str(path))
        for name, result, arguments in (
            ("fz_direction_key", C.c_uint64, [C.c_char_p] + [C.c_int64] * 4),
            ("fz_root", None, [C.c_int64, C.c_char_p]),
            ("fz_checksum", C.c_uint64, [C.c_void_p, C.c_uint32]),
            ("fz_block", None, [C.c_uint64, C.c_uint64, C.c_uint32, C.c_uint32, C.c_void_p]),
            ("fz_row_signs", None, [C.c_uint64, C.c_uint32, C.c_uint32, C.c_void_p]),
            ("fz_column_signs", None, [C.c_uint64, C.c_uint32, C.c_uint32, C.c_void_p]),
            ("fz_view", None, [C.c_void_p, C.c_uint32, C.c_int, Term, C.c_void_p]),
            ("fz_clip", None, [C.c_void_p, C.c_uint32, C.c_double]),
            ("fz_coefficients", None, [C.c_void_p, C.c_uint32, C.c_double, C.c_void_p]),
            ("fz_sample", C.c_uint32, [C.c_uint64, C.c_uint32, C.c_uint32, C.c_void_p]),
            ("fz_poisson", C.c_uint32, [C.c_uint64, C.c_uint32, C.c_double, C.c_uint32, C.c_void_p]),
            ("fz_write_reply", C.c_size_t, [C.c_void_p, C.c_void_p, C.c_size_t]),
            ("fz_allowance", C.c_uint64, [C.c_double, C.c_int32, C.c_uint32]),
            ("fz_client_size", C.c_size_t, [C.c_void_p, C.c_void_p, C.c_uint32]),
            ("fz_network_size", C.c_size_t, [C.c_void_p, C.c_void_p, C.c_uint32, C.c_int, C.c_uint32]),
        ):
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments

    @staticmethod
    def _expect(status: int) -> None:
        if status:
            raise Failed(STATUS[status])

    def root(self, seed: int) -> bytes:
        out = C.create_string_buffer(32)
        self.lib.fz_root(seed, out)
        return out.raw

    def shifted_root(self, root: bytes, secret: bytes) -> bytes:
        out = C.create_string_buffer(32)
        self._expect(self.lib.fz_shifted_root(root, secret, C.c_size_t(len(secret)), out))
        return out.raw

    def key(self, root: bytes, purpose: str, *numbers: int) -> int:
        out = C.c_uint64()
        given = (C.c_int64 * max(len(numbers), 1))(*numbers)
        self._expect(self.lib.fz_key(root, purpose.encode(), given, len(numbers), C.byref(out)))
        return out.value

    def direction_key(self, root: bytes, round: int, step: int, direction: int, client: int = -1) -> int:
        return int(self.lib.fz_direction_key(root, round, step, direction, client))

    def block(self, key: int, block: int, ordinal: int, domain: int) -> list[int]:
        out = np.zeros(4, np.uint32)
        self.lib.fz_block(key, block, ordinal, domain, out.ctypes.data)
        return [int(word) for word in out]

    def signs(self, key: int, ordinal: int, count: int, columns: bool = False) -> F32:
        out = np.zeros(count, np.float32)
        made = self.lib.fz_column_signs if columns else self.lib.fz_row_signs
        made(key, ordinal, count, out.ctypes.data)
        return out

    def view(self, model: Model, tensor: int, stream: int, key: int, coefficient: float) -> F32:
        out = np.empty_like(model.values[tensor])
        self.lib.fz_view(C.byref(model.tensors[tensor]), tensor, stream, Term(key, coefficient), out.ctypes.data)
        return out

    def direction(self, stream: int, key: int, ordinal: int, shape: tuple[int, ...]) -> F32:
        """z(key) of one tensor, by a view of noughts."""
        own = Model({"x": np.zeros(shape, np.float32)})
        out = np.empty(shape, np.float32)
        self.lib.fz_view(own.tensors, ordinal, stream, Term(key, 1.0), out.ctypes.data)
        return out

    def advance(
        self,
        model: Model,
        stream: int,
        steps: Sequence[tuple[Sequence[int], Sequence[float]]],
        rule: int = SGD,
        hypers: Sequence[Sequence[float]] | None = None,
    ) -> None:
        """Steps of (keys, coefficients), with (η, β, β′) each for momentum."""
        terms = [terms_of(*step) for step in steps]
        hypers = hypers or [(0.0, 0.0, 0.0)] * len(steps)
        table = (Step * len(steps))(*(Step(t, len(k), *h) for t, (k, _), h in zip(terms, steps, hypers, strict=True)))
        self._expect(self.lib.fz_advance(model.tensors, len(model), stream, rule, table, len(steps)))

    def checksum(self, values: F32) -> int:
        return int(self.lib.fz_checksum(values.ctypes.data, values.size))

    def digest(self, model: Model) -> bytes:
        out = C.create_string_buffer(8)
        self.lib.fz_digest(model.tensors, len(model), out)
        return out.raw

    def slopes(self, values: Sequence[float], difference: int, directions: int, radius: float) -> tuple[F32, float]:
        given, out, loss = np.array(values, np.float64), np.zeros(directions, np.float32), C.c_double()
        self._expect(
            self.lib.fz_slopes(
                pointer(given, C.c_double), difference, directions, C.c_double(radius), pointer(out, C.c_float),
                C.byref(loss),
            )
        )  # fmt: skip
        return out, loss.value

    def coefficients(self, slopes: F32, factor: float) -> F32:
        out = np.zeros(slopes.size, np.float32)
        self.lib.fz_coefficients(slopes.ctypes.data, slopes.size, factor, out.ctypes.data)
        return out

    def clip(self, values: F32, norm: float) -> F32:
        out = values.copy()
        self.lib.fz_clip(out.ctypes.data, out.size, norm)
        return out

    def allowance(self, clip: float, exponent: int, count: int) -> int:
        return int(self.lib.fz_allowance(clip, exponent, count))

    def private(
        self, values: F32, clip: float, exponent: int, normalise: bool, entropy: Callable[[int], bytes] | None
    ) -> NDArray[np.int32]:
        def drawn(_: object, out: C.POINTER(C.c_uint8), count: int) -> int:  # type: ignore[valid-type]
            assert entropy is not None
            C.memmove(out, entropy(count), count)
            return 0

        source = ENTROPY(drawn) if entropy else ENTROPY()
        scratch, whole = np.zeros(values.size), np.zeros(values.size, np.int32)
        self._expect(
            self.lib.fz_private(
                pointer(values, C.c_float), values.size, C.c_double(clip), exponent, int(normalise), source, None,
                pointer(scratch, C.c_double), pointer(whole, C.c_int32),
            )
        )  # fmt: skip
        return whole

    def sample(self, key: int, count: int, size: int) -> list[int]:
        out = np.zeros(max(min(count, size), 1), np.uint32)
        return [int(place) for place in out[: self.lib.fz_sample(key, count, size, out.ctypes.data)]]

    def poisson(self, key: int, count: int, rate: float, most: int | None = None) -> tuple[int, list[int]]:
        """How many were drawn, and the first `most` of them."""
        most = count if most is None else most
        out = np.zeros(max(most, 1), np.uint32)
        drawn = int(self.lib.fz_poisson(key, count, rate, most, out.ctypes.data))
        return drawn, [int(place) for place in out[: min(drawn, most)]]


class Messages:
    """Messages as the core reads them; None where it refuses them."""

    def __init__(self, core: Core):
        self.core = core

    def instruction(self, data: bytes) -> tuple[Instruction, list[tuple[Update, list[tuple[int, bytes]]]]] | None:
        """An instruction, and its updates with their groups."""
        # Exactly as many bytes as there are, so that a sanitizer would see a read beyond the end.
        kept, found, updates = (C.c_uint8 * len(data))(*data), Instruction(), []
        if self.core.lib.fz_read_instruction(kept, C.c_size_t(len(data)), C.byref(found)):
            return None
        for _ in range(found.update_count):
            update, groups = Update(), []
            self.core._expect(self.core.lib.fz_next_update(C.byref(found.updates), C.byref(update)))
            for _ in range(update.group_count):
                asked, scalars = C.c_int64(), Span()
                self.core._expect(self.core.lib.fz_next_group(C.byref(update.groups), C.byref(asked), C.byref(scalars)))
                groups.append((asked.value, scalars.raw()))
            assert not update.groups.count
            updates.append((update, groups))
        assert not found.updates.count
        found._kept = kept
        return found, updates

    def reply(self, data: bytes) -> Reply | None:
        kept, found = (C.c_uint8 * len(data))(*data), Reply()
        if self.core.lib.fz_read_reply(kept, C.c_size_t(len(data)), C.byref(found)):
            return None
        found._kept = kept
        return found

    def written(self, reply: Reply) -> bytes:
        size = self.core.lib.fz_write_reply(C.byref(reply), None, 0)
        out = C.create_string_buffer(size)
        assert self.core.lib.fz_write_reply(C.byref(reply), out, size) == size
        return out.raw


class Networked:
    """A network of layers [(kind, outputs, kernel, padding), …] on inputs (n, channels, height, width) with labels."""

    def __init__(
        self,
        core: Core,
        model: Model,
        layers: Sequence[Sequence[int]],
        inputs: F32,
        labels: NDArray[np.uint8],
        rows_at_once: int = 32,
    ):
        self.core, self.model, self.inputs, self.labels = core, model, np.ascontiguousarray(inputs), labels
        self._layers = (Layer * len(layers))(*(Layer(*layer) for layer in layers))
        self.network = Network(*inputs.shape[1:], self._layers, len(layers), rows_at_once)
        self._memory = np.zeros(0, np.uint8)

    def size(self, stream: int, directions: int) -> int:
        model = self.model
        return int(self.core.lib.fz_network_size(C.byref(self.network), model.tensors, len(model), stream, directions))

    def _ready(self, places: Sequence[int] | None, stream: int, directions: int) -> tuple[Batch, list[object]]:
        chosen = None if places is None else np.array(places, np.uint32)
        size = self.size(stream, directions)
        if self._memory.size < size:
            self._memory = memory(size)
        rows, at = (len(self.labels), None) if chosen is None else (chosen.size, chosen.ctypes.data)
        return Batch(self.inputs.ctypes.data, self.labels.ctypes.data, at, rows), [chosen]

    def values(
        self, stream: int, keys: Sequence[int], coefficients: Sequence[float], places: Sequence[int] | None = None
    ) -> NDArray[np.float64]:
        terms, model = terms_of(keys, coefficients), self.model
        return self.at(Points(model.tensors, len(model), stream, terms, len(keys)), places)

    def at(self, points: Points, places: Sequence[int] | None = None) -> NDArray[np.float64]:
        """The values at points, on some rows."""
        batch, _kept = self._ready(places, points.stream, points.count)
        out = np.zeros(points.count)
        self.core._expect(
            self.core.lib.fz_network_values(
                C.byref(self.network), C.byref(batch), C.byref(points), C.c_void_p(self._memory.ctypes.data),
                C.c_size_t(self._memory.size), pointer(out, C.c_double),
            )
        )  # fmt: skip
        return out

    def classes(self) -> NDArray[np.uint32]:
        batch, _kept = self._ready(None, RANK_ONE, 1)
        out, model = np.zeros(len(self.labels), np.uint32), self.model
        self.core._expect(
            self.core.lib.fz_network_classes(
                C.byref(self.network), C.byref(batch), model.tensors, len(model), C.c_void_p(self._memory.ctypes.data),
                C.c_size_t(self._memory.size), pointer(out, C.c_uint32),
            )
        )  # fmt: skip
        return out


class Client:
    """A client of the core on a model."""

    def __init__(self, core: Core, plan: Plan, root: bytes, model: Model):
        self.core, self.plan, self.model = core, plan, model
        size = core.lib.fz_client_size(C.byref(plan), model.tensors, len(model))
        self.size, self._memory, self._client = size, memory(size), C.c_void_p()
        core._expect(
            core.lib.fz_client_init(
                C.c_void_p(self._memory.ctypes.data), C.c_size_t(size), C.byref(plan), root, model.tensors, len(model),
                C.byref(self._client),
            )
        )  # fmt: skip

    def apply(self, rate: float, groups: Sequence[tuple[int, F32]]) -> None:
        rows = [(asked, np.ascontiguousarray(scalars, np.float32).reshape(-1)) for asked, scalars in groups]
        table = (Group * max(len(rows), 1))(*(Group(a, pointer(g, C.c_float), g.size) for a, g in rows))
        self.core._expect(self.core.lib.fz_client_apply(self._client, C.c_double(rate), table, len(rows)))

    def turn(
        self, round: int, rate: float, directions: int, values: Callable[[Points, int, int], Sequence[float]]
    ) -> tuple[F32, float]:
        """values(points, round, step): at all points."""

        def called(_: object, points: C.POINTER(Points), at: int, step: int, out: C.POINTER(C.c_double)) -> int:  # type: ignore[valid-type]
            for i, value in enumerate(values(points.contents, at, step)):  # type: ignore[attr-defined]
                out[i] = value  # type: ignore[index]
            return 0

        oracle = Oracle(ORACLE(called), None)
        out, loss = np.zeros(self.plan.local_steps * directions, np.float32), C.c_double()
        self.core._expect(
            self.core.lib.fz_client_turn(
                self._client, C.c_int64(round), C.c_double(rate), directions, C.byref(oracle), pointer(out, C.c_float),
                C.byref(loss),
            )
        )  # fmt: skip
        return out.reshape(self.plan.local_steps, directions), loss.value
