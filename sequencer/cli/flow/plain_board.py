"""A run of a graph told in lines, one for every change: for logs, pipes and mails from cron."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import IO

from sequencer.cli.flow.hearing import NodeObserver
from sequencer.cli.flow.marks import shown
from sequencer.cli.flow.table import summary
from sequencer.cli.wording import duration
from sequencer.engine.attempt import Observer
from sequencer.executors.redaction import Redaction
from sequencer.model.flow_view import FlowView, NodeState, NodeView

OVER = frozenset(
    ("completed", "completed_after_error", "failed", "timed_out", "max_iterations", "cancelled")
)


def local_now() -> datetime:
    """Return the time on this machine's clock, as its people read it."""
    return datetime.now(UTC).astimezone()


class PlainBoard:
    """A line for every change: for logs, pipes and mails from cron."""

    def __init__(
        self,
        stream: IO[str],
        *,
        redaction: Redaction,
        now: Callable[[], datetime] = local_now,
    ) -> None:
        """Write to *stream* what *redaction* leaves, with the time that *now* tells."""
        self._stream = stream
        self._redaction = redaction
        self._now = now
        self._lock = threading.RLock()
        self._known: FlowView | None = None

    def show(self, view: FlowView) -> None:
        """See `Board`."""
        with self._lock:
            for line in changes(self._known, view):
                self._say(line)
            self._known = view

    def take_up(self, view: FlowView) -> None:
        """See `Board`."""
        with self._lock:
            self._known = view

    def observer(self, node_id: str) -> Observer:
        """See `Board`; the step log has what the node says."""
        return NodeObserver(
            node_id, redaction=self._redaction, changed=lambda: None, notice=self.notice
        )

    def notice(self, text: str) -> None:
        """See `Board`."""
        self._say(f"notice: {text}")

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Open a context in which others wait with what they have to say."""
        with self._lock:
            yield

    def close(self) -> None:
        """Do nothing: every line is written already."""

    def _say(self, text: str) -> None:
        line = f"{self._now():%H:%M:%S} {shown(self._redaction.hide_text(text))}\n"
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        line = line.encode(encoding, "replace").decode(encoding)
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._stream.write(line)
            self._stream.flush()


def changes(known: FlowView | None, view: FlowView) -> Iterator[str]:
    """Yield in words what is different in *view*; everything that happened if none is *known*."""
    before = {node.node.id: node for node in known.nodes} if known is not None else {}
    for node in view.nodes:
        yield from _of_node(before.get(node.node.id) or NodeView(node.node), node)
    if known is not None and view.iterations > known.iterations:
        yield f"loop {view.iterations} of at most {view.graph.max_iterations}"
    if view.status in OVER and (known is None or known.status != view.status):
        yield summary(view)


def _of_node(before: NodeView, node: NodeView) -> Iterator[str]:
    """Yield what happened to one node; what was over between two looks is told as its end."""
    name, state = node.node.id, node.state
    is_again = node.runs > before.runs or node.attempt != before.attempt
    if state is before.state and not is_again:
        return
    if node.runs > before.runs:
        spent = node.seconds - before.seconds
        cost = node.cost_usd - before.cost_usd
        parts = [f"done {name}"]
        parts += [duration(spent)] if spent > 0 else []
        parts += [f"{cost:.2f} USD"] if cost >= 0.005 else []  # noqa: PLR2004 - half a cent
        yield " ".join(parts)
    last = f": {node.last_line}" if node.last_line else ""
    if state is NodeState.RUNNING:
        yield f"start {name}" + (f", attempt {node.attempt}" if node.attempt > 1 else "")
    elif state is NodeState.RETRYING:
        until = f" (next at {node.due})" if node.due else ""
        yield f"retry {name} after attempt {node.attempt}{last}{until}"
    elif state is NodeState.FAILED:
        yield f"fail {name}{last}"
    elif state is NodeState.ASKED:
        # The question with its templates filled in, if it is known by now.
        yield f"ask {name}: {node.last_line or node.node.question or node.node.label or name}"
    elif state is NodeState.CANCELLED:
        yield f"cancel {name}"
