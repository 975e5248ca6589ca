"""A run of a graph told in lines, one for every fact: for logs, pipes and mails from cron."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import IO

from sequencer.cli.context import near
from sequencer.cli.flow.hearing import NodeObserver
from sequencer.cli.flow.table import summary, table
from sequencer.cli.flow.telling import Fact, told
from sequencer.cli.views.states import shown
from sequencer.cli.views.text import plain
from sequencer.engine.attempt import Observer
from sequencer.engine.flow.view import FlowView
from sequencer.executors.redaction import Redaction
from sequencer.model.standing import parse_time

OVER = frozenset(
    ("completed", "completed_after_error", "failed", "timed_out", "max_iterations", "cancelled")
)


def local_now() -> datetime:
    """Return the time on this machine's clock, as its people read it."""
    return datetime.now(UTC).astimezone()


class PlainBoard:
    """A line for every fact: for logs, pipes and mails from cron."""

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
        self._status = ""

    def tell(self, facts: Sequence[Fact], view: FlowView) -> None:
        """See `Board`."""
        with self._lock:
            for at, line in told(facts, view):
                self._say(line, parse_time(at))

    def show(self, view: FlowView) -> None:
        """See `Board`; the end alone is told from it, a team's with all its tasks."""
        with self._lock:
            if view.status in OVER and view.status != self._status:
                if view.graph.is_team:
                    self._write(table(view, self._now()).partition("\n\n")[0])
                self._say(summary(view))
            self._status = view.status

    def take_up(self, view: FlowView) -> None:
        """See `Board`."""
        with self._lock:
            self._status = view.status

    def observer(self, node_id: str) -> Observer:
        """See `Board`; the step log has what the node says."""
        return NodeObserver(
            node_id, redaction=self._redaction, changed=lambda: None, notice=self.notice
        )

    def notice(self, text: str) -> None:
        """See `Board`."""
        self._say(near(f"notice: {text}"))

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Open a context in which others wait with what they have to say."""
        with self._lock:
            yield

    def close(self) -> None:
        """Do nothing: every line is written already."""

    def _say(self, text: str, at: datetime | None = None) -> None:
        now = self._now()
        moment = now if at is None else at.astimezone(now.tzinfo)
        self._write(f"{moment:%H:%M:%S} {shown(self._redaction.hide_text(text))}", is_safe=True)

    def _write(self, text: str, *, is_safe: bool = False) -> None:
        line = f"{text if is_safe else plain(self._redaction.hide_text(text))}\n"
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        line = line.encode(encoding, "replace").decode(encoding)
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._stream.write(line)
            self._stream.flush()
