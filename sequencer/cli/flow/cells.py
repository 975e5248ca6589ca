"""What tables of nodes and of tasks say about one of them."""

from __future__ import annotations

from datetime import datetime

from sequencer.cli.flow.marks import shown
from sequencer.cli.tables import cut
from sequencer.engine.standing import parse_time
from sequencer.model.flow_view import FlowView, NodeState, NodeView
from sequencer.model.wording import duration

LAST_LINE_COLUMNS = 80
_THOUSAND, _MILLION = 1000, 1_000_000


def state_words(view: NodeView, now: datetime) -> str:
    """Return the state; for one that waits for a moment, how long until then."""
    due = parse_time(view.due) if view.due else None
    if due is None:
        return str(view.state)
    left = duration(max(0.0, (due - now).total_seconds()))
    if view.state is NodeState.RETRYING:
        return f"{view.state} in {left}"
    return f"{view.state}, {left} left" if view.state is NodeState.ASKED else str(view.state)


def seconds(view: NodeView, now: datetime) -> float:
    """Return how long *view* took, what runs now included."""
    since = parse_time(view.since) if view.since else None
    running = (now - since).total_seconds() if since is not None else 0.0
    # Another machine's clock may be ahead of this one.
    return view.seconds + max(0.0, running)


def last_line(view: NodeView, limit: int = LAST_LINE_COLUMNS) -> str:
    """Return what the node said last, safe and short."""
    return cut(shown(view.last_line), limit) or "-"


def done(view: FlowView) -> int:
    """Return how many nodes are done."""
    return sum(node.state is NodeState.DONE for node in view.nodes)


def amount(count: int) -> str:
    """Return *count* in at most five characters, as a column of a table has room for it.

    >>> amount(950), amount(1_234), amount(56_789), amount(999_999), amount(7_654_321)
    ('950', '1.2k', '56.8k', '1.0M', '7.7M')
    """
    if count < _THOUSAND:
        return str(count)
    if count < 99_950:  # noqa: PLR2004 - would be 100.0k
        return f"{count / _THOUSAND:.1f}k"
    if count < 999_500:  # noqa: PLR2004 - would be 1000k
        return f"{count / _THOUSAND:.0f}k"
    return f"{count / _MILLION:.1f}M"
