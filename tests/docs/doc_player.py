"""Plays the blocks of a page, in order, in one folder: files are written, commands run, Python is executed."""

from __future__ import annotations

import argparse
import copy
import json
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from doc_blocks import ROOT, Block

import fedzero
from fedzero.deploy.site.settings import Settings
from fedzero.recipe import recipe as recipes
from forked import Warm

PATIENCE = 600
INSTALL = "python -m pip install --quiet --no-deps --no-build-isolation --no-index"
MAKES_ROUNDS = re.compile(r"fedzero (?:run|federate|serve|submit|tune|reproduce)\b")
SHELL = set("|&;<>$*?`()")
"""A command without these is its words."""
WATCHES = re.compile(r"fedzero watch .*--web")
"""Serves its page until Ctrl-C."""
OURS = re.compile(
    r"pip install '?(?:fedzero|\.(?!/)|\./(?:papers|clients/python)|fedzero-papers)(?:\[([\w,]+)\])?'?(?: |$)"
)


class Player:
    """One page, from an empty folder. A name that a Python block binds is there in the next one. Commands of fedzero
    run in processes that are forked from one that has loaded it, where one is given."""

    def __init__(self, page: str, folder: Path, environment: dict[str, str], warm: Warm | None = None) -> None:
        self._page, self._folder, self._environment = page, folder, environment
        self._warm = warm
        self._names: dict[str, Any] = {"__name__": "page"}
        self._recipe = recipes.read(recipes.find("demo"))
        self._background: list[subprocess.Popen[bytes]] = []

    def play(self, blocks: Iterable[Block]) -> None:
        with _inside(self._folder):
            try:
                for block in blocks:
                    self._block(block)
            finally:
                self._end()

    def _block(self, block: Block) -> None:
        where = f"{self._page}:{block.line}"
        if "ends background" in block.notes:
            self._end()
        if block.title:
            self._file(block)
        elif block.language == "toml":
            self._toml(block, where)
        elif "not run" in block.notes or block.language == "text":
            return
        elif block.language == "python":
            exec(compile("\n" * (block.line - 1) + block.text, where, "exec"), self._names)
        elif block.language == "console":
            for line in commands(block):
                self._command(line, block, where)
        elif block.language == "json":
            json.loads(block.text)
        else:
            sqlite3.connect(":memory:").executescript(re.sub(r"\n(?! )", ";\n", block.text))

    def _file(self, block: Block) -> None:
        path = self._folder / block.title
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)
        package = Path(block.title).parts[0].removesuffix(".py")
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            del sys.modules[name]  # of another test, which chose the same name
        if path.match("local/fedzero.toml"):
            assert Settings.read(path) != Settings()

    def _toml(self, block: Block, where: str) -> None:
        """A recipe; or changes of the page's last recipe, of `demo` where it has none. A table with a kind is whole."""
        if table := block.notes.get("each line in"):
            for line in filter(None, (line.partition(" #")[0] for line in block.text.splitlines())):
                recipes.decode(_changed(self._recipe, {table: tomllib.loads(line)}), f"{where}: {line}")
            return
        given = tomllib.loads(block.text)
        whole = "name" in given
        self._recipe = given if whole else _changed(self._recipe, given)
        recipes.decode(copy.deepcopy(self._recipe), where)
        if "not run" not in block.notes:
            options = _run_options(block.notes.get("run with", ""))
            folder = f"runs/{given['name']}" if whole else f"runs/line-{block.line}"
            run = fedzero.run(self._recipe, out=folder, progress=False, **options)
            assert run.summary.complete, where

    def _command(self, line: str, block: Block, where: str) -> None:
        several = any(map(MAKES_ROUNDS.match, commands(block)))
        if line.startswith("fedzero ") and (MAKES_ROUNDS.match(line) or not several):
            line = f"{line} {block.notes.get('run with', '')}".rstrip()
        if line.endswith(" &"):
            self._background.append(self._started(line.removesuffix(" &"), subprocess.DEVNULL))
        elif seconds := block.notes.get("interrupt after", WATCHES.match(line) and "10"):
            process = self._started(line, subprocess.PIPE)
            time.sleep(float(seconds))
            assert process.poll() is None, (where, line, process.communicate())
            os.killpg(process.pid, signal.SIGINT)
            said, _ = process.communicate(timeout=60)
            assert process.returncode in (0, 130), (where, line, process.returncode, said[-2000:])
            assert b"Traceback" not in said, (where, line, said[-4000:])
        elif self._warm and line.startswith("fedzero ") and not set(line) & SHELL:
            words = [str(Path(word).expanduser()) if word.startswith("~") else word for word in shlex.split(line)]
            codes, said, printed = self._warm.run(words, folder=self._folder, **self._environment)
            assert codes == [0], (where, line, printed[-2000:], said[0][-4000:])
        else:
            if line.startswith(INSTALL):  # which the process that is kept warm does not know
                self._warm = None
            done = subprocess.run(
                line,
                shell=True,
                cwd=self._folder,
                env=self._environment,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
            )
            assert done.returncode == 0, (where, line, done.stdout[-2000:], done.stderr[-4000:])

    def _started(self, line: str, output: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            f"exec env {line}", shell=True, cwd=self._folder, env=self._environment, start_new_session=True,
            stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def _end(self) -> None:
        for process in self._background:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
        for process in self._background:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        self._background.clear()


def commands(block: Block) -> list[str]:
    """Those of a console block. fedzero itself is there; packages of the page are installed without a network."""
    lines = [line.removeprefix("$ ") for line in block.text.splitlines() if line.startswith("$ ")]
    lines = [re.sub(r"\s+# .*", "", line) for line in lines]
    return [re.sub(r"^pip install", INSTALL, line) for line in lines if not OURS.match(line)]


def extras(block: Block) -> Iterator[str]:
    """Extras of this distribution that a console block installs."""
    for line in block.text.splitlines():
        if (found := OURS.match(line.removeprefix("$ "))) and found[1]:
            yield from found[1].split(",")


def declared_extras() -> set[str]:
    return set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


def _run_options(text: str) -> dict[str, Any]:
    """`--rounds 2 --set task.model=small --data rows`, as keywords of `fedzero.run`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--data")
    given = parser.parse_args(shlex.split(text))
    changes = [setting.split("=", 1) for setting in given.set]
    return {"rounds": given.rounds, "data": given.data, "set": {key: _value(value) for key, value in changes}}


def _changed(recipe: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    tables = {
        key: recipe.get(key, {}) | value
        for key, value in given.items()
        if isinstance(value, dict) and "kind" not in value
    }
    return copy.deepcopy(recipe | given | tables)


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """This process in that folder, which modules are imported from, too; afterwards as before."""
    before, modules = Path.cwd(), dict(sys.modules)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        os.chdir(before)
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
                del sys.modules[name]
        sys.modules.update({name: module for name, module in modules.items() if name not in sys.modules})
