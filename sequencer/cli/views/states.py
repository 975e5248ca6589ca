"""How terminals and pages show each state (word, mark, color), and text made safe to show."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from sequencer.cli.views.text import cut, one_line, width
from sequencer.history.view import FlowView, NodeState, NodeView
from sequencer.model.limits import parse_time
from sequencer.model.outcome import format_duration


class StateDisplay(Struct, frozen=True):
    """How a terminal and a page show a state. The color alone never says it."""

    word: str
    mark: str
    ascii_mark: str
    style: str
    """The style, as rich reads it."""
    css: str
    """The CSS class of its elements in a picture and on a page."""
    picture: str = ""
    """Fill, line and text color in charts and pictures. All are set, so that a theme's text color
    can't make it unreadable. Empty: the look of any node."""

    @property
    def color(self) -> str | None:
        """Return the color in its style; None: the style has no color."""
        return next((name for name in self.style.split() if name not in ("bold", "dim")), None)


_HELD_UP = "fill:#f1f3f5,stroke:#495057,color:#212529,stroke-dasharray:4 3"
_AT_WORK = "fill:#d0ebff,stroke:#1864ab,color:#0b2e4f,stroke-width:3px"
_TRIED_AGAIN = "fill:#fff3bf,stroke:#b35900,color:#4d2600"
_ASKED = "fill:#f3d9fa,stroke:#862e9c,color:#3b0f47,stroke-width:3px"
_DONE = "fill:#d3f9d8,stroke:#2b8a3e,color:#0b3d17"
_FAILED = "fill:#ffe3e3,stroke:#c92a2a,color:#5f0f0f,stroke-width:3px"
_CANCELLED = "fill:#e9ecef,stroke:#868e96,color:#495057,stroke-dasharray:2 2"

STATE_DISPLAYS: Mapping[str, StateDisplay] = {
    # States of nodes, by `NodeState`; steps and runs can be in them too.
    "pending": StateDisplay("not started", "·", ".", "dim", "pending"),
    "waiting": StateDisplay("waiting", "○", "o", "dim", "pending", _HELD_UP),
    "ready": StateDisplay("ready", "○", "o", "cyan", "ready"),
    "running": StateDisplay("running", "●", "*", "bold cyan", "running", _AT_WORK),
    "retrying": StateDisplay("retrying", "↻", "~", "yellow", "retrying", _TRIED_AGAIN),
    "asked": StateDisplay("waiting for you", "?", "?", "bold magenta", "waiting", _ASKED),
    "done": StateDisplay("done", "✓", "+", "green", "done", _DONE),
    "failed": StateDisplay("failed", "✗", "!", "bold red", "failed", _FAILED),
    "cancelled": StateDisplay("cancelled", "–", "-", "dim", "skipped", _CANCELLED),  # noqa: RUF001 - a dash that is no minus
    # Other ends of attempts, by `history.story.STATES`.
    "skipped": StateDisplay("skipped", "↷", "-", "dim", "skipped"),
    "released": StateDisplay("given back", "↷", "-", "dim", "skipped"),
    "expired": StateDisplay("not answered in time", "↷", "-", "dim", "skipped"),
    "lost": StateDisplay("taken over", "↷", "-", "dim", "skipped"),
    # The step that comes next.
    "next": StateDisplay("next", "○", "o", "cyan", "ready"),
    # States of runs, by `run_state`.
    "paused": StateDisplay("paused", "‖", "=", "yellow", "paused"),
    "stopped": StateDisplay("stopped", "■", "#", "yellow", "paused"),
    "limit": StateDisplay("at its limit", "!", "!", "yellow", "waiting"),
    "interrupted": StateDisplay("interrupted", "!", "!", "yellow", "waiting"),
    "complete": StateDisplay("complete", "✓", "+", "green", "done"),
    "rejected": StateDisplay("rejected", "✗", "!", "bold red", "failed"),
    "timed_out": StateDisplay("timed out", "✗", "!", "bold red", "failed"),
    "max_iterations": StateDisplay("max iterations", "✗", "!", "bold red", "failed"),
    "unreadable": StateDisplay("unreadable", "✗", "!", "bold red", "failed"),
}
"""All states that people see, by their names in the program. A "waiting" node is blocked by others;
one that waits for a person is "asked", and its CSS class is ``waiting``."""
PICTURES = {
    state: STATE_DISPLAYS[state].picture for state in NodeState if STATE_DISPLAYS[state].picture
}

WORKING = frozenset({NodeState.RUNNING, NodeState.RETRYING})
"""States in which a running clock is shown."""
ACTIVE = WORKING | {NodeState.ASKED}
"""States whose end people wait for."""
INTEREST = (
    *(NodeState.ASKED, NodeState.FAILED, NodeState.RUNNING, NodeState.RETRYING),
    *(NodeState.READY, NodeState.WAITING, NodeState.DONE, NodeState.CANCELLED, NodeState.PENDING),
)
"""Node states in the order in which they are shown when there is no room for all nodes."""


def get_state_display(state: str) -> StateDisplay:
    """Return how *state* looks; a state of a later version looks like a failure with its name."""
    return STATE_DISPLAYS.get(state) or replace(
        STATE_DISPLAYS["failed"], word=state.replace("_", " ")
    )


def get_node_display(view: NodeView) -> StateDisplay:
    """Return the look of the node in *view*; without a live process it looks interrupted."""
    return STATE_DISPLAYS["interrupted" if view.is_interrupted else view.state]


def get_node_mark(view: NodeView, *, is_ascii: bool) -> str:
    """Return the mark of the node of *view*."""
    style = get_node_display(view)
    return style.ascii_mark if is_ascii else style.mark


_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
_NO_XML = "\ufffe\uffff"
"""Code points that are not characters; an XML parser stops at them."""


def sanitize_text(text: str) -> str:
    r"""Return *text* as one line of predictable width, without invisible or direction characters.

    >>> sanitize_text("pay\u202eoff \x1b[2J\U0001f469\u200d\U0001f4bb")
    'payoff 👩💻'
    """
    characters = (
        c for c in one_line(text) if unicodedata.category(c) not in _UNSEEN and c not in _NO_XML
    )
    return " ".join("".join(characters).split())


def wrap_text(text: str, columns: int, lines: int, *, dots: str = "…") -> list[str]:
    """Return *text* in at most *lines* lines of *columns* columns, broken at blanks.

    >>> wrap_text("Review the security of all changes", 12, 2)
    ['Review the', 'security of…']
    """
    rows, words = [""], text.split()
    while words:
        word = words.pop(0)
        row = f"{rows[-1]} {word}".strip()
        if width(row) <= columns:
            rows[-1] = row
        elif rows[-1]:
            rows.append("")
            words.insert(0, word)
        else:
            head = cut(word, columns, dots="") or word[0]
            rows[-1] = head
            words[:0] = [word[len(head) :]] if len(word) > len(head) else []
    if len(rows) > lines:
        rows = [*rows[: lines - 1], cut(f"{rows[lines - 1]}{dots}", columns, dots=dots)]
        if not rows[-1].endswith(dots):
            rows[-1] = cut(rows[-1], columns - width(dots), dots="") + dots
    return rows


LAST_LINE_COLUMNS = 80


def format_state(view: NodeView, now: datetime) -> str:
    """Return the state in words, with the time that is left if it waits for a date."""
    due_date = parse_time(view.due) if view.due else None
    word = get_node_display(view).word
    if due_date is None:
        return word
    remaining = format_duration(max(0.0, (due_date - now).total_seconds()))
    if view.state is NodeState.RETRYING:
        return f"{word} in {remaining}"
    if view.state is not NodeState.ASKED:
        return word
    return f"{word}, {remaining} left" if due_date > now else f"{word}, its time is up"


def node_duration_s(view: NodeView, now: datetime) -> float:
    """Return how many seconds the node of *view* took, including an attempt that runs now."""
    start = parse_time(view.since) if view.since and not view.is_interrupted else None
    running_s = (now - start).total_seconds() if start is not None else 0.0
    # Another machine's clock may be ahead of this one.
    return view.seconds + max(0.0, running_s)


def count_done(view: FlowView) -> int:
    """Return how many nodes are done."""
    return sum(node.state is NodeState.DONE for node in view.nodes)
