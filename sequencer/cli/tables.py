"""Tables of plain text, the same on a terminal, in a pipe and in a mail from cron."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import IO

from sequencer.cli.sanitise import one_line

_BEGINNING = re.compile(r"\s*(?:\| |- |\S+(?: \S+)*\s{2,}(?=\S))?")
"""Of a line: its indentation, and the mark of a quotation or an entry, or the name before it."""


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


def cut(text: str, columns: int, *, dots: str = "…") -> str:
    """Return *text* in at most *columns* columns of a terminal.

    >>> cut("security", 5), cut("計画計画", 5), cut("plan", 4), cut("plan", 0)
    ('secu…', '計画…', 'plan', '')
    """
    if width(text) <= columns:
        return text
    room, kept = columns - width(dots), ""
    if room < 0:
        return ""
    for character in text:
        room -= width(character)
        if room < 0:
            break
        kept += character
    return kept + dots


def short(text: str, columns: int, *, dots: str = "…") -> str:
    """Return a name in at most *columns* columns, cut in its middle: ends tell names apart.

    >>> short("implement-the-new-parser-12", 16), short("plan", 16)
    ('implemen…rser-12', 'plan')
    """
    if width(text) <= columns:
        return text
    room = columns - width(dots)
    tail = cut(text[::-1], room // 2, dots="")[::-1]
    return cut(text, room - width(tail), dots="") + dots + tail


LEAST_COLUMNS, WHOLE_COLUMNS = 12, 20
"""To what a column of texts may be narrowed, and how wide one is that is not: a time, a status."""
_SEPARATOR = "  "


def columns(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[int] = (),
    room: int | None = None,
    goes: Sequence[int] = (),
    whole: Collection[int] = (),
) -> str:
    """Return *rows* under *head* in columns; those numbered in *right* are flush right.

    In a terminal of *room* columns no line is wrapped: columns without a value are left out
    first, then those that *goes* lists, then names are cut in their middle, those in *whole*
    only if nothing else is left. None: all of it.

    >>> print(columns(("N", "STEP"), [("9", "plan"), ("10", "build")], right={0}))
     N  STEP
     9  plan
    10  build
    >>> print(columns(("N", "STEP"), [("1", "implement-the-new-parser")], right={0}, room=18))
    N  STEP
    1  impleme…-parser
    """
    table = [head, *rows]
    natural = [max(width(row[place]) for row in table) for place in range(len(head))]
    wide = dict(enumerate(natural))
    if room is not None:
        empty = _without_values(rows, len(head))
        wide = _narrowed(natural, right, room, [*empty, *goes], whole)
    lines = []
    for row in table:
        cells = []
        for place, most in wide.items():
            cell = short(row[place], most)
            blank = " " * (most - width(cell))
            cells.append(blank + cell if place in right else cell + blank)
        lines.append(_SEPARATOR.join(cells).rstrip())
    return "\n".join(lines)


def _without_values(rows: Sequence[Sequence[str]], count: int) -> list[int]:
    return [place for place in range(count) if all(row[place] in ("", "-") for row in rows)]


def _narrowed(
    natural: Sequence[int],
    right: Collection[int],
    room: int,
    goes: Sequence[int],
    whole: Collection[int],
) -> dict[int, int]:
    """Return how wide each column is that there is *room* for; figures are never cut."""
    kept = list(range(len(natural)))

    def free(widths: Sequence[int]) -> int:
        return room - sum(widths[place] for place in kept) - len(_SEPARATOR) * (len(kept) - 1)

    fixed = {*right, *whole}
    easy = [w if n in fixed else min(w, WHOLE_COLUMNS) for n, w in enumerate(natural)]
    for place in dict.fromkeys(goes):
        if free(easy) >= 0:
            break
        kept.remove(place)
    least = [w if w == easy[n] else LEAST_COLUMNS for n, w in enumerate(natural)]
    wide = {place: least[place] for place in kept}
    left = free(least)
    # Who has least grows first, so that short names stay whole.
    while left > 0 and (growing := [place for place in kept if wide[place] < natural[place]]):
        wide[min(growing, key=wide.__getitem__)] += 1
        left -= 1
    while left < 0 and (texts := [n for n in kept if n not in right and wide[n] > 1]):
        wide[max(texts, key=wide.__getitem__)] -= 1
        left += 1
    return wide


def fitted(text: str, room: int | None) -> str:
    r"""Return prose with every line in at most *room* columns, broken at blanks.

    What is broken goes on below where it began: below the value of a line that has a name
    before it. A word that is longer stays whole, so that a path can still be copied.

    >>> print(fitted("run       the nightly run of Tuesday\n  | a quoted line", 22))
    run       the nightly
              run of
              Tuesday
      | a quoted line
    """
    if room is None:
        return text
    return "\n".join(piece for line in text.split("\n") for piece in _pieces(line, room))


def _pieces(line: str, room: int) -> Iterator[str]:
    begun = _BEGINNING.match(line)
    if width(line) <= room or begun is None:
        yield line
        return
    before = begun[0]
    words = line[len(before) :].split(" ")
    below = before if before.endswith("| ") else " " * width(before)
    if width(below) * 2 > room or max(map(width, words)) > room - width(below):
        below = " " * (len(line) - len(line.lstrip()) + 2)
    taken: list[str] = []
    for word in words:
        if width(before + " ".join([*taken, word])) > room and (taken or before.strip()):
            yield (before + " ".join(taken)).rstrip()
            taken, before = [], below
        taken.append(word)
    yield before + " ".join(taken)


def purposes(said: Iterable[tuple[str, str]], kind: str = "STEP") -> str:
    """Return a table of what each of a *kind* does, by name; empty if nobody has said it."""
    rows = {one_line(name): one_line(about) for name, about in said if about}
    return columns((kind, "WHAT IT DOES"), list(rows.items())) if rows else ""
