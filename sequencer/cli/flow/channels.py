"""The room between two rows: which line turns in which of its tracks.

A line comes down in one column, runs along a track and goes on in another column. Two
lines never share a piece of a track or of a column; they only cross.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush


@dataclass(slots=True, eq=False)
class Turn:
    """A piece of a line that runs along one track."""

    line: int
    start: int
    """Column in which it arrives, as the line is drawn."""
    end: int
    upper: tuple[int, ...]
    """Columns that it takes from its track up to the row above."""
    lower: tuple[int, ...]
    """Columns that it takes from its track down to the row below."""
    track: int = 0
    later: list[Turn] = field(default_factory=list, repr=False)
    """Those that have to be in a lower track."""
    missing: int = 0
    """How many that have to be in a higher track have no track yet."""

    @property
    def left(self) -> int:
        """Return its leftmost column."""
        return min(self.start, self.end)

    @property
    def right(self) -> int:
        """Return its rightmost column."""
        return max(self.start, self.end)

    @property
    def key(self) -> tuple[int, int, int]:
        """Return its place among those that could be next: nested turns don't cross then."""
        # What turns back stays near to the box that it leaves or enters.
        if not self.lower:
            return (0, -self.start, self.line)
        if not self.upper:
            return (3, -self.start, self.line)
        is_leftward = self.end < self.start
        return (1 if is_leftward else 2, self.start if is_leftward else -self.start, self.line)


@dataclass(slots=True)
class Channel:
    """The turns between two rows."""

    turns: list[Turn] = field(default_factory=list)

    def add(self, line: int, start: int, end: int, *, comes: str, goes: str) -> None:
        """Take a line from *start* to *end*; *comes* and *goes* are ``above`` or ``below``."""
        if start == end and comes != goes:
            return
        ends = ((start, comes), (end, goes))
        upper = tuple(column for column, side in ends if side == "above")
        lower = tuple(column for column, side in ends if side == "below")
        self.turns.append(Turn(line, start, end, upper, lower))

    def settle(self, straight: set[int]) -> int:
        """Choose the tracks; return how many there are. In *straight* columns lines pass."""
        taken = straight | {c for turn in self.turns for c in (*turn.upper, *turn.lower)}
        self._relate()
        placed: list[Turn] = []
        ready = [(turn.key, place) for place, turn in enumerate(self.turns) if not turn.missing]
        heapify(ready)
        left = set(range(len(self.turns)))
        while left:
            if not ready:
                first = min(n for n in left if self.turns[n].upper and self.turns[n].lower)
                self._split(first, taken)
                heappush(ready, (self.turns[first].key, first))
                left.add(len(self.turns) - 1)
            place = heappop(ready)[1]
            left.discard(place)
            turn = self.turns[place]
            turn.track = _track(turn, placed)
            placed.append(turn)
            for other in turn.later:
                other.missing -= 1
                if not other.missing:
                    heappush(ready, (other.key, self.turns.index(other)))
        return max((turn.track + 1 for turn in self.turns), default=0)

    def _relate(self) -> None:
        """Note which turn has to be above which: both use a column, from both sides."""
        from_below: dict[int, list[Turn]] = defaultdict(list)
        for turn in self.turns:
            for column in turn.lower:
                from_below[column].append(turn)
        for turn in self.turns:
            for column in turn.upper:
                for other in from_below[column]:
                    if other is not turn:
                        turn.later.append(other)
                        other.missing += 1

    def _split(self, place: int, taken: set[int]) -> None:
        """Break a ring of turns that each have to be above the next: one turns twice.

        The first half need be below nothing, and the second above nothing.
        """
        turn = self.turns[place]
        middle = (turn.left + turn.right) // 2
        column = next(
            c
            for step in range(len(taken) + 1)
            for c in (middle + step, middle - step)
            if c not in taken and c >= 0
        )
        taken.add(column)
        second = Turn(turn.line, column, turn.end, (), turn.lower)
        second.missing = turn.missing + 1
        for other in self.turns:
            other.later = [second if one is turn else one for one in other.later]
        turn.later.append(second)
        turn.end, turn.lower, turn.missing = column, (), 0
        self.turns.append(second)


def _track(turn: Turn, placed: list[Turn]) -> int:
    """Return the first track that is free, below all that *turn* has to be below."""
    low, taken = 0, set()
    for other in placed:
        if any(turn is one for one in other.later):
            low = max(low, other.track + 1)
        if other.left <= turn.right and turn.left <= other.right:
            taken.add(other.track)
            if other.key[0] == turn.key[0]:
                # The key put the other first so that they don't cross.
                low = max(low, other.track + 1)
    while low in taken:
        low += 1
    return low
