"""Tables of plain text, the same on a terminal, in a pipe and in a mail from cron."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Sequence


def width(text: str) -> int:
    r"""Return how many columns *text* takes on a terminal.

    >>> width("plan"), width("計画"), width("e\u0301")
    (4, 4, 1)
    """
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def columns(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[int] = ()
) -> str:
    """Return *rows* under *head* in columns; those numbered in *right* are flush right.

    >>> print(columns(("N", "STEP"), [("9", "plan"), ("10", "build")], right={0}))
     N  STEP
     9  plan
    10  build
    """
    table = [head, *rows]
    widths = [max(width(row[place]) for row in table) for place in range(len(head))]
    lines = []
    for row in table:
        cells = []
        for place, cell in enumerate(row):
            blank = " " * (widths[place] - width(cell))
            cells.append(blank + cell if place in right else cell + blank)
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
