"""What the engine asks of a store: a head that changes by compare-and-swap.

A store accepts a transition whole or not at all, in one order that everybody sees. It
does not know what a step is, and it never decides whether a change makes sense: that is
the pure function that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct, field

from sequencer.model.head import Claim, Head, Owner
from sequencer.model.transitions import Transition
from sequencer.store.queue import WaitQueue

Change = Callable[[Head | None], Transition | None]
"""From the present head (None: no run yet) to a transition; None changes nothing. May be
called more than once, so it has no side effects; what it raises reaches the caller."""


class Liveness(StrEnum):
    """What can be said about the holder of a claim."""

    ALIVE = "alive"
    UNKNOWN = "unknown"
    """Not provably dead; the lease has not run out as far as this observer can tell."""
    EXPIRED = "expired"
    """The lease ran out without a heartbeat."""
    DEAD = "dead"
    """Proven: other boot, process gone, or another process has its pid."""

    @property
    def allows_take_over(self) -> bool:
        """Return whether another worker may claim the step."""
        return self in (Liveness.EXPIRED, Liveness.DEAD)


class View(Struct, frozen=True):
    """What a reader sees without the lock."""

    head: Head | None
    notices: tuple[str, ...] = field(default=())
    """What was found on the way: restored from the journal, edited by hand, …"""
    has_edit: bool = False
    """Somebody has edited the head by hand, and that is not recorded yet."""


@runtime_checkable
class Telling(Protocol):
    """A store that may wait long inside of a call, and has something to say meanwhile."""

    tell: Callable[[str], None]
    """Hears it; who works on the run sets it."""
    stopped: Callable[[], bool]
    """Whether that one was told to stop, so that what is under way ends within seconds."""


@runtime_checkable
class Store(Protocol):
    """Keeps one run."""

    ttl_s: float
    """Lease of a claim, in seconds."""

    retry_for_s: float
    """How long a process that works waits for a store that is out of reach; see
    `RemoteUnreachable`."""

    @property
    def state_path(self) -> Path:
        """Path of the head that other tools look at."""

    def view(self) -> View:
        """Return the newest accepted head without taking the lock.

        Raises:
            CorruptState: no unambiguous state can be read; nothing was touched.
        """

    def update(self, change: Change) -> Head:
        """Run *change* on the present head and accept its transition, durably.

        Returns the head that stands afterwards. When this raises a `StateRefused`,
        nothing was accepted.
        """

    def history(self, after: int = 0) -> Iterator[dict[str, Any]]:
        """Yield the accepted facts, oldest first, as ``history --json`` prints them.

        Only those of revisions after *after*, which costs less than all.
        """

    def document(self, name: str) -> bytes | None:
        """Return the document *name* of the run, or None if there is none."""

    def keep_document(self, name: str, data: bytes) -> None:
        """Keep *data* as the document *name*, durably; only within `update`, under its lock."""

    def forget_documents(self, prefix: str, keep: Collection[str]) -> None:
        """Remove the documents whose names begin with *prefix*, but those in *keep*.

        Only within `update`, under its lock.
        """

    def take_notices(self) -> list[str]:
        """Return what was restored, migrated or accepted by hand since the last call."""

    def close(self) -> None:
        """Free what waiting and writing have opened; the store may be used again."""

    def owner(self) -> Owner:
        """Return who this process is, for a claim."""

    def liveness(self, claim: Claim) -> Liveness:
        """Return what is known about the holder of *claim*; may remember an observation."""

    def beat(self, claim: Claim, number: int) -> None:
        """Renew the lease of *claim*; *number* counts up from 0.

        Raises:
            OSError: it could not be written; the lease keeps its old deadline.
        """

    def kept_result(self, name: str) -> Path:
        """Return the folder of the attempt that is called *name*, by any process.

        Raises:
            CorruptState: no attempt's folder is called so; *name* may come from a file that
                anybody can edit, and must not lead elsewhere.
        """

    def result_folder(self, step_index: int, token: int) -> Path:
        """Return where the outputs of an attempt of this process go.

        Nobody else can guess the name. The folder is made by who writes there.
        """

    def wait(
        self,
        revision: int,
        timeout_s: float | None,
        *,
        wake_fd: int | None = None,
        claim: Claim | None = None,
    ) -> bool:
        """Sleep until the head's revision differs from *revision*; return whether it does.

        False: the time is over, *wake_fd* became readable, or the holder of *claim* may be
        gone. Uses no CPU while it sleeps.
        """

    def wait_queue(self, positions: Collection[str]) -> WaitQueue:
        """Return the queue of those that work at *positions* (empty: at all of them)."""


class Agreed(StrEnum):
    """What became of a transition that was asked about."""

    ACCEPTED = "accepted"
    """Append it."""
    LOST = "lost"
    """Somebody was faster; the files here are the newer ones now, and it is decided anew."""
    OVERTAKEN = "overtaken"
    """It was accepted, others have gone on from it, and the files here have both."""


class Draft(Struct, frozen=True):
    """A transition that is decided and not yet accepted."""

    before: Head | None
    head: Head
    transition: Transition
    content: bytes
    """What state.json is to hold."""
    line: bytes
    """The record, newline included."""
    closing: bytes
    """What has to stand before the record, if the journal ends in a torn line."""


class Peer(Protocol):
    """Who is asked; all of it is called under the lock of the run's folder."""

    def before(self) -> None:
        """Bring the folder up to what this process knows to be newer."""

    def agree(self, draft: Draft) -> Agreed:
        """Have *draft* accepted, or find out that it can't be.

        Raises:
            StateRefused: it is not accepted, or nobody can say whether it is.
        """

    def appended(self) -> None:
        """Note that what was agreed to stands in the journal here."""
