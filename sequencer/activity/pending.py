"""Which results the sinks of a run have not taken yet, for people who look.

Read without the lock, from the cursors and the journal behind them. Nothing is posted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sequencer.activity.cursor import FOLDER, REFUSED, Cursor, CursorFile, CursorUnreadable
from sequencer.activity.lane import behind
from sequencer.errors import SequencerError
from sequencer.model.head import Head


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
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
        return f"{name} refused {self.refused} for good; see {FOLDER}/{REFUSED}, then remove it"


def pending(
    folder: Path,
    sinks: Iterable[str],
    head: Head,
    history: Callable[[int], Iterable[dict[str, Any]]],
) -> tuple[Pending, ...]:
    """Return what the *sinks* of the run in *folder* have not taken, without those that took all.

    *history* is `Store.history` of the run that *head* is of.
    """
    found = (_of(CursorFile(folder, sink), sink, head, history) for sink in sinks)
    return tuple(one for one in found if one.is_behind or one.refused)


def _of(
    file: CursorFile,
    sink: str,
    head: Head,
    history: Callable[[int], Iterable[dict[str, Any]]],
) -> Pending:
    refused = file.refusals()
    try:
        cursor = file.read()
        waiting = list(_waiting(cursor, head, history))
    except (CursorUnreadable, OSError, SequencerError) as error:
        return Pending(sink=sink, error=str(error), refused=refused)
    trouble = cursor.trouble if cursor is not None and waiting else None
    return Pending(
        sink=sink,
        pending=len(waiting),
        since=waiting[0] if waiting else None,
        tries=trouble.tries if trouble else 0,
        error=trouble.error if trouble else None,
        refused=refused,
    )


def _waiting(
    cursor: Cursor | None, head: Head, history: Callable[[int], Iterable[dict[str, Any]]]
) -> Iterator[str]:
    """Yield when each of the results behind *cursor* happened."""
    # A sink that the run has not seen is told what comes next, so nothing waits for it.
    if cursor is None or (cursor.run_id == head.run_id and cursor.revision > head.revision):
        return
    for post in behind(cursor, head, history):
        yield post.activity.at
