"""A run in a process that is killed at one of its steps and resumed, beside the same run when nobody disturbs it."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import crash_child
from test_crash import SAME, together


class KilledRun:
    """target: one of `crash_child`; written: the ending of a file that it appends to, beside each run's folder."""

    def __init__(self, server: Any, folder: Path, recipe: str, target: Callable[..., None], written: str = ""):
        self.server, self.folder, self.path = server, folder, folder / "recipe.toml"
        self.target, self.written = target, written
        self.path.write_text(recipe)

    def process(self, name: str, at: int = -1) -> Any:
        paths = [self.path, self.folder / name, *([self.beside(name)] if self.written else [])]
        arguments = (*map(str, paths), (at, "before"))
        process = self.server.Process(target=self.target, args=arguments, daemon=True)
        process.start()
        return process

    def beside(self, name: str) -> Path:
        return self.folder / f"{name}.{self.written}"

    def report(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / f"{name}.json").read_text())
        return found

    def undisturbed(self) -> dict[str, Any]:
        """The report of the run that nobody disturbs."""
        process = self.process("whole")
        process.join(300)
        assert process.exitcode == 0
        return self.report("whole")

    def resumed(self, at: int) -> Generator[Any, Any, str]:
        """Kill a run at a step and resume it; the reason if either failed."""
        if (code := (yield self.process(str(at), at))) != -signal.SIGKILL:
            return f"not killed at {at}: exit code {code}"
        if (code := (yield self.process(str(at)))) != 0:
            return f"killed at {at}: exit code {code} on resume"
        return ""


class SameEnd(KilledRun):
    """A run that ends in the same ledger, wherever it was killed."""

    def __init__(self, *options: Any, **named: Any):
        super().__init__(*options, **named)
        self.right = self.undisturbed()

    def killed_at(self, at: int) -> Generator[Any, Any, list[str]]:
        if why := (yield from self.resumed(at)):
            return [why]
        found = self.report(str(at))
        return [f"killed at {at}: another {name}" for name in SAME if found[name] != self.right[name]]

    def check(self, every: int) -> None:
        points = crash_child.changing(self.right["kinds"])[every - 1 :: every]
        wrong = together(self.killed_at(at) for at in points)
        assert [line for lines in wrong for line in lines] == []
