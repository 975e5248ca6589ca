"""The events of a process that works on a run.

A listener is a function that gets each event, to show it, count it or post it. The nodes of a
graph run in threads, so a listener must be thread-safe. It must not raise or block.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from sequencer.engine.attempt import Attempt
from sequencer.executors.protocol import Piece
from sequencer.model.head import Head
from sequencer.model.outcome import Outcome, Usage


class AttemptStarted(Struct, frozen=True):
    """An attempt starts; *log* is its step log."""

    attempt: Attempt
    log: str


class AttemptWrote(Struct, frozen=True):
    """The agent of an attempt has written *data*."""

    attempt: Attempt
    data: bytes
    kind: Piece


class AttemptUsed(Struct, frozen=True):
    """The agent of an attempt has used *usage* so far, as its executor reports."""

    attempt: Attempt
    usage: Usage


class AttemptEnded(Struct, frozen=True):
    """An attempt has ended; the run has not recorded it yet."""

    attempt: Attempt
    outcome: Outcome
    verdict: str = ""
    """For a step that judges: its verdict, the round, and the reason."""


class AttemptAccepted(Struct, frozen=True):
    """The run has recorded an attempt as an accepted step, which can no longer be lost."""

    attempt: Attempt
    outcome: Outcome


class AttemptElsewhere(Struct, frozen=True):
    """Another process has started an attempt, or ended it with *outcome*."""

    step: str
    step_index: int
    attempt: int
    by: str
    """The process, as ``PID@HOST``."""
    outcome: Outcome | None = None


class HeadMoved(Struct, frozen=True):
    """This process has changed the run, which is now at *head*."""

    head: Head


class NoticeGiven(Struct, frozen=True):
    """A message for a person: restored state, an edit, a warning."""

    text: str


class Waiting(Struct, frozen=True):
    """The process sleeps; *until* is None if the end is not known."""

    reason: str
    until: str | None = None
    needs_person: bool = False
    """Whether the wait ends only when a person starts a process."""


RunEvent = (
    AttemptStarted
    | AttemptWrote
    | AttemptUsed
    | AttemptEnded
    | AttemptAccepted
    | AttemptElsewhere
    | HeadMoved
    | NoticeGiven
    | Waiting
)
Emit = Callable[[RunEvent], None]


def ignore(event: RunEvent) -> None:
    """Ignore *event*."""


def combine_listeners(*listeners: Emit) -> Emit:
    """Return a listener that passes each event to all *listeners*, in order."""

    def emit(event: RunEvent) -> None:
        for listen in listeners:
            listen(event)

    return emit
