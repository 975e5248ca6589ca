"""A run of a graph as a table that is redrawn in place on a terminal.

A painter has a thread of its own, which draws at most four times a second and sleeps while
nothing runs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING

from sequencer.cli.context import near
from sequencer.cli.flow.frame import Frame
from sequencer.cli.flow.hearing import NodeObserver
from sequencer.cli.flow.telling import Fact
from sequencer.cli.views.states import shown
from sequencer.engine.attempt import Observer
from sequencer.engine.flow.view import FlowView, NodeState
from sequencer.executors.redaction import Redaction

if TYPE_CHECKING:
    from rich.live import Live

REDRAW_S = 0.25
CLOSE_S = 2.0
"""How long the end waits for a terminal that takes nothing."""
MAX_NOTICES = 1000
MOVING = (NodeState.RUNNING, NodeState.RETRYING)
"""States in which a clock runs that people look at."""


class LiveBoard:
    """The table in place on a terminal."""

    def __init__(self, stream: IO[str], *, redaction: Redaction) -> None:
        """Take the terminal over at the first `show`, and show what *redaction* leaves."""
        from rich.console import Console  # noqa: PLC0415 - only where there is a terminal

        self._redaction = redaction
        self._console = Console(
            file=stream, highlight=False, markup=False, emoji=False, force_terminal=True
        )
        self._lock = threading.Lock()
        self._painting = threading.Lock()
        self._changed, self._closing = threading.Event(), threading.Event()
        self._view: FlowView | None = None
        self._observers: dict[str, NodeObserver] = {}
        self._notices: list[str] = []
        self._live: Live | None = None
        self._frame = Frame(stream)
        self._painter: threading.Thread | None = None

    # --- what is heard -------------------------------------------------------------

    def tell(self, facts: Sequence[Fact], view: FlowView) -> None:
        """See `Board`; the table has all that counts."""

    def show(self, view: FlowView) -> None:
        """See `Board`."""
        with self._lock:
            self._view = view
            running = {n.node.id for n in view.nodes if n.state is NodeState.RUNNING}
            for name, observer in list(self._observers.items()):
                if observer.is_over and name not in running:
                    del self._observers[name]
            self._begin()
        self._changed.set()

    def take_up(self, view: FlowView) -> None:
        """See `Board`; the table has all of it anyway."""
        self.show(view)

    def observer(self, node_id: str) -> Observer:
        """See `Board`."""
        found = NodeObserver(
            node_id, redaction=self._redaction, changed=self._changed.set, notice=self.notice
        )
        with self._lock:
            self._observers[node_id] = found
        return found

    def notice(self, text: str) -> None:
        """See `Board`; one that a stopped terminal leaves no room for is left out."""
        with self._lock:
            if len(self._notices) < MAX_NOTICES:
                self._notices.append(near(shown(self._redaction.hide_text(text))))
            self._begin()
        self._changed.set()

    def _begin(self) -> None:
        if self._painter is None and not self._closing.is_set():
            self._painter = threading.Thread(target=self._paint, name="board", daemon=True)
            self._painter.start()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """See `Board`."""
        with self._painting:
            self._stop(is_erased=True)
            try:
                yield
            finally:
                self._changed.set()

    def close(self) -> None:
        """See `Board`."""
        self._closing.set()
        self._changed.set()
        if self._painter is not None:
            self._painter.join(CLOSE_S)

    # --- what is painted -----------------------------------------------------------

    def _paint(self) -> None:
        try:
            while not self._closing.is_set():
                self._changed.wait(REDRAW_S if self._is_moving() else None)
                self._changed.clear()
                with self._painting:
                    self._draw()
                self._closing.wait(REDRAW_S)
            with self._painting:
                self._draw()
                self._stop(is_erased=False)
        except (OSError, ValueError):
            # The terminal is gone; the run goes on without it.
            self._closing.set()

    def _is_moving(self) -> bool:
        with self._lock:
            view = self._view
        return view is not None and any(node.state in MOVING for node in view.nodes)

    def _draw(self) -> None:
        from rich.live import Live  # noqa: PLC0415 - see `__init__`
        from rich.text import Text  # noqa: PLC0415

        with self._lock:
            view, notices = self._view, self._notices
            self._notices = []
            heard = {name: one.heard for name, one in self._observers.items()}
        self._console.size = self._frame.measure()
        if self._live is not None:
            self._frame.erase_astray()
        for text in notices:
            self._console.print(Text(text, style="cyan"), soft_wrap=True)
        if view is None:
            return
        frame = self._frame.drawn(view, heard, datetime.now(UTC))
        if self._live is None:
            self._live = Live(
                frame,
                console=self._console,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        self._live.update(frame, refresh=True)

    def _stop(self, *, is_erased: bool) -> None:
        # A new one begins later: this one would look for its lines where others wrote.
        live, self._live = self._live, None
        if live is not None:
            live.transient = is_erased
            live.stop()
