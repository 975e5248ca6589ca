"""The core's interface to posting the results of runs, and to results that are not posted yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import asdict

from sequencer.engine.events import RunEvent
from sequencer.engine.run import Run
from sequencer.model.head import Head
from sequencer.model.workflow import Workflow

REFUSED_FILE = "activity/refused.jsonl"
"""In the folder of a run: the results that a sink has refused permanently."""


class Pending(Struct, frozen=True, kw_only=True):
    """The results that one sink has not accepted."""

    sink: str
    pending: int = 0
    """Number of results that wait; they are posted later, in order."""
    since: str | None = None
    """Time of the oldest waiting result."""
    tries: int = 0
    error: str | None = None
    """Why the last try failed; None: it was not tried."""
    refused: int = 0
    """Number of results that the sink has refused permanently."""

    @property
    def is_behind(self) -> bool:
        """Return whether results wait for this sink, or may wait (the state can't be read)."""
        return bool(self.pending or self.error)

    def as_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)

    def format_text(self, words: Callable[[str], str]) -> str:
        """Return one line for people; *words* converts a time to the duration since then."""
        name = f"sink {self.sink!r}"
        if self.is_behind:
            clause = "1 post waits" if self.pending == 1 else f"{self.pending} posts wait"
            text = f"{clause} for {name}" if self.pending else name
            text += f" for {words(self.since)}" if self.since else ""
            tries = {0: "", 1: ", tried once"}.get(self.tries, f", tried {self.tries} times")
            return f"{text}: {self.error}{tries}" if self.error else f"{text}: not tried yet"
        return f"{name} refused {self.refused} permanently; see {REFUSED_FILE}, then remove it"


class Posting(Protocol):
    """Posts the results of a project's runs; an entry of `extensions.POSTING` creates it.

    A project without sinks has none.
    """

    def problems(self, run: str | None) -> Iterator[tuple[str, str]]:
        """Yield (place, problem) for each sink of the run called *run* that can't work."""
        ...

    def open_listener(
        self,
        run: Run,
        notice: Callable[[str], None],
        workflow: Workflow,
        on_signal: Callable[[], None],
    ) -> AbstractContextManager[Callable[[RunEvent], None]]:
        """Return a context with the listener that posts the events of *run* on *workflow*.

        *notice* gets messages for people. *on_signal* is called when a signal ends the wait for
        the last posts.

        Raises:
            ConfigurationError: a sink can't work; nothing was started.
            NotTrusted: no person has trusted the project to post.
        """
        ...

    def deliver(self, run: str | None, notice: Callable[[str], None]) -> None:
        """Post the operator commands of the run called *run*; failed posts wait.

        Raises: see `open_listener`.
        """
        ...

    def find_pending(self, run: Run, head: Head) -> tuple[Pending, ...]:
        """Return, for each sink of *run* at *head*, the results that it has not accepted."""
        ...
