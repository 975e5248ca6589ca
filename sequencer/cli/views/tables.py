"""Rows under a head, in as many columns as a terminal has room for; no line is wrapped.

Columns without a value are left out first, then those that go, in their order; then texts
are shortened, and those that have least grow first, so that short names stay whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from sequencer.cli.views.text import cut, one_line, short, width

LEAST_COLUMNS, WHOLE_COLUMNS = 12, 20
"""To what a column of texts may be narrowed, and how wide one is that is not: a time, a status."""
SHORTEST = 4
"""To what such a column is narrowed before others are."""
_SEPARATOR = "  "
_NONE: Mapping[int, int] = {}


def columns(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[int] = (),
    room: int | None = None,
    goes: Sequence[int] = (),
    whole: Collection[int] = (),
    prose: Collection[int] = (),
) -> str:
    """Return *rows* under *head* in columns; those numbered in *right* are flush right.

    In a terminal of *room* columns those that *goes* lists may be left out, names are cut in
    their middle and *prose* at its end, those in *whole* only if nothing else is left. None:
    all of it.

    >>> print(columns(("N", "STEP"), [("9", "plan"), ("10", "build")], right={0}))
     N  STEP
     9  plan
    10  build
    >>> print(columns(("N", "STEP"), [("1", "implement-the-new-parser")], right={0}, room=18))
    N  STEP
    1  impleme…-parser
    """
    natural = widest(head, rows)
    fixed = {*right, *whole}
    least = {
        place: LEAST_COLUMNS
        for place, wide in enumerate(natural)
        if place not in fixed and wide > WHOLE_COLUMNS
    }
    easy = dict.fromkeys(least, WHOLE_COLUMNS)
    wide = narrowed(natural, rows, room, goes=goes, least=least, easy=easy, right=right)

    def fit(place: int, text: str, most: int) -> str:
        return (cut if place in prose else short)(text, most)

    return "\n".join(lines(head, rows, wide, right=right, fit=fit))


def widest(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """Return how wide each column is if nothing is shortened."""
    return [max(width(row[place]) for row in (head, *rows)) for place in range(len(head))]


def narrowed(
    natural: Sequence[int],
    rows: Sequence[Sequence[str]],
    room: int | None,
    *,
    goes: Sequence[int],
    least: Mapping[int, int],
    easy: Mapping[int, int] = _NONE,
    right: Collection[int] = (),
    first: int | None = None,
) -> dict[int, int]:
    """Return which columns there is *room* for, and how wide each of them is.

    *least* has those that may be shortened, and to what; they go while they would have to
    be narrower than *easy*. The column *first* grows before the others. Figures, which
    stand in *right*, are never cut.
    """
    if room is None:
        return dict(enumerate(natural))
    smallest = [min(wide, least.get(place, wide)) for place, wide in enumerate(natural)]
    wanted = [min(wide, easy.get(n, smallest[n])) for n, wide in enumerate(natural)]
    kept = list(range(len(natural)))

    def free(widths: Sequence[int] | Mapping[int, int]) -> int:
        return room - sum(widths[n] for n in kept) - len(_SEPARATOR) * (len(kept) - 1)

    empty = [n for n in (*goes, *kept) if all(row[n] in ("", "-") for row in rows)]
    for place in dict.fromkeys([*empty, *goes]):
        if free(wanted) >= 0:
            break
        kept.remove(place)
    found = {place: smallest[place] for place in kept}
    left = free(found)
    while left > 0 and (growing := [n for n in kept if found[n] < natural[n]]):
        found[first if first in growing else min(growing, key=found.__getitem__)] += 1
        left -= 1
    while left < 0 and (texts := [n for n in kept if n not in right and found[n] > 1]):
        long = [n for n in texts if n in least and found[n] > SHORTEST]
        found[max(long or texts, key=found.__getitem__)] -= 1
        left += 1
    return found


def lines(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    wide: Mapping[int, int],
    *,
    right: Collection[int] = (),
    fit: Callable[[int, str, int], str],
) -> list[str]:
    """Return *head* and *rows* in columns that are so *wide*; *fit* shortens what is wider."""
    found = []
    for row in (head, *rows):
        cells = []
        for place, most in wide.items():
            cell = fit(place, row[place], most)
            blank = " " * (most - width(cell))
            cells.append(blank + cell if place in right else cell + blank)
        found.append(_SEPARATOR.join(cells).rstrip())
    return found


def purposes(said: Iterable[tuple[str, str]], kind: str = "STEP") -> str:
    """Return a table of what each of a *kind* does, by name; empty if nobody has said it."""
    rows = {one_line(name): one_line(about) for name, about in said if about}
    return columns((kind, "WHAT IT DOES"), list(rows.items())) if rows else ""
