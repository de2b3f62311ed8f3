"""Rows of a language task: JSON lines or CSV files, gzipped or not, a dataset of the `datasets` library, or made."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from string import Formatter
from typing import Any

from fedzero.errors import FedzeroError
from fedzero.model.decoding import cause_of
from fedzero.model.files import memory, opened
from fedzero.tasks.contract import refuse_foreign
from fedzero.tasks.language.made import MADE, rows_of
from fedzero.tasks.language.texts import Row

LONGEST = 1 << 26
"""Characters of a line."""
HUB = "datasets:"
"""`datasets:nyu-mll/glue/sst2:train` instead of a file: name, configuration (if any) and split."""


def on_hub(source: str) -> bool:
    """Whether rows may be fetched from elsewhere."""
    return source.startswith(HUB)


def load(source: str, folder: Path | None, unfold: Sequence[str] = (), fetch: bool = True) -> list[Row]:
    """All rows of a file, or of a dataset (refused unless `fetch`), with their lists unfolded."""
    if source.startswith(MADE):
        return rows_of(source)
    if on_hub(source) and not fetch:  # `datasets` asks the hub also for what it has
        refuse_foreign(f"the rows {source!r}, which would be fetched")
    found = _from_hub(source) if on_hub(source) else _from_file(source, folder)
    for name in unfold:
        found = _unfolded(found, name)
    rows = list(found)
    if not rows:
        raise FedzeroError(f"{source} has no rows")
    return rows


def content(source: str, folder: Path | None) -> bytes:
    """SHA-256 of a file; of rows that are made or fetched, of their name without the split."""
    if source.startswith(MADE) or on_hub(source):
        return hashlib.sha256(source.rpartition(":")[0].encode()).digest()
    found = hashlib.sha256()
    with opened(Path(source) if folder is None else folder / source) as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.digest()


def _from_file(source: str, folder: Path | None) -> Iterator[Row]:
    path = Path(source)
    if not path.is_absolute():
        if folder is None:
            raise FedzeroError(f"{source} is relative to the data folder: give it with --data DIR or FEDZERO_DATA")
        path = folder / path
    try:
        if path.name.removesuffix(".gz").endswith(".csv"):
            yield from csv.DictReader(_lines(path))
            return
        for number, line in enumerate(_lines(path), 1):
            if line.strip():
                yield _object(line, path, number)
    except FileNotFoundError:
        raise FedzeroError(f"{path} does not exist: give a .jsonl or .csv file, gzipped or not") from None
    except (UnicodeDecodeError, OSError, EOFError, zlib.error, csv.Error) as error:
        raise FedzeroError(f"{path} cannot be read: {error}") from error


def _lines(path: Path) -> Iterator[str]:
    """The lines of a text, no more than memory has room for: kilobytes may unpack to gigabytes, in one line or many."""
    left = most = memory() // 4
    with opened(path, most) as file:
        raw = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file
        text = io.TextIOWrapper(raw, encoding="utf-8")
        while line := text.readline(min(left + 1, LONGEST + 1)):
            left -= len(line)
            if len(line) > LONGEST or left < 0:
                raise FedzeroError(
                    f"{path} has a line of more than {LONGEST:,} characters, or more than {most:,} in all: it does not "
                    "fit into the memory of this machine"
                )
            yield line


def _object(line: str, path: Path, number: int) -> Row:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # of numbers with thousands of digits, and of nesting, too
        raise FedzeroError(f"{path}, line {number}: not JSON: {cause_of(error)}") from None
    if not isinstance(row, dict):
        raise FedzeroError(f"{path}, line {number}: not a JSON object")
    return row


def _unfolded(rows: Iterator[Row], name: str) -> Iterator[Row]:
    """A row for every element of the list `name`, with the element under the list's last name."""
    last = re.findall(r"[^\[\].]+", name)[-1]
    for row in rows:
        for element in Formatter().get_field(name, (), row)[0]:
            yield {**row, last: element}


def _from_hub(source: str) -> Iterator[Row]:
    name, _, split = source.removeprefix(HUB).partition(":")
    try:
        from datasets import load_dataset
    except ImportError:
        raise FedzeroError(f"{source} needs the library `datasets`: pip install datasets") from None
    path, configuration = (name, None) if Path(name).exists() else _cut(name)
    try:
        # False: a script of the dataset is never run, nor asked about.
        found: Any = load_dataset(path, configuration, split=split or "train", trust_remote_code=False)
    except Exception as error:  # its own types, those of the hub and of the network
        raise FedzeroError(f"{source} cannot be loaded: {str(error).splitlines()[0]}") from error
    yield from found


def _cut(name: str) -> tuple[str, str | None]:
    """`owner/name/configuration`; with one slash, `owner/name`."""
    parts = name.split("/")
    return ("/".join(parts[:2]), parts[2]) if len(parts) > 2 else (name, None)
