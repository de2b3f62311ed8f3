"""`python -m …` in processes forked from one that has loaded what they need, in an environment of its own choice: what
the modules do there, without the seconds that imports take.

    python forked.py MODULE …       loads these modules, then forks a process for each request on standard input
"""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

Command = Sequence[object]
"""A module and its arguments."""


class Warm:
    """The process that has loaded the modules, seen from the test. Ends with the block."""

    def __init__(self, python: Path | str, streams: Path, modules: Sequence[str], **options: Any):
        self._streams, self._made = streams, 0
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen([str(python), __file__, *modules], **pipes, **options)

    def __enter__(self) -> Warm:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def start(self, *commands: Command, folder: Path, **variables: str) -> int:
        """Begin a process that runs commands one after another; its number."""
        self._made += 1
        words = [list(map(str, command)) for command in commands]
        request = {"commands": words, "folder": str(folder), "variables": variables, "streams": str(self._stream(""))}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._told()

    def end(self) -> tuple[list[int], list[str], str]:
        """Wait for the process that began last; of each command its exit status and what it said on standard error, and
        what all of them printed."""
        self._told()
        parts = re.split(r"exit status (\d+)\n", self._stream(".err").read_text())
        return [int(code) for code in parts[1::2]], parts[:-1:2], self._stream(".out").read_text()

    def run(self, *commands: Command, folder: Path, **variables: str) -> tuple[list[int], list[str], str]:
        self.start(*commands, folder=folder, **variables)
        found = self.end()
        assert len(found[0]) == len(commands), self._stream(".err").read_text()
        return found

    def _stream(self, name: str) -> Path:
        return self._streams / f"{self._made}{name}"

    def _told(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


def serve(modules: Sequence[str]) -> None:
    for module in modules:
        import_module(module)
    for line in sys.stdin:
        if not (child := os.fork()):
            play(**json.loads(line))
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def play(commands: list[list[str]], folder: str, variables: Mapping[str, str], streams: str) -> None:
    """Standard input answers yes to every question."""
    os.chdir(folder)
    os.environ.update(variables)
    read, write = os.pipe()
    os.write(write, b"y\n" * 9)
    os.close(write)
    os.dup2(read, 0)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{streams}.{name}", os.O_WRONLY | os.O_CREAT), number)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
    for module, *arguments in commands:
        sys.argv = [module, *arguments]
        code: object = 0
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        print("exit status", int(code) if isinstance(code, int) else 1, file=sys.stderr, flush=True)
    os._exit(0)


if __name__ == "__main__":
    serve(sys.argv[1:])
