"""The kinds of black boxes: their settings in a recipe, and how they are called."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, UnsetType

from fedzero.errors import FedzeroError
from fedzero.model.imports import imported
from fedzero.model.value import TaggedConfig
from fedzero.oracles.blackbox.attempts import Call, Cancellation, Unusable, quoted, short
from fedzero.oracles.blackbox.contract import Told
from fedzero.oracles.blackbox.service import Service
from fedzero.oracles.contract import F64

Functions = Mapping[str, Callable[..., Any]]
"""Functions given in Python, by their names in a recipe."""


class Box(TaggedConfig):
    """A call takes one point, or, of a `batched` box, all points of a request."""

    batched: ClassVar[bool] = False

    def open(self, functions: Functions) -> Call:
        """The function to call, or `FedzeroError` where it cannot be found."""
        return self._call

    def told(self, functions: Functions) -> Told | None:
        """Of a box that is not called, because others tell its values: who knows them."""
        return None

    def _call(self, points: F64, timeout: float | None, cancellation: Cancellation) -> Any:
        raise NotImplementedError


class PythonBox(Box, tag="python"):
    """A Python function of one point: f(x), x an array of d numbers, returns a number."""

    name: str
    """module:function, or the name under which a function was given"""

    @property
    def label(self) -> str:
        return f"{self.__struct_config__.tag} {self.name!r}"

    def open(self, functions: Functions) -> Call:
        function = find(self.name, functions)
        return lambda points, timeout, cancellation: function((points if self.batched else points[0]).copy())


class BatchedBox(PythonBox, tag="batched"):
    """A Python function of many points: f(X), X an array (n, d), returns n numbers; a call is one attempt at each."""

    batched: ClassVar[bool] = True


class CommandBox(Box, tag="command"):
    """A program: reads the point from standard input as a JSON list, prints a number as the last line of its output."""

    argv: Annotated[tuple[str, ...], Meta(min_length=1)]
    """the program and its arguments"""

    @property
    def label(self) -> str:
        return f"command {short(' '.join(self.argv))!r}"

    def _call(self, points: F64, timeout: float | None, cancellation: Cancellation) -> float:
        """The time-out is the caller's: a cancellation kills the program with its children, and ends the wait."""
        pipe = subprocess.PIPE
        process = subprocess.Popen(self.argv, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
        cancellation.watch(process)
        try:
            out, err = process.communicate(json.dumps(points[0].tolist()).encode())
        finally:
            cancellation.watch(None)
        if process.returncode:
            complaint = short(" ".join(_lines(err)[-1:]))
            raise Unusable(f"it ended with exit status {process.returncode}" + (f": {complaint}" if complaint else ""))
        lines = _lines(out)
        if not lines:
            raise Unusable("it printed nothing")
        return number_in(lines[-1])


class HttpBox(Box, tag="http"):
    """A service: POST {"x": [...]} as JSON is answered by a number, or by {"value": number}."""

    url: Annotated[str, Meta(pattern="^https?://")]
    """address of the service"""
    float32: Literal[True] | UnsetType = UNSET
    """x is rounded to float32, and sent as {"x32": base64} to a service whose answers say that it reads this"""

    @property
    def label(self) -> str:
        return f"http {self.url!r}"

    def open(self, functions: Functions) -> Call:
        service = Service(self.url, bool(self.float32))
        return lambda points, timeout, cancellation: answer_in(service(points, timeout, cancellation))


class ToldBox(Box, tag="told"):
    """Values are told from outside: `fedzero.Optimiser` hands out the points."""

    SOURCE: ClassVar[str] = "told"
    """the name under which the values' source is given"""

    @property
    def label(self) -> str:
        return "told"

    def told(self, functions: Functions) -> Told:
        if self.SOURCE not in functions:
            raise FedzeroError(
                'task.boxes has kind = "told", whose values come from your own loop: open the folder with '
                "fedzero.Optimiser, ask and tell"
            )
        return functions[self.SOURCE]


AnyBox = PythonBox | BatchedBox | CommandBox | HttpBox | ToldBox


def _lines(output: bytes) -> list[str]:
    return [line for line in output.decode(errors="replace").splitlines() if line.strip()]


def number_in(text: str) -> float:
    """A number as people write it."""
    try:
        if "_" in text:  # Python would read 1_000
            raise ValueError
        return float(text)
    except ValueError:
        raise Unusable(f"it gave the text {quoted(text)} instead of a number") from None


def answer_in(text: str) -> Any:
    """A JSON number, the "value" of a JSON object, or text that is a number."""
    try:
        answer = json.loads(text)
    except ValueError:
        return number_in(text)
    if isinstance(answer, dict):
        if "value" not in answer:
            raise Unusable(f'it answered with an object without "value": {short(text)}')
        answer = answer["value"]
    if isinstance(answer, bool) or not isinstance(answer, int | float):
        raise Unusable(f"it answered {quoted(text)} instead of a number")
    return answer


def find(name: str, functions: Functions) -> Callable[..., Any]:
    """A function that was given, or one that can be imported."""
    if name in functions:
        return functions[name]
    module, colon, path = name.partition(":")
    if not colon or not module or not path:
        raise FedzeroError(
            f"task.boxes names the function {name!r}, which was not given: call fedzero.minimise again with "
            "the same functions and the same `out`, or name it as module:function in the recipe"
        )
    try:
        found = imported(name)
    except FedzeroError as error:
        raise FedzeroError(f"task.boxes names {error}") from error
    if not callable(found):
        raise FedzeroError(f"task.boxes names {name!r}, but module {module!r} has no function {path!r}")
    return found  # type: ignore[no-any-return]
