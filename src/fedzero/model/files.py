"""Files that are there whole or not at all, files that others may have put there, keys of a user, and arrays in `.npz`
files.

What lies under a name in a folder that somebody else made may be anything: a pipe that nobody writes to, a device that
never ends, a sparse file of terabytes. Every file is opened by `opened` or `read`, or, where a library opens it, after
`expect`: all of them judge type and size before a byte is read.
"""

from __future__ import annotations

import fcntl
import lzma
import math
import os
import secrets
import stat
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec
import numpy as np

from fedzero.errors import FedzeroError, Invalid
from fedzero.folders import state_folder
from fedzero.model import toml
from fedzero.model.decoding import reading

T = TypeVar("T")
SMALL = 1 << 20
"""Bytes of keys, marks and what processes tell each other in files, at most."""
LARGEST_ARRAYS = 1 << 32
"""Bytes of an `.npz` file, and of the arrays in it."""
_KEY = 32
"""Bytes of a key of a user's own."""
_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
)


class Unfit(FedzeroError):
    """What lies under a name is no file, or larger than a file of its kind may be."""


def expect(path: Path, most: int | None = None) -> None:
    """Refuse what is no file, or has more than `most` bytes; nothing is opened.

    Symbolic links are followed: data sets and caches of models consist of them. Raises `OSError` where nothing is.
    """
    _judge(path, path.stat(), most)


def opened(path: Path, most: int | None = None) -> IO[bytes]:
    """A file open for reading. Never waits; raises `Unfit` or `OSError`."""
    expect(path, most)  # first, since some devices act when they are opened
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY), "rb")
    try:
        _judge(path, os.fstat(file.fileno()), most)
    except BaseException:
        file.close()
        raise
    return file


def read(path: Path, most: int) -> bytes:
    """The content of a file of at most `most` bytes. Raises `Unfit` or `OSError`."""
    with opened(path, most) as file:
        return file.read(os.fstat(file.fileno()).st_size)  # files of the kernel say 0, and may have no end


def memory() -> int:
    """Bytes of this machine's memory: no file is read that is larger."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _judge(path: Path, about: os.stat_result, most: int | None) -> None:
    if not stat.S_ISREG(about.st_mode):
        kind = next((name for test, name in _KINDS if test(about.st_mode)), "a device")
        raise Unfit(f"{path} is {kind}, not a file: remove it, or put the file there")
    if most is not None and about.st_size > most:
        raise Unfit(
            f"{path} has {about.st_size:,} bytes, and at most {most:,} are read: remove it, or put the right file there"
        )


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
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)


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
    return read(path, _KEY)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait until no other process holds this file of the cache; a lock ends with the process that holds it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        handle = os.open(path.with_suffix(".lock"), flags, 0o666)
    except OSError as error:
        raise FedzeroError(
            f"the cache {path.parent} cannot be written ({error.strerror}): set FEDZERO_CACHE to another folder"
        ) from error
    try:
        _judge(path.with_suffix(".lock"), os.fstat(handle), None)
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def decoded(path: Path, kind: type[T]) -> T:
    """The value that a JSON or TOML file holds."""
    found = read(path, toml.LARGEST)
    with reading(f"{path}: {{}}"):
        if path.suffix == ".toml":
            return msgspec.convert(toml.parsed(found, str(path)), kind)
        return msgspec.json.decode(found, type=kind)


def load_arrays(source: Path | IO[bytes], *names: str) -> list[np.ndarray[Any, Any]]:
    """Arrays of an `.npz` file, in the order of the names."""
    try:
        with opened(source, LARGEST_ARRAYS) if isinstance(source, Path) else nullcontext(source) as file:
            _expect_arrays(file, source, names)
            with np.load(file) as data:
                return [data[name] for name in names]
    except FileNotFoundError:
        raise FedzeroError(f"{source} is missing: put it there, or point --data elsewhere") from None
    except (OSError, EOFError, ValueError, KeyError, MemoryError, zipfile.BadZipFile, lzma.LZMAError) as error:
        raise FedzeroError(f"{source} cannot be read: {error}") from error


def _expect_arrays(file: IO[bytes], source: object, names: Sequence[str]) -> None:
    """That arrays are as large as they say, before room is made for them: a few bytes may claim terabytes, and
    kilobytes may unpack to gigabytes."""
    with zipfile.ZipFile(file) as archive:
        parts = [part for part in archive.infolist() if part.filename.removesuffix(".npy") in names]
        if sum(part.file_size for part in parts) > LARGEST_ARRAYS:
            raise Unfit(f"{source} unpacks to more than {LARGEST_ARRAYS:,} bytes: put the right file there")
        for part in parts:
            with archive.open(part) as member:
                old = np.lib.format.read_magic(member) == (1, 0)
                read_header = np.lib.format.read_array_header_1_0 if old else np.lib.format.read_array_header_2_0
                shape, _, kind = read_header(member)
                if math.prod(shape) * kind.itemsize != part.file_size - member.tell():
                    raise Unfit(f"{source} is damaged: {part.filename} is not as large as it says")
    file.seek(0)
