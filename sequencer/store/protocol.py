"""What the engine needs from a store: a head that changes by compare-and-swap.

A store accepts a transition completely or not at all, in one order that all processes see. It
does not know what a step is, and it does not decide whether a change makes sense: the pure
function that it is given does.
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
"""From the current head (None: no run yet) to a transition; None changes nothing. It may be
called more than once, so it must have no side effects; what it raises reaches the caller."""


class Liveness(StrEnum):
    """What is known about the holder of a claim."""

    ALIVE = "alive"
    UNKNOWN = "unknown"
    """Not provably dead; as far as this observer knows, the lease has not expired."""
    EXPIRED = "expired"
    """The lease expired without a heartbeat."""
    DEAD = "dead"
    """Proven: another boot, the process has ended, or another process has its pid."""

    @property
    def allows_take_over(self) -> bool:
        """Return whether another worker may claim the step."""
        return self in (Liveness.EXPIRED, Liveness.DEAD)


class View(Struct, frozen=True):
    """What a reader sees without the lock."""

    head: Head | None
    notices: tuple[str, ...] = field(default=())
    """What the reader found: restored from the journal, edited by hand, …"""
    has_edit: bool = False
    """A person edited the head, and the edit is not recorded yet."""


@runtime_checkable
class ReportsWaiting(Protocol):
    """A store whose calls may take long, and that reports why it waits."""

    def report_waiting(self, notify: Callable[[str], None], is_stopped: Callable[[], bool]) -> None:
        """Pass the reason of each wait to *notify*; once *is_stopped*, end calls within seconds."""


@runtime_checkable
class Store(Protocol):
    """Stores one run."""

    ttl_s: float
    """Lease of a claim, in seconds."""

    retry_for_s: float
    """How long a worker waits for a store that it can't reach; see `RemoteUnreachable`."""

    @property
    def state_path(self) -> Path:
        """Path of the head, for other tools to read."""

    def view(self) -> View:
        """Return the newest accepted head without taking the lock.

        Raises:
            CorruptState: the files do not give one clear state; nothing was changed.
        """

    def update(self, change: Change) -> Head:
        """Run *change* on the current head, accept its transition durably, return the new head.

        When this raises a `StateRefused`, nothing was accepted.
        """

    def history(self, after: int = 0) -> Iterator[dict[str, Any]]:
        """Yield the accepted facts, oldest first, as ``history --json`` prints them.

        Only those with revisions above *after*, which is cheaper than reading all of them.
        """

    def read_document(self, name: str) -> bytes | None:
        """Return the document *name* of the run, or None if there is none."""

    def keep_document(self, name: str, data: bytes) -> None:
        """Store *data* as the document *name*, durably; only within `update`, under its lock."""

    def forget_documents(self, prefix: str, keep: Collection[str]) -> None:
        """Remove the documents whose names start with *prefix*, except those in *keep*.

        Only within `update`, under its lock.
        """

    def take_notices(self) -> list[str]:
        """Return the notices since the last call: what was restored, migrated or edited by hand."""

    def close(self) -> None:
        """Close the descriptors of waiting and writing; the store may be used again."""

    def owner(self) -> Owner:
        """Return the owner that this process writes into its claims."""

    def liveness(self, claim: Claim) -> Liveness:
        """Return what is known about the holder of *claim*; may store an observation."""

    def beat(self, claim: Claim, number: int) -> None:
        """Renew the lease of *claim*; *number* counts up from 0.

        Raises:
            OSError: it could not be written; the lease keeps its old deadline.
        """

    def find_result_folder(self, name: str) -> Path:
        """Return the results folder *name*, which an attempt of any process may have made.

        Raises:
            CorruptState: no attempt's folder has such a name; *name* may come from a file that
                anyone can edit, and must not lead elsewhere.
        """

    def result_folder(self, step_index: int, token: int) -> Path:
        """Return the folder for the outputs of an attempt of this process.

        No other process can guess the name. The first process that writes there makes the folder.
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

        False: *timeout_s* passed, *wake_fd* became readable, or the holder of *claim* may have
        ended. Uses no CPU while it sleeps.
        """

    def wait_queue(self, positions: Collection[str]) -> WaitQueue:
        """Return the queue of the processes that work at *positions* (empty: at all of them)."""


class Agreement(StrEnum):
    """The peer's answer to a transition."""

    ACCEPTED = "accepted"
    """Append it."""
    LOST = "lost"
    """Another writer was faster. The files here are up to date now; decide again."""
    OVERTAKEN = "overtaken"
    """It was accepted, others have continued from it, and the files here have both."""


class Draft(Struct, frozen=True):
    """A transition that is decided and not yet accepted."""

    before: Head | None
    head: Head
    transition: Transition
    content: bytes
    """The new content of state.json."""
    line: bytes
    """The record, including the newline."""
    closing: bytes
    """What to write before the record if the journal ends in a torn line."""


class Peer(Protocol):
    """Must agree to each transition; all calls are made under the lock of the run's folder."""

    def catch_up(self) -> None:
        """Bring the folder up to date with newer state that this process knows."""

    def propose(self, draft: Draft) -> Agreement:
        """Get *draft* accepted, or find out that it can't be.

        Raises:
            StateRefused: it is not accepted, or its fate is unknown.
        """

    def confirm_append(self) -> None:
        """Note that the journal here has the transition that the peer agreed to."""
