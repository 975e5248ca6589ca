"""What posts the results of runs elsewhere, and what it has not posted, as the core knows it."""

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
"""In the folder of a run: what a sink will never take."""


class Pending(Struct, frozen=True, kw_only=True):
    """What one sink has not taken."""

    sink: str
    pending: int = 0
    """Results that wait; they are posted later, in order."""
    since: str | None = None
    """When the oldest of them happened."""
    tries: int = 0
    error: str | None = None
    """Why the last try failed; None: it was not tried."""
    refused: int = 0
    """Results that it will never take."""

    @property
    def is_behind(self) -> bool:
        """Return whether a later process has something to post here, or can't know."""
        return bool(self.pending or self.error)

    def as_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)

    def text(self, words: Callable[[str], str]) -> str:
        """Return it in a line; *words* says for how long something has lasted."""
        name = f"sink {self.sink!r}"
        if self.is_behind:
            waits = "1 post waits" if self.pending == 1 else f"{self.pending} posts wait"
            told = f"{waits} for {name}" if self.pending else name
            told += f" for {words(self.since)}" if self.since else ""
            tries = {0: "", 1: ", tried once"}.get(self.tries, f", tried {self.tries} times")
            return f"{told}: {self.error}{tries}" if self.error else f"{told}: not tried yet"
        return f"{name} refused {self.refused} for good; see {REFUSED_FILE}, then remove it"


class Posting(Protocol):
    """Posts the results of a project's runs; each of `extensions.POSTING` makes one of a `Project`.

    If the project names no sink, there is none.
    """

    def problems(self, run: str | None) -> Iterator[tuple[str, str]]:
        """Yield where and what the sinks of the run called *run* lack."""
        ...

    def hear(
        self,
        run: Run,
        notice: Callable[[str], None],
        workflow: Workflow,
        on_signal: Callable[[], None],
    ) -> AbstractContextManager[Callable[[RunEvent], None]]:
        """Return who posts what it hears of *run*, which works on *workflow*; it says *notice*.

        *on_signal* is called when a signal ends the wait for the last posts.

        Raises:
            ConfigurationError: a sink lacks something; nothing was begun.
            NotTrusted: nobody has said that the project may post.
        """
        ...

    def deliver(self, run: str | None, notice: Callable[[str], None]) -> None:
        """Post what was decided by hand in the run called *run*; what can't be waits.

        Raises: see `hear`.
        """
        ...

    def pending(self, run: Run, head: Head) -> tuple[Pending, ...]:
        """Return what the sinks of *run*, which is at *head*, have not taken."""
        ...
