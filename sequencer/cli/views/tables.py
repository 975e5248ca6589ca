"""Tables: rows under a head, in as many columns as fit on a terminal; no line is wrapped.

If there is no room, columns without a value are left out first, then the columns in *goes*, in
their order. Then texts are shortened. Narrow columns get room first, so short names are not cut.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from sequencer.cli.views.text import cut, one_line, shorten_middle, width

MIN_COLUMNS, WHOLE_COLUMNS = 12, 20
"""The width to which a column of texts may be narrowed. A column that is not wider than
WHOLE_COLUMNS, such as a time or a status, is not narrowed."""
SHORTEST = 4
"""The width to which such a column is narrowed before other columns are."""
_SEPARATOR = "  "
_NONE: Mapping[int, int] = {}


def format_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[int] = (),
    max_width: int | None = None,
    goes: Sequence[int] = (),
    whole: Collection[int] = (),
    prose: Collection[int] = (),
) -> str:
    """Return *rows* under *head* in columns; the columns in *right* are aligned right.

    Columns are numbered from 0. With a *max_width*, the table fits into that many characters:
    columns in *goes* may be left out; texts are cut in the middle, in columns of *prose* at the
    end; and columns in *whole* are cut only as a last resort. None: nothing is left out or cut.

    >>> print(format_table(("N", "STEP"), [("9", "plan"), ("10", "build")], right={0}))
     N  STEP
     9  plan
    10  build
    >>> print(format_table(("N", "STEP"), [("1", "implement-new-parser")], right={0}, max_width=18))
    N  STEP
    1  impleme…-parser
    """
    natural_widths = measure_widths(head, rows)
    fixed_columns = {*right, *whole}
    least_widths = {
        column: MIN_COLUMNS
        for column, column_width in enumerate(natural_widths)
        if column not in fixed_columns and column_width > WHOLE_COLUMNS
    }
    easy_widths = dict.fromkeys(least_widths, WHOLE_COLUMNS)
    widths = fit_widths(
        natural_widths,
        rows,
        max_width,
        goes=goes,
        least=least_widths,
        easy=easy_widths,
        right=right,
    )

    def fit(column: int, text: str, most: int) -> str:
        return (cut if column in prose else shorten_middle)(text, most)

    return "\n".join(format_rows(head, rows, widths, right=right, fit=fit))


def measure_widths(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the width that each column needs if nothing is shortened."""
    return [max(width(row[column]) for row in (head, *rows)) for column in range(len(head))]


def fit_widths(
    natural: Sequence[int],
    rows: Sequence[Sequence[str]],
    max_width: int | None,
    *,
    goes: Sequence[int],
    least: Mapping[int, int],
    easy: Mapping[int, int] = _NONE,
    right: Collection[int] = (),
    first: int | None = None,
) -> dict[int, int]:
    """Return the columns that fit into *max_width*, each with its width.

    *natural* has the widths without any limit. *least* has the smallest width of each column that
    may be narrowed. Columns of *goes* are left out until the others need not be narrower than
    *easy*. The column *first* gets free room before the others. Figures, in the columns of
    *right*, are never cut.
    """
    if max_width is None:
        return dict(enumerate(natural))
    minimum_widths = [
        min(column_width, least.get(column, column_width))
        for column, column_width in enumerate(natural)
    ]
    wanted_widths = [
        min(column_width, easy.get(n, minimum_widths[n])) for n, column_width in enumerate(natural)
    ]
    columns = list(range(len(natural)))

    def free(widths: Sequence[int] | Mapping[int, int]) -> int:
        return max_width - sum(widths[n] for n in columns) - len(_SEPARATOR) * (len(columns) - 1)

    empty_columns = [n for n in (*goes, *columns) if all(row[n] in ("", "-") for row in rows)]
    for column in dict.fromkeys([*empty_columns, *goes]):
        if free(wanted_widths) >= 0:
            break
        columns.remove(column)
    widths = {column: minimum_widths[column] for column in columns}
    free_room = free(widths)
    while free_room > 0 and (narrow_columns := [n for n in columns if widths[n] < natural[n]]):
        widths[
            first if first in narrow_columns else min(narrow_columns, key=widths.__getitem__)
        ] += 1
        free_room -= 1
    while free_room < 0 and (texts := [n for n in columns if n not in right and widths[n] > 1]):
        long_columns = [n for n in texts if n in least and widths[n] > SHORTEST]
        widths[max(long_columns or texts, key=widths.__getitem__)] -= 1
        free_room += 1
    return widths


def format_rows(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    wide: Mapping[int, int],
    *,
    right: Collection[int] = (),
    fit: Callable[[int, str, int], str],
) -> list[str]:
    """Return *head* and *rows* as lines; *wide* has each column's width, *fit* shortens texts."""
    texts = []
    for row in (head, *rows):
        cells = []
        for column, column_width in wide.items():
            cell = fit(column, row[column], column_width)
            padding = " " * (column_width - width(cell))
            cells.append(padding + cell if column in right else cell + padding)
        texts.append(_SEPARATOR.join(cells).rstrip())
    return texts


def format_purposes(descriptions: Iterable[tuple[str, str]], kind: str = "STEP") -> str:
    """Return a table of (name, description) pairs; empty if there is no description."""
    rows = {one_line(name): one_line(purpose) for name, purpose in descriptions if purpose}
    return format_table((kind, "WHAT IT DOES"), list(rows.items())) if rows else ""
