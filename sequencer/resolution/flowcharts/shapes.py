"""The shapes of nodes: the brackets that mean one, and the names that ``@{ shape: … }`` takes."""

from __future__ import annotations

from typing import NamedTuple


class Bracket(NamedTuple):
    """How a label in brackets ends, and which shape each end means."""

    ends: dict[str, str]
    """Kind of the closing token to Mermaid's name of the shape."""
    written: str
    """The closing bracket as people write it."""


BRACKETS = {
    "[": Bracket({"]": "square"}, "]"),
    "(": Bracket({")": "round"}, ")"),
    "((": Bracket({")": "circle"}, "))"),
    "(((": Bracket({")))": "doublecircle"}, ")))"),
    "(-": Bracket({"-)": "ellipse"}, "-)"),
    "([": Bracket({"])": "stadium"}, "])"),
    "[[": Bracket({"]]": "subroutine"}, "]]"),
    "[(": Bracket({")]": "cylinder"}, ")]"),
    "{": Bracket({"}": "diamond"}, "}"),
    "{{": Bracket({"}": "hexagon"}, "}}"),
    ">": Bracket({"]": "odd"}, "]"),
    "[/": Bracket({"\\]": "trapezoid", "/]": "lean_right"}, "/]' or '\\]"),
    "[\\": Bracket({"/]": "inv_trapezoid", "\\]": "lean_left"}, "/]' or '\\]"),
    "[|": Bracket({"]": "rect"}, "]"),
}
"""By the opening bracket; ``((`` and ``{{`` close with two tokens."""

SHAPES = frozenset([
    "bang", "bolt", "bow-rect", "bow-tie-rectangle", "brace", "brace-l", "brace-r", "braces",
    "card", "circ", "circle", "cloud", "collate", "com-link", "comment", "cross-circ",
    "crossed-circle", "curv-trap", "curved-trapezoid", "cyl", "cylinder", "das", "data-store",
    "database", "datastore", "db", "dbl-circ", "decision", "delay", "diam", "diamond", "disk",
    "display", "div-proc", "div-rect", "divided-process", "divided-rectangle", "doc", "docs",
    "document", "documents", "double-circle", "doublecircle", "event", "extract", "f-circ",
    "filled-circle", "flag", "flip-tri", "flipped-triangle", "fork", "fr-circ", "fr-rect",
    "framed-circle", "framed-rectangle", "h-cyl", "half-rounded-rectangle", "hex", "hexagon",
    "horizontal-cylinder", "hourglass", "icon", "in-out", "internal-storage", "inv-trapezoid",
    "join", "junction", "lean-l", "lean-left", "lean-r", "lean-right", "lightning-bolt",
    "lin-cyl", "lin-doc", "lin-proc", "lin-rect", "lined-cylinder", "lined-document",
    "lined-process", "lined-rectangle", "loop-limit", "manual", "manual-file", "manual-input",
    "notch-pent", "notch-rect", "notched-pentagon", "notched-rectangle", "odd", "out-in",
    "paper-tape", "pill", "prepare", "priority", "proc", "process", "processes", "procs",
    "question", "rect", "rectangle", "rounded", "shaded-process", "sl-rect", "sloped-rectangle",
    "sm-circ", "small-circle", "st-doc", "st-rect", "stacked-document", "stacked-rectangle",
    "stadium", "start", "stop", "stored-data", "subproc", "subprocess", "subroutine", "summary",
    "tag-doc", "tag-proc", "tag-rect", "tagged-document", "tagged-process", "tagged-rectangle",
    "terminal", "text", "trap-b", "trap-t", "trapezoid", "trapezoid-bottom", "trapezoid-top",
    "tri", "triangle", "win-pane", "window-pane",
])  # fmt: skip
"""Every name that ``@{ shape: NAME }`` may give."""
