"""Regular expressions in time linear in the text: the answers of `re.fullmatch`, without its backtracking.

`re` tries one way after another, and on a text that a model generated `(a+)+b` can have 2^n of them. Here all ways are
followed at the same time (Thompson, 1968): an expression is an automaton, and every character takes a set of its states
to the next one. Which characters a leaf of the expression takes is asked of `re` itself, character by character, so
Unicode, flags and word boundaries are Python's in every detail.

References to groups, look-around, atomic groups and possessive repeats are not regular, and refused.
"""

from __future__ import annotations

import re
from re import _constants, _parser  # type: ignore[attr-defined]  # what `re` makes of an expression; the same since 3.11
from typing import Any

from fedzero.errors import FedzeroError
from fedzero.model.decoding import cause_of

LONGEST = 10_000
"""Characters of an expression."""
STATES = 5_000
"""Of an automaton. A repeat `a{3}` has the states of `aaa`."""
NESTED = 100
"""Groups and repeats inside of each other: Python's own limit depends on who calls."""
KEPT = 4_096
"""Steps of an automaton that are remembered: most are taken again and again."""

_LEAF_FLAGS = re.ASCII | re.IGNORECASE | re.DOTALL
_ASSERTION_FLAGS = re.ASCII | re.MULTILINE
_CATEGORIES = {
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_WORD": r"\W",
}
_ASSERTIONS = {
    "AT_BEGINNING": "^",
    "AT_BEGINNING_STRING": r"\A",
    "AT_BOUNDARY": r"\b",
    "AT_NON_BOUNDARY": r"\B",
    "AT_END": "$",
    "AT_END_STRING": r"\Z",
}
_REFUSED = {
    "GROUPREF": "a reference to a group",
    "GROUPREF_EXISTS": "a condition on a group",
    "ASSERT": "look-around",
    "ASSERT_NOT": "look-around",
    "FAILURE": "look-around",
    "ATOMIC_GROUP": "an atomic group",
    "POSSESSIVE_REPEAT": "a possessive repeat",
}


class NotRegular(FedzeroError):
    """An expression that `re` knows, and that no automaton of a reasonable size matches."""


class Expression:
    """A compiled expression; raises `FedzeroError` for text that is none, and `NotRegular`."""

    def __init__(self, pattern: str):
        parsed = _parsed(pattern)
        build = _Builder()
        first = build.state()
        self._first, self._last = 1 << first, 1 << build.add(parsed, parsed.state.flags, first)
        self._free, self._leaves = build.free, list(build.leaves.items())
        self._assertions = list(build.assertions)
        self._takes: dict[str, int] = {}
        self._steps: dict[tuple[int, int, str], int] = {}

    def matches(self, text: str) -> bool:
        """Whether the expression matches all of the text, as `re.fullmatch` says."""
        states = self._first
        for position, character in enumerate(text):
            key = states, self._holding(text, position), character
            found = self._steps.get(key)
            if found is None:
                if len(self._steps) >= KEPT:
                    self._steps.clear()
                found = self._steps[key] = self._step(*key)
            if not found:
                return False
            states = found
        return bool(self._closed(states, self._holding(text, len(text))) & self._last)

    def _holding(self, text: str, position: int) -> int:
        """Which assertions (beginning, end, word boundary) hold at a position, a bit for each."""
        return sum(1 << i for i, each in enumerate(self._assertions) if each.match(text, position))

    def _step(self, states: int, holding: int, character: str) -> int:
        """The states after a character: a state that takes it leads to the one after it."""
        return (self._closed(states, holding) & self._taking(character)) << 1

    def _taking(self, character: str) -> int:
        """The states that take a character."""
        found = self._takes.get(character)
        if found is None:
            if len(self._takes) >= KEPT:
                self._takes.clear()
            found = 0
            for leaf, states in self._leaves:
                if leaf.match(character):
                    found |= states
            self._takes[character] = found
        return found

    def _closed(self, states: int, holding: int) -> int:
        """The states, and all that are reached from them without a character."""
        seen = waiting = states
        while waiting:
            lowest = waiting & -waiting
            waiting ^= lowest
            for target, assertion in self._free.get(lowest.bit_length() - 1, ()):
                if not seen >> target & 1 and (assertion is None or holding >> assertion & 1):
                    seen |= 1 << target
                    waiting |= 1 << target
        return seen


def _parsed(pattern: str) -> Any:
    if len(pattern) > LONGEST:
        raise NotRegular(f"it has {len(pattern):,} characters, and at most {LONGEST:,} are matched in linear time")
    try:
        return _parser.parse(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise FedzeroError(cause_of(error)) from None


class _Builder:
    """States, numbered; edges that take no character, perhaps where an assertion holds; and which states take which
    leaf, each leading to the state with the next number."""

    def __init__(self) -> None:
        self.count = self.depth = 0
        self.free: dict[int, list[tuple[int, int | None]]] = {}
        self.leaves: dict[re.Pattern[str], int] = {}
        self.assertions: dict[re.Pattern[str], int] = {}

    def state(self) -> int:
        if self.count >= STATES:
            raise NotRegular("it is too large to be matched in linear time, with its repeats written out")
        self.count += 1
        return self.count - 1

    def edge(self, first: int, then: int, assertion: int | None = None) -> int:
        self.free.setdefault(first, []).append((then, assertion))
        return then

    def add(self, items: Any, flags: int, at: int) -> int:
        """What `re` parsed, from the state `at` on; the state after it."""
        self.depth += 1
        if self.depth > NESTED:
            raise NotRegular("it is nested too deeply to be matched in linear time")
        for op, value in items:
            at = self._add(str(op), value, flags, at)
        self.depth -= 1
        return at

    def _add(self, op: str, value: Any, flags: int, at: int) -> int:
        match op:
            case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN":
                return self._leaf(_leaf(op, value), flags, at)
            case "AT":
                return self._assertion(_ASSERTIONS[str(value)], flags, at)
            case "SUBPATTERN":
                _, more, less, items = value
                kept = flags & ~_parser.TYPE_FLAGS if more & _parser.TYPE_FLAGS else flags
                return self.add(items, (kept | more) & ~less, at)
            case "BRANCH":
                end = self.state()
                for items in value[1]:
                    self.edge(self.add(items, flags, self.edge(at, self.state())), end)
                return end
            case "MAX_REPEAT" | "MIN_REPEAT":  # how much is preferred does not change whether all can be matched
                least, most, items = value
                return self._repeat(least, most, items, flags, at)
        what = _REFUSED.get(op, op)
        raise NotRegular(f"it has {what}, which cannot be matched in linear time")

    def _leaf(self, text: str, flags: int, at: int) -> int:
        start = self.edge(at, self.state())
        leaf = re.compile(text, flags & _LEAF_FLAGS)
        self.leaves[leaf] = self.leaves.get(leaf, 0) | 1 << start
        return self.state()

    def _assertion(self, text: str, flags: int, at: int) -> int:
        assertion = re.compile(text, flags & _ASSERTION_FLAGS)
        return self.edge(at, self.state(), self.assertions.setdefault(assertion, len(self.assertions)))

    def _repeat(self, least: int, most: Any, items: Any, flags: int, at: int) -> int:
        for _ in range(least):
            at = self.add(items, flags, self.edge(at, self.state()))
        end = self.state()
        if most == _constants.MAXREPEAT:
            loop = self.edge(at, self.state())
            self.edge(self.add(items, flags, loop), loop)
            return self.edge(loop, end)
        for _ in range(most - least):
            self.edge(at, end)
            at = self.add(items, flags, self.edge(at, self.state()))
        return self.edge(at, end)


def _leaf(op: str, value: Any) -> str:
    """An expression for the one character that a leaf takes."""
    match op:
        case "ANY":
            return "."
        case "LITERAL":
            return _escaped(value)
        case "NOT_LITERAL":
            return f"[^{_escaped(value)}]"
    return f"[{''.join(_of_set(str(kind), of) for kind, of in value)}]"


def _of_set(kind: str, value: Any) -> str:
    match kind:
        case "NEGATE":
            return "^"
        case "LITERAL":
            return _escaped(value)
        case "RANGE":
            return "-".join(map(_escaped, value))
    return _CATEGORIES[str(value)]


def _escaped(point: int) -> str:
    return f"\\U{point:08x}"
