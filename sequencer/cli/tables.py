"""Tables of plain text, the same on a terminal, in a pipe and in a mail from cron."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from typing import IO

from sequencer.cli.sanitise import one_line


def width(text: str) -> int:
    r"""Return how many columns *text* takes on a terminal.

    >>> width("plan"), width("計画"), width("e\u0301"), width("ที่")
    (4, 4, 1, 1)
    """
    if text.isascii():
        return len(text)
    return sum(map(_cells, text))


def _cells(character: str) -> int:
    # Thai vowels, say, stand over a letter without being combining in Unicode's sense.
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def columns_of(stream: IO[str] | None) -> int | None:
    """Return how wide the terminal at the end of *stream* is; None: there is none."""
    try:
        if stream is None or not stream.isatty():
            return None
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


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


def purposes(said: Iterable[tuple[str, str]], kind: str = "STEP") -> str:
    """Return a table of what each of a *kind* does, by name; empty if nobody has said it."""
    rows = {one_line(name): one_line(about) for name, about in said if about}
    return columns((kind, "WHAT IT DOES"), list(rows.items())) if rows else ""
