"""What is installed and what this machine has: what is missing for what, before a run finds out.

Modules are imported where they are used: `fedzero --help` imports this one.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import typer

from fedzero import __version__
from fedzero.cli import options
from fedzero.cli.common import app, out

State = Literal["ok", "absent", "wrong"]
FOR = {
    "gpu": "kernels for NVIDIA GPUs",
    "llm": "language models",
    "nvflare": "federations of several machines",
    "privacy": "differential privacy",
    "ray": "workers on many cores and machines",
    "web": "the page of a run while it goes",
}
"""Extras that users install, and what for."""
MARKS: dict[State, str] = {"ok": "[green]ok", "absent": "[yellow]absent", "wrong": "[red]wrong"}
IMPORTED = {"pillow": "PIL", "tomli-w": "tomli_w"}
SPACE = 1 << 30
"""Bytes of disk below which there is too little."""
PAGE = 8747


class Finding(NamedTuple):
    """absent: something that nothing but `said` needs. wrong: something that every run needs."""

    topic: str
    name: str
    state: State
    said: str


@app.command("doctor", rich_help_panel="What is installed")
def doctor(
    data: options.Data = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as one JSON array.")] = False,
) -> None:
    """Look at versions, devices, folders and ports; say what is missing for what. Exit status 1 if a run would fail."""
    import json

    from rich.markup import escape
    from rich.table import Table

    findings = [found for look in (packages, devices, folders, network) for found in look(data)]
    if as_json:
        print(json.dumps([found._asdict() for found in findings]))
    else:
        table = Table(show_header=False, box=None)
        for topic, name, state, said in findings:
            table.add_row(escape(topic), f"[bold]{escape(name)}", MARKS[state], escape(said))
        out.print(table)
    raise typer.Exit(int(any(found.state == "wrong" for found in findings)))


def packages(data: Path | None) -> Iterator[Finding]:
    """Python, what fedzero needs, and what its extras need."""
    import platform
    from importlib import metadata

    yield Finding("packages", "python", "ok", f"{platform.python_version()} at {sys.executable}")
    yield Finding("packages", "fedzero", "ok", __version__)
    try:
        needed = metadata.requires("fedzero") or []
    except metadata.PackageNotFoundError:
        yield Finding(
            "packages", "fedzero", "absent", "not installed: this is a checkout, so versions are not compared"
        )
        needed = []
    missing: dict[str, list[str]] = {extra: [] for extra in FOR}
    for line in needed:
        name, extra = re.split(r"[^\w.-]", line, maxsplit=1)[0], re.search(r"extra == [\"'](\w+)", line)
        if extra is None:
            yield _package(name, line)
        elif extra[1] in FOR and _applies(line, extra[1]) and not _version(name):
            missing[extra[1]].append(name)
    for group, names in missing.items() if needed else ():
        said = f"{', '.join(names)} for {FOR[group]}: pip install 'fedzero[{group}]'"
        yield Finding("extras", group, "absent" if names else "ok", said if names else FOR[group])


def _version(name: str) -> str | None:
    """Of an installed package."""
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _package(name: str, line: str) -> Finding:
    """A package that every installation needs: its version, and whether it can be imported."""
    version = _version(name)
    if version is None:
        return Finding("packages", name, "wrong", f"not installed: pip install '{line}'")
    if not _applies(line, "", version):
        return Finding("packages", name, "wrong", f"{version}, and fedzero needs {line}: pip install '{line}'")
    try:
        import_module(IMPORTED.get(name, name))
    except Exception as error:  # whatever a broken installation raises
        return Finding("packages", name, "wrong", f"{version} cannot be imported: {type(error).__name__}: {error}")
    return Finding("packages", name, "ok", version)


def _applies(line: str, extra: str, version: str | None = None) -> bool:
    """Whether a requirement is of this platform, and, with a version, whether that fits."""
    if find_spec("packaging") is None:  # it comes with matplotlib
        return True
    from packaging.requirements import Requirement

    wanted = Requirement(line)
    if version is not None:
        return wanted.specifier.contains(version, prereleases=True)
    return wanted.marker is None or wanted.marker.evaluate({"extra": extra})


def devices(data: Path | None) -> Iterator[Finding]:
    """Cores, memory and GPUs."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    told = os.environ.get("OMP_NUM_THREADS")
    yield Finding("devices", "cores", "ok", f"{cores}{f', OMP_NUM_THREADS={told}' if told else ''}")
    try:
        import psutil
        import torch
    except Exception:  # said above
        return
    free = psutil.virtual_memory().available
    yield Finding("devices", "memory", "ok", f"{free / 1e9:.1f} GB are free")
    yield Finding("devices", "threads of torch", "ok", str(torch.get_num_threads()))
    for number in range(torch.cuda.device_count()):
        of = torch.cuda.get_device_properties(number)
        kernels = find_spec("triton") is not None
        without = "" if kernels else "; without triton its kernels are slow: pip install 'fedzero[gpu]'"
        said = f"{of.name}, {of.total_memory / 1e9:.0f} GB{without}"
        yield Finding("devices", f"cuda:{number}", "ok" if kernels else "absent", said)
    if not torch.cuda.device_count():
        built = f"torch {torch.__version__} sees none" if torch.version.cuda else "torch is a build for CPUs"
        yield Finding("devices", "gpu", "absent", f"{built}; everything runs on the CPU")


def folders(data: Path | None) -> Iterator[Finding]:
    """Where fedzero writes, and where datasets are."""
    import tempfile

    from fedzero.folders import cache_folder, state_folder

    here: dict[str, tuple[Path, str]] = {
        "cache": (cache_folder(), "FEDZERO_CACHE"),
        "state": (state_folder(), "FEDZERO_STATE"),
        "this folder": (Path.cwd(), "--out"),
        "temporary": (Path(tempfile.gettempdir()), "TMPDIR"),
    }
    for name, (place, setting) in here.items():
        yield _folder(name, place, setting)
    if data is None:
        yield Finding("folders", "data", "absent", "--data or FEDZERO_DATA for recipes on whole datasets")
    elif not data.is_dir():
        yield Finding("folders", "data", "wrong", f"{data} is no folder: correct --data or FEDZERO_DATA")
    else:
        inside = sorted(path.name for path in data.iterdir() if path.is_dir())
        yield Finding("folders", "data", "ok", f"{data} has {', '.join(inside[:8]) or 'no folders'}")


def _folder(name: str, place: Path, setting: str) -> Finding:
    import shutil
    import tempfile

    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            pass
        free = shutil.disk_usage(place).free
    except OSError as error:
        return Finding("folders", name, "wrong", f"{place} cannot be written ({error.strerror}): set {setting}")
    state: State = "ok" if free >= SPACE else "wrong"
    return Finding("folders", name, state, f"{place}, {free / 1e9:.1f} GB are free")


def network(data: Path | None) -> Iterator[Finding]:
    """Whether a page can be served here."""
    yield _bound("loopback", 0, "wrong", "pages and sites of this machine talk over it")
    yield _bound("page", PAGE, "absent", "--web takes one of the ports behind it")


def _bound(name: str, port: int, otherwise: State, said: str) -> Finding:
    import socket

    try:
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(("127.0.0.1", port))
            return Finding("ports", name, "ok", f"127.0.0.1:{port} is free" if port else "127.0.0.1 can be bound")
    except OSError as error:
        return Finding("ports", name, otherwise, f"127.0.0.1:{port}: {error.strerror}; {said}")
