"""How the state of a node looks: its mark, its colour, its words; and texts made fit to show."""

from __future__ import annotations

import unicodedata
from datetime import datetime
from typing import NamedTuple

from sequencer.cli.views.text import cut, one_line, width
from sequencer.history.view import FlowView, NodeState, NodeView
from sequencer.model.limits import parse_time
from sequencer.model.outcome import duration


class NodeLook(NamedTuple):
    """How a state looks."""

    mark: str
    ascii_mark: str
    style: str
    """As rich reads it."""
    css: str
    """The class of its elements in a picture and on a page."""
    picture: str = ""
    """In charts and pictures: fill, line and text together, so that a theme's own text colour
    can't make it unreadable. Empty: as any node."""


LOOKS = {
    NodeState.PENDING: NodeLook("·", ".", "dim", "pending"),
    NodeState.WAITING: NodeLook(
        "○", "o", "dim", "pending", "fill:#f1f3f5,stroke:#495057,color:#212529,stroke-dasharray:4 3"
    ),
    NodeState.READY: NodeLook("○", "o", "cyan", "ready"),
    NodeState.RUNNING: NodeLook(
        "●",
        "*",
        "bold cyan",
        "running",
        "fill:#d0ebff,stroke:#1864ab,color:#0b2e4f,stroke-width:3px",
    ),
    NodeState.RETRYING: NodeLook(
        "↻", "~", "yellow", "retrying", "fill:#fff3bf,stroke:#b35900,color:#4d2600"
    ),
    NodeState.ASKED: NodeLook(
        "?",
        "?",
        "bold magenta",
        "waiting",
        "fill:#f3d9fa,stroke:#862e9c,color:#3b0f47,stroke-width:3px",
    ),
    NodeState.DONE: NodeLook(
        "✓", "+", "green", "done", "fill:#d3f9d8,stroke:#2b8a3e,color:#0b3d17"
    ),
    NodeState.FAILED: NodeLook(
        "✗", "!", "bold red", "failed", "fill:#ffe3e3,stroke:#c92a2a,color:#5f0f0f,stroke-width:3px"
    ),
    NodeState.CANCELLED: NodeLook(
        "–",  # noqa: RUF001 - a dash that is no minus
        "-",
        "dim",
        "skipped",
        "fill:#e9ecef,stroke:#868e96,color:#495057,stroke-dasharray:2 2",
    ),
}
MARKS = {state: look.mark for state, look in LOOKS.items()}
ASCII_MARKS = {state: look.ascii_mark for state, look in LOOKS.items()}
CLASSES = {state: look.css for state, look in LOOKS.items()}
"""WAITING, of a node that others hold up, is pending; "waiting" is what waits for a person."""
STYLES = {state: look.style for state, look in LOOKS.items()}
PICTURES = {state: look.picture for state, look in LOOKS.items() if look.picture}

ACTIVE = frozenset({NodeState.RUNNING, NodeState.RETRYING, NodeState.ASKED})
"""States that a person waits for the end of."""

_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
_NO_XML = "\ufffe\uffff"
"""No characters, and what an XML parser stops at."""


def shown(text: str) -> str:
    r"""Return *text* as one line whose width can be told: nothing invisible, no direction marks.

    >>> shown("pay\u202eoff \x1b[2J\U0001f469\u200d\U0001f4bb")
    'payoff 👩💻'
    """
    kept = (
        c for c in one_line(text) if unicodedata.category(c) not in _UNSEEN and c not in _NO_XML
    )
    return " ".join("".join(kept).split())


def wrapped(text: str, columns: int, lines: int, *, dots: str = "…") -> list[str]:
    """Return *text* in at most *lines* lines of *columns* columns, broken at blanks.

    >>> wrapped("Review the security of all changes", 12, 2)
    ['Review the', 'security of…']
    """
    found, words = [""], text.split()
    while words:
        word = words.pop(0)
        joined = f"{found[-1]} {word}".strip()
        if width(joined) <= columns:
            found[-1] = joined
        elif found[-1]:
            found.append("")
            words.insert(0, word)
        else:
            head = cut(word, columns, dots="") or word[0]
            found[-1] = head
            words[:0] = [word[len(head) :]] if len(word) > len(head) else []
    if len(found) > lines:
        found = [*found[: lines - 1], cut(f"{found[lines - 1]}{dots}", columns, dots=dots)]
        if not found[-1].endswith(dots):
            found[-1] = cut(found[-1], columns - width(dots), dots="") + dots
    return found


LAST_LINE_COLUMNS = 80


def state_words(view: NodeView, now: datetime) -> str:
    """Return the state; for one that waits for a moment, how long until then."""
    due = parse_time(view.due) if view.due else None
    if due is None:
        return str(view.state)
    left = duration(max(0.0, (due - now).total_seconds()))
    if view.state is NodeState.RETRYING:
        return f"{view.state} in {left}"
    if view.state is not NodeState.ASKED:
        return str(view.state)
    return f"{view.state}, {left} left" if due > now else f"{view.state}, its time is over"


def seconds(view: NodeView, now: datetime) -> float:
    """Return how long *view* took, what runs now included."""
    since = parse_time(view.since) if view.since else None
    running = (now - since).total_seconds() if since is not None else 0.0
    # Another machine's clock may be ahead of this one.
    return view.seconds + max(0.0, running)


def done(view: FlowView) -> int:
    """Return how many nodes are done."""
    return sum(node.state is NodeState.DONE for node in view.nodes)
