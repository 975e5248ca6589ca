"""What a line operator means: stroke, heads and length."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

_HEADS = {"x": ("arrow_cross", "x"), ">": ("arrow_point", "<"), "o": ("arrow_circle", "o")}
_STARTS = {"x": "arrow_cross", "<": "arrow_point", "o": "arrow_circle"}
_MAX_LENGTH = 10


class Link(NamedTuple):
    """A line as it is drawn."""

    stroke: str
    type: str
    length: int


INVALID = Link("INVALID", "INVALID", 0)
"""Two halves that don't fit; Mermaid reads such a line and can't draw it."""


def read_link(end: str, start: str | None = None) -> Link:
    """Return what the operator *end* means, or the halves *start* and *end* around a label.

    >>> read_link("-.->"), read_link("<==>")
    (Link(stroke='dotted', type='arrow_point', length=1), Link(stroke='thick', type='double_arrow_point', length=1))
    >>> read_link("--x", "--"), read_link("-->", "x--")
    (Link(stroke='normal', type='arrow_cross', length=1), Link(stroke='INVALID', type='INVALID', length=0))
    """  # noqa: E501 - the output of a doctest can't be wrapped
    link = _whole(end)
    if start is None:
        return link
    stroke = "dotted" if "." in start else "thick" if "=" in start else "normal"
    if stroke != link.stroke:
        return INVALID
    head = _STARTS.get(start[0])
    if head is None:
        return link
    return link._replace(type=f"double_{head}") if head == link.type else INVALID


@lru_cache(maxsize=256)
def _whole(operator: str) -> Link:
    line, last = operator[:-1], operator[-1]
    kind, opening = _HEADS.get(last, ("arrow_open", ""))
    if opening and operator.startswith(opening):
        kind = f"double_{kind}"
        line = line[1:]
    dots = line.count(".")
    if dots:
        return Link("dotted", kind, min(dots, _MAX_LENGTH))
    stroke = {"=": "thick", "~": "invisible"}.get(line[:1], "normal")
    return Link(stroke, kind, min(len(line) - 1, _MAX_LENGTH))
