"""Runs on a server: asked for beside the pages, and only while somebody looks at one.

A page never waits for a server that does not answer: it shows that, and goes on asking.

Not promised: a change on the server before it is asked again, which takes a second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from sequencer.errors import RemoteUnreachable, SequencerError

FIRST_S = 2.0
"""A page waits so long for a server that was never asked."""
PAUSE_S = 1.0
"""Between two looks."""
UNSEEN_S = 30.0
"""After which nobody looks any more, and nothing is asked."""
Row = TypeVar("Row")


class RemoteRuns(Generic[Row]):
    """The newest answer of a server about a project's runs."""

    def __init__(self, ask: Callable[[], Mapping[str, Row]]) -> None:
        """Get rows by *ask*, which may take long or raise."""
        self._ask = ask
        self._rows: Mapping[str, Row] = {}
        self._error: SequencerError | None = None
        self._asked = threading.Lock()
        self._has_answer = threading.Event()
        self._wanted = 0.0
        self._thread: threading.Thread | None = None

    def rows(self) -> Mapping[str, Row]:
        """Return the rows by their addresses, as they were told last.

        Raises:
            SequencerError: the server can't be reached, or has not answered yet.
        """
        self._wanted = time.monotonic()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._follow, daemon=True)
            self._thread.start()
        if not self._has_answer.wait(FIRST_S):
            raise RemoteUnreachable("the server has not answered yet")
        if self._error is not None:
            raise self._error
        return self._rows

    def look(self) -> None:
        """Ask now."""
        with self._asked:
            try:
                self._rows, self._error = self._ask(), None
            except SequencerError as error:
                self._error = error
        self._has_answer.set()

    def _follow(self) -> None:
        while time.monotonic() - self._wanted < UNSEEN_S:
            self.look()
            time.sleep(PAUSE_S)
        # What is known is old when somebody looks again.
        self._has_answer.clear()
