"""A graph run on the board while this process works on it.

A thread of its own looks at the run's files whenever the run has changed, so that neither
the journal's length nor a slow terminal holds the work up. It looks seldom where looking
takes long.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sequencer.cli.flow.board import Board
from sequencer.cli.views.text import moment
from sequencer.engine.attempt import Attempt, Observer, SilentObserver
from sequencer.engine.flow.view import view_of
from sequencer.errors import SequencerError
from sequencer.executors.protocol import Kind
from sequencer.model.head import Head
from sequencer.model.outcome import Outcome, Usage

if TYPE_CHECKING:
    from sequencer.engine.flow.view import FlowView
    from sequencer.engine.run import Run

SHORTEST_PAUSE_S = 0.1
SHARE = 10
"""A look may take one part in so many of the time."""


def look(run: Run, title: str) -> FlowView:
    """Return how *run*, one of a graph, stands.

    Raises:
        SequencerError: its files can't be read, or it is no graph's.
    """
    return _look_closely(run, title)[0]


def _look_closely(run: Run, title: str) -> tuple[FlowView, list[dict[str, Any]]]:
    """Return how *run* stands, and every fact that led there; there may be newer ones."""
    flow = run.flow
    head = run.head
    if head is None:
        return view_of(title, flow.begun_with, None, None, ()), []
    head, marking = flow.marking(head)
    questions = {one.node.id: one.text for one in flow.questions(head)}
    facts = list(run.history())
    return view_of(title, marking.graph, head, marking, facts, questions=questions), facts


class News:
    """Knows which facts of a journal are new since the last look."""

    def __init__(self) -> None:
        """Know of none."""
        self._count = 0
        self._last: dict[str, Any] | None = None

    def of(self, facts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return those of *facts*, a whole history, that are new; they are known from now on.

        A history that has not the last one in its place has begun anew, or was restored.
        """
        if not facts:
            return []
        count, last = self._count, self._last
        if last is not None and facts[count - 1 : count] != [last]:
            count = next((n for n in range(len(facts), 0, -1) if facts[n - 1] == last), 0)
        self._count, self._last = len(facts), facts[-1]
        return facts[count:]


class Watching:
    """The engine's board: tells *board* of the run, and *total* of each attempt's end."""

    def __init__(self, board: Board, run: Run, title: str, total: Observer) -> None:
        """Look at *run* through a store that nobody else uses."""
        self._board = board
        self._run = run
        self._title = title
        self._total = total
        self._lock, self._showing = threading.Lock(), threading.Lock()
        self._is_new = threading.Event()
        self._is_closed = False
        self._news = News()
        with contextlib.suppress(SequencerError, OSError):
            view, facts = _look_closely(run, title)
            self._news.of(facts)
            board.take_up(view)
        self._thread = threading.Thread(target=self._watch, name="board", daemon=True)
        self._thread.start()

    def changed(self, head: Head) -> None:
        """See `flow.worker.Board`."""
        del head
        self._is_new.set()

    def observer(self, node: str) -> Observer:
        """See `flow.worker.Board`."""
        return _Hearing(self._board.observer(node), self._total, self._lock)

    def close(self) -> None:
        """Show how it ended, and end the thread."""
        if self._is_closed:
            return
        self._is_closed = True
        self._is_new.set()
        self._thread.join()
        self.show_news()
        self._board.close()
        self._run.store.close()

    def _watch(self) -> None:
        while self._is_new.wait() and not self._is_closed:
            self._is_new.clear()
            began = time.monotonic()
            self.show_news()
            self._pause(max(SHORTEST_PAUSE_S, SHARE * (time.monotonic() - began)))

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._is_closed and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, SHORTEST_PAUSE_S))

    def show_news(self) -> None:
        """Show what has happened at once."""
        # What can't be read now is an error of the work, and told there.
        with self._showing, contextlib.suppress(SequencerError, OSError):
            view, facts = _look_closely(self._run, self._title)
            self._board.tell(self._news.of(facts), view)
            self._board.show(view)


class Told(SilentObserver):
    """Hears notices and waits for the whole run, and puts them on the board."""

    def __init__(self, board: Board) -> None:
        """Tell *board*."""
        self._board = board
        self.before_wait: Callable[[], None] = lambda: None
        """Tells what is waited after."""

    def notice(self, text: str) -> None:
        """See `Observer`."""
        self._board.notice(text)

    def waiting(self, reason: str, until: str | None) -> None:
        """See `Observer`; said before the wait, behind the fact that it comes from."""
        self.before_wait()
        self._board.notice(f"{reason} at {moment(until)}" if until else reason)

    def close(self) -> None:
        """Do nothing; the board is closed by who looks on."""


class _Hearing:
    """One node's observer; its ends are counted for the whole invocation as well."""

    def __init__(self, node: Observer, total: Observer, lock: threading.Lock) -> None:
        self._node, self._total, self._lock = node, total, lock

    def started(self, attempt: Attempt, log: Path) -> None:
        with self._lock:
            self._total.started(attempt, log)
        self._node.started(attempt, log)

    def write(self, data: bytes, kind: Kind) -> None:
        self._node.write(data, kind)

    def used(self, usage: Usage) -> None:
        self._node.used(usage)

    def ended(self, attempt: Attempt, outcome: Outcome) -> None:
        with self._lock:
            self._total.ended(attempt, outcome)
        self._node.ended(attempt, outcome)

    def notice(self, text: str) -> None:
        with self._lock:
            self._total.notice(text)

    def waiting(self, reason: str, until: str | None) -> None:
        with self._lock:
            self._total.waiting(reason, until)
