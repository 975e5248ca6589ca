"""The events of a process that works on a run.

A listener is one function that takes each event, to show, count or post it. The nodes of a graph
run in threads, so a listener must be thread-safe. It must not raise or block.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from sequencer.engine.attempt import Attempt
from sequencer.executors.protocol import Piece
from sequencer.model.head import Head
from sequencer.model.outcome import Outcome, Usage

# Named tuples: an event is made in every step, and these cost least.


class AttemptStarted(NamedTuple):
    """An attempt starts; *log* is its step log."""

    attempt: Attempt
    log: Path


class AttemptWrote(NamedTuple):
    """The agent of an attempt has written something."""

    attempt: Attempt
    data: bytes
    kind: Piece


class AttemptUsed(NamedTuple):
    """What an attempt has used so far, as its executor tells it while the agent works."""

    attempt: Attempt
    usage: Usage


class AttemptEnded(NamedTuple):
    """How an attempt ended; the run has not recorded it yet."""

    attempt: Attempt
    outcome: Outcome
    verdict: str = ""
    """Of a step that judges: what it has decided, in which round, and why."""


class AttemptAccepted(NamedTuple):
    """The run has recorded the end of an attempt as an accepted step: it can't be lost any more."""

    attempt: Attempt
    outcome: Outcome


class MadeElsewhere(NamedTuple):
    """Another process has started an attempt, or ended it with *outcome*."""

    step: str
    step_index: int
    attempt: int
    by: str
    """The process, as ``PID@HOST``."""
    outcome: Outcome | None = None


class HeadMoved(NamedTuple):
    """This process has changed the run, which is at *head* by that."""

    head: Head


class Noticed(NamedTuple):
    """Something that a person should know: restored state, an edit, a warning."""

    text: str


class Waiting(NamedTuple):
    """The process sleeps, and until when if that is known."""

    reason: str
    until: str | None = None
    needs_person: bool = False
    """The wait ends only when somebody starts a process."""


RunEvent = (
    AttemptStarted
    | AttemptWrote
    | AttemptUsed
    | AttemptEnded
    | AttemptAccepted
    | MadeElsewhere
    | HeadMoved
    | Noticed
    | Waiting
)
Emit = Callable[[RunEvent], None]


def ignore(event: RunEvent) -> None:
    """Take *event* where nobody wants to hear of it."""


def several(*listeners: Emit) -> Emit:
    """Return who passes each event on to *listeners*, in their order."""

    def emit(event: RunEvent) -> None:
        for listen in listeners:
            listen(event)

    return emit
