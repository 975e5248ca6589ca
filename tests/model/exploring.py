"""Visit every world that some rules can reach, and say which promise is broken where.

A world is kept as a few numbers, one for each of its parts, so that some millions of them
fit into memory. Worlds that differ only in which of some identical workers is which are one.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

W = TypeVar("W")
Parts = tuple[Hashable, ...]
TOO_MANY = "too many states to explore"


class Rules(Protocol[W]):
    """What can happen, and what must not."""

    def start(self) -> W:
        """Return the world in which nothing has happened yet."""

    def moves(self, world: W) -> Iterable[W]:
        """Return every world that can come next."""

    def parts(self, world: W) -> Parts:
        """Take *world* apart; worlds that are the same but for names have the same parts."""

    def put_together(self, parts: Parts) -> W:
        """Return the world with these *parts*."""

    def violation(self, before: W, world: W) -> str | None:
        """Return which promise *world*, which came after *before*, breaks."""

    def is_finished(self, world: W) -> bool:
        """Return whether the run is at its end."""

    def may_finish(self, world: W) -> bool:
        """Return whether the bounds leave enough for the run to get to its end."""


@dataclass
class Verdict(Generic[W]):
    """What the exploration found."""

    states: int
    moves: int = 0
    violation: str | None = None
    path: list[W] = field(default_factory=list)
    """The shortest way to the violation."""


class Explorer(Generic[W]):
    """The worlds that were found so far, by number."""

    def __init__(self, rules: Rules[W]) -> None:
        """Begin with nothing but the start."""
        self._rules = rules
        self._codes: dict[Hashable, int] = {}
        self._parts: list[Hashable] = []
        self._numbers: dict[bytes, int] = {}
        self._worlds: list[bytes] = []
        self._came_from = array("I", [0])
        self._following = array("I")
        self._ends = array("Q")
        self._number(rules.start())

    def explore(self, max_states: int) -> Verdict[W]:
        """Visit every reachable world, the nearest first."""
        rules, number = self._rules, 0
        while number < len(self._worlds):
            world = self._world(number)
            for found in rules.moves(world):
                if (broken := rules.violation(world, found)) is not None:
                    return self._verdict(broken, number, [found])
                other = self._number(found)
                self._following.append(other)
                if other == len(self._came_from):
                    self._came_from.append(number)
            self._ends.append(len(self._following))
            if len(self._worlds) > max_states:
                return Verdict(len(self._worlds), len(self._following), TOO_MANY)
            number += 1
        stuck = self._stuck()
        if stuck is not None:
            return self._verdict("a run can get stuck", stuck, [])
        return Verdict(len(self._worlds), len(self._following))

    def _number(self, world: W) -> int:
        codes, packed = self._codes, array("I")
        for part in self._rules.parts(world):
            code = codes.get(part)
            if code is None:
                code = codes[part] = len(self._parts)
                self._parts.append(part)
            packed.append(code)
        key = packed.tobytes()
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._worlds)
            self._worlds.append(key)
        return number

    def _world(self, number: int) -> W:
        packed = array("I", self._worlds[number])
        return self._rules.put_together(tuple(self._parts[code] for code in packed))

    def _verdict(self, broken: str, number: int, last: list[W]) -> Verdict[W]:
        path = [self._world(number), *last]
        while number:
            number = self._came_from[number]
            path.insert(0, self._world(number))
        return Verdict(len(self._worlds), len(self._following), broken, path)

    def _stuck(self) -> int | None:
        """Return a world from which the run can never be finished although it may be."""
        total = len(self._worlds)
        is_good = bytearray(self._rules.is_finished(self._world(n)) for n in range(total))
        has_changed = True
        while has_changed:
            has_changed = False
            # Most moves lead to later numbers, so that few rounds are enough.
            for number in range(total - 1, -1, -1):
                if not is_good[number]:
                    begin = self._ends[number - 1] if number else 0
                    if any(is_good[n] for n in self._following[begin : self._ends[number]]):
                        is_good[number] = has_changed = True
        doubtful = (n for n in range(total) if not is_good[n])
        return next((n for n in doubtful if self._rules.may_finish(self._world(n))), None)
