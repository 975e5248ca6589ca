"""How the state of a node looks: its mark, its colour, its words; and texts made fit to show."""

from __future__ import annotations

import unicodedata

from sequencer.cli.sanitise import one_line
from sequencer.cli.tables import cut, width
from sequencer.model.flow_view import NodeState

MARKS = {
    NodeState.PENDING: "·",
    NodeState.WAITING: "○",
    NodeState.READY: "○",
    NodeState.RUNNING: "●",
    NodeState.RETRYING: "↻",
    NodeState.ASKED: "?",
    NodeState.DONE: "✓",
    NodeState.FAILED: "✗",
    NodeState.CANCELLED: "–",  # noqa: RUF001 - a dash that is no minus
}
ASCII_MARKS = {
    NodeState.PENDING: ".",
    NodeState.WAITING: "o",
    NodeState.READY: "o",
    NodeState.RUNNING: "*",
    NodeState.RETRYING: "~",
    NodeState.ASKED: "?",
    NodeState.DONE: "+",
    NodeState.FAILED: "!",
    NodeState.CANCELLED: "-",
}
STYLES = {
    NodeState.PENDING: "dim",
    NodeState.WAITING: "dim",
    NodeState.READY: "cyan",
    NodeState.RUNNING: "bold cyan",
    NodeState.RETRYING: "yellow",
    NodeState.ASKED: "bold magenta",
    NodeState.DONE: "green",
    NodeState.FAILED: "bold red",
    NodeState.CANCELLED: "dim",
}
"""As rich reads them."""

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
