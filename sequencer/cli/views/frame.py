"""One picture of the live table: as wide and as high as the terminal is at that moment.

What a person waits for stays in it on the smallest terminal; the rest is counted.
"""

from __future__ import annotations

import os
import time
from bisect import bisect
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import IO, TYPE_CHECKING

from sequencer.cli.views.nodes import (
    Heard,
    counted,
    node_lines,
    titled_summary,
)
from sequencer.cli.views.states import ASCII_MARKS, MARKS, STYLES
from sequencer.cli.views.text import can_write, cut, width
from sequencer.engine.view import FlowView, NodeState, NodeView

if TYPE_CHECKING:
    from rich.text import Text

USUAL = (80, 24)
SPINNER, ASCII_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\"
SPINS_PER_S = 8
SPARE_ROWS = 2
LEAST_ROWS = 6
"""Of a table that leaves room for a blank line before it."""
Styled = tuple[str, str]
"""A line, and how it looks."""
_SEEN = (NodeState.ASKED, NodeState.RUNNING, NodeState.RETRYING, NodeState.FAILED)
"""What a person has to see; of each something before there is more of another."""
_SOON = {NodeState.READY: 1, NodeState.WAITING: 2}
_REST = 3


class Frame:
    """Draws the table, and knows what the terminal has made of the last one."""

    def __init__(self, stream: IO[str]) -> None:
        """Draw for the terminal at the end of *stream*."""
        self._stream = stream
        self._size = USUAL
        self._was: tuple[int, ...] = ()
        """Columns that each line took when it was drawn."""
        self._is_ascii = not can_write(stream, SPINNER + "".join(MARKS.values()) + "…·")

    def measure(self) -> tuple[int, int]:
        """Return columns and rows of the terminal, looked up again."""
        try:
            size = os.get_terminal_size(self._stream.fileno())
        except (OSError, ValueError):
            size = os.terminal_size(USUAL)
        # 0 by 0 is what a terminal says that nobody told its size.
        self._size = (size.columns or USUAL[0], size.lines or USUAL[1])
        return self._size

    def rows_gone_astray(self) -> int:
        """Return how many rows more the last table takes since the terminal is narrower."""
        columns = self._size[0]
        return sum(max(0, -(-was // columns) - 1) for was in self._was)

    def erase_astray(self) -> None:
        """Take away what a narrower terminal has broken of the last table, before the next."""
        # It lies above where rich looks for its lines.
        self._stream.write("\r\x1b[2K\x1b[1A" * self.rows_gone_astray())

    def drawn(
        self,
        view: FlowView | None,
        heard: Mapping[str, Heard],
        now: datetime,
        *,
        above: Sequence[Styled] = (),
        below: Sequence[Styled] = (),
    ) -> Text:
        """Return the table of *view* at this size, between lines that are shown in any case.

        They take rows from the table; the last of *above* go where less than half is left.
        """
        from rich.text import Text  # noqa: PLC0415 - loaded with the console

        # The last column stays free: some terminals go to the next line behind it.
        columns, rows = self._size[0] - 1, self._size[1] - SPARE_ROWS - len(below)
        lines = [*above[: max(0, rows // 2 if view is not None else rows)]]
        if view is not None:
            lines += [("", "")] if lines and rows - len(lines) > LEAST_ROWS else []
            lines += self._run(view, heard, now, columns, rows - len(lines))
        lines = [(cut(self._plain(text), columns, dots=self._dots), s) for text, s in lines]
        lines += [(cut(text, columns, dots=self._dots), style) for text, style in below]
        self._was = tuple(width(text) for text, _ in lines)
        text = Text(no_wrap=True, overflow="crop", end="")
        for number, (line, style) in enumerate(lines):
            text.append(f"{line}\n" if number < len(lines) - 1 else line, style=style)
        return text

    @property
    def _dots(self) -> str:
        return "..." if self._is_ascii else "…"

    def _plain(self, text: str) -> str:
        return text.replace("·", "-") if self._is_ascii else text

    def _run(
        self,
        view: FlowView,
        heard: Mapping[str, Heard],
        now: datetime,
        columns: int,
        rows: int,
    ) -> list[Styled]:
        """Return the head, nodes, the count of those that there is no room for, the totals."""
        nodes, rest = chosen(view.nodes, max(0, rows - 2))
        lines: list[Styled] = []
        if nodes:
            found = node_lines(view, nodes, now, columns, heard, mark=self._mark, dots=self._dots)
            styles = ["dim", *(STYLES[node.state] for node in nodes)]
            lines = list(zip(found, styles, strict=True))
        if rest:
            lines.append((f"and {len(rest)} more: {counted(view, rest)}", "dim"))
        return [*lines, (titled_summary(view, now, columns), "bold")]

    def _mark(self, state: NodeState) -> str:
        if state is NodeState.RUNNING:
            spinner = ASCII_SPINNER if self._is_ascii else SPINNER
            return spinner[int(time.monotonic() * SPINS_PER_S) % len(spinner)]
        return (ASCII_MARKS if self._is_ascii else MARKS)[state]


def chosen(nodes: Sequence[NodeView], room: int) -> tuple[list[NodeView], list[NodeView]]:
    """Return those that fit into *room* lines, in their order, and the rest.

    What a person has to see comes first: of what is asked, runs, is tried again or failed
    something of each. Then what is next, then what stands nearest to those in the list.
    """
    if len(nodes) <= room:
        return list(nodes), []
    numbers: Counter[NodeState] = Counter()
    ranks: list[tuple[int, int, int]] = []
    places = [place for place, node in enumerate(nodes) if node.state in _SEEN]
    for place, node in enumerate(nodes):
        if node.state in _SEEN:
            ranks.append((0, numbers[node.state], _SEEN.index(node.state)))
            numbers[node.state] += 1
        else:
            ranks.append((_SOON.get(node.state, _REST), _distance(place, places), 0))
    by_rank = sorted(range(len(nodes)), key=ranks.__getitem__)
    # One line says how many there are besides.
    kept = set(by_rank[: max(0, room - 1)])
    return (
        [node for place, node in enumerate(nodes) if place in kept],
        [node for place, node in enumerate(nodes) if place not in kept],
    )


def _distance(place: int, places: Sequence[int]) -> int:
    """Return how far *place* is from the nearest of *places*, which are in order."""
    after = bisect(places, place)
    return min((abs(place - one) for one in places[max(0, after - 1) : after + 1]), default=0)
