"""A fine-tune as a file of kilobytes: the updates of a seeded run, to be applied to the base checkpoint.

The file is msgpack behind its own SHA-256: who it is for (digest of the base), what it gives (digest of the result),
the method, the root of the directions, and the updates. Applying it is a replay without the ledger.

The directions of a private run follow from the clients' secret. Its patch has no root for them, unless it is made
`open`: to apply it, one needs the secret. Who knows the directions and the scalars of a run knows what they measure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from fedzero.directions import VERSION, Keys
from fedzero.directions.keys import fits, shift
from fedzero.errors import FedzeroError
from fedzero.ledger.best import best
from fedzero.ledger.replay import LedgerView, updates_of
from fedzero.ledger.store import Ledger
from fedzero.methods.contract import MOST_CLIENTS
from fedzero.model import distributions, files
from fedzero.model.decoding import reading
from fedzero.model.identity import Identity
from fedzero.model.updates import Update

MAGIC = "fedzero patch"
LARGEST = 1 << 30
"""Bytes of a file."""


class Patch(Struct, frozen=True, tag=MAGIC):
    """Everything but the base model."""

    directions: int
    base: bytes
    result: bytes
    tensors: tuple[str, ...]
    """names in the order of their ordinals"""
    algorithm: bytes
    """the method and its hyper-parameters, as JSON"""
    clients: Annotated[int, Meta(ge=1, le=MOST_CLIENTS)]
    root: bytes
    direction_root: bytes
    """empty: it follows from the secret whose fingerprint is `secret`"""
    updates: tuple[Update, ...]
    task: bytes = b""
    """what was trained, as JSON: how to open a base that is more than a file of tensors"""
    needs: dict[str, str] = {}
    """distributions that method and task come from, beside this one, and their versions"""
    secret: str | None = None
    base_sha256: bytes = b""
    """empty in patches of 0.2.0 and before"""
    result_sha256: bytes = b""

    def __post_init__(self) -> None:
        distributions.check(self.needs)

    @property
    def base_identity(self) -> Identity:
        return Identity(self.base, self.base_sha256)

    @property
    def result_identity(self) -> Identity:
        return Identity(self.result, self.result_sha256)

    def keys(self, secret: bytes | None) -> Keys:
        """Of the run; secret: of its clients, where the patch needs it."""
        if self.direction_root or self.secret is None:
            return Keys(self.root, self.direction_root)
        if secret is None:
            raise FedzeroError("the patch is of a private run: give the clients' secret, --secret FILE")
        if not fits(secret, self.secret):
            raise FedzeroError("the secret is not the one that the run of this patch was started with")
        return Keys(self.root, shift(self.root, secret), self.secret)


def best_round(view: LedgerView) -> int:
    """The round of the best evaluation, by accuracy or loss; see `best`."""
    found = best(view.evaluations).round if view.evaluations else 0
    if not found:
        raise FedzeroError("no evaluation of this run is better than that of its base model: nothing to export")
    return found


def export(
    ledger: Ledger,
    view: LedgerView,
    algorithm: bytes,
    clients: int,
    tensors: tuple[str, ...],
    keys: Keys,
    task: bytes = b"",
    upto: int | None = None,
    needs: Mapping[str, str] | None = None,
    open_: bool = False,
) -> bytes:
    """The patch of a finished run, or of its first `upto` rounds, if the model there was evaluated; `open_`: also of a
    private run with the root of its directions."""
    if upto is None and view.end is None:
        raise FedzeroError(
            "the run is not finished: resume it first, or export an evaluated round with --round or --best"
        )
    models = dict(view.marks)
    upto = view.outline.done if upto is None else upto
    if upto not in models:
        known = ", ".join(map(str, models)) or "none yet"
        raise FedzeroError(
            f"--round {upto}: a patch needs the digest of its result, which evaluated rounds have: {known}"
        )
    if view.outline.dense:
        raise FedzeroError(
            "the updates of this run are dense, so it has no small patch: distribute model.safetensors instead"
        )
    updates = tuple(updates_of(ledger, view, upto))
    start = ledger.start()
    body = msgspec.msgpack.encode(
        Patch(
            VERSION,
            start.base,
            models[upto].digest,
            tensors,
            algorithm,
            clients,
            keys.root,
            keys.direction_root if open_ or keys.secret is None else b"",
            updates,
            task,
            dict(needs or {}),
            keys.secret,
            start.identity.sha256,
            models[upto].sha256,
        )
    )
    return hashlib.sha256(body).digest() + body


def is_private(content: bytes) -> bool:
    """Whether what `export` gave holds the fingerprint of a secret, or directions that follow from one."""
    return msgspec.msgpack.decode(content[32:], type=Patch).secret is not None


def load(path: Path) -> Patch:
    try:
        return decode(files.read(path, LARGEST), str(path))
    except OSError as error:
        raise FedzeroError(f"{path} is not a file: make a patch with `fedzero patch export`") from error


def decode(content: bytes, path: str) -> Patch:
    """The patch that a file holds; its SHA-256 tells damage, not malice."""
    body = memoryview(content)[32:]
    if hashlib.sha256(body).digest() != content[:32]:
        raise FedzeroError(f"{path} is damaged, or not a fedzero patch")
    with reading(f"{path} is not a fedzero patch: {{}}"):
        patch = msgspec.msgpack.decode(body, type=Patch)
    if patch.directions != VERSION:
        raise FedzeroError(f"{path} uses direction stream {patch.directions}, this release has stream {VERSION}")
    return patch
