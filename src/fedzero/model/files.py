"""Files that are there whole or not at all, keys of a user, and arrays in `.npz` files."""

from __future__ import annotations

import fcntl
import lzma
import os
import secrets
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec
import numpy as np

from fedzero.errors import FedzeroError, Invalid
from fedzero.folders import state_folder
from fedzero.model import toml
from fedzero.model.decoding import reading

T = TypeVar("T")
_KEY = 32
"""Bytes of a key of a user's own."""


@contextmanager
def draft_of(path: Path, durable: bool = False, private: bool = False) -> Iterator[Path]:
    """A file to write to, which replaces `path` if no exception is raised; `durable`: and is then on the disk;
    `private`: and nobody but its owner can read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        _make(draft, 0o600 if private else 0o666)
        yield draft
        if durable:
            _sync(draft)
        draft.replace(path)
        if durable:
            _sync(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def _make(path: Path, mode: int) -> None:
    """An empty file of one's own. What has its name is taken away: in a folder that somebody else filled it may be a
    link to another file."""
    path.unlink(missing_ok=True)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))


def hide(path: Path) -> None:
    """A file that only its owner can read and write; made if it is not there."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    path.chmod(0o600)


def write(path: Path, content: bytes | str, durable: bool = False, private: bool = False) -> None:
    """Replace the content of a file, whole or not at all."""
    with draft_of(path, durable, private) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def expect_folder(path: Path, what: str) -> None:
    """Refuse a path at which no folder is and none can be made, because it, or what it should be in, is a file.

    what: the path, as the sentence begins.
    """
    for place in (path, *path.parents):
        try:
            found = place.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError) as error:
            raise Invalid(f"{what} cannot be looked at ({getattr(error, 'strerror', error)}): name a folder") from None
        if not stat.S_ISDIR(found.st_mode):
            said = "is a file" if place == path else f"is below {place}, which is a file"
            raise Invalid(f"{what} {said}: name a folder")
        return


def share(*files: Path) -> None:
    """Give files the permissions any new one has: safetensors makes them for the owner's eyes alone."""
    for path in files:
        ordinary = path.with_name(path.name + ".mode")
        _make(ordinary, 0o666)
        path.chmod(ordinary.stat().st_mode)
        ordinary.unlink()


def own_key(name: str) -> bytes:
    """32 random bytes of this user on this machine, by name; made when they are first asked for.

    Whoever writes a file for himself to read again marks it with such a key: nothing in a folder that somebody else
    sent can have the mark. Raises `OSError` where the key can neither be read nor written.
    """
    path = state_folder() / f"{name}.key"
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    if not path.exists():
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        hide(draft)
        draft.write_bytes(secrets.token_bytes(_KEY))
        with suppress(FileExistsError):  # another process was quicker, and its key is as good
            os.link(draft, path)
        draft.unlink()
    about = path.lstat()
    if about.st_uid != os.getuid() or not stat.S_ISREG(about.st_mode) or about.st_size != _KEY:
        raise OSError(f"{path} is not a key of this user")
    return path.read_bytes()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait until no other process holds this file of the cache; a lock ends with the process that holds it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = path.with_suffix(".lock").open("w")
    except OSError as error:
        raise FedzeroError(
            f"the cache {path.parent} cannot be written ({error.strerror}): set FEDZERO_CACHE to another folder"
        ) from error
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def content(path: Path, most: int, what: str, pipe: bool = False) -> bytes:
    """All of a file that must not be larger than `most` bytes; `pipe`: or what comes through one. Nothing else is
    waited for, nor read into memory."""
    with open(path, "rb", opener=None if pipe else _at_once) as file:
        if not pipe and not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise FedzeroError(f"{path} is not a file")
        found = file.read(most + 1)
    if len(found) > most:
        raise FedzeroError(f"{path}: more than {most:,} bytes: {what} has fewer")
    return found


def _at_once(path: str, flags: int) -> int:
    """A pipe without a writer would be waited for."""
    return os.open(path, flags | os.O_NONBLOCK)


def decoded(path: Path, kind: type[T]) -> T:
    """The value that a JSON or TOML file holds."""
    found = content(path, toml.LARGEST, "such a file")
    with reading(f"{path}: {{}}"):
        if path.suffix == ".toml":
            return msgspec.convert(toml.parsed(found, str(path)), kind)
        return msgspec.json.decode(found, type=kind)


def load_arrays(source: Path | IO[bytes], *names: str) -> list[np.ndarray[Any, Any]]:
    """Arrays of an `.npz` file, in the order of the names."""
    try:
        with np.load(source) as data:
            return [data[name] for name in names]
    except FileNotFoundError:
        raise FedzeroError(f"{source} is missing: put it there, or point --data elsewhere") from None
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, lzma.LZMAError) as error:
        raise FedzeroError(f"{source} cannot be read: {error}") from error
