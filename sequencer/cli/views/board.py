"""Shows a graph's run while this process works on it: a table on a terminal, else lines of facts.

A thread of the board reads the run's files after each change, so that neither a long journal nor
a slow terminal blocks the work. If reading takes long, it reads less often. A terminal that is
slow, closed or gone never makes a step fail.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any, TextIO

from msgspec import Struct, field

from sequencer.cli.context import relativize_paths
from sequencer.cli.views.facts import NewFacts, read_view_and_facts
from sequencer.cli.views.nodes import Frame, NodeProgress, node_lines, node_summary
from sequencer.cli.views.progress import Feed, Painter
from sequencer.cli.views.states import WORKING, sanitize_text
from sequencer.cli.views.text import strip_controls
from sequencer.engine.events import (
    AttemptEnded,
    AttemptStarted,
    AttemptUsed,
    AttemptWrote,
    HeadMoved,
    NoticeGiven,
    RunEvent,
    Waiting,
)
from sequencer.errors import SequencerError
from sequencer.executors.redaction import Redaction
from sequencer.history.view import FlowView, NodeState
from sequencer.history.words import format_facts, format_time
from sequencer.model.limits import parse_time
from sequencer.model.outcome import Usage

if TYPE_CHECKING:
    from sequencer.engine.run import Run

SHORTEST_PAUSE_S = 0.1
SHARE = 10
"""Reading the run may take at most 1/SHARE of the time."""
REDRAW_S = 0.25
MAX_NOTICES = 1000
OVER = frozenset(
    ("completed", "completed_after_error", "failed", "timed_out", "max_iterations", "cancelled")
)


def make_screen(stream: TextIO, redaction: Redaction) -> Table | Lines:
    """Return the screen for *stream*; *redaction* knows the project's secrets."""
    with contextlib.suppress(ValueError):
        if stream.isatty() and os.environ.get("TERM", "dumb") != "dumb":
            return Table(stream, redaction=redaction)
    return Lines(stream, redaction=redaction)


class Board:
    """Receives the events of this process's work on a run, and shows the state of the run."""

    def __init__(self, screen: Table | Lines, run: Run, title: str) -> None:
        """Show *run*, whose store no other thread may use, because the board's thread reads it."""
        self._screen = screen
        self._run = run
        self._title = title
        self._showing = threading.Lock()
        self._is_new = threading.Event()
        self._is_closed = False
        self._news = NewFacts()
        with contextlib.suppress(SequencerError, OSError):
            view, facts = read_view_and_facts(run, title)
            self._news.select_new(facts)
            screen.show(view, None)
        self._thread = threading.Thread(target=self._watch, name="board", daemon=True)
        self._thread.start()

    def __call__(self, event: RunEvent) -> None:
        """Show *event*, or note that the run has changed."""
        match event:
            case HeadMoved():
                self._is_new.set()
            case NoticeGiven(text):
                self._screen.show_notice(text)
            case Waiting(reason, deadline):
                # Shown before the wait starts, but after the fact that causes the wait.
                self._show_news()
                self._screen.show_notice(
                    f"{reason} at {format_time(deadline)}" if deadline else reason
                )
            case _:
                self._screen.handle_event(event)

    def close(self) -> None:
        """Show the final state, and end the thread."""
        if self._is_closed:
            return
        self._is_closed = True
        self._is_new.set()
        self._thread.join()
        self._show_news()
        self._screen.close()
        self._run.store.close()

    def _watch(self) -> None:
        """Show news until the board is closed.

        Rest after each read, so that reading takes at most 1/SHARE of the time.
        """
        while self._is_new.wait() and not self._is_closed:
            self._is_new.clear()
            start = time.monotonic()
            self._show_news()
            end = time.monotonic() + max(SHORTEST_PAUSE_S, SHARE * (time.monotonic() - start))
            while not self._is_closed and (remaining_s := end - time.monotonic()) > 0:
                time.sleep(min(remaining_s, SHORTEST_PAUSE_S))

    def _show_news(self) -> None:
        # If the run can't be read, the work fails too and reports the error.
        with self._showing, contextlib.suppress(SequencerError, OSError):
            view, facts = read_view_and_facts(self._run, self._title)
            self._screen.show(view, self._news.select_new(facts))


class _Node(Struct):
    """The output and usage of one attempt. Its thread writes them; the painter reads them."""

    feed: Feed
    usage: Usage = field(default_factory=Usage)
    is_over: bool = False

    @property
    def heard(self) -> NodeProgress:
        usage = self.usage
        return NodeProgress(
            self.feed.last, usage.cost_usd, usage.input_tokens + usage.output_tokens
        )


class Table(Painter):
    """A table that is redrawn in place on a terminal, only while something runs or changes."""

    def __init__(self, stream: TextIO, *, redaction: Redaction) -> None:
        """Draw from the first `show` on, with the secrets that *redaction* knows hidden."""
        super().__init__(stream, pause_s=REDRAW_S)
        self._redaction = redaction
        self._view: FlowView | None = None
        self._nodes: dict[str, _Node] = {}
        self._notices: list[str] = []
        self._frame = Frame(stream)

    def show(self, view: FlowView, facts: Sequence[Mapping[str, Any]] | None = None) -> None:  # noqa: ARG002
        """Show the run as in *view*. The *facts* are not needed: the table says the same."""
        with self._lock:
            self._view = view
            running_names = {n.node.id for n in view.nodes if n.state is NodeState.RUNNING}
            for name, node in list(self._nodes.items()):
                if node.is_over and name not in running_names:
                    del self._nodes[name]
        self._request_draw()

    def handle_event(self, event: RunEvent) -> None:
        """Update the output and usage of the attempt in *event*."""
        match event:
            case AttemptWrote(attempt, data, kind):
                self._get_node(attempt.position).feed.add_output(data, kind)
            case AttemptUsed(attempt, usage):
                self._get_node(attempt.position).usage = usage
            case AttemptStarted(attempt):
                with self._lock:
                    self._nodes[attempt.position] = _Node(Feed(redaction=self._redaction))
            case AttemptEnded(attempt):
                # The next view of the run has the figures.
                self._get_node(attempt.position).is_over = True
            case _:
                return
        if self._view is not None:
            self._request_draw()

    def _get_node(self, name: str) -> _Node:
        with self._lock:
            return self._nodes.setdefault(name, _Node(Feed(redaction=self._redaction)))

    def show_notice(self, text: str) -> None:
        """Show *text* above the table; it is dropped if a stopped terminal has too many waiting."""
        with self._lock:
            if len(self._notices) < MAX_NOTICES:
                self._notices.append(
                    relativize_paths(sanitize_text(self._redaction.hide_text(text)))
                )
        self._request_draw()

    def _redraw_delay_s(self) -> float | None:
        with self._lock:
            view = self._view
        is_moving = view is not None and any(node.state in WORKING for node in view.nodes)
        return REDRAW_S if is_moving else None

    def _draw(self) -> None:
        from rich.text import Text  # noqa: PLC0415 - loaded with the console

        with self._lock:
            view, notices = self._view, self._notices
            self._notices = []
            outputs = {name: node.heard for name, node in self._nodes.items()}
        self._console.size = self._frame.measure()
        if self._live is not None:
            self._frame.erase_stray_rows()
        for text in notices:
            self._console.print(Text(text, style="cyan"), soft_wrap=True)
        if view is not None:
            self._show(self._frame.render(view, outputs, datetime.now(UTC)), is_transient=False)


def local_now() -> datetime:
    """Return the time in this machine's time zone."""
    return datetime.now(UTC).astimezone()


class Lines:
    """A screen with a line for every fact, for logs, pipes and emails from cron."""

    def __init__(
        self,
        stream: IO[str],
        *,
        redaction: Redaction,
        now: Callable[[], datetime] = local_now,
    ) -> None:
        """Write to *stream* with the time of *now*, and with secrets of *redaction* hidden."""
        self._stream = stream
        self._redaction = redaction
        self._now = now
        self._lock = threading.RLock()
        self._status = ""

    def show(self, view: FlowView, facts: Sequence[Mapping[str, Any]] | None = ()) -> None:
        """Write the *facts* since the last call; if the run has ended, also its end.

        For a team, the end includes all tasks. None for *facts*: *view* is the state before this
        process started to work, so nothing is news.
        """
        with self._lock:
            for at, line in format_facts(facts or (), view):
                self._write_timed(line, parse_time(at))
            if facts is not None and view.status in OVER and view.status != self._status:
                # For graphs other than a team's, the facts have already said everything.
                tasks = [node for node in view.nodes if node.node.task is not None]
                for line in node_lines(view, tasks, self._now(), None, {}) if tasks else ():
                    self._write(line)
                self._write_timed(node_summary(view))
            self._status = view.status

    def handle_event(self, event: RunEvent) -> None:
        """Do nothing: the step log has the output of a node."""

    def show_notice(self, text: str) -> None:
        """Write *text* as a notice."""
        self._write_timed(relativize_paths(f"notice: {text}"))

    def close(self) -> None:
        """Do nothing: every line is already written."""

    def _write_timed(self, text: str, at: datetime | None = None) -> None:
        now = self._now()
        moment = now if at is None else at.astimezone(now.tzinfo)
        self._write(
            f"{moment:%H:%M:%S} {sanitize_text(self._redaction.hide_text(text))}", is_safe=True
        )

    def _write(self, text: str, *, is_safe: bool = False) -> None:
        line = f"{text if is_safe else strip_controls(self._redaction.hide_text(text))}\n"
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        line = line.encode(encoding, "replace").decode(encoding)
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._stream.write(line)
            self._stream.flush()
