"""The tokens of a chart, with what every construct asks of them.

What people write nearly always (plain ids and labels, four operators with a blank on either
side) is taken in whole steps: the same answer as token by token, in less than half the time.
"""

from __future__ import annotations

from sequencer.resolution.flowcharts.links import Link, read_link
from sequencer.resolution.flowcharts.patterns import (
    NO_QUICK_NODE,
    QUICK_LINK,
    QUICK_NODE,
    QUICK_SHAPES,
)
from sequencer.resolution.flowcharts.preparation import SPACES
from sequencer.resolution.flowcharts.tokens import Tokens

ID_KINDS = frozenset(
    ["NODE", "NUM", "DOWN", "MINUS", "DEFAULT", "COMMA", "COLON", "AMP", "BRKT", "MULT", "LETTER"]
)
"""What ids consist of."""

SEPARATORS = frozenset({"NEWLINE", "SEMI", "EOF"})
"""What ends a statement."""


Step = tuple[Link | None, str | None, str, str | None, str | None, int, int]
"""The line from the step before and its label; a node, its label and shape; where both stand."""

_LINKS = {operator: read_link(operator) for operator in ("-->", "---", "-.->", "==>")}


class Stream(Tokens):
    """Tokens that can be skipped and joined."""

    @property
    def start_of_text(self) -> int:
        """Where the token stands, without the blanks that belong to it."""
        text = self.text.lstrip(SPACES)
        return self.start + len(self.text) - len(text) if text else self.start

    def skip_spaces(self) -> bool:
        """Pass the blanks that stand here, and say whether there were any."""
        found = self.kind == "SPACE"
        while self.kind == "SPACE":
            self.advance()
        return found

    def take_id(self) -> str:
        """Return the id that begins here, and pass it."""
        name = self.text
        self.advance()
        while self.kind in ID_KINDS:
            name += self.text
            self.advance()
        return name

    def take_plain_steps(self) -> list[Step]:
        """Return the nodes and lines that follow in plain forms, and pass them.

        Nothing is passed, and the list is empty, unless the first node is plain. What the
        last node is followed by, if anything, has not been read.
        """
        steps: list[Step] = []
        if not self._is_plain:
            return steps
        source, pos = self._source, self.start
        link = edge_label = None
        line = end = pos
        while node := QUICK_NODE.match(source, pos):
            name, index = node[1], node.lastindex or 1
            if name in NO_QUICK_NODE:
                break
            if index == 1:
                steps.append((link, edge_label, name, None, None, pos, line))
            else:
                shape = QUICK_SHAPES[index // 2 - 1]
                steps.append((link, edge_label, name, node[index], shape, pos, line))
            end = node.end()
            following = QUICK_LINK.match(source, end)
            if following is None:
                break
            operator, quoted, unquoted = following.groups()
            link, edge_label = _LINKS[operator], quoted or unquoted
            line, pos = end + 1, following.end()
        if steps:
            self._pos = end
            self.advance()
        return steps
