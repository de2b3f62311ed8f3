"""Rewards of a generated text: numbers that a recipe names, a program, or a function of one's own.

    reward = { kind = "exact" }                                  1 if it is the right answer, else 0
    reward = { kind = "regex", pattern = '\\d+ apples' }
    reward = { kind = "length", target = 40 }
    reward = { kind = "program", argv = ["python", "check.py"], timeout = 5.0 }
    reward = { kind = "function", name = "module:function" }     f(row, text)

A recipe that was sent to a site may name `exact` and `length`. Programs and expressions are the site's own business;
there the site declares a function, `fedzero join KIT --task NAME=module:function`, and the recipe has `function` and
that name. What a ledger names that this user neither started nor trusts is not run or imported at all.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from fedzero.errors import FedzeroError, Sendable
from fedzero.model.imports import imported
from fedzero.model.numbers import PositiveInt
from fedzero.model.value import TaggedConfig
from fedzero.oracles.reward import Scores
from fedzero.tasks.contract import refuse_foreign
from fedzero.tasks.language.expressions import Expression, NotRegular
from fedzero.tasks.language.texts import Row, Text

Functions = Mapping[str, Any]
"""Objects given in Python, or declared by a site, by their names in a recipe."""
Score = Callable[[Row, str], float]


class Rewarding(TaggedConfig):
    """What all kinds have: a function of row and text."""

    right: ClassVar[bool] = False
    """Whether the reward says that an answer is right, so that its mean is an accuracy."""
    anywhere: ClassVar[bool] = True
    """Whether a recipe that was sent to a site may name it."""

    @property
    def label(self) -> str:
        return str(self.__struct_config__.tag)

    def check(self) -> None:
        """Refuse, when a recipe is read, what no run can be given."""

    def open(self, text: Text, functions: Functions, foreign: bool = False) -> Scores:
        """The rewards of rows and texts; `FedzeroError` where what is named cannot be found. foreign: as in
        `BuildContext`."""
        if foreign and (named := self.runs(functions)):
            refuse_foreign(named[0])
        score = self.score_of(text, functions, foreign)
        return lambda pairs: [_number(score(row, said), self.label) for row, said in pairs]

    def score_of(self, text: Text, functions: Functions, foreign: bool = False) -> Score:
        raise NotImplementedError

    def runs(self, functions: Functions) -> list[str]:
        """What it would run or import, apart from what is in `functions`."""
        return []

    def expect_given(self, functions: Functions) -> None:
        """At a site: refuse what the site has not declared."""
        if not self.anywhere:
            raise Sendable(
                f"task.reward {self.label} is not one of this site's: a site judges by functions of its own, "
                '`fedzero join KIT --task NAME=module:function`, and the recipe has kind = "function" and the name'
            )


class Exact(Rewarding, tag="exact"):
    """1 for the right answer, without blanks around it, else 0: the answer word of the row's label, or the label."""

    right: ClassVar[bool] = True
    ignore_case: bool = False
    """small and capital letters are the same"""

    def score_of(self, text: Text, functions: Functions, foreign: bool = False) -> Score:
        def plain(said: str) -> str:
            return said.strip().casefold() if self.ignore_case else said.strip()

        return lambda row, said: float(plain(said) == plain(text.expected(row)))


class Regex(Rewarding, tag="regex"):
    """1 where a regular expression (Python's) matches the whole text, without blanks around it, else 0. It is matched
    in linear time, so it has no references to groups and no look-around."""

    anywhere: ClassVar[bool] = False
    pattern: str
    """of the whole text"""

    @property
    def label(self) -> str:
        return f"regex {self.pattern[:80]!r}"

    @property
    def _setting(self) -> str:
        return f"task.reward.pattern = {self.pattern[:80]!r}"

    def _expression(self) -> Expression:
        try:
            return Expression(self.pattern)
        except NotRegular:
            raise
        except FedzeroError as error:
            raise FedzeroError(f"{self._setting}: {error}") from None

    def check(self) -> None:
        try:
            self._expression()
        except NotRegular as error:
            raise FedzeroError(
                f'{self._setting}: {error}: write it without, or give a function of your own, kind = "function"'
            ) from None

    def score_of(self, text: Text, functions: Functions, foreign: bool = False) -> Score:
        """Runs of 0.2.0 and before may have an expression that only `re` can match, in time that is exponential in
        what a model says."""
        try:
            matches = self._expression().matches
        except NotRegular as error:
            if foreign:
                refuse_foreign(f"{self.label}: {error}, and Python's own way of matching it may never end")
            pattern = re.compile(self.pattern)
            return lambda row, said: float(pattern.fullmatch(said.strip()) is not None)
        return lambda row, said: float(matches(said.strip()))


class Length(Rewarding, tag="length"):
    """Closeness to a length: 1 − |n − target| / target, at least 0; n without blanks around the text."""

    target: PositiveInt
    """the best length"""
    unit: Literal["characters", "words"] = "characters"
    """what is counted"""

    def score_of(self, text: Text, functions: Functions, foreign: bool = False) -> Score:
        def score(row: Row, said: str) -> float:
            count = len(said.split()) if self.unit == "words" else len(said.strip())
            return max(0.0, 1 - abs(count - self.target) / self.target)

        return score


class Program(Rewarding, tag="program"):
    """1 where a program ends with exit status 0 in time, else 0. It is not shut in: put a sandbox into `argv`."""

    anywhere: ClassVar[bool] = False
    argv: Annotated[tuple[str, ...], Meta(min_length=1)]
    """the program and its arguments"""
    timeout: Annotated[float, Meta(gt=0, le=3600)] = 5.0
    """seconds; a program that takes longer is killed with its children"""
    input: Literal["text", "json"] = "text"
    """what it reads from standard input: the generated text, or {"row": …, "text": …}"""

    @property
    def label(self) -> str:
        return f"program {' '.join(self.argv)[:80]!r}"

    def open(self, text: Text, functions: Functions, foreign: bool = False) -> Scores:
        if foreign:
            refuse_foreign(self.label)
        if shutil.which(self.argv[0]) is None:
            raise FedzeroError(f"task.reward.argv names the program {self.argv[0]!r}, which cannot be found")

        def scores(pairs: Sequence[tuple[Row, str]]) -> list[float]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                return list(pool.map(self.score, *zip(*pairs, strict=True)))

        return scores

    def score(self, row: Row, said: str) -> float:
        """Also what a site can declare: `checked = Program(argv=("check",)).score` in a module of its own."""
        given = said if self.input == "text" else json.dumps({"row": row, "text": said}, default=str)
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        try:
            process = subprocess.Popen(self.argv, stdin=pipe, stdout=null, stderr=null, start_new_session=True)
        except OSError as error:
            raise FedzeroError(f"{self.label} cannot be started: {error.strerror}") from error
        try:
            process.communicate(given.encode(errors="replace"), self.timeout)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return 0.0
        return float(process.returncode == 0)

    def runs(self, functions: Functions) -> list[str]:
        return [self.label]


class Function(Rewarding, tag="function"):
    """A Python function of the row and the generated text, which returns a number."""

    name: str
    """module:function, or the name under which a function was given or a site declared it"""

    @property
    def label(self) -> str:
        return f"function {self.name!r}"

    def score_of(self, text: Text, functions: Functions, foreign: bool = False) -> Score:
        if self.name in functions:
            found = functions[self.name]
        elif ":" not in self.name:
            raise FedzeroError(
                f"task.reward names the function {self.name!r}, which was not given: repeat the call of "
                "fedzero.finetune, or name it as module:function in the recipe"
            )
        else:
            try:
                found = imported(self.name)
            except FedzeroError as error:
                raise FedzeroError(f"task.reward names {error}") from error
        if not callable(found):
            raise FedzeroError(f"task.reward names {self.name!r}, which is no function")
        return self._guarded(found)

    def _guarded(self, function: Callable[..., Any]) -> Score:
        def score(row: Row, said: str) -> float:
            try:
                value: float = function(row, said)
            except Exception as error:  # of any kind, from a user's code
                raise FedzeroError(
                    f"the reward {self.name!r} raised {type(error).__name__} for the text {said[:80]!r}: {error}"
                ) from error
            return value

        return score

    def runs(self, functions: Functions) -> list[str]:
        return [self.label] if self.name not in functions and ":" in self.name else []

    def expect_given(self, functions: Functions) -> None:
        if self.name not in functions:
            raise Sendable(
                f"task.reward names the function {self.name!r}, which is not one of this site's: the site can declare "
                "it, `fedzero join KIT --task NAME=module:function`"
            )


Reward = Exact | Regex | Length | Program | Function


def _number(value: Any, label: str) -> float:
    try:
        number = float(value)
        if not math.isfinite(number):
            raise ValueError
    except (TypeError, ValueError):
        raise FedzeroError(f"the reward {label} returned {str(value)[:80]!r} instead of a finite number") from None
    return number
