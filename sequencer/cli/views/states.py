"""How each state looks, on terminals and pages: word, mark, color; and texts made fit to show."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from sequencer.cli.views.text import cut, one_line, width
from sequencer.history.view import FlowView, NodeState, NodeView
from sequencer.model.limits import parse_time
from sequencer.model.outcome import duration


class StateLook(NamedTuple):
    """How a state looks, on a terminal and on a page: never told by its color alone."""

    word: str
    mark: str
    ascii_mark: str
    style: str
    """As rich reads it."""
    css: str
    """The class of its elements in a picture and on a page."""
    picture: str = ""
    """In charts and pictures: fill, line and text together, so that a theme's own text color
    can't make it unreadable. Empty: as any node."""

    @property
    def color(self) -> str | None:
        """Return the color of its style; None: it has none."""
        return next((name for name in self.style.split() if name not in ("bold", "dim")), None)


_HELD_UP = "fill:#f1f3f5,stroke:#495057,color:#212529,stroke-dasharray:4 3"
_AT_WORK = "fill:#d0ebff,stroke:#1864ab,color:#0b2e4f,stroke-width:3px"
_TRIED_AGAIN = "fill:#fff3bf,stroke:#b35900,color:#4d2600"
_ASKED = "fill:#f3d9fa,stroke:#862e9c,color:#3b0f47,stroke-width:3px"
_DONE = "fill:#d3f9d8,stroke:#2b8a3e,color:#0b3d17"
_FAILED = "fill:#ffe3e3,stroke:#c92a2a,color:#5f0f0f,stroke-width:3px"
_CANCELLED = "fill:#e9ecef,stroke:#868e96,color:#495057,stroke-dasharray:2 2"

LOOKS: Mapping[str, StateLook] = {
    # Of nodes, by `NodeState`, and of the steps and runs that stand so.
    "pending": StateLook("not started", "·", ".", "dim", "pending"),
    "waiting": StateLook("waiting", "○", "o", "dim", "pending", _HELD_UP),
    "ready": StateLook("ready", "○", "o", "cyan", "ready"),
    "running": StateLook("running", "●", "*", "bold cyan", "running", _AT_WORK),
    "retrying": StateLook("retrying", "↻", "~", "yellow", "retrying", _TRIED_AGAIN),
    "asked": StateLook("waiting for you", "?", "?", "bold magenta", "waiting", _ASKED),
    "done": StateLook("done", "✓", "+", "green", "done", _DONE),
    "failed": StateLook("failed", "✗", "!", "bold red", "failed", _FAILED),
    "cancelled": StateLook("cancelled", "–", "-", "dim", "skipped", _CANCELLED),  # noqa: RUF001 - a dash that is no minus
    # Of attempts that ended otherwise, by `history.story.STATES`.
    "skipped": StateLook("skipped", "↷", "-", "dim", "skipped"),
    "released": StateLook("given back", "↷", "-", "dim", "skipped"),
    "expired": StateLook("not answered in time", "↷", "-", "dim", "skipped"),
    "lost": StateLook("taken over", "↷", "-", "dim", "skipped"),
    # Of the step that comes next.
    "next": StateLook("next", "○", "o", "cyan", "ready"),
    # Of runs, by `run_state`.
    "paused": StateLook("paused", "‖", "=", "yellow", "paused"),
    "stopped": StateLook("stopped", "■", "#", "yellow", "paused"),
    "limit": StateLook("at its limit", "!", "!", "yellow", "waiting"),
    "interrupted": StateLook("interrupted", "!", "!", "yellow", "waiting"),
    "complete": StateLook("complete", "✓", "+", "green", "done"),
    "rejected": StateLook("rejected", "✗", "!", "bold red", "failed"),
    "timed_out": StateLook("timed out", "✗", "!", "bold red", "failed"),
    "max_iterations": StateLook("max iterations", "✗", "!", "bold red", "failed"),
    "unreadable": StateLook("unreadable", "✗", "!", "bold red", "failed"),
}
"""All states that people see, by what the program calls them. "waiting" is what others hold up;
what waits for a person is "asked", whose class is ``waiting``."""
PICTURES = {state: LOOKS[state].picture for state in NodeState if LOOKS[state].picture}

WORKING = frozenset({NodeState.RUNNING, NodeState.RETRYING})
"""States in which a clock runs that people look at."""
ACTIVE = WORKING | {NodeState.ASKED}
"""States that a person waits for the end of."""
INTEREST = (
    *(NodeState.ASKED, NodeState.FAILED, NodeState.RUNNING, NodeState.RETRYING),
    *(NodeState.READY, NodeState.WAITING, NodeState.DONE, NodeState.CANCELLED, NodeState.PENDING),
)
"""What a person has to see first where not everything has room."""


def look_of(state: str) -> StateLook:
    """Return how *state* looks, also one that a later version has added."""
    return LOOKS.get(state) or LOOKS["failed"]._replace(word=state.replace("_", " "))


def node_look(view: NodeView) -> StateLook:
    """Return how the node of *view* looks."""
    return LOOKS["interrupted" if view.is_interrupted else view.state]


def mark_of(view: NodeView, *, is_ascii: bool) -> str:
    """Return the mark of the node of *view*."""
    look = node_look(view)
    return look.ascii_mark if is_ascii else look.mark


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
    word = node_look(view).word
    if due is None:
        return word
    left = duration(max(0.0, (due - now).total_seconds()))
    if view.state is NodeState.RETRYING:
        return f"{word} in {left}"
    if view.state is not NodeState.ASKED:
        return word
    return f"{word}, {left} left" if due > now else f"{word}, its time is over"


def seconds(view: NodeView, now: datetime) -> float:
    """Return how long *view* took, what runs now included."""
    since = parse_time(view.since) if view.since and not view.is_interrupted else None
    running = (now - since).total_seconds() if since is not None else 0.0
    # Another machine's clock may be ahead of this one.
    return view.seconds + max(0.0, running)


def done(view: FlowView) -> int:
    """Return how many nodes are done."""
    return sum(node.state is NodeState.DONE for node in view.nodes)
